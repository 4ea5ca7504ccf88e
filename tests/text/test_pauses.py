import pytest

from oscine.errors import RequestError
from oscine.text.pauses import MAX_BREAK_S, BreakRule, ParagraphRule
from oscine.text.scanner import Rule, TextScanner


def scanned(text: str, rule: Rule) -> list[str | float]:
    scanner = TextScanner([rule])
    pieces = (*scanner.push(text), *scanner.finish())
    return [piece.pause_s or piece.said for piece in pieces if piece.pause_s or piece.said]


@pytest.mark.parametrize(
    ("tag", "seconds"),
    [
        ("<break/>", 0.5),
        ("<break />", 0.5),
        ("<break>", 0.5),
        ('<break time="500ms"/>', 0.5),
        ("<break time='1.5s'/>", 1.5),
        ('<BREAK Time = " .25 S " />', 0.25),
        ('<break time="2s">', 2.0),
        ('<break time="2s"></break>', 2.0),
        (f'<break time="{MAX_BREAK_S:g}s"/>', MAX_BREAK_S),
    ],
)
def test_a_break_is_a_pause(tag: str, seconds: float) -> None:
    assert scanned(f"One{tag}two", BreakRule()) == ["One", seconds, "two"]


@pytest.mark.parametrize(
    "text", ["a < b", "<breakfast>", "<b>bold</b>", "<brea", "<", "< break/>", "</breaks>", "<break"]
)
def test_other_text_in_angle_brackets_stays(text: str) -> None:
    assert "".join(map(str, scanned(text, BreakRule()))) == text


def test_a_break_without_length_only_disappears() -> None:
    assert scanned('One<break time="0s"/>two', BreakRule()) == ["One", "two"]


@pytest.mark.parametrize(
    "tag",
    [
        '<break time="abc"/>',
        "<break time=500ms/>",
        '<break time="-1s"/>',
        '<break strength="weak"/>',
        "<break time",
        "<break " + "x" * 99,
    ],
)
def test_a_tag_that_cannot_be_read_is_refused_with_the_forms_that_can(tag: str) -> None:
    with pytest.raises(RequestError, match=r'write <break/>, <break time="500ms"/>.* markup to false'):
        scanned(f"One {tag} two"[: len(tag) + 4] if tag == "<break time" else f"One {tag} two", BreakRule())


def test_a_break_that_is_too_long_is_refused_with_the_limit() -> None:
    with pytest.raises(RequestError, match=r"longer than a break may be \(10 s\)"):
        scanned('<break time="10001ms"/>', BreakRule())


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\n \t\n", "\n\n\n\n", "\u2029", "\n\n  "])
def test_a_blank_line_is_a_pause(blank: str) -> None:
    assert scanned(f"One.{blank}Two.", ParagraphRule(0.7)) == ["One.", 0.7, "Two."]


@pytest.mark.parametrize("text", ["One.\nTwo.", "One.\r\nTwo.", "\n\nOne.", "One.\n\n", "\n\n  \n"])
def test_line_breaks_and_empty_lines_around_the_text_are_no_pauses(text: str) -> None:
    assert "".join(map(str, scanned(text, ParagraphRule(0.7)))) == text
