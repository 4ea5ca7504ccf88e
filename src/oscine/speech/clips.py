"""Reads reference clips from the request itself, a URL or a file.

URLs are not trusted. Only public addresses are contacted, exactly the ones that were checked, also after a redirect.
"""

from __future__ import annotations

import asyncio
import binascii
import errno
import functools
import os
import re
import ssl
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes, urljoin, urlsplit

import httpcore

from oscine.audio.decoding.wire import clip_error
from oscine.config import ServerConfig
from oscine.errors import NotAllowedError, RequestError, TooLargeError
from oscine.process.resources import Holding, Ledger
from oscine.speech.limits import ledger_of
from oscine.speech.name_lookups import NameLookups

IPAddress = IPv4Address | IPv6Address

MAX_FETCHES = 32  # at once
_MAX_URL_CHARS = 8192
_MAX_HOST_CHARS = 253
_MAX_REDIRECTS = 3
_MAX_ADDRESSES = 3  # of one host, tried in turn
_REDIRECTS = (301, 302, 303, 307, 308)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_URL_CHARACTERS = "/%:@!$&'()*+,;=~-._?[]"  # not quoted in a path or query
_FETCH_ERRORS = (
    *(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException),
    *(OSError, ValueError),  # ValueErrors of URL parsing
)

_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Public according to the registry, or to an older Python's copy of it, but not valid sources of clips.
_NOT_PUBLIC = (
    IPv4Network("168.63.129.16/32"),  # Azure's metadata
    IPv4Network("192.0.0.0/24"),  # Oracle's metadata among others
    IPv4Network("192.88.99.0/24"),  # relays into 6to4
    IPv6Network("2002::/16"),  # 6to4: contains an IPv4 address, perhaps a private one
    IPv6Network("2001::/23"),  # Teredo: the same
    IPv6Network("3fff::/20"),  # documentation
)


@dataclass(frozen=True, slots=True)
class ClipPolicy:
    """Allowed sources of clips. Clips inside a request are always allowed."""

    urls: bool = False
    hosts: tuple[str, ...] = ()  # patterns, perhaps with a port; allowed even without `urls`, and at any address
    files_below: Path | None = None
    max_bytes: int = 10 * 2**20
    timeout_s: float = 10.0  # for the wait, name resolution, connection, redirects and download together
    fetches: asyncio.Semaphore = field(  # others wait: each holds a clip in memory
        default_factory=lambda: asyncio.Semaphore(MAX_FETCHES), repr=False, compare=False
    )
    ledger: Ledger = field(default_factory=lambda: ledger_of(ServerConfig()), repr=False, compare=False)

    lookups: NameLookups = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lookups", NameLookups(self.ledger.pool("name_lookup")))

    @property
    def max_chars(self) -> int:
        """Characters of a clip in a request: base64 with line ends and some escapes."""
        return 2 * self.max_bytes + _MAX_URL_CHARS


def is_public_address(address: IPAddress) -> bool:
    """Whether an address is public: not that of a network, machine or cloud service private to this host."""
    if not address.is_global or address.is_multicast:
        return False
    # Other IPv6 ranges are mapped, translated (NAT64) or compatible IPv4, or site-local.
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _not_allowed(message: str) -> NotAllowedError:
    return NotAllowedError(message, "ref_audio")


async def fetch_clip(
    source: str,
    policy: ClipPolicy,
    is_allowed_address: Callable[[IPAddress], bool] = is_public_address,
    *,
    held: Holding | None = None,
) -> bytes:
    """Returns the audio file that `ref_audio` contains or names. `held` counts it from its first byte, and goes on
    after the return; without it, only the fetch is counted. Raises VoiceError, NotAllowedError for what the policy
    forbids, or OverloadedError."""
    if held is None:
        with policy.ledger["clip"].hold() as held:
            return await fetch_clip(source, policy, is_allowed_address, held=held)
    clip = await _fetched(source, policy, is_allowed_address, held)
    held.resize(len(clip))
    return clip


