"""requirements.lock pins all that the package needs, but for torch, by hash, and names no place to get it from."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
ENTRY = re.compile(r"^([a-z0-9.-]+)==([^ ;\\]+)[^\n]*\\((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)$", re.MULTILINE)


def test_every_line_is_a_pinned_version_with_its_hashes() -> None:
    rest = ENTRY.sub("", LOCK)
    assert [line for line in rest.splitlines() if line and not line.startswith("#")] == []
    assert "://" not in LOCK and "index" not in LOCK


def test_every_requirement_but_torch_is_pinned_to_a_version_that_it_allows() -> None:
    pinned: dict[str, list[Version]] = {}
    for name, version, _ in ENTRY.findall(LOCK):
        pinned.setdefault(name, []).append(Version(version))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {canonicalize_name(one.name): one for one in map(Requirement, project["dependencies"])}
    del needed["torch"]
    wrong = {
        name: str(one)
        for name, one in needed.items()
        if not pinned.get(name) or not all(one.specifier.contains(version) for version in pinned[name])
    }
    assert not wrong, f"run `make lock`: {wrong}"


def test_the_image_installs_the_lock_by_its_hashes() -> None:
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"pip install --require-hashes -r requirements\.lock$", dockerfile, re.MULTILINE)
