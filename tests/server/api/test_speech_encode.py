"""POST /v1/audio/encode: PCM becomes a file in any format."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from oscine.audio.clips import read_clip
from oscine.audio.encoders import encode_whole
from oscine.config import ServerConfig
from oscine.server.api import speech
from oscine.server.app import build_app
from tests.server.scripted_engine import CARD, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of, client_of_app, eventually, serving

CONVERT = "/v1/audio/encode?response_format=mp3"
PCM = spoken("Hello.", 3)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    engine = ScriptedEngine()
    with client_of(engine, CARD) as client:
        yield client
    assert not engine.requests
    engine.stop()


@pytest.mark.parametrize(
    ("form", "media_type"),
    [
        ("wav", "audio/wav"),
        ("flac", "audio/flac"),
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("aac", "audio/aac"),
    ],
)
def test_pcm_becomes_a_file(client: httpx.Client, form: str, media_type: str) -> None:
    response = client.post("/v1/audio/encode", params={"response_format": form, "sample_rate": RATE_HZ}, content=PCM)
    assert response.status_code == 200 and response.headers["content-type"] == media_type
    clip = read_clip(response.content)
    assert abs(clip.duration_s - len(PCM) / 2 / RATE_HZ) < 0.15
    if form in ("wav", "flac"):
        assert np.rint(clip.samples * 32768).astype("<i2").tobytes() == PCM


@pytest.mark.parametrize(
    ("params", "content", "status", "param"),
    [
        ({"response_format": "wav"}, b"", 400, None),
        ({"response_format": "wav"}, b"abc", 400, None),
        ({}, PCM, 400, "response_format"),
        ({"response_format": "wma"}, PCM, 400, "response_format"),
        ({"response_format": "wav", "sample_rate": "7"}, PCM, 400, "sample_rate"),
        ({"response_format": "opus", "sample_rate": "44100"}, PCM, 400, "sample_rate"),
    ],
)
def test_a_bad_request_is_refused(
    client: httpx.Client, params: dict[str, str], content: bytes, status: int, param: str | None
) -> None:
    response = client.post("/v1/audio/encode", params=params, content=content)
    error = response.json()["error"]
    assert response.status_code == status, error
    assert error["message"] and (error["param"] or "").removeprefix("query.") == (param or "")


class CountingPool(ThreadPoolExecutor):
    jobs = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.jobs += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize("path", ["/v1/audio/encode?response_format=mp3", "/v1/audio/speech"])
def test_a_long_file_is_encoded_in_many_short_jobs(engine: ScriptedEngine, path: str) -> None:
    """One job of ten minutes of mp3 would keep one of the few threads from other streams for seconds."""
    app = build_app(engine, CARD)
    service = app.state.service
    pool = service.ledger.pool("encoding").executor = service.ledger.pool("conversion").executor = CountingPool(1)
    pcm = spoken("x" * 200, 3)  # 16 s
    with serving(app) as url, httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        body = {"input": "x" * 200, "stream": False, "seed": 3}
        answer = client.post(path, json=body) if "speech" in path else client.post(path, content=pcm)
    assert answer.status_code == 200
    assert answer.content == encode_whole("mp3", pcm, rate_hz=RATE_HZ)
    assert pool.jobs >= 12


class StuckEncoder:
    """Does not return before `free` is set."""

    def __init__(self, free: threading.Event) -> None:
        self._free = free

    def push(self, pcm: bytes) -> bytes:
        self._free.wait(600)
        return b""

    def finish(self) -> bytes:
        return b"file"

    def close(self) -> None: ...


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is not set, conversions do not end."""
    free = threading.Event()
    monkeypatch.setattr(speech, "open_file_encoder", lambda form, rate_hz: StuckEncoder(free))
    return free


def test_conversions_delay_no_speech_and_have_a_limit(engine: ScriptedEngine, free: threading.Event) -> None:
    app = build_app(engine, CARD)
    with client_of_app(app) as client, ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(client.post, CONVERT, content=PCM) for _ in range(6)]
        eventually(lambda: app.state.service.streams == 6)
        refused = client.post(CONVERT, content=PCM)
        assert refused.status_code == 429 and "6 conversion jobs of this address" in refused.json()["error"]["message"]
        assert client.post("/v1/audio/speech", json={"input": "Hello."}).status_code == 200
        free.set()
        assert [one.result().content for one in waiting] == [b"file"] * 6


def test_a_conversion_counts_as_a_stream_of_its_key(engine: ScriptedEngine, free: threading.Event) -> None:
    app = build_app(engine, CARD, ServerConfig(streams_per_key=1))
    with client_of_app(app) as client, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.post, CONVERT, content=PCM)
        eventually(lambda: app.state.service.streams == 1)
        assert client.post(CONVERT, content=PCM).json()["error"]["code"] == "too_many_streams"
        free.set()
        assert waiting.result().content == b"file"
