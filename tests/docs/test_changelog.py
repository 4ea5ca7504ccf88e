"""The version is stated once; the changelog and the wheel agree with it. (tests/commands/test_main.py: the command.)"""

import re
import tomllib

from oscine import __version__
from tests.docs.live_server import ROOT

HEADING = re.compile(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d{2}-\d{2})\)$")


def headings() -> list[tuple[str, str]]:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    found = [(line, HEADING.match(line)) for line in lines if line.startswith("## ")]
    assert all(match for _, match in found), f"not '## VERSION (DATE or unreleased)': {found}"
    return [(match[1], match[2]) for _, match in found if match]


def test_the_newest_section_of_the_changelog_is_the_version_of_the_package() -> None:
    assert headings()[0][0] == __version__


def test_only_the_newest_section_is_unreleased_and_versions_descend() -> None:
    versions = [tuple(map(int, version.split("."))) for version, _ in headings()]
    assert versions == sorted(set(versions), reverse=True)
    assert "unreleased" not in [date for _, date in headings()[1:]]


def test_the_wheel_takes_its_version_from_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in settings["project"]["dynamic"]
    source = (ROOT / settings["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    assert f'__version__ = "{__version__}"\n' in source
