"""Clients that nobody here wrote, against a real server: what each of them hears is what the engine made.

They live in an environment of their own (`make clients`). All cases of a client run in one process, and the processes
run side by side, as importing such a client takes seconds; the tests then look at what each case got.
"""

import base64
import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import require_environment
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually, serving

from oscine.audio import Clip, read_clip, resample
from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.types import SpeechRequest

ROOT = Path(__file__).parents[2]
PROCESS_S = 120  # far more than they need: a hung client must not hang the tests

Case = dict[str, Any]
Answer = dict[str, Any]

OPENAI = {"model": "tts-1", "voice": "alloy"}
PCM = {**OPENAI, "response_format": "pcm"}
LOSSLESS, LOSSY = ("pcm", "wav", "flac"), ("mp3", "opus", "aac")
LIVEKIT = [(model, form) for model in ("gpt-4o-mini-tts", "tts-1") for form in ("pcm", "wav", "mp3")]


def long_text(client: str) -> str:
    return " ".join(f"{client} has sentence number {n} to say, which is long enough." for n in range(4))


def openai_case(how: str, text: str, at: str = "plain", key: str = "any", **fields: Any) -> Case:
    return {"how": how, "at": at, "key": key, "fields": {"input": text, **fields}}


# `at` names the server, see `Meeting`. Every case has a text of its own, by which the engine's request is found.
CASES: dict[str, dict[str, Case]] = {
    "openai_sdk": {
        **{form: openai_case("create", f"As {form}.", **OPENAI, response_format=form) for form in LOSSLESS + LOSSY},
        "no format": openai_case("create", "As you like it.", **OPENAI),
        "stream": openai_case("stream", long_text("OpenAI"), **PCM),
        "first chunk": openai_case("first_chunk", "word " * 500, at="slow", **PCM),
        "events": openai_case("events", long_text("Events"), **PCM),
        "fields": openai_case(
            "create",
            "With more fields.",
            **{**PCM, "voice": {"id": "finch"}},
            instructions="slowly",
            extra_body={"seed": 7, "language": "English", "user": "somebody"},
        ),
        "unknown voice": openai_case("create", "Nobody.", **{**PCM, "voice": "wrem"}),
        "unknown model": openai_case("create", "Nothing.", **{**PCM, "model": "whisper-1"}),
        "unknown field": openai_case("create", "Nothing.", **PCM, extra_body={"sede": 7}),
        "wrong key": openai_case("create", "Who is there?", at="locked", key="wrong", **PCM),
        "right key": openai_case("create", "I am here.", at="locked", key="right", **PCM),
        "again": {**openai_case("again", "At last.", at="narrow", **PCM), "held": {"input": "word " * 500, **PCM}},
        "break": openai_case("create", "Hello !break there.", **PCM),
    },
    "litellm_sdk": {
        "pcm": {"at": "plain", "fields": {**PCM, "model": "openai/scripted", "input": "LiteLLM as pcm."}},
        "no format": {"at": "plain", "fields": {**OPENAI, "model": "openai/tts-1", "input": "LiteLLM."}},
        "unknown voice": {"at": "plain", "fields": {"model": "openai/tts-1", "voice": "wrem", "input": "Nobody."}},
    },
    "livekit_plugin": {
        **{
            f"{model} {form}": {
                "at": "plain",
                "text": f"LiveKit's {model} as {form}.",
                "fields": {"model": model, "response_format": form, "instructions": "slowly"},
            }
            for model, form in LIVEKIT
        },
        "long": {"at": "plain", "text": long_text("LiveKit"), "fields": {"response_format": "pcm"}},
        "unknown voice": {"at": "plain", "text": "Nobody.", "fields": {"voice": "wrem"}},
    },
    "pipecat_service": {
        "speak": {"at": "plain", "text": "Pipecat speaks.", "fields": {"voice": "nova", "instructions": "slowly"}},
        "long": {"at": "plain", "text": long_text("Pipecat"), "fields": {}},
        "tokens": {"at": "plain", "text": long_text("Tokens"), "fields": {}, "tokens": True},
        "refused": {"at": "plain", "text": "Please !refuse this.", "fields": {}},
    },
}


