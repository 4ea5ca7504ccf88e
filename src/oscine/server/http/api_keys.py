"""API keys: who may do what, and how much. The settings have keys, and a file has keys with names, roles and limits."""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oscine.config import ServerConfig
from oscine.errors import NotAllowedError, OverloadedError, UnauthorizedError, counted
from oscine.process.resources import current_owner
from oscine.server.http.key_file import KeyLimits, NamedKey, NamedKeys, Role, hash_of
from oscine.server.http.key_usage import Counted, KeyUsage, Unit
from oscine.server.http.logs import audit, key_name

XI_API_KEY = "xi-api-key"  # clients of ElevenLabs
_SCHEMES = ("bearer", "api-key")  # LiveKit's Baseten plug-in sends Api-Key
_KEY_HEADERS = (XI_API_KEY, "x-api-key", "api-key")  # without a scheme; Azure's clients send the last one
_BEARER_SUBPROTOCOL = "bearer."  # a browser's WebSocket cannot send headers
WATCH_S = 1.0  # between two looks at the file
SAVE_S = 5.0  # between two times that what was used is saved
_ORDINARY: tuple[Role, ...] = ("speak", "voices", "metrics")  # roles of `server.api_keys`
_VOICE_PATHS = ("/v1/audio/voices", "/v1/audio/voice_consents")
_VOICE_COPIES = ("/file", "/embedding")
_NO_LIMITS = KeyLimits()
_ADVICE = "ask the operator of this server for another one"


def role_needed(method: str, path: str) -> Role | None:
    """Returns the role that a request needs, or None if any key will do. `check_admin` is for changes of models."""
    if path in ("/metrics", "/v1/usage/keys"):
        return "metrics"
    reads = method in ("GET", "HEAD")
    if path.startswith(_VOICE_PATHS):
        return None if reads and not path.endswith(_VOICE_COPIES) else "voices"
    return None if reads or path.startswith("/v1/models") else "speak"


class MissingRoleError(NotAllowedError):
    """The API key does not have the role that this needs."""


class ApiKeys:
    """A client is known by the name of its key. `settings:1` is the first key of the settings."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._needs_key, self._max_streams = config.needs_key, config.streams_per_key
        given = [(key, _ORDINARY) for key in config.api_keys] + [(key, ("admin",)) for key in config.admin_keys]
        self._fixed = {f"settings:{index}": _fixed_key(index, *one) for index, one in enumerate(given, 1)}
        self._has_admins = bool(config.admin_keys or config.keys_file)
        file = Path(config.keys_file).expanduser() if config.keys_file else None
        self.named = NamedKeys(file)
        usage_file = Path(config.usage_file).expanduser() if config.usage_file else file and usage_file_of(file)
        self.usage = KeyUsage(usage_file, clock)
        self._streams: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._has_files = bool(file or usage_file)

    def start(self) -> None:
        """Watches the file, and saves what is used, until `close`."""
        if not self._has_files:
            return
        self._stopped.clear()
        # On a thread each: a revocation does not wait for a disk or a lock.
        for work, every_s in ((self.named.reload, WATCH_S), (self.usage.save, SAVE_S)):
            watcher = threading.Thread(target=self._repeat, args=(work, every_s), name="oscine-keys", daemon=True)
            watcher.start()
            self._watchers.append(watcher)

    def close(self) -> None:
        self._stopped.set()
        while self._watchers:
            self._watchers.pop().join()
        self.usage.save()

    def _repeat(self, work: Callable[[], None], every_s: float) -> None:
        while not self._stopped.wait(every_s):
            work()

    @property
    def files_work(self) -> bool:
        return self.named.is_read and self.usage.is_saved

    # --- who ---

    def authenticate(
        self, headers: Mapping[str, str], subprotocols: Sequence[str] = (), role: Role | None = None
    ) -> str:
        """Returns the name of the client's key, or "" if the server needs none. What the client holds from now on
        counts for it. Raises UnauthorizedError, or MissingRoleError."""
        name = ""
        if self._needs_key:
            key = self._identified(_given_key(headers, subprotocols))
            _check_role(key, role)
            name = key.name
        current_owner.set(current_owner.get()._replace(key=name))
        return name

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raises NotAllowedError if the key is no admin key, or the server has none, and UnauthorizedError."""
        if not self._has_admins:
            audit("model change refused", reason="no admin keys")
            raise NotAllowedError("models cannot be added or removed here; the operator's --admin-key allows it")
        _check_role(self._identified(_given_key(headers)), "admin")

    def check(self, name: str, role: Role) -> None:
        """Raises UnauthorizedError if the key is not accepted any more, and MissingRoleError if it has lost the
        role."""
        if name:
            _check_role(self._active(self.find(name)), role)

    def find(self, name: str) -> NamedKey | None:
        return self._fixed.get(name) or self.named.by_name.get(name)

    def all(self) -> Iterable[NamedKey]:
        return (*self._fixed.values(), *self.named.by_name.values())

    def _identified(self, given: str) -> NamedKey:
        if not given:
            audit("key refused", reason="missing")
            raise UnauthorizedError("an API key is required; send it as 'Authorization: Bearer KEY'")
        # Each is compared in constant time, so that the duration reveals nothing.
        known, hashed = (*self._fixed.values(), *self.named.candidates(given)), hash_of(given)
        matches = [key for key in known if hmac.compare_digest(key.sha256, hashed)]
        if not matches:
            audit("key refused", reason="unknown")
            raise UnauthorizedError("the API key is unknown; check it, or ask the operator of this server for one")
        key = matches[-1]  # one that is in both lists of the settings is an admin key
        key_name.set(key.name)
        return self._active(key)

    def _active(self, key: NamedKey | None) -> NamedKey:
        state = key.state(self.usage.clock()) if key else "removed"
        if key and state == "active":
            return key
        ended_at = key and (key.revoked_at or key.expires_at)
        when = f" on {ended_at.astimezone(UTC):%Y-%m-%d at %H:%M} UTC" if ended_at else ""
        audit("key refused", reason=state)
        was = "has" if state == "expired" else "was"
        raise UnauthorizedError(f"this API key {was} {state}{when}; {_ADVICE}", code=f"api_key_{state}")

    # --- how much ---

    def limits_of(self, name: str) -> KeyLimits:
        key = self.find(name)
        return key.limits if key else _NO_LIMITS

    def max_streams_of(self, name: str) -> int | None:
        return self.limits_of(name).streams or self._max_streams

    @contextlib.contextmanager
    def stream(self, name: str, *, of_charge: bool = False) -> Iterator[None]:
        """Counts one stream of this key. Raises OverloadedError if the key has reached its limit, which counts as a
        refusal; that of a charge counts when its speech ends."""
        running, most = self._streams[name], self.max_streams_of(name)
        if most is not None and running >= most:
            message = f"this API key has {counted(running, 'stream')} running (the maximum); wait until one ends"
            error = OverloadedError(message, 1.0, code="too_many_streams")
            error.key_limit = "streams"
            if not of_charge:
                self.usage.refuse(name, error)
            raise error
        self._streams[name] += 1
        try:
            yield
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]

    @property
    def streams(self) -> int:
        return self._streams.total()

    def streams_of(self, name: str) -> int:
        return self._streams[name]

    def streams_by_name(self) -> Counter[str]:
        return Counter({name: running for name, running in self._streams.items() if name})


