import pytest

from oscine.errors import RequestError
from oscine.text.pronunciations import MAX_ENTRIES, PronunciationRule, check_pronunciations
from oscine.text.scanner import TextScanner


def said(text: str, entries: dict[str, str]) -> str:
    scanner = TextScanner([PronunciationRule(entries)])
    return "".join(piece.said for piece in (*scanner.push(text), *scanner.finish()))


def test_whole_words_are_replaced() -> None:
    entries = {"Oscine": "OSS-een"}
    assert said("Oscine, (Oscine) Oscines Oscine's", entries) == "OSS-een, (OSS-een) Oscines OSS-een's"


def test_an_entry_without_capitals_matches_in_any_case_and_others_as_they_are() -> None:
    assert said("sql SQL Sql", {"sql": "sequel"}) == "sequel sequel sequel"
    assert said("US us Us", {"US": "U S"}) == "U S us Us"


def test_the_longest_entry_counts() -> None:
    entries = {"New": "Noo", "New York": "Noo Yawk", "york": "yorck"}
    assert said("New York, New Jersey, York", entries) == "Noo Yawk, Noo Jersey, yorck"


def test_a_replacement_is_not_replaced_again() -> None:
    assert said("a b", {"a": "b", "b": "c"}) == "b c"


@pytest.mark.parametrize(
    ("text", "entries", "spoken"),
    [
        ("我在重庆。", {"重庆": "chóng qìng"}, "我在chóng qìng。"),
        ("서울은 크다", {"서울": "Seoul"}, "Seoul은 크다"),
        ("남서울", {"서울": "Seoul"}, "남서울"),
        ("C++ and C", {"C++": "see plus plus"}, "see plus plus and C"),
        (".NET", {".NET": "dot net"}, "dot net"),
        ("Übung übung", {"übung": "Ü"}, "Ü Ü"),
    ],
)
def test_words_of_any_script(text: str, entries: dict[str, str], spoken: str) -> None:
    assert said(text, entries) == spoken


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "must be an object"),
        ({f"w{number}": "x" for number in range(MAX_ENTRIES + 1)}, "201 entries, the limit is 200"),
        ({"": "x"}, "must hold a letter or digit"),
        ({"a": " "}, "must hold a letter or digit"),
        ({"a\n": "x"}, "no control characters"),
        ({"a": "\0x"}, "no control characters"),
        ({"a" * 65: "x"}, "65 characters, the limit is 64"),
        ({"a": "x" * 129}, "129 characters, the limit is 128"),
        ({"a": 1}, "must be a string, got int"),
    ],
)
def test_bad_entries_are_refused(entries: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        check_pronunciations(entries)
    assert error.value.param == "pronunciations"


def test_the_work_at_a_place_does_not_grow_with_the_entries_that_share_its_first_letter() -> None:
    looked_at = 0

    class Counted(str):
        def startswith(self, *args: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super().startswith(*args)  # type: ignore[arg-type]

        def __len__(self) -> int:
            nonlocal looked_at
            looked_at += 1
            return super().__len__()

    rule = PronunciationRule({Counted(f"a{number}"): "x" for number in range(200)})
    text, before = "a " * 1000, looked_at
    assert all(rule.match(text, at, "", ended=True) is None for at in range(0, len(text), 2))
    assert looked_at - before < 1000
    assert rule.match("a17 b", 0, "", ended=True) is not None
