"""SRT and WebVTT."""

from pathlib import Path

import pytest

from oscine.align.subtitles import cues, subtitle_format, subtitles
from oscine.align.word_split import TimedWord
from oscine.errors import RequestError


def spoken(text: str, word_s: float = 0.4) -> list[TimedWord]:
    return [TimedWord(word, index * word_s, (index + 1) * word_s) for index, word in enumerate(text.split())]


WORDS = spoken("Fish & chips. Is 2 < 3?")


def test_srt_has_a_cue_for_each_sentence() -> None:
    assert subtitles(WORDS, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,200\nFish & chips.\n\n2\n00:00:01,200 --> 00:00:02,800\nIs 2 < 3?\n"
    )


def test_cues_of_a_dialogue_name_the_speaker() -> None:
    words = [TimedWord("Well", 0.0, 0.4, "wren"), TimedWord("no.", 0.4, 0.8, "a<b"), TimedWord("Hm.", 0.8, 1.2)]
    assert [line for line in subtitles(words, "srt").split("\n") if "." in line] == ["a<b: no.", "Hm."]
    assert "\n<v wren>Well\n" in (vtt := subtitles(words, "vtt")) and "\n<v a&lt;b>no.\n" in vtt and "\nHm.\n" in vtt


def test_webvtt_escapes_markup() -> None:
    assert subtitles(WORDS, "vtt") == (
        "WEBVTT\n\n1\n00:00:00.000 --> 00:00:01.200\nFish &amp; chips.\n\n"
        "2\n00:00:01.200 --> 00:00:02.800\nIs 2 &lt; 3?\n"
    )


def test_an_arrow_in_the_text_does_not_end_the_cue() -> None:
    assert subtitles(spoken("a --> b"), "srt").count("-->") == 1


def test_long_sentences_become_cues_of_two_short_lines() -> None:
    found = cues(spoken("The ship sailed past the light and on to the far side of the sea " * 9, 0.2))
    assert len(found) > 3
    for cue in found:
        lines = cue.text.splitlines()
        assert len(lines) <= 2 and max(map(len, lines)) <= 42
        assert cue.end_s - cue.start_s <= 6
    assert " ".join(" ".join(cue.text.split()) for cue in found) == " ".join(
        word.word for word in spoken("The ship sailed past the light and on to the far side of the sea " * 9)
    )


def test_a_pause_starts_another_cue() -> None:
    assert [cue.text for cue in cues([TimedWord("One", 0, 1), TimedWord("two", 3, 4)])] == ["One", "two"]


def test_characters_without_spaces_stay_together() -> None:
    words = [TimedWord("你", 0, 1), TimedWord("好，", 1, 2), TimedWord("Tom", 2, 3)]
    assert [cue.text for cue in cues(words)] == ["你好， Tom"]


def test_words_without_times_are_left_out() -> None:
    assert subtitles([TimedWord("Hello")], "srt") == ""


def test_an_hour_has_two_digits() -> None:
    assert "01:01:01,500 --> 01:01:02,000" in subtitles([TimedWord("x", 3661.5, 3662.0)], "srt")


def test_the_suffix_chooses_the_format() -> None:
    assert subtitle_format(Path("a.SRT")) == "srt" and subtitle_format(Path("a.vtt")) == "vtt"
    with pytest.raises(RequestError, match=r"unknown subtitle format 'ass'.*possible: srt, vtt"):
        subtitle_format(Path("a.ass"))
