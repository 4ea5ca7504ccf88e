"""Names of uploaded voices, and the file names behind them. A name may hold anything printable; a file name never does.

A plain name (a-z 0-9 _ -) is its own file name and id. Any other name gets an id with a dot, which no plain name has:
`voice.` and a hash. So the files of earlier versions keep their names, and no name can lead out of the folder.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from oscine.errors import VoiceError

MAX_NAME_CHARS = 64
_PLAIN = re.compile(r"[a-z0-9_-]{1,64}")
_HASHED = re.compile(r"voice\.[0-9a-f]{32}")


def name_key(name: str) -> str:
    """Equal for names that mean the same voice: case and the spelling of accents do not count."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name.strip()).casefold())


def checked_name(name: str) -> str:
    """The name as it is shown. Raises VoiceError."""
    shown = unicodedata.normalize("NFC", name.strip())
    if not 1 <= len(shown) <= MAX_NAME_CHARS or not shown.isprintable() or _HASHED.fullmatch(name_key(shown)):
        rule = f"use 1 to {MAX_NAME_CHARS} printable characters (not the form of an id, 'voice.' and a hash)"
        raise VoiceError(f"invalid voice name {name[:80]!r}; {rule}", "name")
    return shown


def voice_id(name: str) -> str:
    """The id of the voice with this name, which is the stem of its file. An id is returned as it is."""
    key = name_key(name)
    if _PLAIN.fullmatch(key) or _HASHED.fullmatch(key):
        return key
    return f"voice.{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:32]}"


def is_voice_id(stem: str) -> bool:
    return bool(_PLAIN.fullmatch(stem) or _HASHED.fullmatch(stem))


def is_plain(stem: str) -> bool:
    """Whether the id is the name."""
    return bool(_PLAIN.fullmatch(stem))
