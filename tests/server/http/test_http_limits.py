"""The head of a request is limited in size and time, because it arrives before any API key is checked."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.http import http_limits as protocol
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import serving
from tests.websocket import connect

SPEECH = b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
MIB = 2**20


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    engine = ScriptedEngine(frame_s=0.01)
    app = build_app(engine, CARD, ServerConfig(max_text_chars=10**6))
    with serving(app, timeout_keep_alive=3600) as url:  # so that only our own limit closes connections
        yield url
    engine.stop()


@pytest.fixture
def raw(url: str) -> Iterator[socket.socket]:
    with opened(url) as one:
        yield one


@contextlib.contextmanager
def opened(url: str) -> Iterator[socket.socket]:
    where = httpx.URL(url)
    with socket.create_connection((where.host, where.port or 0), timeout=600) as one:
        yield one


def sent(one: socket.socket, data: bytes) -> int:
    """How many bytes the server accepted."""
    taken = 0
    with contextlib.suppress(ConnectionError):
        while taken < len(data):
            taken += one.send(data[taken : taken + 65536])
    return taken


def send_slowly(one: socket.socket) -> None:
    """Sends until the server closes the connection."""
    while True:
        one.sendall(b"y")
        time.sleep(0.05)


def received(one: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := one.recv(65536):
            data += piece
    return data


def answer(one: socket.socket) -> bytes:
    """The response of one request to /health."""
    data = b""
    while not data.endswith(b"}"):
        piece = one.recv(65536)
        assert piece, "the connection was closed"
        data += piece
    return data


# --- size ---


@pytest.mark.parametrize(
    "beginning",
    [GET + b"x-long: ", b"GET /", b"\r\n", SPEECH + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-trailer: "],
    ids=["header", "path", "empty lines", "trailer"],
)
def test_an_endless_head_is_cut_off(raw: socket.socket, beginning: bytes) -> None:
    raw.sendall(beginning)
    time.sleep(0.05)
    filling = (beginning if beginning == b"\r\n" else b"y") * (20 * MIB)
    assert sent(raw, filling) < 18 * MIB  # the socket buffers


def test_a_too_large_head_gets_431(raw: socket.socket) -> None:
    raw.sendall(GET + b"x-long: " + b"y" * 65536)
    head, _, body = received(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n") and b"connection: close" in head
    error = json.loads(body)["error"]
    assert error["code"] == "too_large" and "64 KiB" in error["message"]


def test_the_limit_counts_all_headers_together(raw: socket.socket) -> None:
    raw.sendall(GET + b"".join(b"x-%d: y\r\n" % number for number in range(10_000)) + b"\r\n")
    assert received(raw).startswith(b"HTTP/1.1 431 ")


def test_a_head_near_the_limit_is_accepted(url: str) -> None:
    assert httpx.get(f"{url}/health", headers={"x-long": "y" * 60_000}, trust_env=False, timeout=600).status_code == 200


@pytest.mark.parametrize("piece", [17, 100_000])
def test_a_large_body_does_not_count_as_head(raw: socket.socket, piece: int) -> None:
    body = b'{"input": "' + b" " * 300_000 + b'"}'
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces)
    raw.sendall(SPEECH + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert raw.recv(12) == b"HTTP/1.1 400"  # the text has no word: the server has read it all


def test_a_pipelined_request_after_a_large_body_is_answered(raw: socket.socket) -> None:
    body = b'{"input": "' + b" " * 300_000 + b'"}'
    first = SPEECH + b"content-length: %d\r\n\r\n" % len(body) + body
    raw.sendall(first + GET[:10])
    time.sleep(0.1)
    raw.sendall(GET[10:] + b"connection: close\r\n\r\n")
    data = received(raw)
    assert data.startswith(b"HTTP/1.1 400 ") and b"HTTP/1.1 200 OK" in data


def test_a_pipelined_request_after_a_refused_one_is_not_answered(raw: socket.socket) -> None:
    raw.sendall(GET + b"x-long: " + b"y" * 70_000 + b"\r\n\r\n" + GET + b"\r\n")
    assert received(raw).count(b"HTTP/1.1") == 1


# --- time ---


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.4)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("beginning", [b"", GET, b"\r\n"], ids=["nothing", "half", "an empty line"])
def test_a_connection_without_a_complete_head_is_closed(url: str, beginning: bytes) -> None:
    start_s = time.monotonic()
    with opened(url) as one:
        one.sendall(beginning)
        assert received(one) == b""
        assert time.monotonic() - start_s > 0.3


@pytest.mark.usefixtures("short_limit")
def test_a_slow_head_does_not_extend_the_limit(url: str) -> None:
    with opened(url) as one:
        one.sendall(GET + b"x-long: ")
        with pytest.raises(ConnectionError):
            send_slowly(one)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("beginning", [GET, b"\r\n"], ids=["half", "an empty line"])
def test_each_head_has_its_own_time_limit(url: str, beginning: bytes) -> None:
    with opened(url) as one:
        for _ in range(3):
            one.sendall(GET + b"\r\n")
            assert answer(one).startswith(b"HTTP/1.1 200 OK")
            time.sleep(0.2)  # longer in total than the limit
        one.sendall(beginning)
        assert received(one) == b""


@pytest.mark.usefixtures("short_limit")
def test_an_idle_connection_is_kept_for_the_next_request(url: str) -> None:
    with opened(url) as one:
        for _ in range(2):
            one.sendall(GET + b"\r\n")
            assert answer(one).startswith(b"HTTP/1.1 200 OK")
            time.sleep(0.8)


@pytest.mark.usefixtures("short_limit")
def test_long_responses_and_live_sessions_are_not_cut(url: str) -> None:
    body = {"input": "word " * 20, "response_format": "pcm"}  # a second
    with connect(url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None) as live:
        assert len(httpx.post(f"{url}/v1/audio/speech", json=body, trust_env=False, timeout=600).content) == 100 * 3840
        live.send('{"type": "session.config", "events": ["session.ready"]}')
        assert "session.ready" in str(live.recv(timeout=600))


@pytest.mark.usefixtures("short_limit")
def test_a_partial_pipelined_head_does_not_cut_the_running_response(raw: socket.socket) -> None:
    body = json.dumps({"input": "word " * 20, "response_format": "pcm"}).encode()
    raw.sendall(SPEECH + b"content-length: %d\r\n\r\n" % len(body) + body + GET)
    data = received(raw)
    assert data.endswith(b"0\r\n\r\n") and len(data) > 100 * 3840


# --- the head of a streamed response ---


class FakeTransport:
    def __init__(self) -> None:
        self.calls: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("closed")


class FakeLoop:
    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.later.append(call)


STREAMED_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


Joining = tuple[protocol.HeadJoiningTransport, FakeTransport, FakeLoop]


@pytest.fixture
def joining() -> Joining:
    transport, loop = FakeTransport(), FakeLoop()
    return protocol.HeadJoiningTransport(transport, loop), transport, loop  # type: ignore[arg-type]


def test_the_head_of_a_stream_leaves_with_its_first_bytes(joining: Joining) -> None:
    joined, transport, loop = joining
    for data in (STREAMED_HEAD, b"first", b"second", STREAMED_HEAD):  # the last one is audio that looks like a head
        joined.write(data)
    for call in loop.later:
        call()
    assert transport.calls == [STREAMED_HEAD + b"first", b"second", STREAMED_HEAD]


def test_a_head_that_nothing_follows_leaves_in_the_same_turn_of_the_loop(joining: Joining) -> None:
    joined, transport, loop = joining
    joined.write(STREAMED_HEAD)
    (flush,) = loop.later
    flush()
    joined.write(b"later")
    assert transport.calls == [STREAMED_HEAD, b"later"]


def test_closing_sends_the_head_first(joining: Joining) -> None:
    joined, transport, _ = joining
    joined.write(STREAMED_HEAD)
    joined.close()
    assert transport.calls == [STREAMED_HEAD, "closed"]


def test_a_response_of_known_length_is_not_held_back(joining: Joining) -> None:
    joined, transport, loop = joining
    joined.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
    joined.write(b"ok")
    assert len(transport.calls) == 2 and not loop.later
