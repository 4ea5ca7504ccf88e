"""API keys, and the limit of concurrent streams per key."""

from __future__ import annotations

import contextlib
import hmac
from collections import Counter
from collections.abc import Iterator, Sequence

from oscine.errors import NotAllowedError, OverloadedError, UnauthorizedError, counted
from oscine.server.http.logs import audit, key_number

SUBPROTOCOL = "oscine"
_SCHEMES = ("bearer", "api-key")  # LiveKit's Baseten plug-in sends Api-Key
_BEARER_SUBPROTOCOL = "bearer."  # a browser's WebSocket cannot send headers


class ApiKeys:
    def __init__(self, keys: Sequence[str], max_streams_per_key: int | None, admin_keys: Sequence[str] = ()) -> None:
        self._keys, self._admin_keys = tuple(keys), tuple(admin_keys)
        self._max_streams = max_streams_per_key
        self._streams: Counter[str] = Counter()

    def authenticate(self, authorization: str | None, subprotocols: Sequence[str] = ()) -> str:
        """Returns the client's key, or "" if the server needs none. Raises UnauthorizedError."""
        return _checked(authorization, subprotocols, self._keys + self._admin_keys) if self._keys else ""

    def check_admin(self, authorization: str | None) -> None:
        """Raises NotAllowedError if the server has no admin keys, and UnauthorizedError for any other key."""
        if not self._admin_keys:
            audit("models are not open to changes")
            raise NotAllowedError("models cannot be added or removed here; the operator's --admin-key allows it")
        _checked(authorization, (), self._admin_keys)

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


def _checked(authorization: str | None, subprotocols: Sequence[str], known_keys: Sequence[str]) -> str:
    scheme, _, key = (authorization or "").strip().partition(" ")
    if scheme.lower() not in _SCHEMES:
        offered = [name for name in subprotocols if name.startswith(_BEARER_SUBPROTOCOL)]
        key = offered[0].removeprefix(_BEARER_SUBPROTOCOL) if offered else ""
    key = key.strip()
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
