import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine.errors import RequestError
from oscine.text.options import TextLevel, TextOptions
from oscine.text.preparation import (
    Prepared,
    StreamingPreparation,
    StreamPiece,
    check_text_options,
    prepare_text,
)
from oscine.text.segmenter import SegmenterConfig, segment_text
from oscine.text.spoken_text import Pause, SpokenText

ALL = TextOptions(normalize=True, paragraph_pause_s=0.7, pronunciations={"oscine": "OSS-een", "New York": "Noo Yawk"})
SMALL = SegmenterConfig(first_chars=20, segment_chars=40, max_chars=80)
LONG = " ".join(f"Sentence {number} of a longer text, which has some clauses." for number in range(40))


def forms(prepared: list[Prepared]) -> list[tuple[str, str] | float]:
    return [item.seconds if isinstance(item, Pause) else (item.spoken, item.written) for item in prepared]


@pytest.mark.parametrize("text", ["Hello.", "  Hello 5 < 6 \n\n <b>you</b> ", LONG, "", " ", "<", "你好。"])
def test_a_text_without_options_and_tags_has_the_segments_of_the_segmenter(text: str) -> None:
    assert prepare_text(text) == [SpokenText.unchanged(segment) for segment in segment_text(text)]


def test_pauses_cut_a_text_and_words_keep_their_written_form() -> None:
    text = 'Oscine costs $5. <break time="1s"/> Really?\n\nYes, in New York.'
    assert forms(prepare_text(text, ALL, "english")) == [
        ("OSS-een costs five dollars.", "Oscine costs $5."),
        1.0,
        ("Really?", "Really?"),
        0.7,
        ("Yes, in Noo Yawk.", "Yes, in New York."),
    ]


def test_pauses_at_the_ends_are_kept_and_neighbours_add_up() -> None:
    assert forms(prepare_text('<break/>One<break time="1s"/>, <break/>')) == [0.5, ("One", "One"), 1.0, 0.5]


def test_markup_false_keeps_the_tags() -> None:
    text = 'One <break time="1s"/> two <break oops'
    assert forms(prepare_text(text, TextOptions(markup=False))) == [(text, text)]


def test_a_text_of_pauses_only_is_refused() -> None:
    with pytest.raises(RequestError, match="pauses only; give at least one word"):
        prepare_text(" <break/> ... <break/>")


def test_the_pauses_of_a_text_are_bounded() -> None:
    assert len(prepare_text("a" + '<break time="10s"/>' * 60)) == 61
    with pytest.raises(RequestError, match="longer than 600 s together"):
        prepare_text("a" + '<break time="10s"/>' * 61)


def test_a_text_that_grows_beyond_the_limit_is_refused() -> None:
    with pytest.raises(RequestError, match=r"more than 1000 characters \(the limit\)"):
        prepare_text("oscine " * 100, TextOptions(pronunciations={"oscine": "x" * 100}), max_chars=1000)


def test_long_texts_are_cut_into_segments_of_the_spoken_text() -> None:
    prepared = prepare_text(LONG, ALL, "english", SMALL)
    segments = [item for item in prepared if isinstance(item, SpokenText)]
    assert len(segments) > 20
    assert "".join(segment.written for segment in segments).replace(" ", "") == LONG.replace(" ", "")
    assert "Sentence thirty-nine of" in " ".join(segment.spoken for segment in segments)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"normalize": 1}, "normalize"),
        ({"markup": "no"}, "markup"),
        ({"paragraph_pause_s": -1}, "paragraph_pause_s"),
        ({"paragraph_pause_s": 11.0}, "paragraph_pause_s"),
        ({"paragraph_pause_s": True}, "paragraph_pause_s"),
        ({"paragraph_pause_s": float("nan")}, "paragraph_pause_s"),
        ({"pronunciations": {"a": ""}}, "pronunciations"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as error:
        check_text_options(TextOptions(**options), "english")  # type: ignore[arg-type]
    assert error.value.param == param


# --- streaming text ---


def streamed(pieces: list[str], options: TextOptions, language: str = "english") -> list[tuple[str, str] | float | str]:
    """The segments, pauses and errors."""
    preparation = StreamingPreparation(options, language, SMALL)
    results = [result for piece in pieces for result in preparation.push(piece)] + preparation.finish()
    joined: list[tuple[str, str] | float | str] = []
    spoken, written = "", ""
    for result in results:
        if isinstance(result, StreamPiece):
            spoken, written = spoken + result.text.spoken, written + result.text.written
            if result.ends:
                joined.append((spoken, written))
                spoken, written = "", ""
        else:
            joined.append(result.seconds if isinstance(result, Pause) else str(result))
    assert not spoken and not written
    return joined


WORDS = ["Oscine", "oscines", "New", " York", "$5", ".50", " 16 ", "Nov", "ember", " 2026", "<bre", "ak/>", "<break"]
WORDS += [
    " time=",
    '"1s"',
    "/>",
    "\n",
    "\n\n",
    " ",
    ", ",
    ". ",
    "kg",
    "-3",
    "1,0",
    "00",
    "年",
    "月",
    "你好",
    "14:",
    "30",
]
WORDS += ["<", "word", "USD", "may"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25), st.sampled_from(["english", "auto", "chinese"]))
def test_a_streaming_text_is_prepared_alike_however_it_is_cut(pieces: list[str], language: str) -> None:
    whole = streamed(["".join(pieces)], ALL, language)
    assert streamed(pieces, ALL, language) == whole
    assert streamed(list("".join(pieces)), ALL, language) == whole


