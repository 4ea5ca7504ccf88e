"""Uploaded voices by name. The files in the folder are authoritative and RAM only caches them, so several server
processes can share a folder, and voices that an operator adds or removes are noticed.

All methods are thread-safe. `add` waits for the disk and must not run on the event loop; `get` costs one `stat`, and
reads the file if it is new.
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

from oscine.errors import ConfigError, OscineError, VoiceError
from oscine.server.errors import ApiError
from oscine.voice import Voice

_log = logging.getLogger(__name__)

NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"
_NAME = re.compile(NAME_PATTERN)
_SUFFIX = ".safetensors"
_INTERRUPTED_S = 3600.0
_NOTES = ("consent", "speaker_description", "source_hash")  # in the file, but not part of the voice


@dataclass(frozen=True, slots=True)
class StoredVoice:
    name: str
    voice: Voice
    created_at: int  # unix seconds
    consent: str | None = None  # None: an operator put the file into the folder
    speaker_description: str | None = None
    source_hash: str | None = None  # of the clip and transcript that the voice was made from
    file_size: int = 0  # bytes; 0 without a folder

    @property
    def mode(self) -> Literal["in_context", "timbre"]:
        return "timbre" if self.voice.transcript is None else "in_context"


class _CachedFile(NamedTuple):
    version: tuple[int, int, int]  # inode, mtime and size
    stored: StoredVoice | None  # None: the file is damaged


class VoiceStore:
    def __init__(self, folder: Path | None, reserved: Collection[str], max_voices: int = 1000) -> None:
        self._folder = folder
        self._reserved = frozenset(name.lower() for name in reserved)
        self._max_voices = max_voices
        self._unsaved: dict[str, StoredVoice] = {}  # all voices, if there is no folder
        self._cache: dict[str, _CachedFile] = {}  # otherwise
        self._adding = threading.Lock()
        if folder is not None:
            self._open(folder)

    def _open(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # voices are personal data
            files = sorted(path.stem for path in folder.iterdir() if path.name.endswith(_SUFFIX))
        except OSError as error:
            reason = f"{error.strerror or error}; choose another folder with voices_dir"
            raise ConfigError(f"the voices folder {str(folder)!r} cannot be used: {reason}") from error
        _remove_interrupted(folder)
        for name in files:
            if not self._is_valid(name):
                _log.warning("%s is not a valid voice name: rename it (a-z 0-9 _ -, not a preset)", name)
        _log.info("%d uploaded voices in %s", len(self.all()), folder)

    def reserve(self, names: Collection[str]) -> None:
        """Replaces the names that uploaded voices cannot have."""
        self._reserved = frozenset(name.lower() for name in names)

    def check_name(self, name: str) -> str:
        """The name as it is stored. Raises VoiceError, or a conflict for a reserved name."""
        if not _NAME.fullmatch(name):
            raise VoiceError(f"invalid voice name {name[:80]!r}; use 1 to 64 of a-z, 0-9, _ and -", "name")
        if name.lower() in self._reserved:
            message = f"{name!r} is reserved (a preset, one of OpenAI's names or 'default'); choose another name"
            raise ApiError(409, message, param="name")
        return name.lower()

    def _is_valid(self, stem: str) -> bool:
        return bool(_NAME.fullmatch(stem)) and stem == stem.lower() and stem not in self._reserved

    def get(self, name: str) -> StoredVoice | None:
        """Raises VoiceError for a voice whose file is damaged."""
        name = name.lower()
        if not self._is_valid(name):
            return None
        if self._folder is None:
            return self._unsaved.get(name)
        cached = self._cached(name)
        if cached is not None and cached.stored is None:
            message = f"the file of voice {name!r} is damaged (see the log); delete the voice and add it again"
            raise VoiceError(message, "voice")
        return cached and cached.stored

    def _cached(self, name: str) -> _CachedFile | None:
        path = self._path(name)
        try:
            found = path.stat()
        except OSError:
            self._cache.pop(name, None)
            return None
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        cached = self._cache.get(name)
        if cached is None or cached.version != version:
            try:
                cached = _CachedFile(version, self._read(name, path, found))
            except ValueError as error:  # includes VoiceError
                if not path.exists():  # it was deleted between the two looks at it
                    return None
                _log.warning("voice %r cannot be used: %s", name, error)
                cached = _CachedFile(version, None)
            self._cache[name] = cached
        return cached

    def _read(self, name: str, path: Path, found: os.stat_result) -> StoredVoice:
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would block
            raise VoiceError(f"{str(path)!r} is not a regular file")
        voice, saved = Voice.load_with_notes(path)
        created_at = int(saved.get("created_at", found.st_mtime))
        consent, description, source_hash = map(saved.get, _NOTES)
        return StoredVoice(name, voice, created_at, consent, description, source_hash, found.st_size)

    def names(self) -> list[str]:
        if self._folder is None:
            return sorted(self._unsaved)
        with _disk("list the voices"):
            stems = [name.removesuffix(_SUFFIX) for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]
        return sorted(filter(self._is_valid, stems))

    def all(self) -> list[StoredVoice]:
        """Without damaged ones, which are logged."""
        names = self.names()
        if self._folder is None:
            return [self._unsaved[name] for name in names]
        for removed in set(self._cache).difference(names):
            self._cache.pop(removed, None)
        return [cached.stored for name in names if (cached := self._cached(name)) and cached.stored]

    def add(
        self,
        name: str,
        voice: Voice,
        *,
        consent: str,
        speaker_description: str | None = None,
        source_hash: str | None = None,
    ) -> StoredVoice:
        """Returns the stored voice: an equal one that exists already stays as it is. Raises a conflict for another."""
        name = self.check_name(name)
        new = StoredVoice(name, voice, int(time.time()), consent, speaker_description, source_hash)
        with self._adding:
            stored = self.get(name) or self._put(new)
        # Compared by clip too, because encoders on another device may round differently.
        same_clip = source_hash is not None and source_hash == stored.source_hash
        if stored.voice != voice and not same_clip:
            message = f"another voice is called {name!r}; delete it first or choose another name"
            raise ApiError(409, message, param="name")
        return stored

    def _put(self, new: StoredVoice) -> StoredVoice:
        """Returns the stored voice, which may be another process's: existing files are never overwritten."""
        if len(self.names()) >= self._max_voices:
            raise ApiError(409, f"{self._max_voices} voices are stored (the maximum); delete one first")
        if self._folder is None:
            self._unsaved[new.name] = new
            return new
        self._write(new, self._folder / f".{new.name}.{secrets.token_hex(4)}.part")
        stored = self.get(new.name)
        if stored is None:
            raise ApiError(409, f"voice {new.name!r} was deleted while it was stored; add it again", param="name")
        return stored

    def _write(self, new: StoredVoice, temporary: Path) -> None:
        notes = {name: note for name in _NOTES if (note := getattr(new, name)) is not None}
        with _disk(f"store voice {new.name!r}"):
            try:
                new.voice.save(temporary, {"created_at": str(new.created_at), **notes}, private=True)
                _give_to_owner(temporary)
                descriptor = os.open(temporary, os.O_RDONLY)
                try:
                    os.fsync(descriptor)  # otherwise a power cut could leave an empty file under the name
                finally:
                    os.close(descriptor)
                try:
                    os.link(temporary, self._path(new.name))
                except FileExistsError:
                    pass
                except OSError:  # a file system without hard links: the last process wins
                    os.replace(temporary, self._path(new.name))
            finally:
                temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> str:
        """The name as it was stored, damaged or not. Raises not found."""
        name = name.lower()
        found = self._is_valid(name)
        if found and self._folder is None:
            found = self._unsaved.pop(name, None) is not None
        elif found:
            self._cache.pop(name, None)
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


def not_uploaded(name: str) -> ApiError:
    return ApiError(404, f"no uploaded voice is called {name[:80]!r}; GET /v1/audio/voices lists all", param="name")


def _remove_interrupted(folder: Path) -> None:
    """Removes what uploads left that a kill or a power cut interrupted. Younger files may be uploads of others."""
    for path in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _INTERRUPTED_S:
                path.unlink()


def _give_to_owner(file: Path) -> None:
    """A voice that root adds must be readable for the server, which owns the folder."""
    folder = file.parent.stat()
    if hasattr(os, "geteuid") and os.geteuid() == 0 and folder.st_uid != 0:
        os.chown(file, folder.st_uid, folder.st_gid)


@contextlib.contextmanager
def _disk(work: str) -> Iterator[None]:
    """Turns disk errors into a 500 that does not reveal paths."""
    try:
        yield
    except (OSError, OscineError) as error:
        _log.error("cannot %s: %s", work, error)
        raise ApiError(500, f"cannot {work} because of a disk error; see the log") from error
