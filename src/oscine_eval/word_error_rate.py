"""Computes word and character error rates with Whisper's text normalization and jiwer's alignment, as other projects
do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby, takewhile, zip_longest
from typing import Any, Literal

from oscine_eval.optional import import_optional

Unit = Literal["word", "character"]
Pair = tuple[str | None, str | None]  # reference, transcript; None: an insertion or a deletion

# Servers take names, recognizers take codes.
_CODES = {
    "chinese": "zh", "english": "en", "japanese": "ja", "korean": "ko", "german": "de", "french": "fr",
    "russian": "ru", "portuguese": "pt", "spanish": "es", "italian": "it",
}  # fmt: skip
_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_SOUTHEAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_WITHOUT_SPACES = re.compile(f"[{_HAN}{_KANA}{_SOUTHEAST_ASIAN}]")
_SCRIPTS = {
    "ja": re.compile(f"[{_KANA}]"),
    "zh": re.compile(f"[{_HAN}]"),
    "ko": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "ru": re.compile("[\u0400-\u052f]"),
    "en": re.compile("[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\uff21-\uff3a\uff41-\uff5a]"),
}
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
# Whisper's normalizer deletes bracketed text, which describes sounds in subtitles, but is spoken here. It expands
# contractions with a straight apostrophe only.
_CHARACTERS = str.maketrans("()[]<>’‘ʼ＇", "      ''''")
_MANY_DIGITS = re.compile(r"(\d{1000})(?=\d)")  # it fails on numbers that int() refuses, above 4300 digits


# A set of texts as people write them, with their spoken form: class, written, spoken. "F-B-I" is read by letters.
WRITTEN = "written"
_BY_LETTERS = re.compile(r"\b[A-Z](?:-[A-Z])+(?:'s)?(?!\w)")


@cache
def spoken_forms() -> dict[str, str]:
    """The texts of the set as people write them, and how they are spoken."""
    lines = resources.files(__package__).joinpath("texts", f"{WRITTEN}.tsv").read_text(encoding="utf-8").splitlines()
    return {written: spoken for _, written, spoken in (line.split("\t") for line in lines)}


def references(text: str) -> tuple[str, ...]:
    """What a transcript of the text may be: recognizers write "$5" for "five dollars", or not."""
    spoken = spoken_forms().get(text)
    if spoken is None:
        return (text,)
    return text, _BY_LETTERS.sub(lambda found: found[0].replace("-", "").replace("'", ""), spoken)


def language_code(text: str, name: str | None = None) -> str | None:
    """Returns the code of the named language, or of the one that the script suggests. Latin letters alone mean English,
    and so does a text without letters ("1984."). Returns None if the recognizer has to detect it, as in a text of
    several scripts."""
    if name and name.lower() != "auto":
        return _CODES.get(name.lower(), name.lower())
    found = [code for code, letters in _SCRIPTS.items() if letters.search(text)]
    if found[:2] == ["ja", "zh"]:  # Japanese is written in both scripts
        found.remove("zh")
    if not found and not any(character.isalpha() for character in text):
        return "en"
    return found[0] if len(found) == 1 else None


def unit_of(text: str) -> Unit:
    return "character" if _WITHOUT_SPACES.search(text) else "word"


def normalize(text: str, language: str | None = "en", unit: Unit = "word") -> list[str]:
    """Returns words or characters in the one spelling that is compared."""
    spoken = _MANY_DIGITS.sub(r"\1 ", _TAG.sub(" ", text).translate(_CHARACTERS))
    words: list[str] = normalizer(language == "en")(spoken).split()
    return words if unit == "word" else list("".join(words).replace("〇", "零"))


@cache
def normalizer(english: bool) -> Any:
    name = "whisper-normalizer"
    if english:
        return import_optional("whisper_normalizer.english", name, "eval").EnglishTextNormalizer()
    return import_optional("whisper_normalizer.basic", name, "eval").BasicTextNormalizer()


def _jiwer() -> Any:
    return import_optional("jiwer", "jiwer", "eval")


def check_libraries() -> None:
    """Fails early if error rates cannot be computed here."""
    _jiwer()
    normalizer(True)


@dataclass(frozen=True, slots=True)
class Alignment:
    """The reference aligned to the transcript, with the fewest errors."""

    pairs: tuple[Pair, ...]

    @property
    def reference_length(self) -> int:
        return sum(reference is not None for reference, _ in self.pairs)

    @property
    def errors(self) -> int:
        return sum(reference != transcript for reference, transcript in self.pairs)

    @property
    def deletions(self) -> int:
        return sum(transcript is None for _, transcript in self.pairs)

    @property
    def insertions(self) -> int:
        return sum(reference is None for reference, _ in self.pairs)

    @property
    def substitutions(self) -> int:
        return self.errors - self.deletions - self.insertions

    @property
    def deleted_ends(self) -> tuple[int, int]:
        """Counts deletions before the first word of the transcript and after its last."""
        return _leading(self.pairs, 1), _leading(self.pairs[::-1], 1)

    @property
    def inserted_ends(self) -> tuple[int, int]:
        """Counts insertions before the first word of the reference and after its last."""
        return _leading(self.pairs, 0), _leading(self.pairs[::-1], 0)

    @property
    def repetitions(self) -> int:
        """Counts insertions that repeat the words right before them: four in "the cat [the cat the cat] sat"."""
        said = [pair for pair in self.pairs if pair[1] is not None]
        words = [transcript for _, transcript in said]
        count = end = 0
        for inserted, run in groupby(said, key=lambda pair: pair[0] is None):
            begin, end = end, end + len(list(run))
            periods = range(1, min(begin, end - begin) + 1)
            if inserted and any(words[begin:end] == words[begin - period : end - period] for period in periods):
                count += end - begin
        return count


def _leading(pairs: Sequence[Pair], side: int) -> int:
    return len(list(takewhile(lambda pair: pair[side] is None, pairs)))


def align(reference: Sequence[str], transcript: Sequence[str]) -> Alignment:
    """Aligns the words. Among equally good alignments jiwer takes the one with the latest deletions and insertions: a
    sentence that was cut off lacks its end, and of a phrase said twice the second one is inserted."""
    chunks = _jiwer().process_words(" ".join(reference), " ".join(transcript)).alignments[0]
    sides = (
        (reference[chunk.ref_start_idx : chunk.ref_end_idx], transcript[chunk.hyp_start_idx : chunk.hyp_end_idx])
        for chunk in chunks
    )
    return Alignment(tuple(pair for side in sides for pair in zip_longest(*side)))