def test_words_pass_when_they_are_complete_and_numbers_when_the_next_word_shows_what_they_are() -> None:
    preparation = StreamingPreparation(ALL, "english", SegmenterConfig())
    spoken = []
    for piece in ("Hel", "lo wor", "ld, os", "cine", " 5", " of", " them are here now and th", "en <", "b>"):
        results = preparation.push(piece)
        spoken.append("".join(result.text.spoken for result in results if isinstance(result, StreamPiece)))
    assert spoken == ["", "Hello", " world,", "", " OSS-een", "", " five of them are here now and", "", " then"]


def test_a_segment_can_end_with_the_text_so_far() -> None:
    stream = StreamingPreparation(TextOptions(normalize=True), "english", SegmenterConfig())
    results = [*stream.push("It costs $5"), *stream.end_segment(), *stream.push(" or less"), *stream.end_segment()]
    pieces = [result for result in results if isinstance(result, StreamPiece)]
    assert "".join(piece.text.spoken + "|" * piece.ends for piece in pieces) == "It costs five dollars| or less|"
    assert stream.end_segment() == stream.finish() == []


@pytest.mark.parametrize("level", ["raw", "clean", "spoken"])
@pytest.mark.parametrize("in_segment", [False, True])
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('Wait here. <break time="1s"/> Go on.', "Wait here.|1.0|Go on."),
        ('We have 5 <sub alias="apples">x</sub> to go.', "We have 5 apples to go."),
        ("One\n<p>two</p>", "One.\ntwo."),
    ],
)
def test_a_pause_within_a_tag_changes_nothing(level: TextLevel, in_segment: bool, text: str, read: str) -> None:
    for cut in range(text.index("<") + 1, text.index(">")):
        stream = StreamingPreparation(TextOptions(text_level=level), "english", SegmenterConfig())
        results = stream.push(text[:cut])
        results += stream.end_segment() if in_segment else stream.flush()
        results += [*stream.push(text[cut:]), *stream.finish()]
        said = [
            f"|{result.seconds}|" if isinstance(result, Pause) else result.text.spoken
            for result in results
            if not isinstance(result, RequestError)
        ]
        expected = read.replace("5", "five") if level == "spoken" else read
        assert "".join(said).replace(" |", "|").replace("| ", "|") == expected, cut


@pytest.mark.parametrize("level", ["raw", "clean", "spoken"])
@pytest.mark.parametrize("text", ["<p>Hello.</p>", "<speak>Hello.</speak>", "Hello<p>", "Hello.\n<p>"])
def test_a_complete_tag_does_not_hold_a_segment_up(level: TextLevel, text: str) -> None:
    stream = StreamingPreparation(TextOptions(text_level=level), "english", SegmenterConfig())
    (*_, last) = [*stream.push(text), *stream.end_segment()]
    assert isinstance(last, StreamPiece) and last.ends


@pytest.mark.parametrize("level", ["raw", "clean", "spoken"])
@pytest.mark.parametrize("text", ["<p>One</p>|two", "One<p>|two", "One\n<p>|two"])
def test_a_pause_after_a_tag_keeps_words_apart(level: TextLevel, text: str) -> None:
    stream = StreamingPreparation(TextOptions(text_level=level), "english", SegmenterConfig())
    before, after = text.split("|")
    results = [*stream.push(before), *stream.end_sentence(in_doubt=True), *stream.push(after), *stream.finish()]
    said = "".join(one.text.spoken + "|" * one.ends for one in results if isinstance(one, StreamPiece))
    assert said == "One.|two|"


def test_what_only_looks_like_a_tag_does_not_hold_a_pause_up() -> None:
    stream = StreamingPreparation(TextOptions(text_level="clean"), "english", SegmenterConfig())
    results = [*stream.push("I love you <3"), *stream.end_segment()]
    assert "".join(result.text.spoken for result in results if isinstance(result, StreamPiece)) == "I love you <3"


def test_words_before_a_bad_tag_are_spoken_and_the_rest_is_dropped() -> None:
    results = streamed(["One. <break ti", "me=5/> Two.", " Three."], TextOptions())
    assert results[0] == ("One. ", "One. ")
    assert len(results) == 2 and "<break time=5/>" in str(results[1])


@pytest.mark.parametrize("level", ["clean", "spoken"])
@pytest.mark.parametrize("text", ["|------|-----|", "...", "👍 👍", '<break time="1s"/>'])
def test_a_streaming_text_without_words_is_refused_as_a_whole_one_is(level: TextLevel, text: str) -> None:
    with pytest.raises(RequestError) as refused:
        prepare_text(text, TextOptions(text_level=level), "english")
    assert streamed([*text], TextOptions(text_level=level))[-1] == str(refused.value)
    assert streamed([" ", "\n"], TextOptions(text_level=level)) == []


def test_marks_and_white_space_after_a_pause_wait_for_a_word() -> None:
    assert streamed(["One<break/>", ". ", "\n", "<break/> Two."], TextOptions()) == [
        ("One", "One"),
        0.5,
        0.5,
        ("Two.", "Two."),
    ]