@dataclass
class Meeting:
    """All clients and the servers they meet. `locked` wants a key; `narrow` has one stream for all."""

    plain: ScriptedEngine
    slow: ScriptedEngine
    processes: dict[str, Future[subprocess.CompletedProcess[str]]]

    def answer(self, client: str, case: str) -> Answer:
        done = self.processes[client].result()
        assert done.returncode == 0, done.stderr[-4000:]
        answer: Answer = json.loads(done.stdout.splitlines()[-1])[case]
        return answer

    def heard(self, client: str, case: str) -> bytes:
        answer = self.answer(client, case)
        assert "raised" not in answer, answer
        return base64.b64decode(answer["audio"])

    def requests(self, mark: str) -> list[SpeechRequest]:
        return [request for request in self.plain.submitted if mark in request.text]

    def made(self, mark: str) -> list[bytes]:
        return [spoken(request.text, request.seed or 0, request.voice) for request in self.requests(mark)]


@pytest.fixture(scope="module")
def meeting() -> Iterator[Meeting]:
    python = require_environment("clients", "the clients are") / "bin" / "python"
    plain, slow, narrow = ScriptedEngine(slots=16), ScriptedEngine(frame_s=0.02), ScriptedEngine(frame_s=0.02)
    configs = {
        "plain": (plain, ServerConfig(segment_chars=60)),
        "locked": (plain, ServerConfig(api_keys=("right",))),
        "slow": (slow, ServerConfig(segment_chars=10_000)),
        "narrow": (narrow, ServerConfig(segment_chars=10_000, streams_per_key=1)),
    }
    with contextlib.ExitStack() as stack:
        for engine in (plain, slow, narrow):
            stack.callback(engine.stop)
        urls = {
            name: stack.enter_context(serving(build_app(engine, CARD, config)))
            for name, (engine, config) in configs.items()
        }
        with ThreadPoolExecutor(len(CASES)) as pool:  # left when all of them have ended
            processes = {client: pool.submit(run_client, python, client, urls) for client in CASES}
        yield Meeting(plain, slow, processes)


