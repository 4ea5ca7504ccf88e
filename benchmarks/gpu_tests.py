"""Runs the tests that need a GPU, and saves how many passed, failed and were skipped.

    python -m benchmarks.gpu_tests --out docs/results [--workers 8] [tests/kernels tests/runner]

The exit status is pytest's. A run that is killed leaves no result.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.results import read_arguments, save

_OF_MODULE = re.compile(r"'Skipped: (.*)'\)$")


def command(report: Path, workers: int, paths: list[str]) -> list[str]:
    words = ["-m", "gpu", "-q", "-n", str(workers), "--dist", "loadfile", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *words, "--continue-on-collection-errors", f"--junitxml={report}", *paths]


def outcomes(report: Path) -> dict[str, Any]:
    """Reads the outcomes from pytest's JUnit file. A test that fails and then fails to clean up counts once."""
    failed, skipped, reasons, passed = [], 0, Counter[str](), 0
    root = ElementTree.parse(report).getroot()
    for case in root.iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}.{case.get('name')}".strip("."))
        elif skip is not None:
            skipped += 1
            reasons[_reason(skip)] += 1
        else:
            passed += 1
    failures = sorted(set(failed))
    counts = {"passed": passed, "failed": len(failures), "skipped": skipped}
    return {**counts, "failures": failures, "reasons_of_skips": dict(reasons.most_common())}


def _reason(skip: ElementTree.Element) -> str:
    """That of a whole module stands in the text, behind a path of this machine."""
    of_module = _OF_MODULE.search(skip.text or "")
    return of_module[1] if of_module else skip.get("message", "")


def main() -> None:
    paths = {"nargs": "*", "help": "of tests; default: all"}
    options = read_arguments(__doc__, positional=["paths"], workers=8, paths=paths)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        status = subprocess.run(command(report, options.workers, options.paths), check=False).returncode
        if not report.exists():
            sys.exit(f"pytest ended with status {status} and left no report")
        figures = outcomes(report)
    print(save(options.out, "gpu-tests", {**figures, "exit": status}, "torch", "triton", "pytest"))
    sys.exit(status)


if __name__ == "__main__":
    main()
