"""Every HTTP failure has a kind that names the cause, and a message of one line."""

import asyncio
import ssl

import pytest

from oscine_bench.connections import ConnectionPool
from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.http_client import HttpClient
from oscine_bench.targets import Address, Target
from tests.oscine_bench.scripted import END, HEAD, HELLO, chunk, listening, outcome, request_script, speech


@pytest.mark.parametrize(
    ("head", "kind", "message"),
    [
        (b"201 Created", "http_201", "expected status 200"),
        (b"206 Partial Content", "http_206", "expected status 200"),
        (b"302 Found\r\nlocation: https://other/v1", "http_302", "redirected to https://other/v1; use that address"),
        (b"304 Not Modified", "http_304", "no message"),
    ],
)
def test_any_status_but_200_is_a_failure(head: bytes, kind: str, message: str) -> None:
    sound = b"" if b"304" in head else speech(0.1)
    got = outcome([(0.1, b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (head, len(sound), sound))])
    assert got.failure is not None and got.failure.kind == kind
    assert got.failure.message.startswith(message)


def test_switching_to_another_protocol_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    switched = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nabc"
    exchanges, server = request_script([(0.1, switched)], requests=2)
    assert [exchange.failure and exchange.failure.kind for exchange in exchanges] == ["http_101"] * 2
    assert server.connections == 2  # the first is never reused
    assert not caplog.records  # no traceback from the event loop


def test_informational_responses_are_skipped() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\ncontent-type: text/html\r\n\r\n"
    head = HEAD.replace(b"content-type: audio/pcm\r\n", b"")
    got = outcome([(0.1, hints + head + chunk(speech(0.1))), (0.2, END)])
    assert got.failure is None


def test_a_message_is_one_short_printable_line() -> None:
    body = b"Traceback:\n\n  File\r\n\tx \x1b[31mred" + b" and on" * 200
    head = b"HTTP/1.1 500 Oh\r\ncontent-length: %d\r\n\r\n" % len(body)
    failure = outcome([(0.1, head + body)]).failure
    assert failure is not None and len(failure.message) == 300
    assert failure.message.startswith("Traceback: File x ?[31mred and on")


def exchange_with(reply: bytes, scheme: str) -> Exchange:
    """The exchange with a server that sends `reply` to any client and closes the connection."""

    async def main() -> Exchange:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(reply)
            writer.close()

        async with listening(serve) as port:
            client = HttpClient(Target(url=f"{scheme}://127.0.0.1:{port}"), timeout_s=600)
            exchange = await client.send(HELLO)
            await client.close()
            return exchange

    return asyncio.run(main())


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_without_tls_is_reported_as_tls_not_as_unreachable(reply: bytes) -> None:
    failure = exchange_with(reply, "https").failure
    assert failure is not None and failure.kind == "tls"
    assert "TLS" in failure.message and failure.message.endswith("try http://")


def test_a_server_that_needs_tls_is_recognized() -> None:
    failure = exchange_with(b"\x15\x03\x01\x00\x02\x02\x46", "http").failure
    assert failure is not None and failure.kind == "malformed"
    assert failure.message.endswith("the server speaks TLS: use https://")


def test_an_untrusted_certificate_is_named() -> None:
    async def main() -> RequestFailure:
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "self-signed certificate"
        pool: ConnectionPool = ConnectionPool(Address("x", 443, True, ""), lambda: None, lambda: 0.0, 1.0)
        return pool.connect_failure(error)

    assert asyncio.run(main()) == RequestFailure("tls", "the certificate is not trusted: self-signed certificate")
