"""The WebSocket examples of the documentation run when pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.live.live_client import server_of
from tests.server.scripted_engine import FRAME_SAMPLES, ScriptedEngine

ROOT = Path(__file__).parents[3]
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[str]:
    return [code for code in _PYTHON.findall((ROOT / page).read_text("utf-8")) if "websockets" in code]


@pytest.mark.parametrize("page", ["docs/api.md", "README.md"])
def test_pasted_websocket_examples_write_the_speech_to_a_file(page: str, tmp_path: Path) -> None:
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
            assert len(file.read_bytes()) == 44 + 2 * FRAME_SAMPLES * len("Hello there.")
            file.unlink()
    engine.stop()
