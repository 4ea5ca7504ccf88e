"""Connections of clients that do not read, do not end what they send, or are too many."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.http import connections, http_limits
from oscine.server.http import json_body as request_body
from oscine.server.http.connections import OpenConnections, client_network
from oscine.server.service import Service
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import eventually, serving
from tests.websocket import connect

KEY = "sesame"
MIB = 2**20
PAST_S = 600.0  # only a failing test waits this long
LIVE = "/v1/audio/speech/stream"
UPGRADE = (
    b"GET /v1/audio/speech/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
PING = b"\x89\xfd" + b"mask" + bytes(125)  # masked, with 125 bytes
Connect = Callable[[], socket.socket]


@pytest.fixture
def config() -> ServerConfig:
    limits = {"max_connections": 12, "max_bytes_in_flight": MIB, "bytes_per_address": MIB}
    return ServerConfig(api_keys=(KEY,), stalled_s=1.0, **limits)


@pytest.fixture
def app(engine: ScriptedEngine, config: ServerConfig, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(connections, "SWEEP_S", 0.05)
    return build_app(engine, CARD, config)


@pytest.fixture
def service(app: FastAPI) -> Service:
    service: Service = app.state.service
    return service


@pytest.fixture
def url(app: FastAPI) -> Iterator[str]:
    with serving(app) as url:
        yield url


@pytest.fixture
def opened(url: str) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def open_one() -> socket.socket:
            where = httpx.URL(url)
            return stack.enter_context(socket.create_connection((where.host, where.port or 0), timeout=PAST_S))

        yield open_one


def post(path: str, length: int | None, *headers: str, kind: str = "application/json", key: str = KEY) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    head = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {key}", f"content-type: {kind}"]
    lines = [*head, framing, *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def rest_of(one: socket.socket) -> bytes:
    """Everything until the server ends the connection, in whatever way."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := one.recv(65536):
            data += piece
    return data


