import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine.text.english import quantities, words
from oscine.text.english.reader import EnglishReader, ends_sentence
from oscine.text.options import TextOptions
from oscine.text.preparation import prepare_text
from oscine.text.spoken_text import SpokenText

_GUIDE = (Path(__file__).parents[3] / "docs/guides/text.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(
    r"^\| `(.+)` \| ([^|`]+) \|$", _GUIDE.split("English in words:")[1].split("##")[0], re.MULTILINE
)


def said(pieces: list[str]) -> str:
    reader = EnglishReader()
    passed = [passed for piece in pieces for passed in reader.push(piece)] + list(reader.finish())
    assert "".join(piece.written for piece in passed) == "".join(pieces)
    return "".join(piece.said for piece in passed)


@pytest.mark.parametrize(("written", "spoken"), DOCUMENTED)
def test_the_guide_tells_what_is_said(written: str, spoken: str) -> None:
    assert len(DOCUMENTED) >= 5
    assert said([written]) == spoken


@pytest.mark.parametrize("chunk", ["5", "Dr.", "e.g.", "J."])
def test_an_abbreviation_ends_no_sentence(chunk: str) -> None:
    assert not ends_sentence(chunk)
    assert ends_sentence("done.") and ends_sentence("Really?")


PROSE = [" The", " old", " man", " didn't", ",", " slowly", " O'Neil", "; I", " am", " well-known", ".", " Why", "?"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PROSE), max_size=30))
def test_plain_prose_does_not_change(pieces: list[str]) -> None:
    assert said(pieces) == "".join(pieces)


PIECES = [
    "5",
    " ",
    "km",
    "$",
    "3.50",
    ".",
    "May",
    "Dr.",
    "St.",
    "(",
    ")",
    " million",
    "p",
    "m",
    ".m.",
    "FBI",
    " a",
    "the ",
]
PIECES += [
    "U.S.",
    "-",
    "/",
    "10",
    ",",
    "é",
    "&",
    "%",
    "IV",
    " Chapter",
    "@x",
    ".com",
    "\n",
    "No. ",
    "'",
    "½",
    "1st",
    " of",
]
PIECES += [
    "  ",
    "Jan. ",
    "+1 ",
    "(555) ",
    "12:30",
    "e.g. ",
    "I",
    "Henry ",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_no_cut_of_the_text_changes_what_is_said(pieces: list[str]) -> None:
    whole = said(["".join(pieces)])
    assert said(pieces) == whole
    assert said(list("".join(pieces))) == whole


@pytest.mark.parametrize(
    "repeated", ["US$", "1 ", "$1 ", "Dr. ", "( ", "a.", "A", "1/2 ", "+", "May ", "@", "x@", "-1"]
)
def test_the_work_grows_with_the_length_of_the_text_and_no_faster(
    repeated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(count: int) -> int:
        steps = 0
        numeric, address = quantities.numeric.__wrapped__, words.address.__wrapped__

        def counted(read: object, text: str) -> object:
            nonlocal steps
            steps += 1 + len(text)
            return read(text)  # type: ignore[operator]

        monkeypatch.setattr(quantities, "numeric", lambda text, _="": counted(numeric, text))
        monkeypatch.setattr(words, "address", lambda text: counted(address, text))
        said([repeated * count])
        monkeypatch.undo()
        return steps

    few, many = work(2000), work(8000)
    assert many <= 5 * few + 1000
    assert many <= 20 * 8000 * (len(repeated) + 1) + 1000


def test_random_characters_are_read_without_an_error() -> None:
    draw = random.Random(5)
    for _ in range(300):
        said(["".join(draw.choices("aB1 .,$€%/-:@#&()'\"½éßIVX\n*+=<>_", k=30))])


SENTENCES = [
    line.split("\t") for line in (Path(__file__).parent / "sentences.tsv").read_text(encoding="utf-8").splitlines()
]
# Read wrongly: what would be right is in the file.
KNOWN: set[str] = set()


@pytest.mark.parametrize(("written", "spoken"), [line[1:] for line in SENTENCES])
def test_sentences_as_people_write_them_are_written_out(written: str, spoken: str) -> None:
    (prepared,) = prepare_text(written, TextOptions(text_level="spoken"), "english")
    assert isinstance(prepared, SpokenText)
    assert (prepared.spoken == spoken) == (written not in KNOWN)
    assert prepared.written.strip() == written


def test_the_set_has_sentences_that_no_rule_was_tuned_on() -> None:
    assert len(SENTENCES) >= 300
    assert sum(line[0] == "held out" for line in SENTENCES) >= 150
