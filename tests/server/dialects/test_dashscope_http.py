"""POST /api/v1/services/aigc/multimodal-generation/generation: the HTTP call of Qwen's hosted speech models. The SDK
itself runs in tests/server/test_clients.py."""

import base64
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oscine.audio.clips import read_clip
from oscine.config import ServerConfig
from oscine.server.dialects.dashscope_http import PATH
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


def fetched(url: str) -> httpx.Response:
    """Fetches like `requests.get(url)`: without a key."""
    return httpx.get(url, trust_env=False, timeout=600)


def test_the_whole_file_is_at_a_url_of_this_server(client: httpx.Client) -> None:
    answer = client.post(PATH, json=body())
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    output = answer.json()["output"]
    assert output["audio"]["url"].startswith(str(client.base_url)) and output["finish_reason"] == "stop"
    assert 0 < output["audio"]["expires_at"] - time.time() <= 600
    for _ in range(2):
        file = fetched(output["audio"]["url"])
        assert file.status_code == 200 and file.headers["content-type"] == "audio/wav"
        assert int(file.headers["content-length"]) == len(file.content)
        assert file.content[44:] == spoken("Hello.", 3, "finch")
    missing = fetched(output["audio"]["url"][:-8] + "xxxx.wav")
    assert missing.status_code == 404 and "600 s" in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    ("config", "headers", "expected"),
    [
        ({}, {"host": "speech.example.com"}, "http://speech.example.com/files/"),
        ({}, {"host": "speech.example.com", "x-forwarded-proto": "https"}, "http://speech.example.com/files/"),
        (
            {"forwarded_allow_ips": ("127.0.0.1",)},
            {"host": "speech.example.com", "x-forwarded-proto": "https"},
            "https://speech.example.com/files/",
        ),
        ({"public_url": "https://example.com/tts/"}, {}, "https://example.com/tts/files/"),
    ],
)
def test_the_url_has_the_name_that_clients_use(config: dict[str, Any], headers: dict[str, str], expected: str) -> None:
    engine = ScriptedEngine()
    settings = ServerConfig(allowed_hosts=("speech.example.com",), **config)
    with server_of(engine, settings) as server:
        answer = httpx.post(f"{server.url}{PATH}", json=body(), headers=headers, trust_env=False, timeout=600)
        url = answer.json()["output"]["audio"]["url"]
        assert url.startswith(expected)
        assert fetched(f"{server.url}/files/{url.rpartition('/')[2]}").content[44:] == spoken("Hello.", 3, "finch")
    engine.stop()


def test_a_file_for_which_others_leave_no_room_is_refused() -> None:
    engine = ScriptedEngine()
    sizes = {"kept_files_bytes": 40_000, "kept_files_bytes_per_key": 40_000, "bytes_per_address": 2**20}
    with server_of(engine, ServerConfig(api_keys=("sesame", "poppy"), **sizes)) as server:

        def ask(key: str) -> httpx.Response:
            how = {"authorization": f"Bearer {key}"}
            return httpx.post(f"{server.url}{PATH}", json=body(), headers=how, trust_env=False, timeout=600)

        first, second = (ask("sesame").json()["output"]["audio"]["url"] for _ in range(2))
        assert fetched(first).status_code == 404  # its own next file took the room
        refused = ask("poppy")
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert fetched(second).status_code == 200 and ask("poppy").status_code == 200
    engine.stop()


def test_a_file_that_the_server_may_not_keep_is_in_its_url() -> None:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(kept_files_bytes=0)) as server:
        answer = httpx.post(f"{server.url}{PATH}", json=body(), trust_env=False, timeout=600)
        kind, _, data = answer.json()["output"]["audio"]["url"].partition(",")
        assert kind == "data:audio/wav;base64" and "expires_at" not in answer.json()["output"]["audio"]
        assert base64.b64decode(data)[44:] == spoken("Hello.", 3, "finch")
    engine.stop()


def test_the_log_does_not_name_a_kept_file(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    url = client.post(PATH, json=body()).json()["output"]["audio"]["url"]
    with caplog.at_level("DEBUG", "oscine"):
        fetched(url)
        eventually(lambda: any("GET /files/" in record.getMessage() for record in caplog.records))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("oscine")]
    assert "GET /files/..." in lines and not any(url.rpartition("/")[2] in line for line in lines)


def test_settings_are_read_from_input_and_parameters(client: httpx.Client) -> None:
    answer = client.post(
        PATH, json=body(language_type="English", parameters={"response_format": "flac", "sample_rate": 48000})
    )
    clip = read_clip(fetched(answer.json()["output"]["audio"]["url"]).content)
    assert clip.rate_hz == 48000
    answer = client.post(PATH, json=body(parameters={"volume": 80, "pitch_rate": 1.2}))
    assert answer.headers["x-ignored-fields"] == "pitch_rate"


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
        (body(parameters={"speech_rate": 9}), 400, "speech_rate", "from 0.25 to 4"),
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
