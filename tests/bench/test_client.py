"""What is no answer, over HTTP: told in one line, under a name that says whose fault it is."""

import asyncio
import ssl

import pytest

from oscine.bench.client import HttpClient
from oscine.bench.exchange import Exchange, Failure
from oscine.bench.pool import Pool
from oscine.bench.targets import Address, Target
from tests.bench.scripted import END, HEAD, HELLO, answer, ask, chunk, listening, speech


@pytest.mark.parametrize(
    ("head", "kind", "said"),
    [
        (b"201 Created", "http_201", "sound comes with status 200"),
        (b"206 Partial Content", "http_206", "sound comes with status 200"),
        (b"302 Found\r\nlocation: https://other/v1", "http_302", "redirected to https://other/v1; give the address"),
        (b"304 Not Modified", "http_304", "no message"),
    ],
)
def test_only_200_is_an_answer(head: bytes, kind: str, said: str) -> None:
    sound = b"" if b"304" in head else speech(0.1)
    got = answer([(0.1, b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (head, len(sound), sound))])
    assert got.failure is not None and got.failure.kind == kind
    assert got.failure.message.startswith(said)


def test_a_connection_that_is_switched_to_another_protocol_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    switched = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nabc"
    exchanges, server = ask([(0.1, switched)], utterances=2)
    assert [exchange.failure and exchange.failure.kind for exchange in exchanges] == ["http_101"] * 2
    assert server.connections == 2  # it is never used again
    assert not caplog.records  # no traceback of the event loop's


def test_hints_before_the_answer_are_not_the_answer() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\ncontent-type: text/html\r\n\r\n"
    head = HEAD.replace(b"content-type: audio/pcm\r\n", b"")
    got = answer([(0.1, hints + head + chunk(speech(0.1))), (0.2, END)])
    assert got.failure is None


def test_a_message_is_one_short_line_whatever_a_server_wrote() -> None:
    body = b"Traceback:\n\n  File\r\n\tx \x1b[31mred" + b" and on" * 200
    head = b"HTTP/1.1 500 Oh\r\ncontent-length: %d\r\n\r\n" % len(body)
    failure = answer([(0.1, head + body)]).failure
    assert failure is not None and len(failure.message) == 300
    assert failure.message.startswith("Traceback: File x ?[31mred and on")


def asked_of(reply: bytes, scheme: str) -> Exchange:
    """A server that sends this to whoever calls, and hangs up."""

    async def main() -> Exchange:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(reply)
            writer.close()

        async with listening(serve) as port:
            client = HttpClient(Target(url=f"{scheme}://127.0.0.1:{port}"), timeout_s=30)
            exchange = await client.speak(HELLO)
            await client.close()
            return exchange

    return asyncio.run(main())


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_without_tls_is_running_all_the_same(reply: bytes) -> None:
    failure = asked_of(reply, "https").failure
    assert failure is not None and failure.kind == "tls"
    assert "TLS" in failure.message and failure.message.endswith("try http://")


def test_a_server_that_wants_tls_is_recognised() -> None:
    failure = asked_of(b"\x15\x03\x01\x00\x02\x02\x46", "http").failure
    assert failure is not None and failure.kind == "malformed"
    assert failure.message.endswith("it speaks TLS: give https://")


def test_a_certificate_that_is_not_trusted_is_named() -> None:
    async def main() -> Failure:
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "self-signed certificate"
        pool: Pool = Pool(Address("x", 443, True, ""), lambda: None, lambda: 0.0)
        return pool.why_not(error, 1.0)

    assert asyncio.run(main()) == Failure("tls", "the certificate is not trusted: self-signed certificate")
