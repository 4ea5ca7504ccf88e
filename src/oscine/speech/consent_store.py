"""Recordings in which people consent to the use of their voices, in a folder beside the voices.

A consent is two files: cons_ID.json says what it is, and cons_ID.recording is what was uploaded. The first is written
last and deleted first, so a consent that is listed has its recording. The files are authoritative, so several
processes can share the folder. Clients cannot download recordings; operators read the folder.

All methods are thread-safe, wait for the disk, and must not run on the event loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from oscine.errors import ConflictError, NotFoundError
from oscine.speech.voice_store import disk_errors, remove_interrupted, write_private

_ID = re.compile(r"cons_[0-9a-f]{24}")
_ABOUT, _RECORDING = ".json", ".recording"


@dataclass(frozen=True, slots=True)
class Consent:
    id: str
    name: str
    language: str  # BCP 47
    created_at: int  # unix seconds
    mime_type: str | None  # of the recording, as the client named it
    sha256: str  # of the recording


def is_consent_id(text: str) -> bool:
    """Whether the text has the form of an id of this store."""
    return _ID.fullmatch(text) is not None


class ConsentStore:
    """Keeps consents and their recordings in a folder. If there is none, only what the recordings are is kept, until
    the process ends."""

    def __init__(self, voices_folder: Path | None, max_consents: int, max_bytes: int) -> None:
        self._folder = voices_folder / "consents" if voices_folder else None
        self._max_consents, self._max_bytes = max_consents, max_bytes
        self._unsaved: dict[str, Consent] = {}
        self._adding = threading.Lock()

    def add(self, name: str, language: str, recording: bytes, mime_type: str | None) -> Consent:
        """Stores a recording. Raises ConflictError if the store is full."""
        digest = hashlib.sha256(recording).hexdigest()
        new = Consent(f"cons_{secrets.token_hex(12)}", name, language, int(time.time()), mime_type, digest)
        with self._adding, disk_errors("store a consent"):
            ids = self._ids()
            if len(ids) >= self._max_consents:
                raise ConflictError(f"{self._max_consents} consents are stored (the maximum); delete one first")
            if self._folder is None:
                self._unsaved[new.id] = new
                return new
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # recordings are personal data
            remove_interrupted(self._orphans(ids))
            used = sum(path.stat().st_size for path in self._folder.glob(f"*{_RECORDING}"))
            if used + len(recording) > self._max_bytes:
                limit = f"{self._max_bytes / 2**20:.3g} MiB"
                raise ConflictError(f"the recordings of all consents have {limit} (the maximum); delete one first")
            self._write(new.id + _RECORDING, recording)
            self._write_about(new)
        return new

    def get(self, consent_id: str) -> Consent:
        """Returns a consent. Raises NotFoundError."""
        found = self._find(consent_id) if is_consent_id(consent_id) else None
        if found is None:
            message = f"no consent recording has the id {consent_id[:80]!r}; GET /v1/audio/voice_consents lists all"
            raise NotFoundError(message, "consent_id")
        return found

    def all(self) -> list[Consent]:
        """Returns all consents, the newest first."""
        with disk_errors("list the consents"):
            found = [consent for consent_id in self._ids() if (consent := self._find(consent_id))]
        return sorted(found, key=lambda consent: (consent.created_at, consent.id), reverse=True)

    def rename(self, consent_id: str, name: str) -> Consent:
        """Renames a consent. Raises NotFoundError."""
        renamed = replace(self.get(consent_id), name=name)
        with disk_errors("rename a consent"):
            if self._folder is None:
                self._unsaved[consent_id] = renamed
            else:
                self._write_about(renamed)
        return renamed

    def delete(self, consent_id: str) -> None:
        """Deletes a consent and its recording. Raises NotFoundError."""
        self.get(consent_id)
        with disk_errors("delete a consent"):
            self._unsaved.pop(consent_id, None)
            if self._folder is not None:
                for suffix in (_ABOUT, _RECORDING):
                    (self._folder / f"{consent_id}{suffix}").unlink(missing_ok=True)

    def _ids(self) -> list[str]:
        if self._folder is None:
            return list(self._unsaved)
        with contextlib.suppress(FileNotFoundError):  # nothing was stored yet
            names = (name for name in os.listdir(self._folder) if name.endswith(_ABOUT))
            return [stem for name in names if is_consent_id(stem := name.removesuffix(_ABOUT))]
        return []

    def _find(self, consent_id: str) -> Consent | None:
        if self._folder is None:
            return self._unsaved.get(consent_id)
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):  # a damaged file is no consent
            return Consent(**json.loads((self._folder / f"{consent_id}{_ABOUT}").read_text(encoding="utf-8")))
        return None

    def _write_about(self, consent: Consent) -> None:
        self._write(consent.id + _ABOUT, json.dumps(asdict(consent)).encode())

    def _write(self, name: str, data: bytes) -> None:
        assert self._folder is not None
        temporary = self._folder / f".{name}.{secrets.token_hex(4)}.part"
        try:
            write_private(temporary, data)
            os.replace(temporary, self._folder / name)
        finally:
            temporary.unlink(missing_ok=True)

    def _orphans(self, ids: list[str]) -> Iterator[Path]:
        assert self._folder is not None
        known = {f"{consent_id}{_RECORDING}" for consent_id in ids}
        for path in self._folder.iterdir():
            if path.name not in known and path.name.endswith((_RECORDING, ".part")):
                yield path
