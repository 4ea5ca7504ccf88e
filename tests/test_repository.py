"""What runs in GitHub's workflows exists here, and the files in .github are valid."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, require_environment

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def commands(workflow: Path) -> list[str]:
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_of_a_workflow_is_a_make_target_or_a_script_of_the_repository(workflow: Path) -> None:
    assert commands(workflow)
    for command in commands(workflow):
        program, *arguments = command.split()
        if program == "make":
            targets = [one for one in arguments if "=" not in one]
            missing = [target for target in targets if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)]
            assert not missing, f"{workflow.name} calls make {missing}"
        else:
            assert program == "bash"
            assert (ROOT / arguments[0]).is_file(), f"{workflow.name} calls {arguments[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("file", [*WORKFLOWS, *FORMS], ids=lambda path: path.stem)
def test_files_of_github_follow_their_schemas(file: Path) -> None:
    python = require_environment("linters", "the checkers of deploy/ are") / "bin" / "python"
    schema = "vendor.github-workflows" if file in WORKFLOWS else "vendor.github-issue-forms"
    done = subprocess.run(
        [python, "-m", "check_jsonschema", "--builtin-schema", schema, file],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
