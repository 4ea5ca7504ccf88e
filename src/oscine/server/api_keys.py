"""Who may come in: API keys, and how many streams each of them may have at once."""

from __future__ import annotations

import contextlib
import hmac
from collections import Counter
from collections.abc import Iterator, Sequence

from oscine.server.errors import ApiError

SUBPROTOCOL = "oscine"
_BEARER_SUBPROTOCOL = "bearer."  # a browser's WebSocket cannot send headers


class Access:
    def __init__(self, keys: Sequence[str], streams_per_key: int | None) -> None:
        self._keys = tuple(keys)
        self._streams_per_key = streams_per_key
        self._streams: Counter[str] = Counter()

    def key_of(self, authorization: str | None, subprotocols: Sequence[str] = ()) -> str:
        """The key that was shown, or "" where none is needed. Raises 401."""
        if not self._keys:
            return ""
        scheme, _, shown = (authorization or "").strip().partition(" ")
        if scheme.lower() != "bearer":
            offered = [name for name in subprotocols if name.startswith(_BEARER_SUBPROTOCOL)]
            shown = offered[0].removeprefix(_BEARER_SUBPROTOCOL) if offered else ""
        shown = shown.strip()
        if not shown:
            raise ApiError(401, "an API key is needed; send it as 'Authorization: Bearer KEY'")
        # Every key is compared, each in constant time: how long this takes tells nothing.
        known = [hmac.compare_digest(key.encode(), shown.encode(errors="replace")) for key in self._keys]
        if not any(known):
            raise ApiError(401, "this API key is not known here; check it, or ask whoever runs the server for one")
        return shown

    @contextlib.contextmanager
    def stream(self, key: str) -> Iterator[None]:
        """Counts one stream of this key while it lasts. Raises 429 where the key has all of its streams already."""
        most = self._streams_per_key
        if most is not None and self._streams[key] >= most:
            raise ApiError(
                429,
                f"{self._streams[key]} streams run with this key, which is as many as may; wait for one to end",
                code="too_many_streams",
                retry_after_s=1.0,
            )
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
