"""Third-party clients against a real server: each receives the engine's audio.

They have an environment of their own (`make clients`). All cases of a client run in one process, and the processes run
in parallel, because importing such a client takes seconds; the tests then check the results.
"""

import base64
import contextlib
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oscine.audio.clips import Clip, read_clip, resample
from oscine.config import ServerConfig
from oscine.request import SpeechRequest
from oscine.server.app import build_app
from tests.conftest import require_environment
from tests.event_stream import read_events
from tests.server.reference_clip import CLIP
from tests.server.scripted_engine import BASE_CARD, CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually, serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROCESS_S = 600  # far more than needed: a hung client must not hang the tests

Case = dict[str, Any]
Answer = dict[str, Any]

OPENAI = {"model": "tts-1", "voice": "alloy"}
VOICE_NAME = "Anna / 小明"
PCM = {**OPENAI, "response_format": "pcm"}
LOSSLESS, LOSSY = ("pcm", "wav", "flac"), ("mp3", "opus", "aac")
QWEN = "Text from Qwen's cloud, in small pieces."
CLOUD = {"voice": "Cherry", "language_type": "English"}
HTTP = {"model": "qwen3-tts-flash", **CLOUD}
LIVEKIT = [(model, form) for model in ("gpt-4o-mini-tts", "tts-1") for form in ("pcm", "wav", "mp3")]


def long_text(client: str) -> str:
    return " ".join(f"{client} has sentence number {n} to say, which is long enough." for n in range(4))


def openai_case(how: str, text: str, at: str = "plain", key: str = "any", **fields: Any) -> Case:
    return {"how": how, "at": at, "key": key, "fields": {"input": text, **fields}}


def dashscope_example() -> str:
    """The first program of the guide."""
    return (ROOT / "docs" / "guides" / "realtime.md").read_text("utf-8").split("```python\n")[1].split("```")[0]


# `at` names the server, see `ClientRuns`. Every case has its own text, which identifies the engine's request.
CASES: dict[str, dict[str, Case]] = {
    "openai_sdk": {
        **{form: openai_case("create", f"As {form}.", **OPENAI, response_format=form) for form in LOSSLESS + LOSSY},
        "no format": openai_case("create", "As you like it.", **OPENAI),
        "stream": openai_case("stream", long_text("OpenAI"), **PCM),
        "streamed wav": openai_case("stream", "As a WAV in pieces.", **{**PCM, "response_format": "wav"}),
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
        "models": openai_case("models", ""),
        "voices": {
            **openai_case("voices", "In her voice.", at="base", response_format="pcm", model="tts-1"),
            "name": VOICE_NAME,
            "sample": base64.b64encode(CLIP).decode(),
        },
        "consent": {
            **openai_case("consent", "With her consent.", at="base", response_format="pcm", model="tts-1"),
            "name": VOICE_NAME,
            "sample": base64.b64encode(CLIP).decode(),
        },
        "unknown field": openai_case("create", "With a typo.", **PCM, extra_body={"sede": 7}),
        "bad field": openai_case("create", "Nothing.", **PCM, speed=9),
        "wrong key": openai_case("create", "Who is there?", at="locked", key="wrong", **PCM),
        "right key": openai_case("create", "I am here.", at="locked", key="right", **PCM),
        "again": {**openai_case("again", "At last.", at="narrow", **PCM), "held": {"input": "word " * 500, **PCM}},
        "break": openai_case("create", "Hello !break there.", **PCM),
    },
    "open_webui_requests": {"voices": {"at": "plain", "text": "Open WebUI speaks."}},
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
    "dashscope_sdk": {
        "server commit": {"how": "server_commit", "at": "plain", "text": QWEN, "fields": {**CLOUD, "seed": 31}},
        "commit": {"how": "commit", "at": "plain", "texts": ["Qwen says one.", "Qwen says two."], "fields": CLOUD},
        "wav": {
            "how": "server_commit",
            "at": "plain",
            "text": QWEN,
            "fields": {"voice": "finch", "audio_format": "wav", "pitch_rate": 1.2, "seed": 32},
        },
        "cancel": {"how": "cancel", "at": "paced", "text": "word " * 500, "fields": CLOUD},
        "unknown voice": {"how": "refused_settings", "at": "plain", "fields": {"voice": "wrem"}},
        "wrong key": {"how": "refused_connection", "at": "locked", "key": "wrong"},
        "right key": {"how": "commit", "at": "locked", "key": "right", "texts": ["Qwen is here."], "fields": CLOUD},
        "http": {"how": "http", "at": "plain", "fields": {**HTTP, "text": "Qwen over HTTP.", "seed": 33}},
        "synthesizer": {"how": "synthesizer", "at": "plain", "fields": {**HTTP, "text": "Qwen over HTTP.", "seed": 33}},
        "http stream": {"how": "http", "at": "plain", "fields": {**HTTP, "text": long_text("Qwen"), "stream": True}},
        "http client": {
            "how": "http_client",
            "at": "plain",
            "fields": {**HTTP, "text": "Qwen's client.", "parameters": {"seed": 34}},
        },
        "http refused": {"how": "http", "at": "plain", "fields": {**HTTP, "text": "Nobody.", "voice": "wrem"}},
        "http break": {"how": "http", "at": "plain", "fields": {**HTTP, "text": "Qwen fails: !break.", "stream": True}},
        "pasted": {"how": "pasted", "at": "plain", "code": dashscope_example()},
    },
}


