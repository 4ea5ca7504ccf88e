"""Language codes that clients send instead of the names of a checkpoint's languages: `en`, `eng`, `zh-CN`."""

from __future__ import annotations

import re

_CODES = {
    "chinese": "zh zho chi cmn",
    "english": "en eng",
    "japanese": "ja jpn",
    "korean": "ko kor",
    "german": "de deu ger",
    "french": "fr fra fre",
    "russian": "ru rus",
    "portuguese": "pt por",
    "spanish": "es spa",
    "italian": "it ita",
}
_NAMES = {code: name for name, codes in _CODES.items() for code in codes.split()}
# `lang_code` of Kokoro's servers.
_LETTERS = {
    "a": "english",
    "b": "english",
    "e": "spanish",
    "f": "french",
    "i": "italian",
    "j": "japanese",
    "p": "portuguese",
    "z": "chinese",
}
_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{2,8})*")  # BCP 47, without what no client sends


def language_name(given: str) -> str:
    """The name that a code or a language tag stands for. Anything else is returned in lower case."""
    lower = given.strip().lower()
    tag = _TAG.fullmatch(lower)
    return _NAMES.get(tag[1], lower) if tag else _LETTERS.get(lower, lower)
