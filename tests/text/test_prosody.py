"""Rate and volume of parts of a text: where they change, whole and in pieces, and values that cannot be read."""

from typing import Any

import pytest

from oscine.errors import RequestError
from oscine.text.options import TextLevel, TextOptions
from oscine.text.preparation import StreamingPreparation, StreamPiece, prepare_text
from oscine.text.prosody import Prosody
from oscine.text.segmenter import SegmenterConfig
from oscine.text.spoken_text import Pause, SpokenText

Item = str | Prosody | float
SLOW, PLAIN = Prosody(speed=0.75), Prosody()
LOUD = Prosody(speed=1.5, volume=2.0)


def items(text: str, level: TextLevel = "clean", **options: Any) -> list[Item]:
    """What is spoken, changes, and the seconds of pauses."""
    return [simple(one) for one in prepare_text(text, TextOptions(text_level=level, **options), "english")]


def simple(item: SpokenText | Pause | Prosody) -> Item:
    return item if isinstance(item, Prosody) else item.seconds if isinstance(item, Pause) else item.spoken


def streamed(text: str, cut: int, level: TextLevel = "clean") -> list[Item]:
    preparation = StreamingPreparation(TextOptions(text_level=level), "english", SegmenterConfig())
    results = [one for start in range(0, len(text), cut) for one in preparation.push(text[start : start + cut])]
    found: list[Item] = []
    said = ""
    for result in [*results, *preparation.finish()]:
        if isinstance(result, RequestError):
            raise result
        if not isinstance(result, StreamPiece):
            found.append(simple(result))
            continue
        said += result.text.spoken
        if result.ends and said.strip():
            found.append(said.strip())
        said = "" if result.ends else said
    assert not said.strip() and preparation.held_chars == 0
    return found


CASES: list[tuple[str, list[Item]]] = [
    ("A <prosody rate='slow'>b c</prosody> d.", ["A", SLOW, "b c", PLAIN, "d."]),
    ("A <prosody rate='slow'>b</prosody>, c", ["A", SLOW, "b,", PLAIN, "c"]),
    ("c <PROSODY RATE=\"75%\">d</PROSODY>?!", ["c", SLOW, "d?!", PLAIN]),
    ("<speak><prosody volume='200%' rate='+50%'>Hey</prosody></speak>", [LOUD, "Hey", PLAIN]),
    ("<prosody rate='1.5'>a <prosody volume='2'>b</prosody>", [Prosody(1.5), "a", LOUD, "b", Prosody(1.5)]),
    ("<prosody rate='slow'>a <break time='1s'/> b</prosody>", [SLOW, "a", 1.0, "b", PLAIN]),
    ("<prosody rate='slow'>a", [SLOW, "a"]),
    ("<prosody pitch='high' rate='medium'>a</prosody> b</prosody> c", ["a b c"]),
    ("<prosody rate='slow'/>a <prosodyx rate='slow'>b", ["a b"]),
    ("a <prosody rate='slow' pitch='<5>'>b</prosody>", ["a", SLOW, "b", PLAIN]),
    ("<prosody rate='slow'>a</prosody><prosody rate='slow'>b</prosody>", [SLOW, "a", PLAIN, SLOW, "b", PLAIN]),
]  # fmt: skip


@pytest.mark.parametrize("level", ["raw", "clean", "spoken"])
@pytest.mark.parametrize(("text", "expected"), CASES)
def test_rate_and_volume_change_between_segments(level: TextLevel, text: str, expected: list[Item]) -> None:
    if level == "raw":
        expected = [one.replace("<prosodyx rate='slow'>", "") if isinstance(one, str) else one for one in expected]
    found = items(text, level)
    if "prosodyx" not in text or level != "raw":  # a raw text speaks what is no tag
        assert found == expected
    for cut in (1, 2, 3, 7, 1000):
        assert streamed(text, cut, level) == found


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("rate='x-slow'", Prosody(0.5)),
        ("rate='X-Fast'", Prosody(1.75)),
        ("rate=' 80% '", Prosody(0.8)),
        ("rate='-20%'", Prosody(0.8)),
        ("rate='.5'", Prosody(0.5)),
        ("volume='silent'", Prosody(volume=0.0)),
        ("volume='x-loud'", Prosody(volume=2.5)),
        ("volume='+6.0206dB'", Prosody(volume=pytest.approx(2.0))),
        ("volume='-6.0206dB'", Prosody(volume=pytest.approx(0.5))),
    ],
)
def test_values_are_words_percentages_factors_and_decibels(attribute: str, expected: Prosody) -> None:
    assert items(f"<prosody {attribute}>a</prosody>")[0] == expected


@pytest.mark.parametrize(
    "attribute",
    [
        *("rate='quick'", "rate='5'", "rate='0.2'", "rate='-80%'", "rate='+6dB'", "rate='+1.2'", "rate='silent'"),
        *("volume='+13dB'", "volume='0%'", "volume='nan'", "volume='1e9'", "volume='inf'"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(attribute: str) -> None:
    text, name = f"One. <prosody {attribute}>a</prosody>", attribute.partition("=")[0]
    for refused in (lambda: items(text), lambda: streamed(text, 3)):
        with pytest.raises(RequestError, match=f"the {name} of <prosody .* cannot be used; write a word") as caught:
            refused()
        assert caught.value.param == "text"
    assert items(text, "raw", markup=False) == [text]


def test_nested_tags_multiply_up_to_the_bounds_and_are_not_endless() -> None:
    assert items("<prosody rate='3'><prosody rate='3'>a")[-2:] == [Prosody(4.0), "a"]
    assert items("<prosody volume='silent'><prosody volume='loud'>a")[-2:] == [Prosody(volume=0.0), "a"]
    with pytest.raises(RequestError, match="more than 32 <prosody> tags are open"):
        items("<prosody rate='slow'>" * 33 + "a")


@pytest.mark.parametrize("text", ["<prosody rate='slow'></prosody>", "<prosody rate='slow'> </prosody> "])
def test_a_text_of_prosody_alone_has_no_words(text: str) -> None:
    with pytest.raises(RequestError, match="has no words"):
        items(text)


def test_many_tags_that_never_end_cost_no_more_than_their_length() -> None:
    text = '<prosody rate="x' * 20_000
    assert "".join(one for one in items(text, "raw") if isinstance(one, str)).count("prosody") == 20_000
