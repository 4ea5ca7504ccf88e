"""What comes before any key is asked for has an end: the head of a request is small, and it comes."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import serving
from websockets.sync.client import connect

from oscine.config import ServerConfig
from oscine.server import http_protocol as protocol
from oscine.server.app import build_app

SPEECH = b"POST /v1/audio/speech HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: here\r\n"
MIB = 2**20


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    engine = ScriptedEngine(frame_s=0.01)
    with serving(build_app(engine, CARD, ServerConfig(max_text_chars=10**6))) as url:
        yield url
    engine.stop()


@pytest.fixture
def raw(url: str) -> Iterator[socket.socket]:
    with opened(url) as one:
        yield one


@contextlib.contextmanager
def opened(url: str) -> Iterator[socket.socket]:
    where = httpx.URL(url)
    with socket.create_connection((where.host, where.port or 0), timeout=10) as one:
        yield one


def sent(one: socket.socket, data: bytes) -> int:
    """How much of it was taken."""
    taken = 0
    with contextlib.suppress(ConnectionError):
        while taken < len(data):
            taken += one.send(data[taken : taken + 65536])
    return taken


def heard(one: socket.socket) -> bytes:
    """Until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := one.recv(65536):
            data += piece
    return data


def answer(one: socket.socket) -> bytes:
    """Of one request to /health."""
    data = b""
    while not data.endswith(b"}"):
        piece = one.recv(65536)
        assert piece, "it was closed"
        data += piece
    return data


# --- small ---


@pytest.mark.parametrize(
    "beginning",
    [GET + b"x-long: ", b"GET /", b"\r\n", SPEECH + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-trailer: "],
    ids=["header", "path", "empty lines", "trailer"],
)
def test_a_head_without_an_end_is_not_taken(raw: socket.socket, beginning: bytes) -> None:
    raw.sendall(beginning)
    time.sleep(0.05)
    filling = (beginning if beginning == b"\r\n" else b"y") * (20 * MIB)
    assert sent(raw, filling) < 18 * MIB  # what the sockets on the way hold


def test_a_head_that_is_too_large_is_told_so(raw: socket.socket) -> None:
    raw.sendall(GET + b"x-long: " + b"y" * 65536)
    head, _, body = heard(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n") and b"connection: close" in head
    error = json.loads(body)["error"]
    assert error["code"] == "too_large" and "64 KiB" in error["message"]


def test_many_small_headers_are_counted_together(raw: socket.socket) -> None:
    raw.sendall(GET + b"".join(b"x-%d: y\r\n" % number for number in range(10_000)) + b"\r\n")
    assert heard(raw).startswith(b"HTTP/1.1 431 ")


def test_a_head_near_the_limit_is_taken(url: str) -> None:
    assert httpx.get(f"{url}/health", headers={"x-long": "y" * 60_000}, trust_env=False).status_code == 200


@pytest.mark.parametrize("piece", [17, 100_000])
def test_a_large_body_is_no_head_however_it_comes(raw: socket.socket, piece: int) -> None:
    body = b'{"input": "' + b" " * 300_000 + b'"}'
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces)
    raw.sendall(SPEECH + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert raw.recv(12) == b"HTTP/1.1 400"  # there is no word in it, which only who has read it all can say


def test_a_request_in_the_same_piece_as_the_end_of_a_large_body_is_answered(raw: socket.socket) -> None:
    body = b'{"input": "' + b" " * 300_000 + b'"}'
    first = SPEECH + b"content-length: %d\r\n\r\n" % len(body) + body
    raw.sendall(first + GET[:10])
    time.sleep(0.1)
    raw.sendall(GET[10:] + b"connection: close\r\n\r\n")
    told = heard(raw)
    assert told.startswith(b"HTTP/1.1 400 ") and b"HTTP/1.1 200 OK" in told


def test_a_request_after_a_refused_one_is_not_reached(raw: socket.socket) -> None:
    raw.sendall(GET + b"x-long: " + b"y" * 70_000 + b"\r\n\r\n" + GET + b"\r\n")
    assert heard(raw).count(b"HTTP/1.1") == 1


# --- soon ---


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_HEAD_S", 0.4)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("beginning", [b"", GET, b"\r\n"], ids=["nothing", "half", "an empty line"])
def test_a_connection_on_which_no_head_comes_is_closed(url: str, beginning: bytes) -> None:
    with opened(url) as one:
        one.sendall(beginning)
        begun_s = time.monotonic()
        assert heard(one) == b""
        assert 0.2 < time.monotonic() - begun_s < 5


@pytest.mark.usefixtures("soon")
def test_a_drop_at_a_time_wins_no_time(url: str) -> None:
    with opened(url) as one:
        begun_s = time.monotonic()
        one.sendall(GET + b"x-long: ")
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - begun_s < 5:
                one.sendall(b"y")
                time.sleep(0.05)
        assert time.monotonic() - begun_s < 2


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("beginning", [GET, b"\r\n"], ids=["half", "an empty line"])
def test_a_later_head_has_its_time_too(url: str, beginning: bytes) -> None:
    with opened(url) as one:
        for _ in range(3):
            one.sendall(GET + b"\r\n")
            assert answer(one).startswith(b"HTTP/1.1 200 OK")
            time.sleep(0.2)  # together more than one head has
        begun_s = time.monotonic()
        one.sendall(beginning)
        assert heard(one) == b""
        assert time.monotonic() - begun_s < 3  # before uvicorn closes an idle connection


@pytest.mark.usefixtures("soon")
def test_an_idle_connection_is_kept_for_the_next_request(url: str) -> None:
    with opened(url) as one:
        for _ in range(2):
            one.sendall(GET + b"\r\n")
            assert answer(one).startswith(b"HTTP/1.1 200 OK")
            time.sleep(0.8)


@pytest.mark.usefixtures("soon")
def test_neither_a_long_answer_nor_a_live_session_is_cut(url: str) -> None:
    body = {"input": "word " * 20, "response_format": "pcm"}  # a second
    with connect(url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None) as live:
        assert len(httpx.post(f"{url}/v1/audio/speech", json=body, trust_env=False).content) == 100 * 3840
        live.send('{"type": "session.config"}')
        assert "session.ready" in str(live.recv(timeout=5))


@pytest.mark.usefixtures("soon")
def test_half_a_head_sent_ahead_does_not_cut_the_answer_that_runs(raw: socket.socket) -> None:
    body = json.dumps({"input": "word " * 20, "response_format": "pcm"}).encode()
    raw.sendall(SPEECH + b"content-length: %d\r\n\r\n" % len(body) + body + GET)
    told = heard(raw)  # and then it is closed
    assert told.endswith(b"0\r\n\r\n") and len(told) > 100 * 3840
