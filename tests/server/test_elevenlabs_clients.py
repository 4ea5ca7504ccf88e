"""ElevenLabs' SDK, and LiveKit's and Pipecat's plug-ins for it, against a real server with an aligner and a key."""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oscine.audio.clips import read_clip
from oscine.config import ServerConfig
from oscine.request import SpeechRequest
from tests.align.scripted_whisper import scripted_whisper
from tests.conftest import require_environment
from tests.server.live.live_client import server_of
from tests.server.scripted_engine import ScriptedEngine, spoken

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "clients" / "elevenlabs_clients.py"
TURN = "Turn one has words."
CASES: dict[str, dict[str, Any]] = {
    "convert": {"how": "convert", "text": "Made by the SDK.", "fields": {"seed": 3, "model_id": "eleven_flash_v2_5"}},
    "mp3": {"how": "convert", "text": "As an MP3 of the SDK.", "fields": {"output_format": "mp3_44100_128"}},
    "unknown voice": {"how": "convert", "text": "Nobody.", "voice": "fynch"},
    "wrong field": {"how": "convert", "text": "Nothing.", "fields": {"voice_settings": {"speed": 9}}},
    "wrong key": {"how": "convert", "text": "Nothing.", "key": "wrong"},
    "timestamps": {"how": "timestamps", "text": "With times."},
    "realtime": {"how": "realtime", "pieces": ["Realtime text ", "in pieces."]},
    "lists": {"how": "lists"},
    "livekit": {"how": "livekit", "text": "LiveKit has this whole.", "pieces": ["Livekit's turn ", "is here."]},
    "pipecat": {"how": "pipecat", "text": TURN},
    "pipecat_http": {"how": "pipecat_http", "text": "Over HTTP it has words."},
}
Answers = dict[str, Any]


class Runs:
    def __init__(self, answers: Answers, submitted: list[SpeechRequest]) -> None:
        self._answers, self._submitted = answers, submitted

    def answer(self, case: str) -> Answers:
        answer: Answers = self._answers[case]
        return answer

    def sound(self, case: str, name: str = "audio") -> bytes:
        answer = self.answer(case)
        assert "raised" not in answer, answer
        return base64.b64decode(answer[name])

    def made(self, text: str) -> bytes:
        """What the engine made of a text that may have come in pieces."""
        first = text.split()[0]
        seed = next(one.seed for one in self._submitted if one.text.split()[0] == first)
        return spoken(text, seed or 0, "finch")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    python = require_environment("clients", "the clients are") / "bin" / "python"
    folder, engine = tmp_path_factory.mktemp("aligner"), ScriptedEngine(slots=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "library")
        config = ServerConfig(
            aligner=str(scripted_whisper(folder)), aligner_wait_s=600, api_keys=("right",), live_pause_s=3600
        )
        with server_of(engine, config) as server:
            asked = {name: {"url": server.url, "key": "right", **case} for name, case in CASES.items()}
            done = subprocess.run(
                [python, SCRIPT],
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                timeout=600,
                env={**os.environ, "NO_PROXY": "127.0.0.1", "LOGURU_LEVEL": "WARNING"},
            )
    engine.stop()
    assert done.returncode == 0, done.stderr[-4000:]
    return Runs(json.loads(done.stdout.splitlines()[-1]), engine.requests)


def test_the_elevenlabs_sdk_receives_the_exact_samples(runs: Runs) -> None:
    assert runs.sound("convert") == runs.sound("convert", "streamed") == spoken("Made by the SDK.", 3, "finch")
    assert read_clip(runs.sound("mp3")).rate_hz == 44_100


@pytest.mark.parametrize(
    ("case", "error", "status", "words"),
    [
        ("unknown voice", "ApiError", 404, "did you mean 'finch'?"),
        ("wrong field", "UnprocessableEntityError", 422, "from 0.25 to 4"),
        ("wrong key", "ApiError", 401, "the API key is unknown"),
    ],
)
def test_the_elevenlabs_sdk_raises_its_own_errors_with_our_message(
    runs: Runs, case: str, error: str, status: int, words: str
) -> None:
    answer = runs.answer(case)
    assert (answer["raised"][0], answer["status"]) == (error, status), answer
    detail = answer["body"]["detail"]
    assert words in (detail[0]["msg"] if isinstance(detail, list) else detail["message"])


def test_the_elevenlabs_sdk_receives_times_of_characters(runs: Runs) -> None:
    answer = runs.answer("timestamps")
    assert runs.sound("timestamps") == spoken("With times.", 3, "finch")
    assert "".join(answer["characters"]) == "".join(answer["streamed_characters"]) == "With times."
    assert answer["starts"] == sorted(answer["starts"])


def test_the_elevenlabs_sdk_speaks_text_in_pieces(runs: Runs) -> None:
    sound, made = runs.sound("realtime"), runs.made("Realtime text in pieces.")
    assert sound[: len(made)] == made


def test_the_elevenlabs_sdk_lists_voices_and_models(runs: Runs) -> None:
    assert runs.answer("lists") == {
        "voices": ["wren", "finch"],
        "found": ["finch"],
        "voice": "finch",
        "models": ["scripted"],
        "tier": "self-hosted",
        "limit": 2**31 - 1,
    }


def test_livekits_plugin_speaks_whole_texts_and_streams_with_a_timed_transcript(runs: Runs) -> None:
    made = runs.made("LiveKit has this whole.")
    assert runs.sound("livekit", "whole")[: len(made)] == made and runs.answer("livekit")["voices"] == ["wren", "finch"]
    made = runs.made("Livekit's turn is here.")
    assert runs.sound("livekit")[: len(made)] == made
    words = runs.answer("livekit")["words"]
    assert "".join(word for word, _, _ in words).split() == ["Livekit's", "turn", "is", "here."]
    times = [time for _, start, end in words for time in (start, end)]
    assert times == sorted(times) and times[-1] <= len(runs.sound("livekit")) / 48_000


@pytest.mark.parametrize("case", ["pipecat", "pipecat_http"])
def test_pipecats_services_speak_and_learn_what_was_said(runs: Runs, case: str) -> None:
    text = CASES[case]["text"]
    made = runs.made(text)
    assert runs.sound(case)[: len(made)] == made
    answer = runs.answer(case)
    assert answer["errors"] == [] and " ".join(answer["words"]).split() == text.split()