def run_client(python: Path, client: str, urls: dict[str, str]) -> subprocess.CompletedProcess[str]:
    cases = {name: {**case, "url": urls[case["at"]]} for name, case in CASES[client].items()}
    own = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    own["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import fetches a price list
    return subprocess.run(
        [python, ROOT / "tests" / "clients" / f"{client}.py"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        env={**os.environ, **own},
    )


def samples_of(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768


def assert_sounds_like(heard: Clip, pcm: bytes) -> None:
    """What a lossy format leaves of a sound: its length but for some padding, and its shape but for some delay."""
    expected, samples = samples_of(pcm), resample(heard, RATE_HZ).samples
    padding_s = (len(samples) - len(expected)) / RATE_HZ
    assert -0.01 < padding_s < 0.1, padding_s  # a lost frame is 80 ms
    size = len(samples) + len(expected)
    at_every_delay = np.fft.irfft(np.fft.rfft(samples, size) * np.conj(np.fft.rfft(expected, size)), size)
    likeness = at_every_delay.max() / np.linalg.norm(samples) / np.linalg.norm(expected)
    assert likeness > 0.95, likeness


def assert_joined(heard: bytes, parts: list[bytes]) -> None:
    """Every sample of every segment, in order; 5 ms on either side of a joint are faded."""
    assert len(parts) > 2
    near = np.zeros(len(heard) // 2, bool)
    for border in np.cumsum([len(part) // 2 for part in parts])[:-1]:
        near[border - 120 : border + 120] = True
    expected = b"".join(parts)
    assert len(heard) == len(expected)
    assert (samples_of(heard)[~near] == samples_of(expected)[~near]).all()


# --- openai ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", LOSSLESS)
def test_the_openai_sdk_gets_the_engines_very_samples(meeting: Meeting, form: str) -> None:
    heard = meeting.heard("openai_sdk", form)
    if form != "pcm":
        heard = np.rint(read_clip(heard).samples * 32768).astype("<i2").tobytes()
    assert [heard] == meeting.made(f"As {form}.")


@pytest.mark.parametrize("form", LOSSY)
def test_the_openai_sdk_gets_lossy_formats_that_sound_like_it(meeting: Meeting, form: str) -> None:
    (made,) = meeting.made(f"As {form}.")
    assert_sounds_like(read_clip(meeting.heard("openai_sdk", form)), made)


def test_without_a_format_the_openai_sdk_gets_mp3(meeting: Meeting) -> None:
    assert meeting.answer("openai_sdk", "no format")["headers"]["content-type"] == "audio/mpeg"
    (made,) = meeting.made("As you like it.")
    assert_sounds_like(read_clip(meeting.heard("openai_sdk", "no format")), made)


def test_a_long_text_streams_to_the_openai_sdk_in_pieces_and_whole(meeting: Meeting) -> None:
    assert meeting.answer("openai_sdk", "stream")["chunks"] > 1
    assert_joined(meeting.heard("openai_sdk", "stream"), meeting.made("OpenAI has sentence"))


def test_the_openai_sdk_hears_the_beginning_before_the_end_is_made(meeting: Meeting) -> None:
    assert meeting.heard("openai_sdk", "first chunk")
    # It left with its first chunk: had everything been made by then, nothing would be there to cancel.
    eventually(lambda: meeting.slow.cancelled == 1)


def test_the_openai_sdk_hands_over_events(meeting: Meeting) -> None:
    answer = meeting.answer("openai_sdk", "events")
    assert answer["headers"]["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer["lines"] if line]
    deltas = [base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta"]
    assert_joined(b"".join(deltas), meeting.made("Events has sentence"))
    assert events[-1]["type"] == "speech.audio.done"
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0


def test_fields_of_ours_pass_through_the_openai_sdk(meeting: Meeting) -> None:
    (request,) = meeting.requests("With more fields.")
    assert (request.voice, request.instruct, request.language, request.seed) == ("finch", "slowly", "english", 7)
    assert meeting.heard("openai_sdk", "fields") == spoken("With more fields.", 7, "finch")
    headers = meeting.answer("openai_sdk", "fields")["headers"]
    assert (headers["x-seed"], headers["x-ignored-fields"]) == ("7", "user")


@pytest.mark.parametrize(
    ("case", "error", "status", "param", "words"),
    [
        ("unknown voice", "BadRequestError", 400, "voice", "did you mean 'wren'?"),
        ("unknown model", "NotFoundError", 404, "model", "'whisper-1'"),
        ("unknown field", "UnprocessableEntityError", 422, "sede", "did you mean 'seed'?"),
        ("wrong key", "AuthenticationError", 401, None, "not known here"),
    ],
)
def test_errors_are_the_openai_sdks_own_and_say_what_we_said(
    meeting: Meeting, case: str, error: str, status: int, param: str | None, words: str
) -> None:
    answer = meeting.answer("openai_sdk", case)
    assert (answer["raised"][0], answer["status"], answer["param"]) == (error, status, param)
    assert words in answer["message"] and words in answer["body"]["message"]
    assert answer["code"] and answer["type"] and answer["request_id"]


def test_the_openai_sdk_shows_its_key(meeting: Meeting) -> None:
    assert [meeting.heard("openai_sdk", "right key")] == meeting.made("I am here.")


def test_the_openai_sdk_comes_again_when_it_was_told_to(meeting: Meeting) -> None:
    answer = meeting.answer("openai_sdk", "again")
    refusal = answer["refusal"]
    assert (refusal["raised"][0], refusal["status"], refusal["retry_after"]) == ("RateLimitError", 429, "1")
    assert refusal["code"] == "too_many_streams"
    assert set(answer["refusals"]) == {"1"}
    assert answer["waited_s"] >= 1  # the SDK's own patience would have been half a second, or less
    assert len(meeting.heard("openai_sdk", "again")) == 2 * FRAME_SAMPLES * len("At last.")


def test_the_openai_sdk_takes_no_half_speech_for_a_whole_one(meeting: Meeting) -> None:
    assert meeting.answer("openai_sdk", "break")["raised"][0] == "APIConnectionError"


# --- the others -----------------------------------------------------------------------------------------------------


def test_litellm_gets_the_engines_very_samples(meeting: Meeting) -> None:
    assert [meeting.heard("litellm_sdk", "pcm")] == meeting.made("LiteLLM as pcm.")
    (made,) = meeting.made("LiteLLM.")
    assert_sounds_like(read_clip(meeting.heard("litellm_sdk", "no format")), made)


def test_litellm_tells_what_was_wrong(meeting: Meeting) -> None:
    answer = meeting.answer("litellm_sdk", "unknown voice")
    assert (answer["raised"][0], answer["status"]) == ("BadRequestError", 400)
    assert "did you mean 'wren'?" in answer["message"]


def livekit_sound(answer: Answer) -> bytes:
    assert "raised" not in answer, answer
    assert answer["rates"] == [[RATE_HZ, 1]]
    frames = [base64.b64decode(frame) for frame in answer["frames"]]
    # LiveKit may mark the end by 10 ms of silence, which are its own.
    if frames[-1] == bytes(2 * RATE_HZ // 100):
        frames.pop()
    return b"".join(frames)


@pytest.mark.parametrize(("model", "form"), LIVEKIT)
def test_livekit_plays_the_engines_samples(meeting: Meeting, model: str, form: str) -> None:
    """By events, and by bytes where the model is tts-1."""
    text = f"LiveKit's {model} as {form}."
    answer = meeting.answer("livekit_plugin", f"{model} {form}")
    heard = livekit_sound(answer)
    (made,) = meeting.made(text)
    if form == "mp3":
        assert_sounds_like(Clip(samples_of(heard), RATE_HZ), made)
    else:
        assert heard == made
    (request,) = meeting.requests(text)
    assert request.voice in CARD.speakers and request.instruct == "slowly"
    (metrics,) = answer["metrics"]
    assert metrics["output_tokens"] == (len(text) if model != "tts-1" else 0)  # only events tell of them


def test_livekit_plays_a_long_text_to_its_end(meeting: Meeting) -> None:
    heard = livekit_sound(meeting.answer("livekit_plugin", "long"))
    assert_joined(heard, meeting.made("LiveKit has sentence"))


def test_livekit_tells_what_was_wrong(meeting: Meeting) -> None:
    answer = meeting.answer("livekit_plugin", "unknown voice")
    assert (answer["raised"][0], answer["status"]) == ("APIStatusError", 400)
    assert "did you mean 'wren'?" in answer["body"]["message"]


def test_pipecat_plays_the_engines_very_samples(meeting: Meeting) -> None:
    assert [meeting.heard("pipecat_service", "speak")] == meeting.made("Pipecat speaks.")
    answer = meeting.answer("pipecat_service", "speak")
    assert (answer["rates"], answer["errors"]) == ([[RATE_HZ, 1]], [])
    (request,) = meeting.requests("Pipecat speaks.")
    assert request.voice in CARD.speakers and request.instruct == "slowly"


def test_pipecat_plays_a_long_text_to_its_end(meeting: Meeting) -> None:
    assert_joined(meeting.heard("pipecat_service", "long"), meeting.made("Pipecat has sentence"))


def test_pipecat_plays_what_a_language_model_writes_sentence_by_sentence(meeting: Meeting) -> None:
    requests = meeting.requests("Tokens has sentence")
    assert len(requests) == 4
    assert re.sub(r"\s", "", "".join(request.text for request in requests)) == re.sub(r"\s", "", long_text("Tokens"))
    assert meeting.heard("pipecat_service", "tokens") == b"".join(meeting.made("Tokens has sentence"))


def test_pipecat_tells_what_was_wrong(meeting: Meeting) -> None:
    answer = meeting.answer("pipecat_service", "refused")
    assert "this text is refused" in answer["errors"][0]
