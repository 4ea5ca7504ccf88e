"""nginx and Caddy from the system's packages, with the files in deploy/, in front of a real server over HTTPS."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.certificates import Certificate, self_signed
from tests.deploy.proxies import PROXIES, Proxy
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, ScriptedEngine, spoken
from tests.server.serving import eventually, serving
from tests.websocket import connect

pytestmark = pytest.mark.slow

SPEECH = "/v1/audio/speech"
TEXT = "Hello there, this is a sentence."
FRAME_BYTES = 2 * FRAME_SAMPLES
REQUEST = {"input": TEXT, "voice": "wren", "response_format": "pcm", "seed": 3, "trim_silence": False}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def engines() -> Iterator[list[ScriptedEngine]]:
    two = [ScriptedEngine(), ScriptedEngine()]
    yield two
    for engine in two:
        engine.stop()


@pytest.fixture
def apps(engines: list[ScriptedEngine]) -> list[FastAPI]:
    return [build_app(engine, CARD) for engine in engines]


@pytest.fixture(params=PROXIES)
def proxy(
    request: pytest.FixtureRequest, apps: list[FastAPI], certificate: Certificate, tmp_path: Path
) -> Iterator[Proxy]:
    """A proxy in front of both servers."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(serving(app)) for app in apps]
        yield stack.enter_context(PROXIES[request.param](urls, certificate, tmp_path))


def test_audio_arrives_while_the_rest_of_it_does_not_exist_yet(proxy: Proxy, engines: list[ScriptedEngine]) -> None:
    for engine in engines:
        engine.max_frames = 2
    with proxy.client() as client, client.stream("POST", SPEECH, json=REQUEST) as response:
        pieces = response.iter_raw()
        heard = next(pieces)
        assert 0 < len(heard) <= 2 * FRAME_BYTES
        for engine in engines:
            engine.max_frames = math.inf
        heard += b"".join(pieces)
    assert heard == spoken(TEXT, 3, "wren")


def test_a_listener_who_leaves_frees_the_slot(proxy: Proxy, engines: list[ScriptedEngine]) -> None:
    for engine in engines:
        engine.max_frames = 2
    with proxy.client() as client, client.stream("POST", SPEECH, json=REQUEST) as response:
        next(response.iter_raw())
    eventually(lambda: sum(engine.cancelled for engine in engines) == 1)


def test_a_live_session_passes(proxy: Proxy) -> None:
    address = proxy.url.replace("https", "wss", 1) + SPEECH + "/stream"
    with connect(address, ssl=proxy.trust, proxy=None, origin=proxy.url) as socket:  # as a browser's page does
        socket.send(json.dumps({"type": "session.config", "response_format": "pcm", "seed": 3, "trim_silence": False}))
        socket.send(json.dumps({"type": "input.text", "text": TEXT}))
        socket.send(json.dumps({"type": "session.close"}))
        heard = b"".join(message for message in socket if isinstance(message, bytes))
    assert len(heard) == len(TEXT) * FRAME_BYTES


def test_a_draining_server_soon_gets_no_new_speech(proxy: Proxy, apps: list[FastAPI]) -> None:
    """nginx asks the other server at once, Caddy when it has seen /ready fail."""
    apps[0].state.service.draining = True
    with proxy.client() as client:
        eventually(lambda: all(client.post(SPEECH, json=REQUEST).status_code == 200 for _ in range(10)))


def test_the_metrics_are_not_public_and_errors_arrive_as_they_are(proxy: Proxy) -> None:
    with proxy.client() as client:
        assert client.get("/metrics").status_code == 404
        refused = client.post(SPEECH, json={**REQUEST, "voice": "rwen"})
        assert refused.status_code == 400 and "did you mean 'wren'?" in refused.json()["error"]["message"]
        assert client.post(SPEECH, content=b"x" * (33 * 2**20)).status_code == 413


@pytest.mark.parametrize("program", PROXIES)
def test_the_public_name_reaches_a_server_that_knows_it(
    program: str, engines: list[ScriptedEngine], certificate: Certificate, tmp_path: Path
) -> None:
    named = build_app(engines[0], CARD, ServerConfig(allowed_hosts=("speech.example.com",)))
    unnamed = build_app(engines[1], CARD)
    for number, (app, expected) in enumerate([(named, 200), (unnamed, 403)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        with serving(app) as url, PROXIES[program]([url], certificate, folder) as proxy, proxy.client() as client:
            answer = client.get("/v1/models", headers={"host": "speech.example.com"})
            assert answer.status_code == expected and answer.json(), answer.text


@pytest.fixture
def behind_nginx(apps: list[FastAPI], certificate: Certificate, tmp_path: Path) -> Iterator[httpx.Client]:
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(serving(app)) for app in apps]
        proxy = stack.enter_context(PROXIES["nginx"](urls, certificate, tmp_path))
        yield stack.enter_context(proxy.client())


def test_nginx_drops_no_request_while_a_server_drains(behind_nginx: httpx.Client, apps: list[FastAPI]) -> None:
    apps[0].state.service.draining = True
    assert [behind_nginx.post(SPEECH, json=REQUEST).status_code for _ in range(6)] == [200] * 6


def test_nginx_asks_another_server_if_one_is_full_and_passes_on_when_to_retry(
    behind_nginx: httpx.Client, engines: list[ScriptedEngine]
) -> None:
    engines[0].slots = engines[0].queue = 0
    assert [behind_nginx.post(SPEECH, json=REQUEST).status_code for _ in range(4)] == [200] * 4
    engines[1].slots = engines[1].queue = 0
    for _ in range(2):  # they are not taken out of service
        full = behind_nginx.post(SPEECH, json=REQUEST)
        assert full.status_code == 429 and full.headers["retry-after"] and "full" in full.json()["error"]["message"]
