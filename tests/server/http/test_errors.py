"""Bad requests and their exact error responses. A valid request follows each one, to show that it has no effect."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.server.dialects.dashscope_http import PATH as GENERATION
from oscine.server.http.streaming_response import ResponseWriter
from tests.server.scripted_engine import CARD, ScriptedEngine, spoken
from tests.server.serving import client_of

SPEECH = "/v1/audio/speech"
CONFIG = ServerConfig(max_text_chars=1000, max_batch_items=3, max_body_bytes=20_000, strict=True)

NAMES = "alloy, ash, ballad, cedar, coral, echo, fable, finch, marin, nova, onyx, sage, shimmer, verse, wren"
MODELS = "gpt-4o-mini-tts, qwen3-tts, scripted, tts-1, tts-1-hd"

# fields added to a valid request (... removes the field) -> status, code, param, message
BAD_FIELDS: list[tuple[dict[str, Any], int, str, str | None, str]] = [
    ({"input": ...}, 400, "invalid_field", "input", "input is missing; it is required"),
    ({"input": ""}, 400, "bad_request", "input", "the text is empty; give at least one word to speak"),
    ({"input": " \n\t"}, 400, "bad_request", "input", "the text is empty; give at least one word to speak"),
    ({"input": None}, 400, "invalid_field", "input", "input: input should be a valid string, got None"),
    ({"input": 5}, 400, "invalid_field", "input", "input: input should be a valid string, got 5"),
    ({"input": ["a"]}, 400, "invalid_field", "input[0]", "input[0]: a turn must be an object with a text, got str"),
    ({"input": {"text": "a"}}, 400, "invalid_field", "input", "input: input should be a valid string"),
    ({"input": "!refuse"}, 400, "bad_request", "input", "this text is refused"),
    (
        {"input": "a" * 1001},
        413,
        "too_large",
        "input",
        "the text has 1001 characters, the limit is 1000; split it",
    ),
    (
        {"input": ..., "inptu": "a"},
        400,
        "invalid_field",
        "input",
        "input is missing; it is required; did you mean it by 'inptu'?",
    ),
    *(
        ({name: "a"}, 400, "invalid_field", name, f"unknown field '{name}'")
        for name in ("path", "str", "body", "query", "items")
    ),
    ({"a" * 10**4: 1}, 400, "invalid_field", "a" * 80, f"unknown field '{'a' * 80}' (possible: "),
    ({"inptu": "a"}, 400, "invalid_field", "inptu", "unknown field 'inptu'; did you mean 'input'? (possible: "),
    ({"voise": "wren"}, 400, "invalid_field", "voise", "unknown field 'voise'; did you mean 'voice'? (possible: "),
    ({"zzz": 1}, 400, "invalid_field", "zzz", "unknown field 'zzz' (possible: "),
    (
        {"voice": "wrem"},
        400,
        "bad_request",
        "voice",
        f"unknown voice 'wrem'; did you mean 'wren'? (possible: {NAMES}); GET /v1/audio/voices lists all voices",
    ),
    ({"voice": 7}, 400, "invalid_field", "voice", "voice: input should be a valid string, got 7"),
    ({"voice": {"id": 7}}, 400, "invalid_field", "voice.id", "voice.id: input should be a valid string, got 7"),
    (
        {"voice": {"idd": "wren"}},
        400,
        "invalid_field",
        "voice.id",
        "voice: a voice that is an object has either an id or a mix",
    ),
    (
        {"voice": {"id": "wren", "nam": 1}},
        400,
        "invalid_field",
        "voice.nam",
        "voice: unknown field 'nam' (possible: id, mix)",
    ),
    (
        {"voice": "wren", "speaker": "finch"},
        400,
        "invalid_field",
        "speaker",
        "speaker is an alias of voice; give only one of them",
    ),
    ({"voice": "../../etc/passwd"}, 400, "bad_request", "voice", "unknown voice '../../etc/passwd'"),
    (
        {"model": "qwen"},
        404,
        "model_not_found",
        "model",
        f"unknown model 'qwen'; did you mean 'qwen3-tts'? (possible: {MODELS})",
    ),
    ({"model": "tts-1234"}, 404, "model_not_found", "model", "unknown model 'tts-1234'; did you mean 'tts-1'?"),
    ({"model": "m" * 256}, 404, "model_not_found", "model", f"unknown model '{'m' * 80}' (possible: {MODELS})"),
    ({"model": "m" * 257}, 400, "invalid_field", "model", "model: string should have at most 256 characters"),
    ({"voice": "m" * 257}, 400, "invalid_field", "voice", "voice: string should have at most 256 characters"),
    ({"model": "scriptd"}, 404, "model_not_found", "model", "unknown model 'scriptd'; did you mean 'scripted'?"),
    (
        {"response_format": "wma"},
        400,
        "invalid_field",
        "response_format",
        "response_format: input should be 'mp3', 'wav', 'pcm', 'opus', 'aac', 'flac', 'mulaw', ",
    ),
    (
        {"speed": 5},
        400,
        "invalid_field",
        "speed",
        "speed must be a number from 0.25 to 4",
    ),
    ({"speed": 0.1}, 400, "invalid_field", "speed", "speed must be a number from 0.25 to 4"),
    ({"speed": "fast"}, 400, "invalid_field", "speed", "speed must be a number from 0.25 to 4"),
    ({"speed": True}, 400, "invalid_field", "speed", "speed must be a number from 0.25 to 4"),
    (
        {"sample_rate": 96000},
        400,
        "invalid_field",
        "sample_rate",
        "sample_rate must be one of 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000",
    ),
    (
        {"sample_rate": 44100, "response_format": "opus"},
        400,
        "bad_request",
        "sample_rate",
        "opus does not support 44100 Hz (possible: 8000, 12000, 16000, 24000, 48000); supported by mp3, wav",
    ),
    ({"seed": -2}, 400, "invalid_field", "seed", "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
    ({"seed": 2**64}, 400, "invalid_field", "seed", "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
    ({"seed": 1.5}, 400, "invalid_field", "seed", "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
    ({"seed": "7"}, 400, "invalid_field", "seed", "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
    (
        {"temperature": -0.1},
        400,
        "invalid_field",
        "temperature",
        "temperature must be 0 (no randomness) or a number from 1e-06 to 1e+06",
    ),
    ({"top_k": -1}, 400, "invalid_field", "top_k", "top_k must be a whole number, 0 (off) or more"),
    ({"top_p": 0}, 400, "invalid_field", "top_p", "top_p must be a number above 0 and at most 1 (off)"),
    ({"top_p": 1.5}, 400, "invalid_field", "top_p", "top_p must be a number above 0 and at most 1 (off)"),
    (
        {"max_new_tokens": 1},
        400,
        "invalid_field",
        "max_new_tokens",
        "max_new_tokens must be a whole number of at least 2 (it gives one frame less)",
    ),
    (
        {"max_new_tokens": 10**100},
        400,
        "invalid_field",
        "max_new_tokens",
        "max_new_tokens must be a whole number of at least 2 (it gives one frame less)",
    ),
    (
        {"temperature": 1e7},
        400,
        "invalid_field",
        "temperature",
        "temperature must be 0 (no randomness) or a number from 1e-06 to 1e+06",
    ),
    (
        {"temperature": 1e-7},
        400,
        "invalid_field",
        "temperature",
        "temperature must be 0 (no randomness) or a number from 1e-06 to 1e+06",
    ),
    ({"top_k": 2**31}, 400, "invalid_field", "top_k", "top_k must be a whole number, 0 (off) or more"),
    (
        {"repetition_penalty": 1e7},
        400,
        "invalid_field",
        "repetition_penalty",
        "repetition_penalty must be a number",
    ),
    *(
        ({"extra_params": {name: value}}, 400, "invalid_field", f"extra_params.{name}", message)
        for name, value, message in (
            ("top_p", -1, "extra_params.top_p must be a number above 0 and at most 1 (off)"),
            ("seed", -2, "extra_params.seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
            (
                "max_new_tokens",
                1,
                "extra_params.max_new_tokens must be a whole number of at least 2 (it gives one frame less)",
            ),
            (
                "repetition_penalty",
                1e7,
                "extra_params.repetition_penalty must be a number from 1e-06 to 1e+06; 1 is off",
            ),
            (
                "subtalker_temperature",
                1e7,
                "extra_params.subtalker_temperature must be 0 (no randomness) or a number from 1e-06 to 1e+06",
            ),
            ("temprature", 1, "extra_params: unknown field 'temprature'; did you mean 'temperature'? (possible: "),
        )
    ),
    ({"stream": "yes"}, 400, "invalid_field", "stream", "stream: input should be a valid boolean"),
    (
        {"stream_format": "ws"},
        400,
        "invalid_field",
        "stream_format",
        "stream_format: input should be 'audio', 'sse' or 'json'",
    ),
    (
        {"task_type": "Base"},
        400,
        "bad_request",
        "task_type",
        "task_type 'Base' is not available: this checkpoint is CustomVoice; leave it out",
    ),
    (
        {"task_type": "TTS"},
        400,
        "invalid_field",
        "task_type",
        "task_type: input should be 'CustomVoice', 'VoiceDesign'",
    ),
    (
        {"ref_audio": "data:audio/wav;base64,AAAA"},
        400,
        "bad_request",
        "ref_audio",
        "this CustomVoice checkpoint cannot clone",
    ),
    (
        {"speaker_embedding": [0.0] * 7},
        400,
        "bad_request",
        "speaker_embedding",
        "the voice's speaker vector has 7 numbers, this checkpoint needs 8",
    ),
    (
        {"ref_text": "words"},
        400,
        "bad_request",
        "ref_text",
        "ref_text is the transcript of a clip; give the clip too, as ref_audio",
    ),
    (
        {"x_vector_only_mode": True},
        400,
        "bad_request",
        "x_vector_only_mode",
        "x_vector_only_mode needs a clip; give it as ref_audio",
    ),
    (
        {"references": [{"audio_path": "a"}, {"audio_path": "b"}]},
        400,
        "invalid_field",
        "references",
        "references: list should have at most 1 item after validation, not 2",
    ),
    (
        {"references": [{"audio_path": "a", "txt": "b"}]},
        400,
        "invalid_field",
        "references[0].txt",
        "references[0]: unknown field 'txt'; did you mean 'text'? (possible: audio, ",
    ),
    ({"ref_audio": ["a", 1]}, 400, "invalid_field", "ref_audio[1]", "ref_audio[1]: input should be a valid string"),
    (
        {"word_timestamps": True},
        400,
        "invalid_field",
        "word_timestamps",
        "word timestamps need an aligner; start the server with --aligner",
    ),
    (
        {"instructions": "a" * 4097},
        400,
        "invalid_field",
        "instructions",
        "instructions must be a string of at most 4096 characters",
    ),
]

# method, path, body, headers -> status, code, message
BAD_REQUESTS: list[tuple[str, str, bytes, dict[str, str], int, str, str]] = [
    ("POST", SPEECH, b"", {}, 400, "invalid_field", "the body is missing; it is required"),
    ("POST", SPEECH, b"{", {}, 400, "bad_request", "the body is not valid JSON (Expecting property name"),
    (
        "POST",
        SPEECH,
        b'{"input": "\xff"}',
        {},
        400,
        "bad_request",
        "the body is not valid JSON (invalid start byte at byte 11, decoded as utf-8); send one JSON object",
    ),
    ("POST", SPEECH, b"[" * 10**4, {}, 400, "bad_request", "the body is not valid JSON (lists or objects are nested"),
    (
        "POST",
        SPEECH,
        b'{"seed": ' + b"9" * 5000 + b"}",
        {},
        400,
        "bad_request",
        "the body is not valid JSON (an integer has more than 4300 digits)",
    ),
    (
        "POST",
        SPEECH,
        b'{"input": "a"}',
        {"content-encoding": "gzip"},
        400,
        "bad_request",
        "compressed bodies (gzip) are not supported; send plain JSON",
    ),
    ("POST", SPEECH, b"\x1f\x8b\x08", {}, 400, "bad_request", "compressed bodies (gzip) are not supported"),
    ("POST", SPEECH, b'{"\\ud800": 1}', {}, 400, "invalid_field", "input is missing; it is required"),
    (
        "POST",
        SPEECH,
        b'{"input": "a", "\\ud800": 1}',
        {},
        400,
        "invalid_field",
        "unknown field '\\\\ud800' (possible: ",
    ),
    ("POST", SPEECH, b"[]", {}, 400, "invalid_field", "the body must be one JSON object, sent with content-type"),
    ("POST", SPEECH, b'"text"', {}, 400, "invalid_field", "the body must be one JSON object, sent with content-type"),
    ("POST", SPEECH, b'{"input": "\\ud800"}', {}, 400, "bad_request", "the text holds a lone surrogate"),
    (
        "POST",
        SPEECH,
        b'{"input": "a", "speed": NaN}',
        {},
        400,
        "invalid_field",
        "speed must be a number from 0.25 to 4",
    ),
    ("POST", SPEECH, b'{"input": "a", "top_p": 1e999}', {}, 400, "invalid_field", "top_p must be"),
    (
        "POST",
        SPEECH,
        b"x" * 20_001,
        {},
        413,
        "too_large",
        "the body exceeds the limit of 0.0191 MiB; split the request",
    ),
    ("GET", SPEECH, b"", {}, 405, "method_not_allowed", "GET /v1/audio/speech is not supported; see /docs"),
    ("GET", "/v1/speech", b"", {}, 404, "not_found", "GET /v1/speech does not exist; see /docs for the endpoints"),
    ("POST", f"{SPEECH}/batch", b'{"items": []}', {}, 400, "invalid_field", "items: list should have at least 1 item"),
    ("POST", f"{SPEECH}/batch", b"{}", {}, 400, "invalid_field", "items is missing; it is required"),
    (
        "POST",
        f"{SPEECH}/batch",
        b'{"itmes": []}',
        {},
        400,
        "invalid_field",
        "items is missing; it is required; did you mean it by 'itmes'?",
    ),
    (
        "POST",
        f"{SPEECH}/batch",
        json.dumps({"items": [{"input": "a"}] * 4}).encode(),
        {},
        400,
        "invalid_field",
        "the batch has 4 items, the limit is 3; split it",
    ),
]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    engine = ScriptedEngine()
    with client_of(engine, CARD, CONFIG) as client:
        yield client
    engine.stop()


def check(client: httpx.Client, answer: httpx.Response, status: int, code: str, message: str) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert (answer.status_code, body["error"]["code"]) == (status, code), body
    assert body["error"]["message"].startswith(message), body
    assert answer.headers["x-request-id"]
    valid = client.post(SPEECH, json={"input": "Fine.", "response_format": "pcm", "seed": 1})
    assert valid.content == spoken("Fine.", 1)
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("fields", "status", "code", "param", "message"), BAD_FIELDS, ids=lambda value: str(value)[:40]
)
def test_a_bad_field_is_refused_with_the_allowed_values(
    client: httpx.Client, fields: dict[str, Any], status: int, code: str, param: str | None, message: str
) -> None:
    body = {"input": "Hello.", **fields}
    body = {name: value for name, value in body.items() if value is not ...}
    error = check(client, client.post(SPEECH, json=body), status, code, message)
    assert error["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code", "message"), BAD_REQUESTS, ids=lambda value: str(value)[:30]
)
def test_a_bad_request_gets_an_error_in_openais_form(
    client: httpx.Client,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
    message: str,
) -> None:
    answer = client.request(method, path, content=body, headers={"content-type": "application/json", **headers})
    check(client, answer, status, code, message)


def test_a_body_without_content_length_is_limited_too(client: httpx.Client) -> None:
    answer = client.post(SPEECH, content=(b"x" * 1000 for _ in range(30)), headers={"content-type": "application/json"})
    check(client, answer, 413, "too_large", "the body exceeds the limit of 0.0191 MiB")


@pytest.mark.parametrize(
    ("path", "methods"), [(SPEECH, "POST"), ("/v1/audio/voices", "GET, POST"), ("/v1/audio/voices/wren", "GET, DELETE")]
)
def test_a_wrong_method_is_answered_with_the_allowed_ones(client: httpx.Client, path: str, methods: str) -> None:
    answer = client.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)


@pytest.mark.parametrize("theirs", ["text", "prompt", "inptu"])
def test_a_missing_field_is_recognized_under_another_name(client: httpx.Client, theirs: str) -> None:
    message = client.post("/v1/audio/speech", json={theirs: "hello"}).json()["error"]["message"]
    assert message == f"input is missing; it is required; did you mean it by {theirs!r}?"


# --- unexpected errors ---


@pytest.mark.parametrize(("error", "count"), [(ZeroDivisionError, 1), (ConnectionResetError, 0)])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (SPEECH, {"input": "Hello."}),
        (SPEECH, {"input": "Hello.", "stream_format": "sse"}),
        (f"{SPEECH}/batch", {"items": [{"input": "Hello."}]}),
        (GENERATION, {"input": {"text": "Hello."}}),
    ],
)
def test_an_unexpected_error_after_the_first_byte_is_logged_once_with_its_traceback(
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict[str, Any],
    error: type[Exception],
    count: int,
) -> None:
    async def fail(writer: ResponseWriter, data: bytes, *, more: bool = True) -> None:
        assert writer.started
        raise error

    monkeypatch.setattr(ResponseWriter, "write", fail)
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(path, json=body)
    logged = [record.exc_info for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(info[0], info[2] is not None) for info in logged if info] == [(error, True)] * count
    caplog.clear()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (SPEECH, {"input": "Hello."}),
        (f"{SPEECH}/batch", {"items": [{"input": "Hello."}]}),
        (GENERATION, {"input": {"text": "Hello."}}),
    ],
)
def test_an_unexpected_error_before_the_first_byte_is_logged_once_and_answered(
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict[str, Any],
) -> None:
    async def fail(writer: ResponseWriter, headers: dict[str, str]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ResponseWriter, "start", fail)
    assert client.post(path, json=body).status_code == 500
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    caplog.clear()