@dataclass
class ClientRuns:
    """The results of all clients. The server `locked` needs a key; `narrow` allows one stream; `base` clones."""

    plain: ScriptedEngine
    slow: ScriptedEngine
    processes: dict[str, Future[subprocess.CompletedProcess[str]]]

    def answer(self, client: str, case: str) -> Answer:
        done = self.processes[client].result()
        assert done.returncode == 0, done.stderr[-4000:]
        answer: Answer = json.loads(done.stdout.splitlines()[-1])[case]
        return answer

    def received(self, client: str, case: str) -> bytes:
        answer = self.answer(client, case)
        assert "raised" not in answer, answer
        return base64.b64decode(answer["audio"])

    def requests(self, mark: str) -> list[SpeechRequest]:
        return [request for request in self.plain.requests if mark in request.text]

    def made(self, mark: str) -> list[bytes]:
        return [spoken(request.text, request.seed or 0, request.voice) for request in self.requests(mark)]


@pytest.fixture(scope="module")
def runs() -> Iterator[ClientRuns]:
    python = require_environment("clients", "the clients are") / "bin" / "python"
    plain, (slow, narrow, paced) = ScriptedEngine(slots=16), (ScriptedEngine(frame_s=0.02) for _ in range(3))
    base = ScriptedEngine()
    configs = {
        # live_pause_s: no pause of a busy machine cuts a text that comes in pieces.
        "plain": (plain, ServerConfig(live_pause_s=3600, segment_chars=60)),
        "locked": (plain, ServerConfig(api_keys=("right",))),
        "slow": (slow, ServerConfig(segment_chars=10_000)),
        "narrow": (narrow, ServerConfig(segment_chars=10_000, streams_per_key=1)),
        "paced": (paced, ServerConfig()),
        "base": (base, ServerConfig()),
    }
    with contextlib.ExitStack() as stack:
        for engine in (plain, slow, narrow, base):
            stack.callback(engine.stop)
        urls = {
            name: stack.enter_context(serving(build_app(engine, BASE_CARD if name == "base" else CARD, config)))
            for name, (engine, config) in configs.items()
        }
        with ThreadPoolExecutor(len(CASES)) as pool:  # waits for all of them
            processes = {client: pool.submit(run_client, python, client, urls) for client in CASES}
        yield ClientRuns(plain, slow, processes)