async def _fetched(
    source: str, policy: ClipPolicy, is_allowed_address: Callable[[IPAddress], bool], held: Holding
) -> bytes:
    run = policy.ledger.pool("clip_decoding").run
    if len(source) > policy.max_chars:
        raise too_large(policy.max_bytes)
    found = _SCHEME.match(source[:_MAX_URL_CHARS].lstrip())
    scheme = found[1].lower() if found else None
    if scheme in ("http", "https", "file") and len(source) > _MAX_URL_CHARS:
        raise clip_error(
            f"ref_audio is a URL of {len(source)} characters, the limit is {_MAX_URL_CHARS}; send the clip"
        )
    match scheme:
        case None if policy.files_below is not None and _is_path(source):
            return await run(_read_below, source.strip(), source.strip(), policy)
        case None:
            held.resize(min(len(source), policy.max_bytes))
            return await run(decode_base64, source, policy.max_bytes)
        case "data":
            held.resize(min(len(source), policy.max_bytes))
            return await run(decode_data_url, source, policy.max_bytes)
        case "http" | "https":
            return await _from_url(source.strip(), policy, is_allowed_address, held)
        case "file":
            return await run(_from_file, source.strip(), policy)
        case _:
            raise clip_error(f"ref_audio cannot be a {scheme[:40]}: URL; {SOURCES}")


def matches_host(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches: a name, or `*.` and the end of names."""
    name = without_dot(name)
    plain = map(without_dot, patterns)
    return any(name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern for pattern in plain)


def is_named_host(host: str, port: int, patterns: Iterable[str]) -> bool:
    """Whether the operator allows the host at this port. A pattern without a port: at 80 and 443; with `:*`: at any."""
    named = f"[{host}]" if ":" in host else host
    shown = (f"{named}:{port}", f"{named}:*", *((host,) if port in (80, 443) else ()))
    return any(matches_host(one, patterns) for one in shown)


def without_dot(name: str) -> str:
    """A host name in lower case, without the dot that may end it."""
    return name.lower().removesuffix(".")


def _is_path(source: str) -> bool:
    """Whether it looks like a file name with a suffix. Base64 has no full stops."""
    return len(source) <= _MAX_URL_CHARS and "." in source


def _from_file(url: str, policy: ClipPolicy) -> bytes:
    if policy.files_below is None:
        raise _not_allowed("file: URLs are disabled on this server; send the clip itself, or set ref_files_below")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise clip_error(f"the clip {url[:200]!r} cannot be read: {error}") from None
    if parts.netloc not in ("", "localhost"):
        raise _outside()
    return _read_below(unquote(parts.path), url, policy)


def _outside() -> NotAllowedError:
    """Returns the same error for existing and missing files: clients must not learn which files exist elsewhere."""
    return _not_allowed("the clip is outside the folder ref_files_below; move it there, or send the clip itself")


def _read_below(name: str, url: str, policy: ClipPolicy) -> bytes:
    """`name` is absolute, or relative to the folder; `url` is what the client sent."""
    assert policy.files_below is not None
    try:
        below = policy.files_below.resolve()
        path = (below / name).resolve()
        if not path.is_relative_to(below):
            raise _outside()
        descriptor = _open_below(below, path)
    except NotAllowedError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        # pathlib's RuntimeError about a loop of links has an absolute path.
        looped = isinstance(error, RuntimeError)
        reason = os.strerror(errno.ELOOP) if looped else getattr(error, "strerror", None) or error
        raise clip_error(f"the clip {url[:200]!r} cannot be read: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_allowed(f"{url[:200]!r} is not a regular file; name an audio file")
    with open(descriptor, "rb") as file:
        content = file.read(policy.max_bytes + 1)
    if len(content) > policy.max_bytes:
        raise too_large(policy.max_bytes)
    return content


def _open_below(below: Path, path: Path) -> int:
    """Opens a path without links, one folder after the other: a link that replaced one a moment ago is not followed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(below, flags | os.O_DIRECTORY)
    try:
        *folders, name = path.relative_to(below).parts or (".",)
        for part in folders:
            parent, folder = folder, os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
            os.close(parent)
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)  # a pipe must not block
    finally:
        os.close(folder)


# URLs.


