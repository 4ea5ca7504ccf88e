"""docs/licences.md names every package that the wheel requires."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_required_package_has_its_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^\w-]", requirement)[0] for requirement in project["dependencies"]}
    named = set(re.findall(r"`([\w-]+)`", (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")))
    assert required <= named, required - named
