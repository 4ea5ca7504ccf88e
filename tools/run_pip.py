"""Runs pip and shows in a few lines what it does, so that no step is silent for minutes.

    python tools/run_pip.py install --editable .

Only the standard library is used: nothing else is installed yet.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TextIO

LARGE_MB = 20  # without a terminal, only files from this size on get a line
DOWNLOAD = re.compile(r" *Downloading (?:\S*/)?(?P<file>\S+) \((?P<size>[\d.]+) (?P<unit>\w+)\)")
PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
LOOKED_AT = re.compile(r"(?:Collecting|Processing) (?:\S*/)?(\S+)")


def show_progress(lines: Iterable[str], output: TextIO) -> None:
    """Shows pip's output: on a terminal in one line that changes, elsewhere as a line per large step."""
    terminal, download = output.isatty(), ""

    def show(text: str, large: bool = False) -> None:
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            output.write(f"\r\033[K{f'  {text}'[:width]}")
        elif large:
            output.write(f"  {text}\n")
        output.flush()

    for line in lines:
        if found := DOWNLOAD.match(line):
            download = f"downloading {found['file']}, {found['size']} {found['unit']}"
            show(download, large=found["unit"] == "MB" and float(found["size"]) >= LARGE_MB)
        elif found := PROGRESS.match(line):
            done, size = map(int, found.groups())
            show(f"{download}: {100 * done // max(size, 1)} %")
        elif found := LOOKED_AT.match(line):
            show(f"looking at {found[1]}")
        elif line.startswith("Installing collected packages:"):
            show(f"installing {line.count(',') + 1} packages", large=True)
    if terminal:
        output.write("\r\033[K")


def run_with_progress(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Returns the exit status and standard error."""
    # Older versions of pip refuse the raw form of the progress bar.
    raw = {"PIP_PROGRESS_BAR": "raw"} if tuple(map(int, version("pip").split(".")[:2])) >= (24, 1) else {}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(
            command, env={**environment, **raw}, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout
            show_progress(process.stdout, sys.stdout)
        errors.seek(0)
        return process.returncode, errors.read()


def main() -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *sys.argv[1:]]
    status, errors = run_with_progress(command, os.environ)
    if status:
        sys.stderr.write(errors)
    sys.exit(status)


if __name__ == "__main__":
    main()
