"""JavaScript clients against a real server: each receives the engine's audio. tests/clients/node has their scripts."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oscine.audio.clips import read_clip
from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.conftest import require_client
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, ScriptedEngine, spoken
from tests.server.serving import eventually, serving

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[1] / "clients" / "node"
PROCESS_S = 600  # far more than needed: a hung client must not hang the tests
PCM = {"model": "tts-1", "voice": "alloy", "response_format": "pcm"}
LONG = "One long sentence after the other, until the text is cut into segments. " * 4

# `at` names the server: `locked` needs a key, `slow` takes time.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "openai_npm": {
        "pcm": {"how": "create", "fields": {**PCM, "input": "As pcm."}},
        "wav": {"how": "create", "fields": {**PCM, "input": "As wav.", "response_format": "wav"}},
        "no format": {"how": "create", "fields": {"model": "tts-1", "voice": "alloy", "input": "As you like it."}},
        "stream": {"how": "stream", "fields": {**PCM, "input": LONG, "seed": 5}},
        "first chunk": {"how": "first_chunk", "at": "slow", "fields": {**PCM, "input": "word " * 500}},
        "fields": {"how": "create", "fields": {**PCM, "voice": {"id": "finch"}, "input": "With a seed.", "seed": 7}},
        "models": {"how": "models"},
        "unknown voice": {"how": "create", "fields": {**PCM, "voice": "wrem", "input": "Nobody."}},
        "wrong key": {"how": "create", "at": "locked", "key": "wrong", "fields": {**PCM, "input": "Who is there?"}},
    },
    "ai_sdk": {
        "mp3": {"fields": {"model": "tts-1", "voice": "alloy", "text": "The AI SDK speaks."}},
        "wav": {"fields": {"model": "tts-1", "voice": "wren", "text": "The AI SDK as wav.", "outputFormat": "wav"}},
        "options": {
            "fields": {
                "model": "gpt-4o-mini-tts",
                "voice": "nova",
                "text": "The AI SDK, slowly.",
                "instructions": "slowly",
                "language": "en",
                "speed": 1.5,
            }
        },
        "unknown voice": {"fields": {"model": "tts-1", "voice": "wrem", "text": "Nobody."}},
    },
}


@dataclass
class Runs:
    """What the clients got."""

    plain: ScriptedEngine
    slow: ScriptedEngine
    answers: dict[str, dict[str, Any]]

    def received(self, client: str, case: str) -> bytes:
        answer = self.answers[client][case]
        assert "raised" not in answer, answer
        return base64.b64decode(answer["audio"])

    def made(self, mark: str) -> bytes:
        (request,) = [request for request in self.plain.requests if mark in request.text]
        return spoken(request.text, request.seed or 0, request.voice)


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    folder = require_client("node", "npm")
    plain, slow = ScriptedEngine(slots=16), ScriptedEngine(frame_s=0.02)
    servers = {
        "plain": (plain, ServerConfig(segment_chars=60)),
        "locked": (plain, ServerConfig(api_keys=("right",))),
        "slow": (slow, ServerConfig(segment_chars=10_000)),
    }
    with contextlib.ExitStack() as stack:
        for engine in (plain, slow):
            stack.callback(engine.stop)
        urls = {
            name: stack.enter_context(serving(build_app(engine, CARD, config)))
            for name, (engine, config) in servers.items()
        }
        yield Runs(plain, slow, {client: run_client(folder, client, urls) for client in CASES})


def run_client(folder: Path, client: str, urls: dict[str, str]) -> dict[str, Any]:
    cases = {name: {**case, "url": urls[case.get("at", "plain")]} for name, case in CASES[client].items()}
    done = subprocess.run(
        ["node", SCRIPTS / f"{client}.mjs", folder],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_the_openai_npm_package_receives_the_exact_samples(runs: Runs) -> None:
    assert runs.received("openai_npm", "pcm") == runs.made("As pcm.")
    headers = runs.answers["openai_npm"]["wav"]["headers"]
    wav = runs.received("openai_npm", "wav")
    assert int(headers["content-length"]) == len(wav) and wav[44:] == runs.made("As wav.")


def test_the_openai_npm_package_receives_mp3_by_default(runs: Runs) -> None:
    assert runs.answers["openai_npm"]["no format"]["headers"]["content-type"] == "audio/mpeg"
    assert read_clip(runs.received("openai_npm", "no format")).duration_s > 0


def test_a_long_text_streams_to_the_openai_npm_package(runs: Runs) -> None:
    assert runs.answers["openai_npm"]["stream"]["chunks"] > 1
    segments = [
        request.text for request in runs.plain.requests if request.seed == 5 or "after the other" in request.text
    ]
    assert len(segments) > 1
    assert len(runs.received("openai_npm", "stream")) == 2 * FRAME_SAMPLES * sum(map(len, segments))


def test_the_openai_npm_package_frees_its_slot_when_it_leaves(runs: Runs) -> None:
    assert runs.received("openai_npm", "first chunk")
    eventually(lambda: runs.slow.cancelled == 1)


def test_our_own_fields_pass_through_the_openai_npm_package(runs: Runs) -> None:
    assert runs.received("openai_npm", "fields") == spoken("With a seed.", 7, "finch")
    assert runs.answers["openai_npm"]["fields"]["headers"]["x-seed"] == "7"


def test_the_openai_npm_package_lists_and_retrieves_models(runs: Runs) -> None:
    answer = runs.answers["openai_npm"]["models"]
    assert answer["ids"][0] == answer["one"]["id"] == "scripted" and "tts-1" in answer["ids"]


def test_the_openai_npm_package_raises_the_right_errors(runs: Runs) -> None:
    answers = runs.answers["openai_npm"]
    voice, key = answers["unknown voice"], answers["wrong key"]
    assert (voice["raised"], voice["status"], voice["param"]) == ("BadRequestError", 400, "voice")
    assert "did you mean 'wren'?" in voice["message"]
    assert (key["raised"], key["status"]) == ("AuthenticationError", 401)


def test_the_ai_sdk_speaks(runs: Runs) -> None:
    answer = runs.answers["ai_sdk"]["mp3"]
    assert (answer["format"], answer["media_type"], answer["warnings"]) == ("mp3", "audio/mpeg", [])
    assert read_clip(runs.received("ai_sdk", "mp3")).duration_s > 0
    assert runs.received("ai_sdk", "wav")[44:] == runs.made("The AI SDK as wav.")


def test_the_ai_sdk_passes_its_options_on(runs: Runs) -> None:
    assert runs.received("ai_sdk", "options")
    (request,) = [request for request in runs.plain.requests if "The AI SDK, slowly." in request.text]
    assert request.instructions == "slowly"


def test_the_ai_sdk_shows_the_error(runs: Runs) -> None:
    answer = runs.answers["ai_sdk"]["unknown voice"]
    assert answer["status"] == 400 and "did you mean 'wren'?" in answer["body"]
