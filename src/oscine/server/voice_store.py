"""Uploaded voices by name. The files of the folder are the truth, and memory only keeps what was read from them: so
several server processes may share a folder, and a voice that an operator puts there or removes is noticed.

Everything here may be called from any thread. Adding waits for the disk and is no work for the event loop; `get` costs
one look at the file, and reads it if it is new.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from oscine.server.errors import ApiError
from oscine.types import ConfigError, OscineError, VoiceError
from oscine.voice import Voice

_log = logging.getLogger(__name__)

NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"
_NAME = re.compile(NAME_PATTERN)
_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class StoredVoice:
    name: str
    voice: Voice
    created_at: int  # unix seconds
    consent: str | None = None  # None: the file was put into the folder by hand
    speaker_description: str | None = None
    source_hash: str | None = None  # of the clip and transcript that it was made from
    file_size: int = 0  # bytes; 0 where there is no folder

    @property
    def mode(self) -> Literal["in_context", "timbre"]:
        return "timbre" if self.voice.transcript is None else "in_context"

    @property
    def notes(self) -> dict[str, str]:
        told = {
            "created_at": str(self.created_at),
            "consent": self.consent,
            "speaker_description": self.speaker_description,
            "source_hash": self.source_hash,
        }
        return {name: note for name, note in told.items() if note is not None}


class _Seen(NamedTuple):
    """What was read from a file."""

    mark: tuple[int, int, int]  # inode, time and size: another one is another file
    stored: StoredVoice | None  # None: it is damaged


class VoiceStore:
    def __init__(self, folder: Path | None, reserved: Collection[str], most: int = 1000) -> None:
        self._folder = folder
        self._reserved = frozenset(name.lower() for name in reserved)
        self._most = most
        self._memory: dict[str, StoredVoice] = {}  # without a folder
        self._seen: dict[str, _Seen] = {}  # with one
        self._adding = threading.Lock()
        if folder is not None:
            self._open(folder)

    def _open(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # voices are personal data
            files = sorted(path.stem for path in folder.iterdir() if path.name.endswith(_SUFFIX))
        except OSError as error:
            reason = f"{error.strerror or error}; choose another with voices_dir"
            raise ConfigError(f"the folder for voices, {str(folder)!r}, cannot be used: {reason}") from error
        for name in files:
            if not self._usable(name):
                _log.warning("%s is no voice that can be asked for: rename it (a-z 0-9 _ -, not a preset)", name)
        _log.info("%d uploaded voices in %s", len(self.all()), folder)

    def check_name(self, name: str) -> str:
        """The name as it is stored. Raises VoiceError or, for a reserved one, a conflict."""
        if not _NAME.fullmatch(name):
            rule = "a name is 1 to 64 of a-z, 0-9, _ and -"
            raise VoiceError(f"a voice cannot be called {name[:80]!r}; {rule}", "name")
        if name.lower() in self._reserved:
            raise ApiError(
                409,
                f"{name!r} is reserved (a preset, one of OpenAI's names or 'default'); choose another name",
                param="name",
            )
        return name.lower()

    def _usable(self, stem: str) -> bool:
        return bool(_NAME.fullmatch(stem)) and stem == stem.lower() and stem not in self._reserved

    def get(self, name: str) -> StoredVoice | None:
        """Raises VoiceError for a voice whose file is damaged."""
        name = name.lower()
        if not self._usable(name):
            return None
        if self._folder is None:
            return self._memory.get(name)
        seen = self._look(name)
        if seen is not None and seen.stored is None:
            raise VoiceError(
                f"the file of voice {name!r} is damaged (the log says how); delete the voice and add it again",
                "voice",
            )
        return seen and seen.stored

    def _look(self, name: str) -> _Seen | None:
        path = self._path(name)
        try:
            found = path.stat()
        except OSError:
            self._seen.pop(name, None)
            return None
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        seen = self._seen.get(name)
        if seen is None or seen.mark != mark:
            seen = self._seen[name] = _Seen(mark, self._read(name, path, found))
        return seen

    def _read(self, name: str, path: Path, found: os.stat_result) -> StoredVoice | None:
        try:
            if not stat.S_ISREG(found.st_mode):  # a pipe would keep us waiting for ever
                raise VoiceError(f"{str(path)!r} is not a regular file")
            voice, notes = Voice.load_with_notes(path)
            return StoredVoice(
                name=name,
                voice=voice,
                created_at=int(notes.get("created_at", found.st_mtime)),
                consent=notes.get("consent"),
                speaker_description=notes.get("speaker_description"),
                source_hash=notes.get("source_hash"),
                file_size=found.st_size,
            )
        except ValueError as error:  # VoiceErrors are
            _log.warning("voice %r cannot be used: %s", name, error)
            return None

    def names(self) -> list[str]:
        if self._folder is None:
            return sorted(self._memory)
        with _disk("list the voices"):
            stems = [name.removesuffix(_SUFFIX) for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]
        return sorted(filter(self._usable, stems))

    def all(self) -> list[StoredVoice]:
        """Without damaged ones: the log tells of those."""
        names = self.names()
        if self._folder is None:
            return [self._memory[name] for name in names]
        for gone in set(self._seen).difference(names):
            self._seen.pop(gone, None)
        return [seen.stored for name in names if (seen := self._look(name)) and seen.stored]

    def add(
        self,
        name: str,
        voice: Voice,
        *,
        consent: str,
        speaker_description: str | None = None,
        source_hash: str | None = None,
    ) -> StoredVoice:
        """What is stored under the name: what is given, or what was there if it is the same voice."""
        fresh = StoredVoice(
            name=self.check_name(name),
            voice=voice,
            created_at=int(time.time()),
            consent=consent,
            speaker_description=speaker_description,
            source_hash=source_hash,
        )
        with self._adding:
            known = self.get(fresh.name) or self._put(fresh)
        if not is_same_voice(known, fresh):
            raise ApiError(
                409,
                f"there is another voice called {known.name!r}; delete it first or choose another name",
                param="name",
            )
        return known

    def _put(self, fresh: StoredVoice) -> StoredVoice:
        """What is stored then: another process may be faster, and a file that is there is never written over."""
        if len(self.names()) >= self._most:
            raise ApiError(409, f"{self._most} voices are stored, no more are kept here; delete one that is not needed")
        if self._folder is None:
            self._memory[fresh.name] = fresh
            return fresh
        self._write(fresh, self._folder / f".{fresh.name}.{secrets.token_hex(4)}.part")
        stored = self.get(fresh.name)
        if stored is None:
            raise ApiError(409, f"voice {fresh.name!r} was deleted while it was stored; add it again", param="name")
        return stored

    def _write(self, fresh: StoredVoice, part: Path) -> None:
        with _disk(f"store voice {fresh.name!r}"):
            try:
                fresh.voice.save(part, fresh.notes)
                _sync(part)
                try:
                    os.link(part, self._path(fresh.name))
                except FileExistsError:
                    pass
                except OSError:  # a file system without hard links: then the last process wins
                    os.replace(part, self._path(fresh.name))
            finally:
                part.unlink(missing_ok=True)

    def delete(self, name: str) -> str:
        """The name as it was stored, damaged or not. Raises not found."""
        name = name.lower()
        found = self._usable(name)
        if found and self._folder is None:
            found = self._memory.pop(name, None) is not None
        elif found:
            self._seen.pop(name, None)
            with _disk(f"delete voice {name!r}"):
                try:
                    self._path(name).unlink()
                except FileNotFoundError:
                    found = False
        if not found:
            raise not_uploaded(name)
        return name

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}{_SUFFIX}"


def is_same_voice(one: StoredVoice, other: StoredVoice) -> bool:
    """By content, or by the clip: encoders on another device may round differently."""
    return one.voice == other.voice or (one.source_hash is not None and one.source_hash == other.source_hash)


def not_uploaded(name: str) -> ApiError:
    return ApiError(404, f"there is no uploaded voice {name[:80]!r}; GET /v1/audio/voices lists them", param="name")


@contextlib.contextmanager
def _disk(work: str) -> Iterator[None]:
    """The disk's faults are not the client's, and its paths are none of their business."""
    try:
        yield
    except (OSError, OscineError) as error:
        _log.error("cannot %s: %s", work, error)
        raise ApiError(500, f"the disk of the voices failed to {work}; the log says why") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # else a power cut could leave the name with nothing behind it
    finally:
        os.close(descriptor)