async def _from_url(
    url: str, policy: ClipPolicy, is_allowed_address: Callable[[IPAddress], bool], held: Holding
) -> bytes:
    if not policy.urls and not policy.hosts:
        raise _not_allowed("http: and https: URLs are disabled on this server; send the clip itself, or set ref_urls")
    shown = url[:200]
    network = _CheckedNetwork(policy, is_allowed_address)
    try:
        async with asyncio.timeout(policy.timeout_s), policy.fetches:
            for _ in range(_MAX_REDIRECTS + 1):
                answer = await _get(_parsed(url), network, policy.max_bytes, held)
                if isinstance(answer, bytes):
                    return answer
                url = urljoin(url, answer)
    except RequestError:
        raise
    except TimeoutError:
        raise clip_error(f"{shown!r} was not fetched within {policy.timeout_s:g} s; send the clip itself") from None
    except _FETCH_ERRORS as error:
        raise clip_error(f"{shown!r} cannot be fetched: {error}; send the clip itself") from None
    raise clip_error(f"{shown!r} has more than {_MAX_REDIRECTS} redirects; give the final URL of the clip")


def _parsed(url: str) -> httpcore.URL:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise clip_error(f"ref_audio redirects to {url[:200]!r}; only http: and https: are fetched")
    if parts.username is not None or parts.password is not None:
        raise clip_error("a URL with a user name or password is not fetched; send the clip itself")
    host = parts.hostname or ""
    if len(url) > _MAX_URL_CHARS or len(host) > _MAX_HOST_CHARS:  # before idna, which is slow for long names
        raise clip_error(f"{url[:200]!r} is too long: a host has at most {_MAX_HOST_CHARS} characters; send the clip")
    host = host.encode("idna").decode()
    if not _HOST.fullmatch(host):
        raise clip_error(f"{url[:200]!r} has no valid host name")
    target = quote(parts.path or "/", _URL_CHARACTERS)
    if parts.query:
        target += "?" + quote(parts.query, _URL_CHARACTERS)
    return httpcore.URL(scheme=parts.scheme, host=host, port=parts.port, target=target)


class _CheckedNetwork(httpcore.AnyIOBackend):
    """Resolves each host once and connects to an address that passed the check. Addresses of hosts that the operator
    has named are not checked."""

    def __init__(self, policy: ClipPolicy, is_allowed_address: Callable[[IPAddress], bool]) -> None:
        self._policy, self._is_allowed_address = policy, is_allowed_address

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        is_named = is_named_host(host, port, self._policy.hosts)
        if not is_named and not self._policy.urls:
            raise _not_allowed(
                f"clips are not fetched from {host!r} at port {port}; send the clip itself, or add it to ref_hosts"
            )
        try:
            addresses = await self._policy.lookups.addresses(host, port)
        except OSError as error:
            raise clip_error(f"the host {host!r} is unknown ({error.strerror}); check the URL") from None
        allowed = [address for address in addresses if is_named or self._is_allowed_address(ip_address(address))]
        if not allowed:
            raise _not_allowed(f"{host!r} is not on the public internet; clips are fetched only from there")
        failure: Exception | None = None
        for address in allowed[:_MAX_ADDRESSES]:
            try:
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                failure = error
        assert failure
        raise failure


@functools.cache
def tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _get(url: httpcore.URL, network: _CheckedNetwork, max_bytes: int, held: Holding) -> bytes | str:
    """Returns the body, or the location of a redirect."""
    host = url.host.decode()
    authority = (f"[{host}]" if ":" in host else host) + (f":{url.port}" if url.port else "")
    headers = [("Host", authority), ("User-Agent", "oscine"), ("Accept", "*/*"), ("Accept-Encoding", "identity")]
    pool = httpcore.AsyncConnectionPool(ssl_context=tls_context(), network_backend=network)
    async with pool, pool.stream("GET", url, headers=[*headers, ("Connection", "close")]) as response:
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status in _REDIRECTS and "location" in found:
            return found["location"]
        if response.status != 200:
            raise clip_error(f"{host!r} answered {response.status} instead of the clip; check the URL")
        if found.get("content-encoding", "identity").lower() != "identity":
            raise ValueError("the response is compressed although that was not requested")
        if int(found.get("content-length", 0)) > max_bytes:
            raise too_large(max_bytes)
        body = bytearray()
        async for piece in response.aiter_stream():
            held.add(len(piece))
            body += piece
            if len(body) > max_bytes:
                raise too_large(max_bytes)
        return bytes(body)