def run_client(python: Path, client: str, urls: dict[str, str]) -> subprocess.CompletedProcess[str]:
    cases = {name: {**case, "url": urls[case["at"]]} for name, case in CASES[client].items()}
    for case in cases.values():
        if "code" in case:
            case["code"] = case["code"].replace("127.0.0.1:8000", case["url"].removeprefix("http://"))
    own = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    own["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its import fetches a price list
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


def assert_similar(received: Clip, pcm: bytes) -> None:
    """Compares lossy formats: the same length but for some padding, and the same shape but for some delay."""
    expected, samples = samples_of(pcm), resample(received, RATE_HZ).samples
    padding_s = (len(samples) - len(expected)) / RATE_HZ
    assert -0.01 < padding_s < 0.1, padding_s  # a lost frame is 80 ms
    size = len(samples) + len(expected)
    at_every_delay = np.fft.irfft(np.fft.rfft(samples, size) * np.conj(np.fft.rfft(expected, size)), size)
    similarity = at_every_delay.max() / np.linalg.norm(samples) / np.linalg.norm(expected)
    assert similarity > 0.95, similarity


def assert_joined(received: bytes, segments: list[bytes]) -> None:
    """Every sample of every segment, in order; 5 ms on either side of a border are faded."""
    assert len(segments) > 2
    near = np.zeros(len(received) // 2, bool)
    for border in np.cumsum([len(segment) // 2 for segment in segments])[:-1]:
        near[border - 120 : border + 120] = True
    expected = b"".join(segments)
    assert len(received) == len(expected)
    assert (samples_of(received)[~near] == samples_of(expected)[~near]).all()


# --- openai ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", LOSSLESS)
def test_the_openai_sdk_receives_the_exact_samples(runs: ClientRuns, form: str) -> None:
    received = runs.received("openai_sdk", form)
    if form != "pcm":
        received = np.rint(read_clip(received).samples * 32768).astype("<i2").tobytes()
    assert [received] == runs.made(f"As {form}.")


@pytest.mark.parametrize("form", LOSSY)
def test_the_openai_sdk_receives_lossy_formats(runs: ClientRuns, form: str) -> None:
    (made,) = runs.made(f"As {form}.")
    assert_similar(read_clip(runs.received("openai_sdk", form)), made)


def test_the_openai_sdk_receives_mp3_by_default(runs: ClientRuns) -> None:
    assert runs.answer("openai_sdk", "no format")["headers"]["content-type"] == "audio/mpeg"
    (made,) = runs.made("As you like it.")
    assert_similar(read_clip(runs.received("openai_sdk", "no format")), made)


def test_the_openai_sdk_lists_and_retrieves_models(runs: ClientRuns) -> None:
    answer = runs.answer("openai_sdk", "models")
    assert answer["ids"][0] == "scripted" and "tts-1" in answer["ids"]
    assert answer["one"]["id"] == "scripted" and answer["one"]["kind"] == "custom_voice"
    assert (answer["missing"]["status"], answer["missing"]["code"]) == (404, "model_not_found")


def test_the_openai_sdk_uploads_a_consent_and_then_a_voice(runs: ClientRuns) -> None:
    answer = runs.answer("openai_sdk", "consent")
    assert "given" in answer, answer
    given = answer["given"]
    assert given["name"] == "Anna" and given["language"] == "en-US" and given["object"] == "audio.voice_consent"
    assert answer["renamed"] == answer["one"] == {**given, "name": "Anna B."} and answer["listed"] == [answer["one"]]
    assert answer["deleted"] == {"id": given["id"], "object": "audio.voice_consent", "deleted": True}
    assert len(runs.received("openai_sdk", "consent")) == 2 * FRAME_SAMPLES * len("With her consent.")


def test_the_openai_sdk_creates_uses_replaces_and_deletes_voices(runs: ClientRuns) -> None:
    answer = runs.answer("openai_sdk", "voices")
    created = answer["created"]
    assert created["id"] and created["created_at"] > 1e9
    assert (created["object"], created["type"], created["name"]) == ("audio.voice", "audio_sample", VOICE_NAME)
    read = ("id", "object", "type", "name", "created_at")
    assert [[one[field] for field in read] for one in answer["listed"]] == [[created[field] for field in read]]
    assert len(runs.received("openai_sdk", "voices")) == 2 * FRAME_SAMPLES * len("In her voice.")
    assert (answer["replaced"]["id"], answer["replaced"]["mode"]) == (created["id"], "in_context")
    deleted = answer["deleted"]
    assert (deleted["id"], deleted["object"], deleted["deleted"]) == (created["id"], "audio.voice.deleted", True)
    missing, prompted = answer["errors"]
    assert (missing["raised"][0], missing["param"]) == ("NotFoundError", "name")
    assert (prompted["raised"][0], prompted["param"]) == ("BadRequestError", "type")


def test_a_long_text_streams_completely_to_the_openai_sdk(runs: ClientRuns) -> None:
    assert runs.answer("openai_sdk", "stream")["chunks"] > 1
    assert_joined(runs.received("openai_sdk", "stream"), runs.made("OpenAI has sentence"))


def test_the_openai_sdk_gets_a_wav_whole_and_with_a_streaming_response_in_pieces(runs: ClientRuns) -> None:
    headers = runs.answer("openai_sdk", "wav")["headers"]
    assert int(headers["content-length"]) == len(runs.received("openai_sdk", "wav"))
    assert "content-length" not in runs.answer("openai_sdk", "streamed wav")["headers"]
    (made,) = runs.made("As a WAV in pieces.")
    assert runs.received("openai_sdk", "streamed wav")[44:] == made


def test_the_openai_sdk_receives_audio_before_the_speech_is_complete(runs: ClientRuns) -> None:
    assert runs.received("openai_sdk", "first chunk")
    # The client left after the first chunk; a completed speech could not be cancelled.
    eventually(lambda: runs.slow.cancelled == 1)


def test_the_openai_sdk_receives_events(runs: ClientRuns) -> None:
    answer = runs.answer("openai_sdk", "events")
    assert answer["headers"]["content-type"].startswith("text/event-stream")
    events = read_events(answer["lines"])
    deltas = [base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta"]
    assert_joined(b"".join(deltas), runs.made("Events has sentence"))
    assert events[-1]["type"] == "speech.audio.done"
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0


def test_our_own_fields_pass_through_the_openai_sdk(runs: ClientRuns) -> None:
    (request,) = runs.requests("With more fields.")
    assert (request.voice, request.instructions, request.language, request.seed) == ("finch", "slowly", "english", 7)
    assert runs.received("openai_sdk", "fields") == spoken("With more fields.", 7, "finch")
    headers = runs.answer("openai_sdk", "fields")["headers"]
    assert (headers["x-seed"], headers["x-ignored-fields"]) == ("7", "user")


@pytest.mark.parametrize(
    ("case", "error", "status", "param", "words"),
    [
        ("unknown voice", "BadRequestError", 400, "voice", "did you mean 'wren'?"),
        ("unknown model", "NotFoundError", 404, "model", "'whisper-1'"),
        ("bad field", "BadRequestError", 400, "speed", "a number from 0.25 to 4"),
        ("wrong key", "AuthenticationError", 401, None, "the API key is unknown"),
    ],
)
def test_the_openai_sdk_raises_its_own_errors_with_our_message(
    runs: ClientRuns, case: str, error: str, status: int, param: str | None, words: str
) -> None:
    answer = runs.answer("openai_sdk", case)
    assert (answer["raised"][0], answer["status"], answer["param"]) == (error, status, param)
    assert words in answer["message"] and words in answer["body"]["message"]
    assert answer["code"] and answer["type"] and answer["request_id"]


def test_the_openai_sdk_shows_which_fields_were_ignored(runs: ClientRuns) -> None:
    headers = runs.answer("openai_sdk", "unknown field")["headers"]
    assert headers["x-ignored-fields"] == "sede" and "did you mean 'seed'?" in headers["x-warning"]


def test_the_openai_sdk_sends_its_key(runs: ClientRuns) -> None:
    assert [runs.received("openai_sdk", "right key")] == runs.made("I am here.")


def test_the_openai_sdk_retries_after_the_given_time(runs: ClientRuns) -> None:
    answer = runs.answer("openai_sdk", "again")
    refusal = answer["refusal"]
    assert (refusal["raised"][0], refusal["status"], refusal["retry_after"]) == ("RateLimitError", 429, "1")
    assert refusal["code"] == "too_many_streams"
    assert set(answer["refusals"]) == {"1"}
    assert answer["waited_s"] >= 1  # the SDK's own delay would be half a second or less
    assert len(runs.received("openai_sdk", "again")) == 2 * FRAME_SAMPLES * len("At last.")


def test_the_openai_sdk_detects_an_incomplete_response(runs: ClientRuns) -> None:
    assert runs.answer("openai_sdk", "break")["raised"][0] == "APIConnectionError"


# --- the others -----------------------------------------------------------------------------------------------------


def test_open_webui_lists_the_voices_and_speaks_with_one(runs: ClientRuns) -> None:
    answer = runs.answer("open_webui_requests", "voices")
    assert answer["voices"] == {name: name for name in CARD.speakers}
    assert answer["type"] == "audio/mpeg"  # it stores the file as .mp3
    (request,) = runs.requests("Open WebUI speaks.")
    assert request.voice == CARD.speakers[-1]
    (made,) = runs.made("Open WebUI speaks.")
    assert_similar(read_clip(runs.received("open_webui_requests", "voices")), made)


def test_litellm_receives_the_exact_samples(runs: ClientRuns) -> None:
    assert [runs.received("litellm_sdk", "pcm")] == runs.made("LiteLLM as pcm.")
    (made,) = runs.made("LiteLLM.")
    assert_similar(read_clip(runs.received("litellm_sdk", "no format")), made)


def test_litellm_reports_our_error(runs: ClientRuns) -> None:
    answer = runs.answer("litellm_sdk", "unknown voice")
    assert (answer["raised"][0], answer["status"]) == ("BadRequestError", 400)
    assert "did you mean 'wren'?" in answer["message"]


def livekit_audio(answer: Answer) -> bytes:
    assert "raised" not in answer, answer
    assert answer["rates"] == [[RATE_HZ, 1]]
    frames = [base64.b64decode(frame) for frame in answer["frames"]]
    # LiveKit may add 10 ms of silence at the end.
    if frames[-1] == bytes(2 * RATE_HZ // 100):
        frames.pop()
    return b"".join(frames)


@pytest.mark.parametrize(("model", "form"), LIVEKIT)
def test_livekit_receives_the_engine_samples(runs: ClientRuns, model: str, form: str) -> None:
    """It gets events, or bytes for the model tts-1."""
    text = f"LiveKit's {model} as {form}."
    answer = runs.answer("livekit_plugin", f"{model} {form}")
    received = livekit_audio(answer)
    (made,) = runs.made(text)
    if form == "mp3":
        assert_similar(Clip(samples_of(received), RATE_HZ), made)
    else:
        assert received == made
    (request,) = runs.requests(text)
    assert request.voice in CARD.speakers and request.instructions == "slowly"
    (metrics,) = answer["metrics"]
    assert metrics["output_tokens"] == (len(text) if model != "tts-1" else 0)  # only events report them


def test_livekit_receives_a_long_text_completely(runs: ClientRuns) -> None:
    received = livekit_audio(runs.answer("livekit_plugin", "long"))
    assert_joined(received, runs.made("LiveKit has sentence"))


def test_livekit_reports_our_error(runs: ClientRuns) -> None:
    answer = runs.answer("livekit_plugin", "unknown voice")
    assert (answer["raised"][0], answer["status"]) == ("APIStatusError", 400)
    assert "did you mean 'wren'?" in answer["body"]["message"]


def test_pipecat_receives_the_exact_samples(runs: ClientRuns) -> None:
    assert [runs.received("pipecat_service", "speak")] == runs.made("Pipecat speaks.")
    answer = runs.answer("pipecat_service", "speak")
    assert (answer["rates"], answer["errors"]) == ([[RATE_HZ, 1]], [])
    (request,) = runs.requests("Pipecat speaks.")
    assert request.voice in CARD.speakers and request.instructions == "slowly"


def test_pipecat_receives_a_long_text_completely(runs: ClientRuns) -> None:
    assert_joined(runs.received("pipecat_service", "long"), runs.made("Pipecat has sentence"))


def test_pipecat_speaks_llm_tokens_sentence_by_sentence(runs: ClientRuns) -> None:
    requests = runs.requests("Tokens has sentence")
    assert len(requests) == 4
    assert re.sub(r"\s", "", "".join(request.text for request in requests)) == re.sub(r"\s", "", long_text("Tokens"))
    assert runs.received("pipecat_service", "tokens") == b"".join(runs.made("Tokens has sentence"))


def test_pipecat_reports_our_error(runs: ClientRuns) -> None:
    answer = runs.answer("pipecat_service", "refused")
    assert "this text is refused" in answer["errors"][0]


# --- dashscope ------------------------------------------------------------------------------------------------------


def kinds(answer: Answer) -> list[str]:
    assert "raised" not in answer, answer
    return [event["type"] for event in answer["events"]]


def test_dashscope_speaks_text_in_pieces(runs: ClientRuns) -> None:
    """Mode server_commit: no commit, and one response until the end of the session."""
    answer = runs.answer("dashscope_sdk", "server commit")
    assert runs.received("dashscope_sdk", "server commit") == spoken(QWEN, 31, "wren")
    assert kinds(answer)[:3] == ["session.created", "session.updated", "response.created"]
    assert kinds(answer)[-2:] == ["response.done", "session.finished"] and answer["close_code"] == 1000
    created, done = answer["events"][0], answer["events"][-2]
    assert answer["session_id"] == created["session"]["id"] and answer["response_id"] == done["response"]["id"]
    assert done["response"]["usage"]["characters"] == len(QWEN)
    (request,) = (request for request in runs.plain.requests if request.seed == 31)
    assert request.language == "english"


def test_dashscope_commits_several_texts(runs: ClientRuns) -> None:
    answer = runs.answer("dashscope_sdk", "commit")
    assert runs.received("dashscope_sdk", "commit") == b"".join(runs.made("Qwen says"))
    assert kinds(answer).count("response.done") == kinds(answer).count("input_text_buffer.committed") == 2
    assert not runs.requests("This is dropped.")


def test_dashscope_receives_files_and_learns_what_is_ignored(runs: ClientRuns) -> None:
    answer = runs.answer("dashscope_sdk", "wav")
    clip = read_clip(runs.received("dashscope_sdk", "wav"))
    assert (clip.samples == samples_of(spoken(QWEN, 32, "finch"))).all()
    updated = answer["events"][kinds(answer).index("session.updated")]["session"]
    assert updated["ignored_fields"] == ["pitch_rate"] and updated["response_format"] == "wav"


def test_dashscope_cancels_a_response(runs: ClientRuns) -> None:
    answer = runs.answer("dashscope_sdk", "cancel")
    assert kinds(answer)[-1] == "response.done" and answer["events"][-1]["response"]["status"] == "cancelled"


def test_dashscope_receives_our_errors(runs: ClientRuns) -> None:
    error = runs.answer("dashscope_sdk", "unknown voice")["events"][-1]["error"]
    assert error["param"] == "session.voice" and "did you mean 'wren'?" in error["message"]
    answer = runs.answer("dashscope_sdk", "wrong key")
    assert kinds(answer) == ["error"] and answer["close_code"] == 1008, answer
    assert answer["events"][0]["error"]["code"] == "invalid_api_key"


def test_dashscope_sends_its_key(runs: ClientRuns) -> None:
    assert [runs.received("dashscope_sdk", "right key")] == runs.made("Qwen is here.")


def test_dashscope_receives_the_url_of_a_file_over_http(runs: ClientRuns) -> None:
    answer = runs.answer("dashscope_sdk", "http")
    with urllib.request.urlopen(answer["url"]) as file:
        clip = read_clip(file.read())
    assert (clip.samples == samples_of(spoken("Qwen over HTTP.", 33, "wren"))).all()
    assert answer["finish_reason"] == "stop" and answer["usage"]["characters"] == len("Qwen over HTTP.")
    with urllib.request.urlopen(runs.answer("dashscope_sdk", "synthesizer")["url"]) as file:
        assert (read_clip(file.read()).samples == clip.samples).all()


def test_dashscope_streams_pcm_over_http(runs: ClientRuns) -> None:
    assert_joined(runs.received("dashscope_sdk", "http stream"), runs.made("Qwen has sentence"))
    answer = runs.answer("dashscope_sdk", "http stream")
    assert answer["finish_reason"] == "stop" and answer["usage"]["output_tokens"] > 0 and answer["request_id"]


def test_dashscopes_client_of_version_2_works_over_http(runs: ClientRuns) -> None:
    made = spoken("Qwen's client.", 34, "wren")
    assert runs.received("dashscope_sdk", "http client") == made
    answer = runs.answer("dashscope_sdk", "http client")
    with urllib.request.urlopen(answer["url"]) as file:
        assert (read_clip(file.read()).samples == samples_of(made)).all()
    assert answer["final"] and answer["url"].endswith(".flac")


def test_dashscope_receives_our_errors_over_http(runs: ClientRuns) -> None:
    answer = runs.answer("dashscope_sdk", "http refused")
    assert answer["status"] == 400 and "did you mean 'wren'?" in answer["message"]
    answer = runs.answer("dashscope_sdk", "http break")
    assert (answer["status"], answer["code"]) == (503, "engine_failed")


def test_the_program_of_the_realtime_guide_runs_when_pasted(runs: ClientRuns) -> None:
    assert len(runs.received("dashscope_sdk", "pasted")) == 2 * FRAME_SAMPLES * len("Hello there.")
