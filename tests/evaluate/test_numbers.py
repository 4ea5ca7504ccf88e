"""English numbers: however one is written or said, it comes out in one way, and no other number does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscine.evaluate.numbers import number_words, say_alike, spell_out


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (85, "eighty five"),
        (300, "three hundred"),
        (512, "five hundred twelve"),
        (1000, "one thousand"),
        (1066, "one thousand sixty six"),
        (1500, "fifteen hundred"),
        (1900, "nineteen hundred"),
        (1905, "nineteen oh five"),
        (1984, "nineteen eighty four"),
        (2009, "two thousand nine"),
        (2024, "twenty twenty four"),
        (12_345, "twelve thousand three hundred forty five"),
        (1_000_000, "one million"),
        (3_001_500, "three million one thousand five hundred"),
        (1_234_567, "one million two hundred thirty four thousand five hundred sixty seven"),
        (2_000_000_000_003, "two trillion three"),
    ],
)
def test_numbers_are_said_as_people_say_them(number: int, said: str) -> None:
    assert number_words(number) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("1,234,000 and 1000000", "one million two hundred thirty four thousand and one million"),
        ("call 5551234", "call five five five one two three four"),
        ("agent 007", "agent zero zero seven"),
        ("3.14 and .5 in 1.2.3", "three point one four and point five in one point two point three"),
        ("1st 2nd 3rd 12th 20th", "first second third twelfth twentieth"),
        ("21st 30th 100th 105th", "twenty first thirtieth one hundredth one hundred fifth"),
        ("the 1980s", "the nineteen eighties"),
        ("5:00, 5:05, 7:30pm, 12:15", "five , five oh five , seven thirty pm, twelve fifteen"),
        ("$1 $2 $1.01 $0.50 $12.00", "one dollar two dollars one dollar and one cent fifty cents twelve dollars"),
        ("$2.5 million, €1,000", "two point five million dollars , one thousand euros"),
        ("£3.50, £1.01", "three pounds and fifty pence , one pound and one penny"),
        ("-4 well-4 --4 -$4", "minus four well- four -- four minus four dollars"),
        ("1° 20°", "one degree twenty degrees"),
        ("a well.known mp3", "a well.known mp three"),
    ],
)
def test_what_is_written_with_digits_becomes_words(written: str, said: str) -> None:
    assert spell_out(written).split() == said.split()


@pytest.mark.parametrize(
    ("one_way", "other_way"),
    [
        ("one thousand five hundred", "fifteen hundred"),
        ("two thousand and ten", "twenty ten"),
        ("twenty oh five", "two thousand and five"),
        ("one thousand nine hundred and eighty four", "nineteen eighty four"),
        ("one hundred and five", "one hundred five"),
        ("one hundred and fifth", "one hundred fifth"),
        ("twenty five hundred", "two thousand five hundred"),
        ("one million and five", "one million five"),
        ("one thousand nine hundred eighties", "nineteen eighties"),
        ("a hundred thousand", "one hundred thousand"),
    ],
)
def test_the_ways_to_say_one_number_are_alike(one_way: str, other_way: str) -> None:
    assert say_alike(one_way.split()) == say_alike(other_way.split())


@pytest.mark.parametrize(
    "words",
    [
        "one five hundred",
        "between one hundred and two hundred",
        "between one thousand and two thousand",
        "between one thousand and two hundred",
        "two thousand five million",
        "one hundred two hundred three hundred",
        "nineteen eighty four million",
        "twenty oh five hundred",
        "seven thirty and ten sixty six",
        "two point one five million",
        "one two three four",
        "wait a second hundreds of people came first and a few ones second",
        "fifteen hundred thousand",
        "a hundredth and hundred",
        "and one and",
    ],
)
def test_numbers_side_by_side_stay_apart(words: str) -> None:
    assert say_alike(words.split()) == words.replace("a hundred", "one hundred").split()


@given(st.integers(0, 12_000) | st.integers(0, 10**15 - 1))
def test_every_number_is_read_back_as_itself(number: int) -> None:
    said = number_words(number).split()
    assert say_alike(said) == said
    assert spell_out(f"{number:,}").split() == said


def test_no_two_numbers_are_said_alike() -> None:
    assert len({number_words(number) for number in range(12_000)}) == 12_000


@pytest.mark.parametrize("before", ["", "$", "0."])
def test_long_runs_of_digits_are_read_one_by_one(before: str) -> None:
    assert spell_out(before + "7000" * 1250).split().count("seven") == 1250
