"""API keys with names, in one JSON file: what each may do, how much, and until when. The file has their hashes only.

A writer holds the lock and replaces the file. So several programs may write it, and a reader needs no lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from oscine.errors import ConfigError, RequestError, unknown_choice
from oscine.server.http.logs import audit
from oscine.speech.voice_store import write_private

_log = logging.getLogger(__name__)

Role = Literal["speak", "voices", "metrics", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
LimitName = Literal[
    "streams", "requests_per_minute", "characters_per_minute", "requests_per_month", "characters_per_month"
]
PREFIX_CHARS = 12  # of a key; they stand in the file, to recognize it
_MARK = "osk_"
_SECRET_BYTES = 32
_MAX_KEYS = 5000  # reading them holds the event loop for some 40 ms
_MAX_LOGGED = 20  # names in a line of the log
LOCK_WAIT_S = 30.0  # of a command
_LOCK_RETRY_S = 0.02

FileVersion = tuple[int, int, int]
_Model = TypeVar("_Model", bound=BaseModel)
_RULES = ConfigDict(extra="forbid", frozen=True)
_Limit = Annotated[int | None, Field(ge=1, le=2**53, strict=True)]


class KeyLimits(BaseModel):
    """Limits of one key. One that is None does not apply; the streams then have the limit of the settings."""

    model_config = _RULES

    streams: _Limit = None
    requests_per_minute: _Limit = None
    characters_per_minute: _Limit = None
    requests_per_month: _Limit = None
    characters_per_month: _Limit = None


class NamedKey(BaseModel):
    model_config = _RULES

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    prefix: Annotated[str, Field(min_length=PREFIX_CHARS, max_length=PREFIX_CHARS)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$", repr=False)]
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    limits: KeyLimits = KeyLimits()
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    revoked_at: AwareDatetime | None = None

    def may(self, role: Role) -> bool:
        return role in self.roles or "admin" in self.roles

    def state(self, now_s: float) -> Literal["active", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at.timestamp() <= now_s else "active"


class _KeyDocument(BaseModel):
    """The content of the file."""

    model_config = _RULES

    version: Literal[1] = 1
    keys: Annotated[tuple[NamedKey, ...], Field(max_length=_MAX_KEYS)] = ()

    @field_validator("keys")
    @classmethod
    def _check_names(cls, keys: tuple[NamedKey, ...]) -> tuple[NamedKey, ...]:
        names = [key.name for key in keys]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the name {twice!r} is there twice")
        return keys


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


class NewKey(NamedTuple):
    secret: str  # what the client sends; it is not kept
    record: NamedKey


class KeyFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[NamedKey, ...]:
        """Raises ConfigError. A file that does not exist has no keys."""
        document = read_file(self.path, _KeyDocument, "the file of API keys")
        return document.keys if document else ()

    def add(self, name: str, roles: Sequence[str], limits: dict[str, int], expires_at: datetime | None) -> NewKey:
        """Raises RequestError if the name is taken or a value is not possible."""
        secret = f"{_MARK}{secrets.token_urlsafe(_SECRET_BYTES)}"
        now = datetime.now(UTC).replace(microsecond=0)
        given = {"name": name, "roles": tuple(roles), "limits": limits, "created_at": now, "expires_at": expires_at}
        given |= {"prefix": secret[:PREFIX_CHARS], "sha256": hash_of(secret)}
        try:
            record = NamedKey.model_validate(given)
        except ValidationError as error:
            raise RequestError(f"this key is not possible: {_first_of(error)}") from None
        with self._changing() as keys:
            if any(key.name == name for key in keys):
                raise RequestError(f"there is a key {name!r} already; choose another name", "name")
            if len(keys) >= _MAX_KEYS:
                raise RequestError(f"the file has {_MAX_KEYS} keys (the maximum); remove revoked ones from it")
            keys.append(record)
        return NewKey(secret, record)

    def revoke(self, name: str) -> NamedKey:
        """Raises RequestError if there is no such key. A key that was revoked before stays as it is."""
        with self._changing() as keys:
            index = next((index for index, key in enumerate(keys) if key.name == name), None)
            if index is None:
                raise RequestError(unknown_choice("key", name, [key.name for key in keys]), "name")
            if keys[index].revoked_at is None:
                now = datetime.now(UTC).replace(microsecond=0)
                keys[index] = keys[index].model_copy(update={"revoked_at": now})
            return keys[index]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[NamedKey]]:
        """The keys, to be changed; then the file has them. Raises ConfigError."""
        with locked(self.path, LOCK_WAIT_S):
            keys = list(self.read())
            yield keys
            document = _KeyDocument.model_construct(keys=tuple(keys))
            replace_file(self.path, document.model_dump_json(indent=1, exclude_none=True).encode())


class NamedKeys:
    """The keys of a file that may change while the server runs. `reload` may run on another thread than the rest."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError for a file that cannot be used. One that does not exist may come later."""
        self._file = KeyFile(path) if path else None
        self._version = version_of(path) if path else None
        self.is_read = True  # whether the file could be read the last time
        self._set(self._file.read() if self._file else ())

    def _set(self, keys: Iterable[NamedKey]) -> None:
        self.by_name = {key.name: key for key in keys}
        by_prefix: dict[str, list[NamedKey]] = {}
        for key in self.by_name.values():
            by_prefix.setdefault(key.prefix, []).append(key)
        self._by_prefix = by_prefix

    def candidates(self, secret: str) -> Sequence[NamedKey]:
        """Keys that begin like this one."""
        return self._by_prefix.get(secret[:PREFIX_CHARS], ())

    def reload(self) -> None:
        """Takes over what has changed. If the file cannot be used, the keys stay as they are."""
        if self._file is None or (version_of(self._file.path) == self._version and self.is_read):
            return
        version, before = version_of(self._file.path), self.by_name
        try:
            keys = self._file.read()
            if version is None and before:
                raise ConfigError(f"the file of API keys {str(self._file.path)!r} is gone")
        except ConfigError as error:
            if self.is_read:
                _log.warning("the API keys stay as they were: %s", error)
            self.is_read = False
            return
        self.is_read, self._version = True, version
        self._set(keys)
        changed = [name for name in {**before, **self.by_name} if before.get(name) != self.by_name.get(name)]
        audit("keys changed", keys=len(keys), changed=",".join(sorted(changed)[:_MAX_LOGGED]))


