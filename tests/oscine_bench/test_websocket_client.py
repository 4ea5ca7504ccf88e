"""A WebSocket that cannot be used is reported at once, with the server's response."""

import asyncio
import json

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.summary import analyze
from oscine_bench.targets import Target
from oscine_bench.websocket_client import WebSocketClient
from tests.oscine_bench.scripted import HELLO, ScriptClock, listening, speech, talk

PLACE = "/v1/audio/speech/stream"


async def exchange_with(port: int, base: str = "") -> Exchange:
    client = WebSocketClient(Target(url=f"127.0.0.1:{port}{base}", preset_name="oscine-ws"), timeout_s=600)
    try:
        return await client.send(HELLO)
    finally:
        await client.close()


def refused(status: int, body: str, base: str = "") -> RequestFailure | None:
    async def main() -> Exchange:
        async def unused(socket: ServerConnection) -> None: ...

        def refuse(socket: ServerConnection, request: Request) -> Response:
            return socket.respond(status, body)

        async with serve(unused, "127.0.0.1", 0, process_request=refuse) as server:
            return await exchange_with(next(iter(server.sockets)).getsockname()[1], base)

    return asyncio.run(main()).failure


def test_a_refused_handshake_carries_the_servers_message() -> None:
    body = '{"error": {"message": "a key is needed"}}'
    assert refused(401, body) == RequestFailure("http_401", f"{PLACE} returned 401 Unauthorized: a key is needed")


def test_a_wrong_path_is_named() -> None:
    assert refused(403, "", "/tts") == RequestFailure("http_403", f"/tts{PLACE} returned 403 Forbidden")


def test_a_web_page_is_malformed() -> None:
    assert refused(200, "welcome") == RequestFailure("malformed", f"{PLACE} returned 200 OK: welcome")


def failure_with(reply: bytes, hangs_up: bool = False) -> RequestFailure | None:
    """The failure with a server that does not speak WebSocket and keeps the connection open unless `hangs_up`."""

    async def main() -> Exchange:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            if not hangs_up:
                await reader.read()
            writer.close()

        async with listening(handle) as port:
            return await asyncio.wait_for(exchange_with(port), 300)  # far below the client's own limit

    return asyncio.run(main()).failure


@pytest.mark.parametrize(
    "reply", [b"220 this is mail\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.0 404 Not Found\r\n\r\n"]
)
def test_a_server_that_does_not_speak_http_is_malformed_at_once(reply: bytes) -> None:
    failure = failure_with(reply)
    assert failure is not None and failure.kind == "malformed"
    assert failure.message.startswith("not a WebSocket: ")
    assert reply.decode().strip() in failure.message


def test_a_refusal_without_a_length_ends_with_the_connection() -> None:
    failure = failure_with(b"HTTP/1.1 404 Not Found\r\n\r\nnothing\nhere", hangs_up=True)
    assert failure == RequestFailure("http_404", f"{PLACE} returned 404 Not Found: nothing here")


def test_a_connection_that_closes_without_a_response_is_cut() -> None:
    failure = failure_with(b"", hangs_up=True)
    assert failure is not None and failure.kind == "cut"


def test_a_frame_that_breaks_the_protocol_is_malformed_at_once() -> None:
    async def script(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        socket.transport.write(b"\xf3\x00")  # reserved bits, reserved kind

    async def main() -> Exchange:
        return (await asyncio.wait_for(talk(script), 300))[0][0]

    failure = asyncio.run(main()).failure
    assert failure is not None and failure.kind == "malformed"


@pytest.mark.parametrize(("rate_hz", "kind"), [(0, "malformed"), (None, None), (24000.0, None)])
def test_a_stated_sample_rate_is_checked_as_over_http(rate_hz: float | None, kind: str | None) -> None:
    async def script(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        await socket.send(json.dumps({"type": "audio.start", "sample_rate": rate_hz}))
        await socket.send(speech(0.16))
        await socket.send(json.dumps({"type": "audio.done"}))

    (exchange,), _ = asyncio.run(talk(script))
    failure = analyze(exchange, Target(url="http://127.0.0.1", preset_name="oscine-ws")).failure
    assert (failure and failure.kind) == kind
