"""What runs in GitHub's workflows exists here, and the files in .github are valid."""

import json
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


MAX_LINES, MIN_LINES = 600, 60
MAX_SMALL, MAX_FILES = 25, 265  # of src/, without empty __init__.py; of src/oscine, with them
# Files below MIN_LINES and what each is for. An empty __init__.py makes a folder a package, and needs no reason.
SMALL = {
    "oscine/__main__.py": "python -m oscine",
    "oscine/align/__init__.py": "says what the folder is",
    "oscine/audio/formats.py": "names that the command line needs before it loads numpy",
    "oscine/audio/pcm.py": "arrays and levels that every part imports",
    "oscine/commands/official_codes.py": "a script for a Python that has no Oscine",
    "oscine/commit.py": "shared with oscine_bench, which may import little",
    "oscine/deploy/__init__.py": "says what the folder is",
    "oscine/deploy/tritonserver/__init__.py": "says what the folder is",
    "oscine/deploy/tritonserver/codec_model.py": "a model that Triton loads by this name, without an engine",
    "oscine/engine/remote/__init__.py": "the name of the worker's module, which must not be imported to spawn it",
    "oscine/export/__init__.py": "public names, whose modules load torch on first use",
    "oscine/kernels/__init__.py": "whether the kernels can run, before any is imported",
    "oscine/kernels/cuda/__init__.py": "says what the folder is",
    "oscine/server/__init__.py": "says what the folder is",
    "oscine/server/dialects/vllm_omni.py": "one protocol, found by its name",
    "oscine/speech/name_lookups.py": "its neighbor, clips.py, is long",
    "oscine/serving/environment.py": "what the command line needs before it loads the settings",
    "oscine_bench/__init__.py": "says what the folder is",
    "oscine_bench/result_schema.py": "the file format of results, which oscine_eval shares",
    "oscine_eval/__init__.py": "says what the folder is",
    "oscine_eval/optional.py": "errors of libraries that may be missing, also in another Python",
}


def test_files_have_at_most_600_lines_and_small_ones_a_reason() -> None:
    lengths = {
        file.relative_to(ROOT / "src").as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in (ROOT / "src").rglob("*.py")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    small = {name for name, lines in lengths.items() if 0 < lines < MIN_LINES}
    assert small == SMALL.keys(), "merge it with a neighbor, or say here why it stands alone"
    assert len(small) <= MAX_SMALL
    empty = [name for name, lines in lengths.items() if not lines]
    assert all(name.endswith("/__init__.py") for name in empty)
    assert sum(name.startswith("oscine/") for name in lengths) <= MAX_FILES


# Results of a source that this history does not have, and why they are kept.
WITHOUT_COMMIT = {
    "alignment.json": "1ff1dfe, a commit that was rebased away; recordings and weights of others are needed again",
    "attacks.json": "a525dc0-dirty, measured before the attacks themselves were committed, as d156b1e",
    "cpu.json": "a11956f, a clean commit that was rebased, as af51a5d",
    "eval-written.json": "d7d471f-dirty, whose changes were to the training; rules for texts have been added since",
    "memory.json": "computed from the source, no measurement",
    "peers.json": "other servers, whose versions it names",
    "text-cost.json": "863e9da-dirty, a commit that was rebased away, with another page of the guide",
    "soak-cpu.json": "addbd56-dirty, measured with uncommitted changes; a new one needs an idle machine",
}


def test_each_result_names_a_commit_of_this_history() -> None:
    told = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if told.stdout.strip() != "false":
        pytest.skip("needs the whole history")
    history = subprocess.check_output(["git", "rev-list", "HEAD"], cwd=ROOT, text=True).split()
    known = {commit[:7] for commit in history}
    results = {
        path.name: str(json.loads(path.read_text(encoding="utf-8")).get("commit"))
        for path in (ROOT / "docs" / "results").rglob("*.json")
    }
    unknown = {name: commit for name, commit in results.items() if len(commit) > 12 or commit[:7] not in known}
    assert unknown.keys() == WITHOUT_COMMIT.keys(), "measure on a clean commit, or say why not"
    for name, commit in unknown.items():
        assert commit == "None" or WITHOUT_COMMIT[name].startswith(commit)
