"""Reference clips of requests: from the request itself, an address or a file to bytes, and from bytes to a voice, once.

Addresses are not trusted: only public ones are dialled, the very one that was checked, also after a redirect.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import os
import re
import socket
import ssl
import stat
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from urllib.parse import quote, unquote, unquote_to_bytes, urljoin, urlsplit

from oscine.server.errors import ApiError
from oscine.types import OverloadedError, SpeechEngine, VoiceError
from oscine.voice import Voice

IPAddress = IPv4Address | IPv6Address

_MAX_REDIRECTS = 3
_MAX_ADDRESSES = 3  # of one host, tried in turn
_REDIRECTS = (301, 302, 303, 307, 308)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_URL_CHARACTERS = "/%:@!$&'()*+,;=~-._?[]"  # that stand for themselves in a path or query

_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Public by the registry, or by an older Python's copy of it, but no place for a clip.
_NOT_PUBLIC = (
    IPv4Network("168.63.129.16/32"),  # Azure's metadata
    IPv4Network("192.0.0.0/24"),  # Oracle's metadata among others
    IPv4Network("192.88.99.0/24"),  # relays into 6to4
    IPv6Network("2002::/16"),  # 6to4: an IPv4 address within, perhaps a private one
    IPv6Network("2001::/23"),  # Teredo: the same
    IPv6Network("3fff::/20"),  # documentation
)


@dataclass(frozen=True, slots=True)
class ClipPolicy:
    """Where clips may come from. What a request carries itself is always allowed."""

    urls: bool = False
    files_below: Path | None = None
    max_bytes: int = 10 * 2**20
    timeout_s: float = 10.0  # for name, connection, redirects and clip together


def is_public_address(address: IPAddress) -> bool:
    """Whether an address is open to all the world: no network, machine or cloud service that only this host reaches."""
    if not address.is_global or address.is_multicast:
        return False
    # IPv6 from elsewhere is mapped, translated (NAT64) or compatible IPv4, or site-local.
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _refuse(message: str) -> VoiceError:
    return VoiceError(message, "ref_audio")


def _not_allowed(message: str) -> ApiError:
    return ApiError(403, message, param="ref_audio")


def too_large(max_bytes: int, param: str = "ref_audio") -> ApiError:
    most = f"{max_bytes / 2**20:.3g} MiB"
    return ApiError(413, f"the clip has more than {most}, the limit here; 3 to 20 s of speech are enough", param=param)


async def fetch_clip(
    source: str, policy: ClipPolicy, is_allowed_address: Callable[[IPAddress], bool] = is_public_address
) -> bytes:
    """The file that `ref_audio` holds or names. Raises VoiceError, or ApiError for what the policy forbids."""
    source = source.strip()
    found = _SCHEME.match(source)
    match found and found[1].lower():
        case None:
            return _from_base64(source, policy.max_bytes)
        case "data":
            return _from_data_url(source, policy.max_bytes)
        case "http" | "https":
            return await _from_url(source, policy, is_allowed_address)
        case "file":
            return await asyncio.to_thread(_from_file, source, policy)
        case scheme:
            raise _refuse(f"ref_audio cannot be a {scheme}: address; {_POSSIBLE}")


_POSSIBLE = "give the clip as data: URL or base64 (or, where the server allows it, an http:, https: or file: URL)"


def _from_base64(text: str, max_bytes: int) -> bytes:
    text = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    if not text:
        raise _refuse(f"ref_audio is empty; {_POSSIBLE}")
    if len(text) * 3 // 4 > max_bytes:
        raise too_large(max_bytes)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        start = text[:40] + ("..." if len(text) > 40 else "")
        raise _refuse(f"ref_audio is no URL, and {start!r} is not base64 ({error}); {_POSSIBLE}") from None


def _from_data_url(url: str, max_bytes: int) -> bytes:
    kind, comma, payload = url.partition(",")
    if not comma:
        raise _refuse("ref_audio is a data: URL without a comma before its data; it looks like data:audio/wav;base64,…")
    if kind.lower().rstrip().endswith(";base64"):
        return _from_base64(unquote(payload), max_bytes)
    content = unquote_to_bytes(payload)
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    return content


def _from_file(url: str, policy: ClipPolicy) -> bytes:
    if policy.files_below is None:
        raise _not_allowed(
            "this server reads no clips from its files; send the clip itself, or have ref_files_below set"
        )
    try:
        parts = urlsplit(url)
        path, below = Path(unquote(parts.path)).resolve(), policy.files_below.resolve()
        # Said of what is there and of what is not: nobody learns which files exist elsewhere.
        if parts.netloc not in ("", "localhost") or not path.is_relative_to(below):
            raise _not_allowed("clips are read below the folder ref_files_below only; put the clip there or send it")
        # Not to be kept waiting by a pipe, nor led away by a link that was put there a moment ago.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refuse(f"the clip {url[:200]!r} cannot be read: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_allowed(f"{url[:200]!r} is not a regular file; name one audio file")
    with open(descriptor, "rb") as file:
        content = file.read(policy.max_bytes + 1)
    if len(content) > policy.max_bytes:
        raise too_large(policy.max_bytes)
    return content


async def _from_url(url: str, policy: ClipPolicy, is_allowed_address: Callable[[IPAddress], bool]) -> bytes:
    if not policy.urls:
        raise _not_allowed("this server fetches no clips; send the clip itself, or have ref_urls switched on")
    shown = url[:200]
    try:
        async with asyncio.timeout(policy.timeout_s):
            for _ in range(_MAX_REDIRECTS + 1):
                place = _place(url)
                addresses = await _addresses(place, is_allowed_address)
                answer = await _get(place, addresses, policy.max_bytes)
                if isinstance(answer, bytes):
                    return answer
                url = urljoin(url, answer)
    except VoiceError:
        raise
    except TimeoutError:
        raise _refuse(f"{shown!r} was not fetched within {policy.timeout_s:g} s; send the clip itself") from None
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise _refuse(f"{shown!r} cannot be fetched: {error}; send the clip itself") from None
    raise _refuse(f"{shown!r} leads through more than {_MAX_REDIRECTS} redirects; give the clip's own address")


@dataclass(frozen=True, slots=True)
class _Place:
    tls: bool
    host: str
    port: int
    target: str  # path and query, as they are sent

    @property
    def request(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = (
            *(f"GET {self.target} HTTP/1.1", f"Host: {host}:{self.port}", "User-Agent: oscine", "Accept: */*"),
            *("Accept-Encoding: identity", "Connection: close", "", ""),
        )
        return "\r\n".join(head).encode("ascii")


def _place(url: str) -> _Place:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise _refuse(f"a clip is not fetched by {parts.scheme}:, as a redirect to {url[:200]!r} wants")
    if parts.username is not None or parts.password is not None:
        raise _refuse("an address with a user name or password in it is not fetched; send the clip itself")
    host = (parts.hostname or "").encode("idna").decode()
    if not _HOST.fullmatch(host):
        raise _refuse(f"{url[:200]!r} names no host that can be asked")
    tls = parts.scheme == "https"
    port = parts.port if parts.port is not None else 443 if tls else 80
    target = quote(parts.path or "/", _URL_CHARACTERS)
    if parts.query:
        target += "?" + quote(parts.query, _URL_CHARACTERS)
    return _Place(tls, host, port, target)


async def _addresses(place: _Place, is_allowed_address: Callable[[IPAddress], bool]) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _refuse(f"the host {place.host!r} is not known here ({error.strerror}); check the address") from None
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    allowed = [address for address in addresses if is_allowed_address(ip_address(address))]
    if not allowed:
        raise _not_allowed(f"{place.host!r} is not on the public internet; clips are fetched from there only")
    return allowed[:_MAX_ADDRESSES]


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _connect(place: _Place, addresses: list[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context, name = (_tls_context(), place.host) if place.tls else (None, None)
    for address in addresses[:-1]:
        try:
            return await asyncio.open_connection(address, place.port, ssl=context, server_hostname=name)
        except OSError:
            continue
    return await asyncio.open_connection(addresses[-1], place.port, ssl=context, server_hostname=name)


async def _get(place: _Place, addresses: list[str], max_bytes: int) -> bytes | str:
    """The body, or the address that a redirect leads to."""
    reader, writer = await _connect(place, addresses)
    try:
        writer.write(place.request)
        status, headers = await _head(reader)
        while 100 <= status < 200:
            status, headers = await _head(reader)
        if status in _REDIRECTS and "location" in headers:
            return headers["location"]
        if status != 200:
            raise _refuse(f"{place.host!r} answered {status} instead of sending the clip; check the address")
        return await _body(reader, headers, max_bytes)
    finally:
        writer.transport.abort()  # nothing more is expected, and a slow goodbye is not waited for


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, status = first.split(" ")[:2]
    if not version.startswith("HTTP/1."):
        raise ValueError(f"its answer is {version[:20]!r}, not HTTP/1.1")
    headers = (line.partition(":") for line in lines if ":" in line)
    return int(status), {name.strip().lower(): value.strip() for name, _, value in headers}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], max_bytes: int) -> bytes:
    encoding = headers.get("content-encoding", "identity")
    transfer = headers.get("transfer-encoding", "identity")
    if encoding.lower() != "identity" or transfer.lower() not in ("identity", "chunked"):
        raise ValueError(f"it is sent in an encoding that was not asked for ({encoding}, {transfer})")
    body = bytearray()
    if transfer.lower() == "chunked":
        while size := int((await reader.readline()).partition(b";")[0], 16):
            if len(body) + size > max_bytes:
                raise too_large(max_bytes)
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        return bytes(body)
    if "content-length" in headers:
        if int(headers["content-length"]) > max_bytes:
            raise too_large(max_bytes)
        return await reader.readexactly(int(headers["content-length"]))
    while piece := await reader.read(2**16):
        body += piece
        if len(body) > max_bytes:
            raise too_large(max_bytes)
    return bytes(body)


def clip_hash(clip: bytes, transcript: str | None) -> str:
    """Of content only: by what name or way a clip came says nothing about it."""
    digest = hashlib.sha256(f"{len(clip)} {transcript is None}:".encode())
    digest.update(clip)
    digest.update((transcript or "").encode(errors="surrogatepass"))
    return digest.hexdigest()


class ClipVoices:
    """Voices of clips, each made once: while one is made, others who ask for it wait for that one.

    For one event loop. The engine is asked on a few threads of our own.
    """

    def __init__(self, engine: SpeechEngine, most: int = 256, threads: int = 2, max_waiting: int = 32) -> None:
        self._engine = engine
        self._most, self._max_waiting = most, max_waiting
        self._voices: OrderedDict[str, Voice] = OrderedDict()  # the least recently used first
        self._making: dict[str, asyncio.Future[Voice]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="clone")

    async def voice(self, clip: bytes, transcript: str | None = None) -> Voice:
        """Raises what the engine's `clone` raises, and OverloadedError where too many wait already."""
        key = await asyncio.to_thread(clip_hash, clip, transcript)
        if key in self._voices:
            self._voices.move_to_end(key)
            return self._voices[key]
        if key not in self._making:
            if len(self._making) >= self._max_waiting:  # each holds its clip in memory
                raise OverloadedError(f"{self._max_waiting} other voices are being made; try again", retry_after_s=2.0)
            making = asyncio.get_running_loop().run_in_executor(self._pool, self._engine.clone, clip, transcript)
            self._making[key] = making
            making.add_done_callback(functools.partial(self._made, key))
        # A listener who leaves takes nothing from the others, nor from the cache.
        return await asyncio.shield(self._making[key])

    def _made(self, key: str, making: asyncio.Future[Voice]) -> None:
        del self._making[key]
        if making.cancelled() or making.exception() is not None:
            return  # whoever asks again has another try
        self._voices[key] = making.result()
        while len(self._voices) > self._most:
            self._voices.popitem(last=False)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
