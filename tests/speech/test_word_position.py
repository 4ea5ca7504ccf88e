"""Words are read from codes that contain phones."""

from pathlib import Path

import numpy as np
import pytest

import oscine
from oscine.audio.pcm import CODEBOOKS, Codes
from oscine.model.config import read_config
from oscine.speech.clock import PhoneReader, UtteranceTimeline
from oscine.speech.word_position import chars_spoken, written_chars
from oscine.text.spoken_text import Replacement, SpokenText
from oscine.types import PhoneTable

TEXT = "Ten old men did go, and two win."  # neighbors that are equal would be one phone
SLOTS = 4  # of 20 ms in a frame


@pytest.fixture(scope="module")
def table() -> PhoneTable:
    found = read_config(Path(oscine.__file__).parent / "demo").phone_table
    assert found
    return found


def spoken(table: PhoneTable, text: str, slots_per_letter: int = 3) -> tuple[Codes, dict[int, int]]:
    """Codes of the likeliest phone of each letter, with a pause after a comma; and for each end of a word the slot at
    which it is over."""
    slots: list[int] = []
    ends: dict[int, int] = {}
    for place, char in enumerate(text.lower(), start=1):
        if char.isalpha():
            slots += [int(np.argmin(table.letters[char][2:])) + 1] * slots_per_letter
            if not text[place : place + 1].isalpha():
                ends[place] = len(slots)
        elif char == ",":
            slots += [0] * 10
    slots += [0] * (-len(slots) % SLOTS)
    codes = np.zeros((len(slots) // SLOTS, CODEBOOKS), np.int64)
    codes[:, table.codebooks] = np.array(slots).reshape(-1, SLOTS)
    return codes, ends


def test_every_word_is_over_when_its_last_phone_is(table: PhoneTable) -> None:
    codes, ends = spoken(table, TEXT)
    for end, slot in ends.items():
        assert chars_spoken(table, TEXT, codes, slot - 1) < end
        assert chars_spoken(table, TEXT, codes, slot + 1) in (end, end + 1)  # with the mark after it
    assert chars_spoken(table, TEXT, codes, SLOTS * len(codes)) == len(TEXT)
    assert chars_spoken(table, TEXT, codes, 0) == 0


def test_text_that_is_not_spoken_yet_does_not_count(table: PhoneTable) -> None:
    codes, _ = spoken(table, TEXT[:11])
    assert chars_spoken(table, TEXT, codes, SLOTS * len(codes)) in (11, 12)


def test_a_replacement_counts_when_all_of_it_was_spoken(table: PhoneTable) -> None:
    content = SpokenText("Ten dollars, not two.", "$10, not two.", (Replacement(0, 11, 0, 3),))
    codes, ends = spoken(table, content.spoken)
    assert written_chars(table, content, codes, ends[3] + 1) == 0
    assert content.written[: written_chars(table, content, codes, ends[11] + 1)] in ("$10", "$10,")


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_a_timeline_reads_the_words_that_were_played(table: PhoneTable, speed: float) -> None:
    """Time that is spread evenly would put words into the pause. The first 80 ms were trimmed."""
    codes, ends = spoken(table, TEXT)
    one = UtteranceTimeline(0, reader=PhoneReader(table, speed))
    one.sent((len(codes) - 1) * 0.08 / speed, codes)
    one.unfinished_text, one.unfinished = TEXT, SpokenText.unchanged(TEXT)
    played_s = {end: ((ends[end] + 1.5) / SLOTS - 1) * 0.08 / speed for end in (7, 18, 23)}
    unfinished = {end: one.text_until(at_s) for end, at_s in played_s.items()}
    one.unfinished_text, one.unfinished = "", None
    one.end_segment(TEXT)
    assert unfinished == {end: one.text_until(at_s) for end, at_s in played_s.items()}
    assert [text.rstrip(",") for text in unfinished.values()] == [TEXT[:end] for end in played_s]
    assert one.text_until(99.0) == TEXT


def test_without_codes_time_is_spread_evenly(table: PhoneTable) -> None:
    one = UtteranceTimeline(0, reader=PhoneReader(table))
    one.sent(2.0, None)
    one.end_segment("One two. ")
    assert one.text_until(0.9) == "One"
