import pytest

from oscine.text.spoken_text import Replacement, SpokenBuffer, SpokenText


def buffer(*runs: tuple[str, str | None]) -> SpokenBuffer:
    filled = SpokenBuffer()
    for spoken, written in runs:
        filled.push(spoken, written)
    return filled


def test_a_buffer_returns_both_forms_of_a_text() -> None:
    text = buffer(("Pay ", None), ("five dollars", "$5"), (" now.", None)).take(len("Pay five dollars now."))
    assert text == SpokenText("Pay five dollars now.", "Pay $5 now.", (Replacement(4, 16, 4, 6),))


def test_a_replacement_that_is_cut_belongs_to_the_first_piece() -> None:
    filled = buffer(("Pay ", None), ("five dollars", "$5"), (" now.", None))
    pieces = [filled.take(8), filled.take(8), filled.take(5)]
    assert [piece.spoken for piece in pieces] == ["Pay five", " dollars", " now."]
    assert [piece.written for piece in pieces] == ["Pay $5", "", " now."]


@pytest.mark.parametrize(
    ("spoken", "written"),
    [
        ("Pay", "Pay"),
        ("five dollars", "$5"),
        ("dollars", "$5"),
        ("five", "$5"),
        ("now", "now"),
        ("two", "2"),
        ("Pay five", "Pay $5"),
        ("dollars now, two", "$5 now, 2"),
        ("times.", "times."),
    ],
)
def test_every_spoken_word_has_its_place_in_the_written_text(spoken: str, written: str) -> None:
    runs = ("Pay ", None), ("five dollars", "$5"), (" now, ", None), ("two", "2"), (" times.", None)
    text = buffer(*runs).take(sum(len(run) for run, _ in runs))
    start = text.spoken.index(spoken)
    begin, end = text.written_range(start, start + len(spoken))
    assert text.written[begin:end] == written
