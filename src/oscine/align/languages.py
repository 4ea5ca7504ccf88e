"""Names of languages and Whisper's codes for them."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

CODES = {
    "chinese": "zh", "english": "en", "japanese": "ja", "korean": "ko", "german": "de", "french": "fr",
    "russian": "ru", "portuguese": "pt", "spanish": "es", "italian": "it",
}  # fmt: skip


def unknown_language(known: Collection[str], language: str, text: str = "") -> str | None:
    """Why a model that knows these codes cannot align this text; None if it can. `language`: a name, a code or
    "auto"."""
    code = CODES.get(language, language)
    if len(code) <= 3 and code not in known:
        return f"the aligner knows {', '.join(sorted(known))}, not {language}"
    letters = [unicodedata.name(char, "").startswith("LATIN") for char in text if char.isalpha()]
    if set(known) == {"en"} and sum(letters) < len(letters) / 2:
        return "the aligner knows only English, and the text is in another script"
    return None
