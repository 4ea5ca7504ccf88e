"""docs/architecture.md shows which files a request really passes, and how few."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_trace_of_a_request_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "tools/request_trace.py", "--check"], cwd=ROOT)
    assert done.returncode == 0, "run `python tools/request_trace.py`"


def test_the_page_is_read_in_five_minutes() -> None:
    words = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split()
    assert len(words) < 1500
