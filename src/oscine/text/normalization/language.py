"""Languages of the normalizer, and a guess for a text whose language is not given."""

from __future__ import annotations

import re
from collections import Counter

from oscine.errors import RequestError

# Names as checkpoints have them -> codes of CLDR.
CODES = {
    "chinese": "zh",
    "english": "en",
    "japanese": "ja",
    "korean": "ko",
    "german": "de",
    "french": "fr",
    "russian": "ru",
    "portuguese": "pt",
    "spanish": "es",
    "italian": "it",
}
AUTO = "auto"

_SCRIPTS = (  # in this order: Japanese has Chinese characters too
    ("ja", re.compile(r"[\u3041-\u30ff]")),
    ("ko", re.compile(r"[\uac00-\ud7a3]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
)
_ANY_SCRIPT = re.compile("|".join(letters.pattern for _, letters in _SCRIPTS))
# Frequent words that the other languages have rarely.
_FREQUENT_WORDS = {
    "en": "the and of to is are was were in it you that for with on have has this at by from not we they be will costs",
    "de": "der das und ist von zu mit den dem nicht auf für ein eine sich auch wird sind am bei aus nach kostet uhr",
    "fr": "le les et est une du dans pour qui sur pas avec au ce elle nous vous sont cette à aux des coûte fois la",
    "es": "el los y las por una con para del se su al lo pero más son muy hay está fue cuesta desde hasta la de",
    "pt": "o os as uma do da em não com para dos das ao na no foi são é mais mas até custa desde você dia de",
    "it": "il gli di che è un una per non con del della sono alle dei nel lo ma più anche ha dal alla costa la",
}
_LETTERS = {"de": "äöüß", "fr": "çèêœâî", "es": "ñ¿¡", "pt": "ãõ", "it": "ìò"}
_LANGUAGE_OF_LETTER = {letter: code for code, letters in _LETTERS.items() for letter in letters}
_LETTER = re.compile(f"[{''.join(_LANGUAGE_OF_LETTER)}]")
_LANGUAGES_OF = {
    word: [code for code, words in _FREQUENT_WORDS.items() if word in words.split()]
    for words in _FREQUENT_WORDS.values()
    for word in words.split()
}
_WORD = re.compile(r"\w+")


def has_rules(language: str) -> bool:
    return language.lower() in (AUTO, *CODES)


def code_of(language: str) -> str | None:
    """Returns None for one to be guessed. Raises RequestError for a language without rules."""
    name = str(language).lower()
    if name == AUTO:
        return None
    if name not in CODES:
        known = ", ".join(sorted(CODES))
        raise RequestError(
            f"normalize has no rules for the language {language!r} (it has: {known}); leave normalize out", "normalize"
        )
    return CODES[name]


def guess(context: str) -> str | None:
    """Guesses by script, then by frequent words. Returns None if neither tells."""
    if not context.isascii() and _ANY_SCRIPT.search(context):
        return next(code for code, letters in _SCRIPTS if letters.search(context))
    lower = context.lower()
    votes = [code for word in _WORD.findall(lower) for code in _LANGUAGES_OF.get(word, ())]
    if not context.isascii():
        votes += [_LANGUAGE_OF_LETTER[letter] for letter in _LETTER.findall(lower)]
    if not votes:
        return None
    counts = Counter(votes)
    most = max(counts.values())
    leaders = [code for code, count in counts.items() if count == most]
    return leaders[0] if len(leaders) == 1 else None
