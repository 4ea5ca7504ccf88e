"""Bugs of the server: the client gets an error with an id, and the log has the same id."""

import json
import logging
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.http.api_keys import ApiKeys
from oscine.server.http.logs import JsonFormatter
from oscine.server.live import live_session
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import serving
from tests.websocket import connect


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def log() -> Iterator[Lines]:
    lines, logger = Lines(), logging.getLogger("oscine")
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _no_bugs() -> None:
    """These tests have bugs on purpose."""


def test_an_unexpected_exception_is_a_json_error_with_an_id_in_the_log(engine: ScriptedEngine, log: Lines) -> None:
    app = build_app(engine, CARD)

    @app.get("/v1/bug")
    async def bug() -> None:
        raise ZeroDivisionError("a bug")

    with serving(app) as url:
        answer = httpx.get(f"{url}/v1/bug", headers={"x-request-id": "my-own-id"}, trust_env=False, timeout=600)
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
    assert answer.headers["x-request-id"] == "my-own-id" and answer.headers["content-type"] == "application/json"
    failure, access = [line for line in log.lines if line["request_id"] == "my-own-id"]
    assert "ZeroDivisionError: a bug" in str(failure["exception"]) and failure["level"] == "error"
    assert access["message"] == "GET /v1/bug" and access["status"] == 500


def test_an_unexpected_exception_in_a_stream_leaves_it_incomplete(engine: ScriptedEngine, log: Lines) -> None:
    app = build_app(engine, CARD)

    @app.get("/v1/bug")
    async def bug() -> object:
        from starlette.responses import StreamingResponse

        async def pieces() -> object:
            yield b"one"
            raise ZeroDivisionError("a bug")

        return StreamingResponse(pieces())  # type: ignore[arg-type]

    with serving(app) as url, pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{url}/v1/bug", trust_env=False, timeout=600)
    assert [line["message"] for line in log.lines if line["level"] == "error"] == ["unexpected exception"]


def speak_to(url: str, headers: dict[str, str]) -> None:
    with connect(url, additional_headers=headers, proxy=None) as live:
        while True:
            live.recv(timeout=600)


@pytest.mark.parametrize("moment", ["run", "_read", "handshake"])
def test_an_unexpected_exception_in_a_live_session_is_logged_with_its_id(
    engine: ScriptedEngine, log: Lines, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def bug(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    if moment == "handshake":  # between the handshake and the first message
        monkeypatch.setattr(ApiKeys, "authenticate", bug)
    else:
        monkeypatch.setattr(live_session.LiveSession, moment, bug)
    headers = {"x-request-id": "my-own-id"}
    with serving(build_app(engine, CARD)) as url:
        path = url.replace("http", "ws") + "/v1/audio/speech/stream"
        with pytest.raises((ConnectionClosed, InvalidStatus)) as ended:
            speak_to(path, headers)
    if isinstance(ended.value, InvalidStatus):
        assert moment == "run" and ended.value.response.status_code == 500
    else:
        assert ended.value.rcvd is not None and ended.value.rcvd.code == 1011
    failures = [line for line in log.lines if line["level"] == "error"]
    assert [line["request_id"] for line in failures] == ["my-own-id"]
    assert "ZeroDivisionError: a bug" in str(failures[0]["exception"])


def test_the_playground_cannot_be_framed_and_sends_its_forms_nowhere_else(engine: ScriptedEngine) -> None:
    with serving(build_app(engine, CARD)) as url:
        policy = httpx.get(url, trust_env=False, timeout=600).headers["content-security-policy"]
    assert {"frame-ancestors 'self'", "base-uri 'self'", "form-action 'self'"} <= {
        one.strip() for one in policy.split(";")
    }


@pytest.mark.parametrize(("proxies", "client"), [((), "127.0.0.1"), (("127.0.0.0/8",), "192.0.2.7")])
def test_only_named_proxies_say_who_the_client_is(
    engine: ScriptedEngine, log: Lines, proxies: tuple[str, ...], client: str
) -> None:
    with serving(build_app(engine, CARD, ServerConfig(api_keys=("sesame",), forwarded_allow_ips=proxies))) as url:
        httpx.get(f"{url}/v1/models", headers={"x-forwarded-for": "192.0.2.7"}, trust_env=False, timeout=600)
    assert [line["client"] for line in log.lines if line["message"] == "key refused"] == [client]
