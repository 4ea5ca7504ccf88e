"""POST /api/v1/services/aigc/multimodal-generation/generation: the HTTP call of Qwen's hosted speech models. The SDK
itself runs in tests/server/test_clients.py."""

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oscine.audio import read_clip
from oscine.config import ServerConfig
from oscine.server.realtime.dashscope_http import PATH
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import ScriptedEngine, spoken
from tests.server.serving import eventually

STREAM = {"x-dashscope-sse": "enable"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(segment_chars=60, max_text_chars=100, api_keys=("sesame",))) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def client(running: tuple[ScriptedEngine, Server]) -> Iterator[httpx.Client]:
    engine, server = running
    key = {"authorization": "Bearer sesame"}
    with httpx.Client(base_url=server.url, headers=key, trust_env=False, timeout=600) as client:
        yield client
    eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


def body(text: str = "Hello.", parameters: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    given = {"text": text, "voice": "finch", **fields}
    return {"model": "qwen3-tts-flash", "input": given, "parameters": {"seed": 3, **(parameters or {})}}


def events(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    blocks = [dict(line.split(":", 1) for line in block.splitlines()) for block in response.text.split("\n\n")[:-1]]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def test_the_whole_file_is_a_data_url(client: httpx.Client) -> None:
    answer = client.post(PATH, json=body())
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    output = answer.json()["output"]
    kind, _, data = output["audio"]["url"].partition(",")
    assert kind == "data:audio/wav;base64" and output["finish_reason"] == "stop"
    assert base64.b64decode(data)[44:] == spoken("Hello.", 3, "finch")


def test_settings_are_read_from_input_and_parameters(client: httpx.Client) -> None:
    answer = client.post(
        PATH, json=body(language_type="English", parameters={"response_format": "flac", "sample_rate": 48000})
    )
    clip = read_clip(base64.b64decode(answer.json()["output"]["audio"]["url"].partition(",")[2]))
    assert clip.rate_hz == 48000
    answer = client.post(PATH, json=body(parameters={"volume": 80, "pitch_rate": 1}))
    assert answer.headers["x-ignored-fields"] == "volume"


def test_a_stream_sends_pcm_and_then_the_usage(client: httpx.Client) -> None:
    answer = client.post(PATH, json=body("Hello there."), headers=STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer)
    audio = [event["output"]["audio"]["data"] for kind, event in found if kind == "result"]
    assert b"".join(map(base64.b64decode, audio)) == spoken("Hello there.", 3, "finch")
    _, last = found[-1]
    assert last["output"]["finish_reason"] == "stop" and last["usage"]["characters"] == len("Hello there.")
    assert {event["request_id"] for _, event in found} == {answer.headers["x-request-id"]}


def test_a_stream_that_breaks_ends_with_an_error(client: httpx.Client) -> None:
    lines = []
    with (
        contextlib.suppress(httpx.RemoteProtocolError),  # the response stays incomplete too
        client.stream("POST", PATH, json=body("Hello!break"), headers=STREAM) as stream,
    ):
        for line in stream.iter_lines():
            lines.append(line)
    assert "event:error" in lines and "status:503" in lines
    answer = client.post(PATH, json=body("Hello!break"))
    assert answer.status_code == 503 and answer.json()["code"] == "engine_failed" and answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("sent", "status", "param", "said"),
    [
        ([], 400, "text", "must have a text"),
        ({"model": "qwen3-tts-flash"}, 400, "text", "must have a text"),
        (body(voice="wrem"), 400, "voice", "GET /v1/audio/voices"),
        (body(parameters={"speech_rate": 9}), 400, "speech_rate", "less than"),
        (body("a" * 101), 413, "text", "limit is 100"),
        ({**body(), "model": "wan2"}, 404, "model", "scripted"),
    ],
)
def test_errors_have_the_form_that_the_sdk_reads(
    client: httpx.Client, sent: Any, status: int, param: str, said: str
) -> None:
    answer = client.post(PATH, json=sent)
    error = answer.json()
    assert answer.status_code == status and said in error["message"]
    assert error["code"] == error["error"]["code"] and error["error"]["param"] == param
    assert error["request_id"] == answer.headers["x-request-id"]


def test_a_key_is_needed(client: httpx.Client) -> None:
    answer = client.post(PATH, json=body(), headers={"authorization": "Bearer no"})
    assert answer.status_code == 401 and answer.json()["code"] == "invalid_api_key"
