"""Makes the training sentences: natural ones, generated ones, texts as people write them (in the words that the model
gets, see written.py), dialogue, answers, questions, lists, single words and long sentences. The same seed gives the
same file. Sentences of the evaluation (texts/heldout.txt, the set `written` of oscine_eval) are excluded, and those
that are nearly the same.

    python training/texts.py OUT [--count 40000] [--natural FILE] [--bible FOLDER] [--words /usr/share/dict/scowl]

Sources. texts/words.txt and texts/templates.txt were written for this project. Words: SCOWL's lists (Debian scowl), as
far as they are in --lexicon. Natural English: one sentence per line, as in Common Voice's sentence-collector.txt
(CC0), and the World English Bible, public domain (Debian sword-text-web, unpacked: the folder that holds ot.bzz).
Without these, templates fill their share.
"""

from __future__ import annotations

import argparse
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from written import HeldOut, WrittenGaps, heldout_texts, spoken

TEXTS = Path(__file__).resolve().parent / "texts"
# The rest: templates.
_SHARES = {
    "natural": 0.24, "bible": 0.04, "written": 0.2, "numbers": 0.06, "names": 0.04, "answers": 0.03, "questions": 0.03,
    "lists": 0.03, "words": 0.18, "dialogue": 0.04, "short": 0.03,
}  # fmt: skip
_RAW_SHARE = 0.3  # of generated sentences other than written ones: as they are, with digits, for the level "raw"
_LONG_SHARE = 0.06  # two to four other sentences joined, up to about 25 s
_MAX_WORDS, _MAX_LONG_WORDS = 25, 58
# How often a word is drawn, by SCOWL's lists: 10 has the most frequent 4,400 words, 20 the next 8,100.
_REPEATS = {10: 3, 20: 3, 35: 1}
_ROUND_SHARE = 0.4  # of numbers: 200 is said more often than 217
_VOWELS = "aeiou"


def read_sections(path: Path, default: str = "") -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {default: []}
    name = default
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            sections[name] = []
        elif line and not line.startswith("#"):
            sections[name].append(line)
    return sections


# --- forms of words -------------------------------------------------------------------------------------------------


def plural(noun: str) -> str:
    single, _, other = noun.partition("/")
    if other:
        return other
    if single.endswith("y") and single[-2] not in _VOWELS:
        return single[:-1] + "ies"
    return single + ("es" if single.endswith(("s", "x", "z", "ch", "sh")) else "s")


def third_person(verb: str) -> str:
    if verb in ("do", "go"):
        return verb + "es"
    if verb == "have":
        return "has"
    if verb.endswith("y") and verb[-2] not in _VOWELS:
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh")) else "s")


def past(verb: str, part: int) -> str:
    """`part` 1: the past, 2: the participle."""
    forms = verb.split("/")
    if len(forms) == 3:
        return forms[part]
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in _VOWELS:
        return verb[:-1] + "ied"
    return verb + "ed"


def ing(verb: str) -> str:
    forms = verb.split("/")
    base = forms[0]
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if base.endswith("e") and not base.endswith(("ee", "oe", "ye")):
        return base[:-1] + "ing"
    doubled = {"begin", "cut", "dig", "forget", "get", "hit", "let", "put", "run", "set", "shut", "sit", "swim", "win"}
    double = base in doubled or (len(forms) == 3 and forms[1].endswith(base[-1] + "ed") and forms[1] != base + "ed")
    return base + (base[-1] if double else "") + "ing"


# --- rules ----------------------------------------------------------------------------------------------------------


