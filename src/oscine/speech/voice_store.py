"""Uploaded voices by name. The files in the folder are authoritative and RAM only caches them, so several server
processes can share a folder, and voices that an operator adds or removes are noticed.

A name may hold anything printable; a file name never does. A plain name (a-z 0-9 _ -) is its own file name and id. Any
other name gets an id with a dot, which no plain name has: `voice.` and a hash. So no name can lead out of the folder.

All methods are thread-safe. `add` waits for the disk and must not run on the event loop; `get` costs one `stat`, and
reads the file if it is new.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import logging
import os
import re
import secrets
import stat
import threading
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from oscine.errors import ConfigError, ConflictError, NotFoundError, OscineError, VoiceError
from oscine.voice import Voice

_log = logging.getLogger(__name__)

MAX_NAME_CHARS = 64
_PLAIN = re.compile(r"[a-z0-9_-]{1,64}")
_HASHED = re.compile(r"voice\.[0-9a-f]{32}")
_SUFFIX = ".safetensors"
_INTERRUPTED_S = 3600.0
_NOTES = ("consent", "speaker_description", "source_hash", "mime_type", "name")  # in the file, not part of the voice


def name_key(name: str) -> str:
    """Returns a key that is equal for names of the same voice: case and the spelling of accents do not count."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name.strip()).casefold())


def checked_name(name: str) -> str:
    """Returns the name as it is shown. Raises VoiceError."""
    shown = unicodedata.normalize("NFC", name.strip())
    if not 1 <= len(shown) <= MAX_NAME_CHARS or not shown.isprintable() or _HASHED.fullmatch(name_key(shown)):
        rule = f"use 1 to {MAX_NAME_CHARS} printable characters (not the form of an id, 'voice.' and a hash)"
        raise VoiceError(f"invalid voice name {name[:80]!r}; {rule}", "name")
    return shown


def voice_id(name: str) -> str:
    """Returns the id of the voice with this name, which is the stem of its file. An id is returned as it is."""
    key = name_key(name)
    if _PLAIN.fullmatch(key) or _HASHED.fullmatch(key):
        return key
    return f"voice.{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:32]}"


def is_voice_id(stem: str) -> bool:
    return bool(_PLAIN.fullmatch(stem) or _HASHED.fullmatch(stem))


def is_plain_id(stem: str) -> bool:
    """Whether the id is the name."""
    return bool(_PLAIN.fullmatch(stem))


@dataclass(frozen=True, slots=True)
class StoredVoice:
    name: str  # as it is shown
    voice: Voice
    created_at: int  # unix seconds
    consent: str | None = None  # None: an operator put the file into the folder
    speaker_description: str | None = None
    source_hash: str | None = None  # of the clip and transcript that the voice was made from
    mime_type: str | None = None  # of the clip, as the client named it
    file_size: int = 0  # bytes; 0 without a folder

    @property
    def id(self) -> str:
        """The name for paths and URLs: the name itself if it is plain, otherwise a hash of it."""
        return voice_id(self.name)

    @property
    def mode(self) -> Literal["in_context", "timbre"]:
        return "timbre" if self.voice.transcript is None else "in_context"


class VoicePage(NamedTuple):
    voices: list[StoredVoice]
    has_more: bool


class _CachedFile(NamedTuple):
    version: tuple[int, int, int]  # inode, mtime and size
    stored: StoredVoice | None  # None: the file is damaged


