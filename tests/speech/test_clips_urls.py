"""Clips from URLs: never from a private network, whatever a name, a redirect or a host tries."""

import asyncio
import base64
import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpcore
import pytest

from oscine.errors import RequestError, VoiceError
from oscine.server.http.errors import api_error
from oscine.speech import clips
from oscine.speech.clips import ClipPolicy, fetch_clip, is_public_address

CLIP = bytes(range(256)) * 3
URLS = ClipPolicy(urls=True, max_bytes=1000)


def fetch(url: str, policy: ClipPolicy = URLS) -> bytes:
    return asyncio.run(fetch_clip(url, policy))


def forbidden(url: str, policy: ClipPolicy = URLS) -> str:
    with pytest.raises(RequestError) as caught:
        fetch(url, policy)
    assert (api_error(caught.value).status, caught.value.param) == (403, "ref_audio")
    return str(caught.value)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001:830::200e"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public_address(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("198.18.0.1", "192.0.2.1", "224.0.0.1", "239.255.255.255", "232.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::808:808"),
        *("64:ff9b:1::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1"),
        *("2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "3fff::1", "4000::1"),
    ],
)
def test_other_addresses_are_not_public(address: str) -> None:
    assert not is_public_address(ip_address(address))


Answer = Callable[[bytes], bytes | Awaitable[bytes]]