class Grammar:
    def __init__(self, draw: random.Random, listed: list[str]) -> None:
        self._draw = draw
        self._words = {name: " ".join(lines).split() for name, lines in read_sections(TEXTS / "words.txt").items()}
        self._templates = read_sections(TEXTS / "templates.txt", "templates")
        common = self._words["noun"] + self._words["verb"] + self._words["adj"] + self._words["adv"]
        self._listed = listed or [word.partition("/")[0] for word in common]
        self._unused: list[str] = []
        self._written = WrittenGaps(draw, self._words).gaps

    def sentence(self, section: str) -> str:
        template = self._draw.choice(self._templates[section])
        text = re.sub(r"\{([\w.]+)\}", lambda gap: self._fill(gap[1]), template.replace("{adj}er", "{adj.er}"))
        text = re.sub(r"\b([Aa]) (?=[aeiou])(?!uni|use|one|eu)", r"\1n ", text)
        return text[0].upper() + text[1:]

    def _fill(self, gap: str) -> str:
        kind, _, form = gap.partition(".")
        capital = form.endswith("cap")
        form = form.removesuffix("cap").rstrip(".")
        special: dict[str, Callable[[], str]] = {
            "number": self.number, "small": lambda: str(self._draw.randint(2, 99)), "year": self._year,
            "time": self._time, "date": lambda: str(self._draw.randint(1, 28)), "any": self._listed_word,
            "nouns": lambda: plural(self._draw.choice(self._words["noun"])),
        } | self._written  # fmt: skip
        if kind in special:
            word = special[kind]()
        else:
            word = self._draw.choice(self._words[kind])
            forms: dict[str, Callable[[str], str]] = {
                "": lambda verb: verb.partition("/")[0], "s": lambda verb: third_person(verb.partition("/")[0]),
                "ed": lambda verb: past(verb, 1), "en": lambda verb: past(verb, 2), "ing": ing,
                "er": lambda adj: adj.removesuffix("e") + "er",
            }  # fmt: skip
            word = forms[form](word)
        return word[0].upper() + word[1:] if capital else word

    def _listed_word(self) -> str:
        """Uses the whole list before it is repeated."""
        if not self._unused:
            self._unused = self._draw.sample(self._listed, len(self._listed))
        return self._unused.pop()

    def number(self) -> str:
        limit = self._draw.choice((20, 100, 100, 1000, 1000, 10000))
        if self._draw.random() < _ROUND_SHARE:
            return str(self._draw.randint(1, 10) * limit // 10)
        return str(self._draw.randint(limit // 10, limit))

    def _year(self) -> str:
        return str(self._draw.randint(1700, 2029))

    def _time(self) -> str:
        hour = self._draw.randint(1, 12)
        return self._draw.choice((f"{hour}:{self._draw.randint(10, 59)}", f"{hour} o'clock", f"{hour}:30"))


def read_lexicon(path: Path) -> set[str]:
    text = path.read_text(encoding="latin-1") if path.exists() else ""
    return set(re.findall(r"^\(\"([a-z']+)\"", text, re.MULTILINE))


def listed_words(folder: Path, lexicon: set[str]) -> list[str]:
    """Plain words that are also in the lexicon, so that they are pronounced correctly; frequent ones several times."""
    listed = []
    for level, repeats in _REPEATS.items():
        paths = [folder / f"{kind}-words.{level}" for kind in ("english", "american")]
        text = " ".join(path.read_text(encoding="latin-1") for path in paths if path.exists())
        words = set(re.findall(r"(?<!\S)[a-z]{3,14}(?!\S)", text))
        listed += sorted(words & lexicon if lexicon else words) * repeats
    return listed


# --- natural English ------------------------------------------------------------------------------------------------


def natural_sentences(path: Path, lexicon: set[str]) -> Iterator[str]:
    """Whole sentences of words that are in the lexicon: others are often names, or dialect."""
    for line in path.read_text(encoding="utf-8").splitlines():
        sentence = line.replace("’", "'").strip().replace('"', "")
        words = re.findall(r"[a-z][a-z']*", sentence.lower())
        if (
            len(words) > 1
            and sentence[-1] in ".?!"
            and sentence[0].isupper()
            and (not lexicon or lexicon.issuperset(words))
        ):
            yield sentence


def bible_sentences(folder: Path) -> Iterator[str]:
    """A SWORD module: .bzs lists zlib blocks of .bzz, .bzv lists each verse's place in them."""
    for part in ("ot", "nt"):
        index, verses, blocks = ((folder / f"{part}.{kind}").read_bytes() for kind in ("bzs", "bzv", "bzz"))
        texts = [zlib.decompress(blocks[at : at + size]) for at, size, _ in struct.iter_unpack("<III", index) if size]
        for block, at, size in struct.iter_unpack("<IIH", verses):
            if size and block < len(texts):
                yield from _sentences(texts[block][at : at + size].decode("utf-8", "ignore"))


def _sentences(verse: str) -> Iterator[str]:
    verse = re.sub(r"<note.*?</note>|<title.*?</title>", " ", verse, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", " ", verse)
    for curly, plain in (("’", "'"), ("‘", ""), ("“", ""), ("”", ""), ("—", ", "), ("–", ", "), ("…", ".")):
        text = text.replace(curly, plain)
    text = re.sub(r"\s+([,.;:?!])", r"\1", re.sub(r"\s+", " ", text))
    for sentence in re.split(r"(?<=[.?!;])\s+", text.strip()):
        sentence = sentence.rstrip(";,: ")
        if sentence and sentence.isascii():
            yield sentence[0].upper() + sentence[1:] + ("" if sentence[-1] in ".?!" else ".")


# --- all together ---------------------------------------------------------------------------------------------------


def speakable(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9 ,.;:?!'\"$%&-]+", text)) and len(text.split()) <= _MAX_WORDS


def joined(sentences: list[str], wanted: int, draw: random.Random) -> Iterator[str]:
    while wanted > 0:
        text = " ".join(draw.sample(sentences, draw.randint(2, 4)))
        if _MAX_WORDS < len(text.split()) <= _MAX_LONG_WORDS:
            yield text
            wanted -= 1


def make(count: int, seed: int, natural: dict[str, list[str]], listed: list[str]) -> list[str]:
    draw = random.Random(seed)
    grammar = Grammar(draw, listed)
    held_out = HeldOut(heldout_texts(TEXTS))
    seen: set[str] = set()
    chosen: list[str] = []

    def take(sentences: Iterator[str], wanted: int) -> None:
        for sentence in sentences:
            if wanted <= 0:
                return
            if speakable(sentence) and _plain(sentence) not in seen and not held_out.has(sentence):
                seen.add(_plain(sentence))
                chosen.append(sentence)
                wanted -= 1

    def endless(section: str) -> Iterator[str]:
        while True:
            sentence = grammar.sentence(section)
            raw = section not in ("written", "names") and draw.random() < _RAW_SHARE
            yield sentence if raw else spoken(sentence)

    for source, sentences in natural.items():
        draw.shuffle(sentences)
        take(iter(sentences), round(count * _SHARES[source]))
    for section, share in _SHARES.items():
        if section not in ("natural", "bible"):
            take(endless(section), round(count * share))
    long_ones = round(count * _LONG_SHARE)
    take(endless("templates"), count - long_ones - len(chosen))
    chosen.extend(joined(chosen, long_ones, draw))
    draw.shuffle(chosen)
    return chosen


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=40000)
    parser.add_argument("--natural", type=Path)
    parser.add_argument("--bible", type=Path)
    parser.add_argument("--words", type=Path, default=Path("/usr/share/dict/scowl"))
    parser.add_argument("--lexicon", type=Path, default=Path("/usr/share/festival/dicts/cmu/cmudict-0.4.out"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lexicon = read_lexicon(options.lexicon)
    natural: dict[str, list[str]] = {}
    if options.natural is not None:
        natural["natural"] = list(natural_sentences(options.natural, lexicon))
    if options.bible is not None:
        natural["bible"] = list(bible_sentences(options.bible))
    sentences = make(options.count, options.seed, natural, listed_words(options.words, lexicon))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    words = sum(len(sentence.split()) for sentence in sentences)
    different = len({word for sentence in sentences for word in re.findall(r"[a-z']+", sentence.lower())})
    print(f"{len(sentences)} sentences, {words} words, {different} different ones")


if __name__ == "__main__":
    main()
