"""Home Assistant's way to a voice: the proxy wyoming-openai against a real server."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.conftest import require_client
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import serving

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "clients" / "wyoming" / "home_assistant.py"
TEXTS = {"whole": "The lights are on.", "in_pieces": "It is warm outside today. The windows are open in the kitchen."}


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(slots=16)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def answers(engine: ScriptedEngine) -> dict[str, Any]:
    python = require_client("wyoming", "Python 3.12") / "bin" / "python"
    with serving(build_app(engine, CARD, ServerConfig())) as url:
        done = subprocess.run(
            [python, SCRIPT],
            input=json.dumps({"url": url, "voice": "wren", **TEXTS}),
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def received(answer: dict[str, Any]) -> bytes:
    assert "error" not in answer, answer
    assert answer["rates"] == [RATE_HZ]
    return base64.b64decode(answer["audio"])


def test_wyoming_lists_our_voices(answers: dict[str, Any]) -> None:
    assert "wren" in answers["voices"]


def test_wyoming_speaks_a_whole_text(answers: dict[str, Any], engine: ScriptedEngine) -> None:
    (request,) = [request for request in engine.requests if request.text == TEXTS["whole"]]
    assert received(answers["whole"]) == spoken(request.text, request.seed or 0, "wren")


def test_wyoming_speaks_while_the_text_is_written(answers: dict[str, Any], engine: ScriptedEngine) -> None:
    sentences = [request.text for request in engine.requests if request.text != TEXTS["whole"]]
    spoken_text = {"It is warm outside today.", "The windows are open in the kitchen."}
    assert {sentence.strip() for sentence in sentences} == spoken_text
    assert len(received(answers["in_pieces"])) == 2 * FRAME_SAMPLES * sum(map(len, sentences))