@contextlib.asynccontextmanager
async def host(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers every request with these bytes and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            given = answer(await reader.readuntil(b"\r\n\r\n"))
            writer.write(given if isinstance(given, bytes) else await given)
            await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()  # without waiting: some answers never end


def get(
    answer: Answer,
    url: str = "http://127.0.0.1:{port}/clip.wav",
    policy: ClipPolicy = URLS,
    is_allowed: Callable[[Any], bool] = lambda _: True,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    async def run() -> bytes:
        async with host(answer, tls) as port:
            hosts = tuple(one.replace("{port}", str(port)) for one in policy.hosts)
            return await fetch_clip(url.replace("{port}", str(port)), replace(policy, hosts=hosts), is_allowed)

    return asyncio.run(run())


def whole(body: bytes = CLIP, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), head, body)


def chunked(*chunks: bytes, size: bytes = b"%x") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join((size % len(chunk)) + b";x=y\r\n" + chunk + b"\r\n" for chunk in chunks)


@pytest.mark.parametrize(
    "answer",
    [
        whole(),
        b"HTTP/1.0 200 OK\r\n\r\n" + CLIP,
        chunked(CLIP[:5], CLIP[5:], b""),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + whole(),
    ],
    ids=["length", "to the end", "chunked", "early hints"],
)
def test_a_clip_is_fetched(answer: bytes) -> None:
    assert get(lambda _: answer) == CLIP


def test_urls_are_not_fetched_by_default() -> None:
    assert "ref_urls" in forbidden("https://example.com/clip.wav", ClipPolicy())


def test_clips_are_fetched_from_named_hosts_even_at_private_addresses() -> None:
    url, public_only = "http://localhost:{port}/clip.wav", clips.is_public_address
    for hosts in (("localhost:{port}",), ("media.example.com", "LOCALHOST:*")):
        assert get(lambda _: whole(), url, ClipPolicy(hosts=hosts), public_only) == CLIP
    for hosts in (("media.example.com",), ("*.localhost:*",), ("127.0.0.1:*",), ("localhost",), ("localhost:1",)):
        with pytest.raises(RequestError, match="ref_hosts"):
            get(lambda _: whole(), url, ClipPolicy(hosts=hosts), public_only)
    with pytest.raises(RequestError, match="public internet"):
        get(lambda _: whole(), url, ClipPolicy(urls=True, hosts=("media.example.com",)), public_only)


@pytest.mark.parametrize(
    ("host", "port", "pattern", "named"),
    [
        ("a.example", 80, "a.example", True),
        ("a.example", 443, "A.example.", True),
        ("a.example", 9000, "a.example", False),
        ("a.example", 9000, "*.example:9000", True),
        ("a.example", 443, "a.example:9000", False),
        ("::1", 9000, "[::1]:9000", True),
    ],
)
def test_a_host_is_named_with_its_port(host: str, port: int, pattern: str, named: bool) -> None:
    assert clips.is_named_host(host, port, (pattern,)) is named


def test_a_redirect_leads_only_to_named_hosts() -> None:
    elsewhere = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/clip.wav\r\n\r\n"
    with pytest.raises(RequestError, match=r"not fetched from '127\.0\.0\.1'"):
        get(lambda _: elsewhere, "http://localhost:{port}/a", ClipPolicy(hosts=("localhost:*",)))


def test_the_request_is_a_plain_get_without_private_data() -> None:
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        return whole()

    get(answer, "HTTP://127.0.0.1:{port}/ä b/%41?q=ü\r\nX-Injected: 1#fragment")
    first, *lines = heads[0].decode().split("\r\n")
    assert first == "GET /%C3%A4%20b/%41?q=%C3%BCX-Injected:%201 HTTP/1.1"
    names = [line.partition(":")[0].lower() for line in lines if line]
    assert names == ["host", "user-agent", "accept", "accept-encoding", "connection"]


@pytest.mark.parametrize(
    "host_name",
    [
        *("127.0.0.1", "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"),
        *("[fd00:ec2::254]", "169.254.169.254"),
    ],
)
def test_no_spelling_of_a_private_address_is_contacted(host_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object, **__: object) -> None:
        pytest.fail("it was contacted")

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    assert "not on the public internet" in forbidden(f"http://{host_name}:8000/")


def test_only_the_checked_address_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the name is resolved only once."""
    resolved: list[str] = []
    checked: list[str] = []
    real = socket.getaddrinfo

    def resolve(name: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if name != "rebind.example":
            return real(name, port, *rest, **options)
        resolved.append(name)
        answers = ["192.0.2.1", "127.0.0.1"] if len(resolved) == 1 else ["10.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers]

    def is_allowed(address: Any) -> bool:
        checked.append(str(address))
        return str(address) == "127.0.0.1"

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    heads: list[bytes] = []
    assert (
        get(lambda head: heads.append(head) or whole(), "http://rebind.example:{port}/", is_allowed=is_allowed) == CLIP
    )
    assert resolved == ["rebind.example"] and checked == ["192.0.2.1", "127.0.0.1"]
    assert b"\r\nHost: rebind.example:" in heads[0]


def test_a_redirect_is_followed_and_checked_like_the_first_address() -> None:
    def answer(head: bytes) -> bytes:
        if head.startswith(b"GET /clip.wav "):
            return b"HTTP/1.1 302 Found\r\nLocation: /moved?x=1\r\n\r\n"
        assert head.startswith(b"GET /moved?x=1 "), head
        return whole()

    assert get(answer) == CLIP
    inner = b"HTTP/1.1 307 Moved\r\nLocation: http://169.254.169.254/latest/meta-data/\r\n\r\n"
    with pytest.raises(RequestError, match=r"'169\.254\.169\.254' is not on the public internet"):
        get(lambda _: inner, is_allowed=lambda address: str(address) == "127.0.0.1")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/again", "more than 3 redirects"),
        ("file:///etc/passwd", "only http: and https: are fetched"),
        ("data:audio/wav;base64,AAAA", "only http: and https: are fetched"),
        ("http://user:pass@127.0.0.1/", "user name or password"),
        ("http://[", "cannot be fetched"),
        ("http://127.0.0.1:99999/", "cannot be fetched"),
        ("https:///nowhere", "has no valid host name"),
    ],
)
def test_an_unusable_redirect_is_refused(location: str, message: str) -> None:
    answers = 0

    def answer(_: bytes) -> bytes:
        nonlocal answers
        answers += 1
        return b"HTTP/1.1 301 Moved\r\nLocation: %b\r\n\r\n" % location.encode()

    with pytest.raises(VoiceError, match=message):
        get(answer)
    assert answers <= 4


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user@example.com/", "user name or password"),
        ("http://exa mple.com/", "has no valid host name"),
        ("http://" + "a" * 70 + ".com/", "cannot be fetched"),
        ("http://example.com:port/", "cannot be fetched"),
        ("https:example.com", "has no valid host name"),
        ("http://[fe80::1%25eth0]/", "has no valid host name"),
    ],
)
def test_an_invalid_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(VoiceError, match=message):
        fetch(url)


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"x" * 1001),
        chunked(b"x" * 600, b"x" * 401, b""),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
    ],
    ids=["length", "chunked", "to the end", "claimed"],
)
def test_a_clip_above_the_limit_is_refused(answer: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        get(lambda _: answer)
    assert api_error(caught.value).status == 413


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answered 404 instead of"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "answered 302 instead of"),
        (b"", "cannot be fetched"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "cannot be fetched"),
        (b"HTTP/2 200\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 OK\r\n\r\n", "cannot be fetched"),
        (whole()[:-1], "cannot be fetched"),
        (chunked(CLIP), "cannot be fetched"),
        (chunked(b"x", size=b"fffffffff%d"), "cannot be fetched"),
        (chunked(CLIP, size=b"-%x"), "cannot be fetched"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "cannot be fetched"),
        (whole(head=b"Content-Encoding: gzip\r\n"), "the response is compressed"),
        (whole(head=b"Transfer-Encoding: gzip, chunked\r\n"), "Only Transfer-Encoding: chunked is supported"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "cannot be fetched"),
    ],
)
def test_an_answer_without_a_clip_is_refused(answer: bytes, message: str) -> None:
    with pytest.raises(VoiceError, match=message):
        get(lambda _: answer)


def test_a_slow_host_times_out() -> None:
    async def slow() -> bytes:
        await asyncio.sleep(3600)
        return b""

    with pytest.raises(VoiceError, match=r"not fetched within 0\.05 s"):
        get(lambda _: slow(), policy=ClipPolicy(urls=True, timeout_s=0.05))


def test_an_unreachable_or_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(VoiceError, match="cannot be fetched"):
        get(lambda _: whole(), f"http://127.0.0.1:{port}/")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(VoiceError, match=r"the host 'nowhere\.invalid' is unknown"):
        fetch("http://nowhere.invalid/")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_tls_is_checked_against_the_name_not_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)

    def is_loopback(address: Any) -> bool:
        return str(address) == "127.0.0.1"

    with pytest.raises(VoiceError, match="certificate verify failed"):
        get(lambda _: whole(), "https://localhost:{port}/", is_allowed=is_loopback, tls=server)
    trusting = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(clips, "tls_context", lambda: trusting)
    assert get(lambda _: whole(), "https://localhost:{port}/", is_allowed=is_loopback, tls=server) == CLIP
    with pytest.raises(VoiceError, match="certificate verify failed"):
        get(lambda _: whole(), "https://127.0.0.1:{port}/", is_allowed=is_loopback, tls=server)


def test_few_clips_are_fetched_at_once_and_the_others_wait() -> None:
    running, most = 0, 0

    async def answer(head: bytes) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return whole()

    async def run() -> list[bytes]:
        policy = ClipPolicy(urls=True, max_bytes=1000, timeout_s=600, fetches=asyncio.Semaphore(2))
        async with host(answer) as port:
            url = f"http://127.0.0.1:{port}/clip.wav"
            return await asyncio.gather(*(fetch_clip(url, policy, lambda _: True) for _ in range(6)))

    assert asyncio.run(run()) == [CLIP] * 6 and most <= 2


def test_slow_name_servers_delay_no_other_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(*_: object, **__: object) -> list[Any]:
        answered.wait(600)
        raise OSError(None, "no such host")

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def run() -> bytes:
        policy = ClipPolicy(urls=True, timeout_s=600)
        slow_ones = [asyncio.ensure_future(fetch_clip("http://slow.example/", policy)) for _ in range(32)]
        await asyncio.sleep(0)
        clip = await fetch_clip(base64.b64encode(CLIP).decode(), policy)
        answered.set()
        await asyncio.gather(*slow_ones, return_exceptions=True)
        return clip

    assert asyncio.run(run()) == CLIP