class VoiceStore:
    """Voices are found by their name in any case, or by their id."""

    def __init__(self, folder: Path | None, reserved: Collection[str], max_voices: int = 1000) -> None:
        self._folder = folder
        self._max_voices = max_voices
        self._unsaved: dict[str, StoredVoice] = {}  # by id: all voices, if there is no folder
        self._cache: dict[str, _CachedFile] = {}  # by id, otherwise
        self._adding = threading.Lock()
        self.reserve(reserved)
        if folder is not None:
            self._open(folder)

    def _open(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # voices are personal data
            files = sorted(path.stem for path in folder.iterdir() if path.name.endswith(_SUFFIX))
        except OSError as error:
            reason = f"{error.strerror or error}; choose another folder with voices_dir"
            raise ConfigError(f"the voices folder {str(folder)!r} cannot be used: {reason}") from error
        remove_interrupted(folder.glob(".*.part"))
        for stem in files:
            if not self._is_valid(stem):
                _log.warning("%r is not a valid file name of a voice: rename it (a-z 0-9 _ -, not a preset)", stem)
        _log.info("%d uploaded voices in %s", len(self.all()), folder)

    def reserve(self, names: Collection[str]) -> None:
        """Replaces the names that uploaded voices cannot have."""
        self._reserved = frozenset(voice_id(name) for name in names)

    def check_name(self, name: str) -> str:
        """Returns the name as it is stored. Raises VoiceError, or ConflictError for a reserved name."""
        shown = checked_name(name)
        if voice_id(shown) in self._reserved:
            kinds = "a preset, one of OpenAI's names, an alias of this server or 'default'"
            raise ConflictError(f"{shown!r} is reserved ({kinds}); choose another name", "name")
        return shown

    def _is_valid(self, stem: str) -> bool:
        return is_voice_id(stem) and stem not in self._reserved

    def get(self, name: str) -> StoredVoice | None:
        """Finds a voice by its name or id. Raises VoiceError for a voice whose file is damaged."""
        stem = voice_id(name)
        if not self._is_valid(stem):
            return None
        if self._folder is None:
            return self._unsaved.get(stem)
        cached = self._cached(stem)
        if cached is not None and cached.stored is None:
            message = f"the file of voice {name[:80]!r} is damaged (see the log); delete the voice and add it again"
            raise VoiceError(message, "voice")
        return cached and cached.stored

    def _cached(self, stem: str) -> _CachedFile | None:
        path = self._path(stem)
        try:
            found = path.stat()
        except OSError:
            self._cache.pop(stem, None)
            return None
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        cached = self._cache.get(stem)
        if cached is None or cached.version != version:
            try:
                cached = _CachedFile(version, _read(stem, path, found))
            except ValueError as error:  # includes VoiceError
                if not path.exists():  # it was deleted meanwhile
                    return None
                _log.warning("voice %r cannot be used: %s", stem, error)
                cached = _CachedFile(version, None)
            self._cache[stem] = cached
        return cached

    def names(self) -> list[str]:
        """Returns the names that requests can use: plain ones in lower case, others as they are shown."""
        if self._folder is None:
            return sorted(stem if is_plain_id(stem) else stored.name for stem, stored in self._unsaved.items())
        names = []
        for stem in self._stems():
            cached = None if is_plain_id(stem) else self._cached(stem)  # the file of another name has it
            names.append(cached.stored.name if cached and cached.stored else stem)
        return sorted(names)

    def _stems(self) -> list[str]:
        assert self._folder is not None
        with disk_errors("list the voices"):
            stems = [name.removesuffix(_SUFFIX) for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]
        return sorted(filter(self._is_valid, stems))

    def all(self) -> list[StoredVoice]:
        """Returns all voices except damaged ones, which are logged."""
        if self._folder is None:
            return self._stored(sorted(self._unsaved))
        stems = self._stems()
        for removed in set(self._cache).difference(stems):
            self._cache.pop(removed, None)
        return self._stored(stems)

    def page(self, after: str | None, limit: int) -> VoicePage:
        """Returns at most `limit` voices with ids after this one, in the order of their ids, without damaged ones."""
        stems = sorted(self._unsaved) if self._folder is None else self._stems()
        rest = stems[bisect.bisect_right(stems, voice_id(after)) if after else 0 :]
        return VoicePage(self._stored(rest[:limit]), has_more=len(rest) > limit)

    def _stored(self, stems: Sequence[str]) -> list[StoredVoice]:
        if self._folder is None:
            return [stored for stem in stems if (stored := self._unsaved.get(stem))]
        return [cached.stored for stem in stems if (cached := self._cached(stem)) and cached.stored]

    def add(
        self,
        name: str,
        voice: Voice,
        *,
        consent: str,
        speaker_description: str | None = None,
        source_hash: str | None = None,
        mime_type: str | None = None,
        overwrite: bool = False,
    ) -> StoredVoice:
        """Returns the stored voice. Without `overwrite`, an equal one that exists already stays as it is, and another
        one is a conflict."""
        name = self.check_name(name)
        new = StoredVoice(name, voice, int(time.time()), consent, speaker_description, source_hash, mime_type)
        with self._adding:
            if overwrite:
                return self._put(new, overwrite=True)
            stored = self.get(name) or self._put(new)
        # Compared by clip too, because encoders on another device may round differently.
        same_clip = source_hash is not None and source_hash == stored.source_hash
        if stored.voice != voice and not same_clip:
            advice = "delete or overwrite it, or choose another name"
            message = f"the name {stored.name!r} is taken by another voice; {advice}"
            raise ConflictError(message, "name")
        return stored

    def _put(self, new: StoredVoice, *, overwrite: bool = False) -> StoredVoice:
        """Returns the stored voice, which may be another process's unless `overwrite` replaces its file."""
        stems = list(self._unsaved) if self._folder is None else self._stems()
        if len(stems) >= self._max_voices and not (overwrite and new.id in stems):
            raise ConflictError(f"{self._max_voices} voices are stored (the maximum); delete one first")
        if self._folder is None:
            self._unsaved[new.id] = new
            return new
        self._write(new, self._folder / f".{new.id}.{secrets.token_hex(4)}.part", overwrite=overwrite)
        stored = self.get(new.id)
        if stored is None:
            raise ConflictError(f"voice {new.name!r} was deleted while it was stored; add it again", "name")
        return stored

    def _write(self, new: StoredVoice, temporary: Path, *, overwrite: bool) -> None:
        with disk_errors(f"store voice {new.name!r}"):
            try:
                write_private(temporary, new.voice.to_bytes(_notes(new)))
                if overwrite:
                    os.replace(temporary, self._path(new.id))
                    return
                try:
                    os.link(temporary, self._path(new.id))
                except FileExistsError:
                    pass
                except OSError:  # a file system without hard links: the last process wins
                    os.replace(temporary, self._path(new.id))
            finally:
                temporary.unlink(missing_ok=True)

    def export(self, name: str) -> tuple[StoredVoice, bytes]:
        """Returns a voice and the content of its file. Raises NotFoundError, or VoiceError for a damaged file."""
        stored = self.get(name)
        if stored is None:
            raise not_uploaded(name)
        return stored, stored.voice.to_bytes(_notes(stored))

    def delete(self, name: str) -> str:
        """Deletes a voice, damaged or not, and returns its name. Raises NotFoundError."""
        stem = voice_id(name)
        if not self._is_valid(stem):
            raise not_uploaded(name)
        if self._folder is None:
            stored = self._unsaved.pop(stem, None)
            if stored is None:
                raise not_uploaded(name)
            return stored.name
        cached = self._cached(stem)
        self._cache.pop(stem, None)
        with disk_errors(f"delete voice {name[:80]!r}"):
            try:
                self._path(stem).unlink()
            except FileNotFoundError:
                raise not_uploaded(name) from None
        return cached.stored.name if cached and cached.stored else stem

    def _path(self, stem: str) -> Path:
        assert self._folder is not None and is_voice_id(stem), stem
        return self._folder / f"{stem}{_SUFFIX}"


def _notes(stored: StoredVoice) -> dict[str, str]:
    notes = {name: note for name in _NOTES if (note := getattr(stored, name)) is not None}
    return {"created_at": str(stored.created_at), **notes}


def _read(stem: str, path: Path, found: os.stat_result) -> StoredVoice:
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would block
        raise VoiceError(f"{str(path)!r} is not a regular file")
    voice, saved = Voice.load_with_notes(path)
    created_at = int(saved.get("created_at", found.st_mtime))
    consent, description, source_hash, mime_type, name = map(saved.get, _NOTES)
    if name is not None and voice_id(name) == stem:
        shown = checked_name(name)
    elif is_plain_id(stem):
        shown = stem  # an operator's file, or one of an earlier version
    else:
        raise VoiceError(f"{str(path)!r} was renamed; give it a file name of a-z 0-9 _ -")
    return StoredVoice(shown, voice, created_at, consent, description, source_hash, mime_type, found.st_size)


def not_uploaded(name: str) -> NotFoundError:
    return NotFoundError(f"uploaded voice {name[:80]!r} does not exist; GET /v1/audio/voices lists all", "name")


def remove_interrupted(files: Iterable[Path]) -> None:
    """Removes files of uploads that a kill or a power cut interrupted. Younger ones may be uploads of other
    processes."""
    for path in files:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _INTERRUPTED_S:
                path.unlink()


def write_private(file: Path, content: bytes) -> None:
    """Writes a new file that only its owner can read. One that root writes is given to the owner of its folder: the
    server must be able to read it."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())  # otherwise a power cut could leave an empty file under the name
    folder = file.parent.stat()
    if hasattr(os, "geteuid") and os.geteuid() == 0 and folder.st_uid != 0:
        os.chown(file, folder.st_uid, folder.st_gid)


@contextlib.contextmanager
def disk_errors(work: str) -> Iterator[None]:
    """Turns disk errors into an error that does not reveal paths."""
    try:
        yield
    except (ConflictError, NotFoundError):
        raise
    except (OSError, OscineError) as error:
        _log.error("cannot %s: %s", work, error)
        raise OscineError(f"cannot {work} because of a disk error; see the log") from error
