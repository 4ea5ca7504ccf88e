"""Runs the code that the page offers, as a user does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import playwright

FORMS = ("curl", "python", "javascript")
FORMATS = ("wav", "mp3", "opus", "aac", "flac")


def start(form: str, code: str, folder: Path, key: str = "") -> "subprocess.Popen[bytes]":
    """Starts it: pasted into a shell, or saved to a file."""
    node = shutil.which("node") or str(Path(playwright.__file__).parent / "driver/node")
    (folder / "speech.mjs").write_text(code, "utf-8")
    (folder / "speech.py").write_text(code, "utf-8")
    commands = {"curl": ["sh", "-c", code], "python": [sys.executable, "speech.py"], "javascript": [node, "speech.mjs"]}
    environment = {**os.environ, "OSCINE_API_KEY": key, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    return subprocess.Popen(commands[form], cwd=folder, env=environment)


def run(form: str, code: str, folder: Path, key: str = "") -> None:
    assert start(form, code, folder, key).wait(600) == 0
