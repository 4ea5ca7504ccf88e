"""The table of the redesign is the one that its results give."""

from benchmarks.compare_servers import compared
from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "results" / "redesign"


def test_the_table_of_the_redesign_is_made_from_its_results() -> None:
    made = compared(FOLDER / "server-before.json", FOLDER / "server-after.json")
    assert len(made.splitlines()) == 7
    assert made in (FOLDER / "README.md").read_text(encoding="utf-8"), "run `python -m benchmarks.compare_servers`"