# --- private files that several programs write ---


def version_of(path: Path) -> FileVersion | None:
    """Differs when the file has been replaced or changed; None if it cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(path: Path, model: type[_Model], what: str) -> _Model | None:
    """Returns None if there is no such file. Raises ConfigError, without any value of the content."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{what} {str(path)!r} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{what} {str(path)!r} cannot be used: {_first_of(error)}") from None


@contextlib.contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """Waits until no other program changes the file. Raises ConfigError if that takes too long, or if the file or its
    folder cannot be used."""
    path = Path(os.path.realpath(path))
    lock = path.with_name(f"{path.name}.lock")
    try:
        with contextlib.suppress(FileExistsError):
            write_private(lock, b"")
        with open(lock, "r+b") as opened:
            _lock(opened, wait_s)
            yield
    except BlockingIOError:
        reason = f"another program has held {lock.name} for {wait_s:g} s; end that program, or try again"
        raise ConfigError(f"{str(path)!r} cannot be changed: {reason}") from None
    except OSError as error:
        reason = f"{error.strerror or error}; its folder must exist and be writable"
        raise ConfigError(f"{str(path)!r} cannot be changed: {reason}") from error


def _lock(opened: IO[bytes], wait_s: float) -> None:
    """Raises BlockingIOError after `wait_s`: the system's own wait has no end."""
    import fcntl  # not on Windows

    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(_LOCK_RETRY_S)


def replace_file(path: Path, content: bytes) -> None:
    """Readers see the old content or the new one, also after a power cut."""
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write_private(temporary, content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _first_of(error: ValidationError) -> str:
    first: Any = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
