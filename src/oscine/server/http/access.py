"""Who may use the server: API keys with their limit of streams, and the names of the server that requests may use."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from oscine.errors import NotAllowedError, OverloadedError, UnauthorizedError, counted
from oscine.process.resources import current_owner
from oscine.server.http.logs import audit, key_number
from oscine.speech.clips import matches_host, without_dot

SUBPROTOCOL = "oscine"
_SCHEMES = ("bearer", "api-key")  # LiveKit's Baseten plug-in sends Api-Key
XI_API_KEY = "xi-api-key"  # clients of ElevenLabs
_KEY_HEADERS = (XI_API_KEY, "x-api-key", "api-key")  # without a scheme; Azure's clients send the last one
_BEARER_SUBPROTOCOL = "bearer."  # a browser's WebSocket cannot send headers
_LOOPBACK_NAMES = ("localhost", "*.localhost")
# Names that exist only in local networks, for services and machines.
_LOCAL_NAMES = ("*.local", "*.internal", "*.home.arpa")
_LABEL = re.compile(r"[a-z0-9_-]+")


class ApiKeys:
    def __init__(self, keys: Sequence[str], max_streams_per_key: int | None, admin_keys: Sequence[str] = ()) -> None:
        self._keys, self._admin_keys = tuple(keys), tuple(admin_keys)
        self._max_streams = max_streams_per_key
        self._streams: Counter[str] = Counter()

    def authenticate(self, headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> str:
        """Returns the client's key, or "" if the server needs none. What the client holds from now on counts for it.
        Raises UnauthorizedError."""
        own = _checked(_given_key(headers, subprotocols), self._keys + self._admin_keys) if self._keys else ""
        current_owner.set(current_owner.get()._replace(key=own))
        return own

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raises NotAllowedError if the server has no admin keys, and UnauthorizedError for any other key."""
        if not self._admin_keys:
            audit("model change refused", reason="no admin keys")
            raise NotAllowedError("models cannot be added or removed here; the operator's --admin-key allows it")
        _checked(_given_key(headers), self._admin_keys)

    @contextlib.contextmanager
    def stream(self, key: str) -> Iterator[None]:
        """Counts one stream of this key. Raises OverloadedError if the key has reached its limit."""
        running = self._streams[key]
        if self._max_streams is not None and running >= self._max_streams:
            message = f"this API key has {counted(running, 'stream')} running (the maximum); wait until one ends"
            raise OverloadedError(message, 1.0, code="too_many_streams")
        self._streams[key] += 1
        try:
            yield
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]

    @property
    def streams(self) -> int:
        return self._streams.total()


def _given_key(headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> str:
    """The first place that has a key counts. `headers` finds names in lower case."""
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    offered = [name.removeprefix(_BEARER_SUBPROTOCOL) for name in subprotocols if name.startswith(_BEARER_SUBPROTOCOL)]
    given = (key if scheme.lower() in _SCHEMES else "", *(headers.get(name, "") for name in _KEY_HEADERS), *offered)
    return next((key.strip() for key in given if key.strip()), "")


def _checked(key: str, known_keys: Sequence[str]) -> str:
    if not key:
        audit("key refused", reason="missing")
        raise UnauthorizedError("an API key is required; send it as 'Authorization: Bearer KEY'")
    # Every key is compared, each in constant time, so that the duration reveals nothing.
    matches = [hmac.compare_digest(known.encode(), key.encode(errors="replace")) for known in known_keys]
    if not any(matches):
        audit("key refused", reason="unknown")
        raise UnauthorizedError("the API key is unknown; check it, or ask the operator of this server for one")
    key_number.set(matches.index(True) + 1)
    return key


class AllowedHosts:
    """The names of the server that requests may use. A page of another site can make its own name resolve to this
    machine (DNS rebinding); a browser then takes the server for that site, and lets the page read it.

    Addresses are always allowed, because only names can be rebound. A server with keys allows every name unless it
    is told some: the key protects it, and behind a proxy the name is the proxy's."""

    def __init__(self, bind_host: str, allowed: Sequence[str], *, has_keys: bool) -> None:
        self._any = "*" in allowed or (has_keys and not allowed)
        self._patterns = [*_LOOPBACK_NAMES, bind_host, *allowed]
        self._local = not _is_loopback(bind_host)
        if self._local:
            self._patterns += _LOCAL_NAMES
        self._allows = lru_cache(maxsize=64)(self._matches)  # clients use few names

    def __contains__(self, host: str | None) -> bool:
        """`host` is the Host header. Clients that send none are programs, which cannot be rebound."""
        return self._any or not host or self._allows(host)

    def _matches(self, host: str) -> bool:
        name = host_name(host)
        port = host.rpartition(":")[2] if host.count(":") == 1 else None
        ports = (port,) if port else ("80", "443")
        shown = (name, *(f"{name}:{port}" for port in ports))
        if any(matches_host(one, self._patterns) for one in shown) or _is_address(name):
            return True
        return self._local and _LABEL.fullmatch(name) is not None  # a machine or a container of this network


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return without_dot(host.rpartition(":")[0] if host.count(":") == 1 else host)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(bind_host: str) -> bool:
    return bind_host == "localhost" or (_is_address(bind_host) and ipaddress.ip_address(bind_host).is_loopback)