# Clips inside a request: base64, alone or in a data: URL. They are decoded in slices: one call on megabytes would
# hold the interpreter lock, and with it the event loop, even from another thread.


SOURCES = "give the clip as data: URL or base64 (or, if the server allows it, as http:, https: or file: URL, or a path)"

SLICE_CHARS = 2**18
_MAX_ESCAPES = 2**16  # outside of base64; each takes half a microsecond
_WHITE_SPACE = b" \t\n\r\v\f"
_TO_STANDARD_BASE64 = bytes.maketrans(b"-_", b"+/")
# What clients escape in base64.
_ESCAPES = {b"%2B": b"+", b"%2F": b"/", b"%3D": b"=", b"%0A": b"", b"%0D": b"", b"%20": b""}


def too_large(max_bytes: int, param: str = "ref_audio") -> TooLargeError:
    message = f"the clip exceeds the limit of {max_bytes / 2**20:.3g} MiB; 3 to 20 s of speech are enough"
    return TooLargeError(message, param)


def decode_base64(text: str, max_bytes: int, *, escaped: bool = False) -> bytes:
    """Decodes standard or URL-safe base64, with or without padding and white space. `escaped`: some characters are
    percent-encoded. Raises VoiceError or TooLargeError."""
    decoded, rest = bytearray(), b""
    try:
        for piece in _slices(text):
            rest += _plain_base64(piece, escaped=escaped)
            whole = max(0, len(rest) // 4 - 1) * 4  # the end may be padding, which `_last` handles
            decoded += binascii.a2b_base64(_without_padding(rest[:whole]), strict_mode=True)
            rest = rest[whole:]
            if len(decoded) > max_bytes:
                raise too_large(max_bytes)
        decoded += _last(rest)
    except TooLargeError:
        raise
    except ValueError as error:
        start = text[:40].encode(errors="backslashreplace").decode() + ("..." if len(text) > 40 else "")
        reason = "it has non-ASCII characters" if isinstance(error, UnicodeError) else error
        raise clip_error(f"ref_audio {start!r} is neither a URL nor base64 ({reason}); {SOURCES}") from None
    if len(decoded) > max_bytes:
        raise too_large(max_bytes)
    if not decoded:
        raise clip_error(f"ref_audio is empty; {SOURCES}")
    return bytes(decoded)


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """Returns the content of a data: URL. Raises VoiceError or TooLargeError."""
    kind, comma, payload = url.strip().partition(",")
    if not comma:
        raise clip_error("ref_audio is a data: URL without a comma; the form is data:audio/wav;base64,…")
    if kind.lower().rstrip().endswith(";base64"):
        return decode_base64(payload, max_bytes, escaped="%" in payload)
    if payload.count("%") > _MAX_ESCAPES:
        raise clip_error(f"ref_audio has more than {_MAX_ESCAPES} percent-encoded bytes; encode the clip as base64")
    try:
        content = b"".join(map(unquote_to_bytes, _slices(payload)))
    except UnicodeEncodeError:
        raise clip_error("ref_audio is a data: URL with half a surrogate pair; encode the clip as base64") from None
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    return content


def _slices(text: str) -> Iterator[str]:
    """Yields slices that cut no percent-encoded character."""
    begin = 0
    while begin < len(text):
        end = begin + SLICE_CHARS
        if end < len(text) and (cut := text.rfind("%", end - 2, end)) > begin:
            end = cut
        yield text[begin:end]
        begin = end


def _plain_base64(text: str, *, escaped: bool) -> bytes:
    encoded = text.encode("ascii")
    if escaped:
        for escape, character in _ESCAPES.items():
            encoded = encoded.replace(escape, character).replace(escape.lower(), character)
    return encoded.translate(_TO_STANDARD_BASE64, _WHITE_SPACE)


def _without_padding(encoded: bytes) -> bytes:
    if b"=" in encoded:  # of a part that more follows
        raise ValueError("it has data after its padding")
    return encoded


def _last(encoded: bytes) -> bytes:
    encoded = encoded.rstrip(b"=")
    return binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
