"""LiveKit's plug-in reads the word timestamps of a live session."""

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest

from oscine.config import ServerConfig
from tests.align.scripted_whisper import scripted_whisper
from tests.conftest import require_environment
from tests.server.live.live_client import server_of
from tests.server.scripted_engine import ScriptedEngine, spoken

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "clients" / "livekit_baseten.py"
TEXT = "Hello there - you."


def test_livekits_baseten_plugin_gets_a_timed_transcript(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = require_environment("clients", "the clients are") / "bin" / "python"
    monkeypatch.syspath_prepend(tmp_path / "library")
    with server_of(engine, ServerConfig(aligner=str(scripted_whisper(tmp_path)), aligner_wait_s=600)) as server:
        url = server.url.replace("http", "ws") + "/v1/audio/speech/stream"
        fields = {"voice": "wren", "task_type": "CustomVoice", "word_timestamps": True, "extra_config": {"seed": 3}}
        case = {"url": url, "fields": fields, "pieces": ["Hello ", "there ", "- you."]}
        done = subprocess.run(
            [python, SCRIPT],
            input=json.dumps({"words": case}),
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])["words"]
    assert "raised" not in answer, answer
    audio = base64.b64decode(answer["audio"])
    assert audio.startswith(spoken(TEXT, 3, "wren"))  # LiveKit may add 10 ms of silence at the end
    assert [word.strip() for word, _, _ in answer["words"]] == TEXT.split()
    times = [time for _, start, end in answer["words"] for time in (start, end)]
    assert times == sorted(times) and times[-1] <= len(audio) / 48_000