class Charge:
    """What one speech counts for its key: a request, its characters when they arrive, its audio at the end."""

    def __init__(self, keys: ApiKeys, name: str) -> None:
        self._keys, self._name = keys, name
        self._counted = Counted()
        self._settled = False

    @property
    def is_counted(self) -> bool:
        return bool(self._counted.months)

    def stream(self) -> contextlib.AbstractContextManager[None]:
        """Raises OverloadedError."""
        return self._keys.stream(self._name, of_charge=True)

    def add(self, characters: int) -> None:
        """Raises OverloadedError or TooLargeError for a limit of the key, and as `ApiKeys.check` does."""
        if not self._name or self._settled:
            return
        self._keys.check(self._name, "speak")
        amounts: dict[Unit, int] = {"characters": characters, **({} if self.is_counted else {"requests": 1})}
        self._keys.usage.count(self._name, self._keys.limits_of(self._name), amounts, self._counted)

    def refuse(self, error: BaseException) -> None:
        """The speech fails with this error, which its client gets."""
        self._keys.usage.refuse(self._name, error)

    def settle(self, audio_s: float, *, failed: bool) -> None:
        """The speech has ended; only the first call counts. One that failed before its first audio is not counted."""
        if not self.is_counted or self._settled:
            return
        self._settled = True
        if failed:
            self._keys.usage.refund(self._name, self._counted)
        else:
            self._keys.usage.settle(self._name, self._counted, round(1000 * audio_s))


def usage_file_of(keys_file: Path) -> Path:
    return keys_file.with_suffix(".usage.json")


def _fixed_key(index: int, secret: str, roles: tuple[Role, ...]) -> NamedKey:
    """A key of the settings. Its name cannot be that of a key of the file."""
    about: dict[str, Any] = {"prefix": "", "sha256": hash_of(secret), "roles": roles, "limits": _NO_LIMITS}
    return NamedKey.model_construct(name=f"settings:{index}", created_at=datetime.now(UTC), **about)


def _check_role(key: NamedKey, role: Role | None) -> None:
    if role and not key.may(role):
        audit("role missing", role=role)
        message = f"this API key has the roles {', '.join(key.roles)}, and this needs {role}; {_ADVICE}"
        raise MissingRoleError(message, code="missing_role")


def _given_key(headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> str:
    """The first place that has a key counts. `headers` finds names in lower case."""
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    offered = [name.removeprefix(_BEARER_SUBPROTOCOL) for name in subprotocols if name.startswith(_BEARER_SUBPROTOCOL)]
    given = (key if scheme.lower() in _SCHEMES else "", *(headers.get(name, "") for name in _KEY_HEADERS), *offered)
    return next((key.strip() for key in given if key.strip()), "")
