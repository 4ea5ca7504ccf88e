"""The WebSocket examples of the documentation run when pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.file_length import assert_length
from tests.server.live.live_client import server_of
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ, ScriptedEngine

ROOT = Path(__file__).parents[3]
_PYTHON = re.compile(r"^```python(?: title=[^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[str]:
    return [code for code in _PYTHON.findall((ROOT / page).read_text("utf-8")) if "websockets" in code]


@pytest.mark.parametrize("page", ["docs/api.md", "docs/guides/live_text.md", "README.md"])
def test_pasted_websocket_examples_write_a_file_that_every_tool_reads(page: str, tmp_path: Path) -> None:
    codes = examples(page)
    assert codes or page == "README.md"
    engine = ScriptedEngine()
    with server_of(engine) as server:
        for code in codes:
            local = code.replace("127.0.0.1:8000", server.url.removeprefix("http://"))
            environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
            subprocess.run(
                [sys.executable, "-"], input=local, text=True, cwd=tmp_path, env=environment, check=True, timeout=600
            )
            (file,) = tmp_path.iterdir()
            assert_length(file.read_bytes(), FRAME_SAMPLES * len("Hello there."), RATE_HZ)
            file.unlink()
    engine.stop()