def head_of(one: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = one.recv(65536)
        assert piece, data
        data += piece
    return data


# --- bodies that do not end ---


@pytest.mark.parametrize("length", [1000, None], ids=["content-length", "chunked"])
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/encode?response_format=wav", "/v1/audio/voices"])
def test_a_body_that_does_not_arrive_gets_408(
    opened: Connect, monkeypatch: pytest.MonkeyPatch, path: str, length: int | None
) -> None:
    monkeypatch.setattr(request_body, "BODY_S", 0.2)
    monkeypatch.setattr(http_limits, "REST_S", 0.2)
    one = opened()
    kind = "multipart/form-data; boundary=x" if "voices" in path else "application/json"
    one.sendall(post(path, length, kind=kind))
    data = rest_of(one)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and json.loads(body)["error"]["code"] == "timeout"


def test_a_slow_body_does_not_extend_its_time_for_ever(opened: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "BODY_S", 0.2)
    one = opened()
    one.sendall(post("/v1/audio/speech", 10**6))
    stop = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while not stop.wait(0.02):
                one.sendall(b" ")

    sender = threading.Thread(target=trickle)
    sender.start()
    assert head_of(one).startswith(b"HTTP/1.1 408 ")
    stop.set()
    sender.join()


@pytest.mark.parametrize("after", [b"", b"x", b"x" * 100_000], ids=["nothing", "a byte", "much"])
def test_a_refused_request_need_not_be_heard_to_the_end(
    opened: Connect, monkeypatch: pytest.MonkeyPatch, after: bytes
) -> None:
    monkeypatch.setattr(http_limits, "REST_S", 0.3)
    one = opened()
    one.sendall(post("/v1/audio/speech", 10**6, key="wrong"))
    assert head_of(one).startswith(b"HTTP/1.1 401 ")
    with contextlib.suppress(ConnectionError):
        one.sendall(after)
    rest_of(one)  # returns: the server has closed it


def test_a_refused_request_that_ends_leaves_a_usable_connection(opened: Connect, url: str) -> None:
    one = opened()
    one.sendall(post("/v1/audio/speech", 1000, key="wrong"))
    assert head_of(one).startswith(b"HTTP/1.1 401 ")
    one.sendall(b"x" * 1000)
    one.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    assert head_of(one).startswith(b"HTTP/1.1 200 ")


def test_large_bodies_of_all_clients_have_a_limit_together(
    opened: Connect, url: str, service: Service, engine: ScriptedEngine
) -> None:
    first, second = opened(), opened()
    first.sendall(post("/v1/audio/speech", MIB) + bytes(MIB - 1))
    eventually(lambda: len(service.ledger["request"]) == MIB - 1 - 64 * 2**10)
    second.sendall(post("/v1/audio/speech", MIB) + bytes(MIB - 1))
    head = head_of(second)
    assert head.startswith(b"HTTP/1.1 429 ") and b"retry-after: 2" in head
    small = {"json": {"input": "Hello.", "response_format": "pcm"}, "headers": {"authorization": f"Bearer {KEY}"}}
    assert httpx.post(f"{url}/v1/audio/speech", **small, trust_env=False, timeout=600).status_code == 200  # type: ignore[arg-type]
    first.close()
    eventually(lambda: len(service.ledger["request"]) == 0)


# --- WebSockets ---


@pytest.mark.parametrize(
    "headers",
    [b"".join(b"x-%d: y\r\n" % number for number in range(150)), b"x-long: " + b"y" * 10_000 + b"\r\n"],
    ids=["many", "long"],
)
def test_a_handshake_with_too_many_or_too_long_headers_is_answered(opened: Connect, headers: bytes) -> None:
    one = opened()
    one.sendall(UPGRADE + headers + b"\r\n")
    assert rest_of(one).startswith(b"HTTP/1.1 431 ")


def handshake(one: socket.socket) -> None:
    one.sendall(UPGRADE + f"authorization: Bearer {KEY}\r\n\r\n".encode())
    assert head_of(one).startswith(b"HTTP/1.1 101 ")


def test_pings_of_a_client_that_does_not_read_fill_no_memory(opened: Connect, app: FastAPI) -> None:
    one = opened()
    handshake(one)
    service: Service = app.state.service
    (connection,) = service.connections._open
    one.settimeout(0.5)
    unsent = []
    with contextlib.suppress(OSError):  # the server stops reading, or ends it
        for _ in range(400):
            one.sendall(PING * 1000)
            unsent.append(connection.transport.get_write_buffer_size())
    assert max(unsent) < 2 * MIB
    eventually(lambda: len(service.connections) == 0)  # it was cut, although it never closes


def test_a_message_that_does_not_end_counts_as_bytes_in_flight(opened: Connect, service: Service) -> None:
    def partial(opcode: int, size: int) -> bytes:
        return bytes([opcode, 0xFF]) + (3 * MIB).to_bytes(8, "big") + bytes(4) + bytes(size)

    first, second = opened(), opened()
    handshake(first)
    first.sendall(partial(0x81, MIB - 100_000))
    eventually(lambda: len(service.ledger["request"]) > MIB // 2)
    handshake(second)
    second.sendall(partial(0x81, MIB - 100_000))
    assert rest_of(second)[:4] == b"\x88" + bytes([2 + 55]) + (1013).to_bytes(2, "big")
    first.close()
    eventually(lambda: len(service.ledger["request"]) == 0)


def test_a_message_of_too_many_fragments_ends_the_session(opened: Connect) -> None:
    one = opened()
    handshake(one)
    with contextlib.suppress(ConnectionError):
        one.sendall(b"\x01\x81" + bytes(4) + b"x" + (b"\x00\x81" + bytes(4) + b"x") * 3000)
    assert (1008).to_bytes(2, "big") in rest_of(one)


def test_a_server_stops_while_bad_handshakes_are_open(engine: ScriptedEngine, config: ServerConfig) -> None:
    app = build_app(engine, CARD, config)
    with serving(app) as url, contextlib.ExitStack() as stack:
        where = httpx.URL(url)
        for _ in range(3):
            one = stack.enter_context(socket.create_connection((where.host, where.port or 0), timeout=PAST_S))
            one.sendall(UPGRADE + b"x-long: " + b"y" * 10_000 + b"\r\n\r\n")
            one.recv(1)


# --- clients that do not read ---


def test_a_client_that_does_not_read_its_audio_is_cut_off(
    opened: Connect, service: Service, engine: ScriptedEngine
) -> None:
    one = opened()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = json.dumps({"input": "word " * 600, "response_format": "pcm"}).encode()
    one.sendall(post("/v1/audio/speech", len(body)) + body)
    eventually(lambda: len(service.connections) == 1)
    eventually(lambda: len(service.connections) == 0 and engine.status().slots_active == 0)


def test_a_client_that_does_not_read_a_page_is_cut_off(opened: Connect, service: Service) -> None:
    one = opened()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 200)
    eventually(lambda: len(service.connections) == 1)
    eventually(lambda: len(service.connections) == 0)


def test_a_client_that_leaves_ends_its_request_though_it_sent_another(
    opened: Connect, service: Service, engine: ScriptedEngine
) -> None:
    engine.frame_s = 0.01
    one = opened()
    body = json.dumps({"input": "word " * 1000, "response_format": "pcm"}).encode()
    one.sendall((post("/v1/audio/speech", len(body)) + body) * 3)
    eventually(lambda: engine.status().slots_active == 1)
    one.close()
    eventually(lambda: engine.status().slots_active == 0 and service.streams == 0)
    assert len(engine.requests) == 1 and engine.cancelled == 1


class FakeConnection:
    def __init__(self) -> None:
        self.transport, self.unsent_bytes, self.aborted = self, 0, False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.aborted = True


def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    open_connections = OpenConnections(ServerConfig(stalled_s=10.0))
    one, now_s = FakeConnection(), time.monotonic()
    open_connections.enter(one, "10.0.0.1")  # type: ignore[arg-type]
    for one.unsent_bytes in (0, 900, 900, 800, 800, 1000, 700, 0, 0, 500):
        now_s += 4.0
        open_connections.sweep(now_s)
    assert not one.aborted
    open_connections.sweep(now_s + 7.0)
    assert one.aborted


# --- too many ---


def test_connections_beyond_the_limit_get_503(opened: Connect, service: Service, config: ServerConfig) -> None:
    held = [opened() for _ in range(config.max_connections)]
    eventually(lambda: len(service.connections) == config.max_connections)
    data = rest_of(opened())
    assert data.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in data and b"12 connections (the maximum)" in data
    held[0].close()
    eventually(lambda: len(service.connections) < config.max_connections)
    one = opened()
    one.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    assert head_of(one).startswith(b"HTTP/1.1 200 ")


def test_one_address_cannot_take_all_connections(engine: ScriptedEngine) -> None:
    app = build_app(engine, CARD, ServerConfig(max_connections=10, connections_per_address=2))
    with serving(app) as url, contextlib.ExitStack() as stack:
        where, live = httpx.URL(url), url.replace("http", "ws") + LIVE

        def get_from(address: str) -> bytes:
            one = socket.create_connection((where.host, where.port or 0), PAST_S, source_address=(address, 0))
            stack.callback(one.close)
            one.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            return head_of(one)

        stack.enter_context(connect(live, proxy=None))  # a WebSocket counts as one
        assert get_from("127.0.0.1").startswith(b"HTTP/1.1 200 ")
        assert get_from("127.0.0.1").startswith(b"HTTP/1.1 503 ")
        assert get_from("127.0.0.2").startswith(b"HTTP/1.1 200 ")


def test_a_client_with_an_ipv6client_network_is_one_address() -> None:
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:2") != client_network("2001:db8:0:1::1")
    assert client_network("::ffff:10.0.0.1") == client_network("10.0.0.1") == "10.0.0.1"
    assert (
        client_network("fe80::1%eth0") == "fe80::/64"
        and client_network(None) == ""
        and client_network("unix") == "unix"
    )
