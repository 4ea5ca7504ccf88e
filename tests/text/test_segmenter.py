"""Texts are split where a reader would pause, nothing is lost, and streaming gives the same segments."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine.text.segmenter import Segmenter, SegmenterConfig, SegmentPiece, segment_text

# Every sentence on its own; none is too long.
EACH = SegmenterConfig(first_chars=1, segment_chars=1, max_chars=1_000_000)
SMALL = SegmenterConfig(first_chars=10, segment_chars=20, max_chars=40)

# "|" marks where a sentence ends and the next one begins.
SENTENCES = {
    "plain": "One went. |Two came! |Three? |Four",
    "runs of marks": "What?! |Really... |Yes!!! |No…",
    "question in full caps": "WHY? |BECAUSE. |OK",
    "title": "Mr. Smith met Mrs. Jones and Dr. Brown. |They spoke.",
    "saint and street": "We went to St. Mary on Mt. Hood. |It rained.",
    "for example": "Take fruit, e.g. Apples or i.e. Pears. |Eat.",
    "abbreviation before a comma": "Some fruit (apples, etc.), Pears, e.g., Conference. |Eat.",
    "et cetera goes on": "Apples, pears, etc. are fruit. |Eat them.",
    "et cetera ends": "We had apples, pears, etc. |Then we left.",
    "country": "The U.S. Army left. |It was late.",
    "degree": "She has a Ph.D. She said so. |Fine.",
    "number sign": "He is No. 5 here. |No. |He is not.",
    "figure": "See Fig. 3 and p. 12 of vol. 4 first. |Then go on.",
    "versus": "Smith vs. Jones was long. |It ended.",
    "initials": "J. R. R. Tolkien wrote it. |C.S. Lewis read it.",
    "month": "On Jan. 5 we met. |In Dec. 2020 we did not.",
    "company": "Acme Inc. Shares rose. |Good.",
    "clock": "At 5 p.m. Monday we met. |Fine.",
    "decimal": "Pi is 3.14 or so. |It is 3.14. |Really.",
    "thousands": "Es sind 1.000.000 Euro. |Es sind 1.000.000. |Gut.",
    "time with a dot": "Wir kommen um 10.30 Uhr. |Um 10.30. |Gut.",
    "version": "Use v2.0.1 now. |We have v2.0.1. |Go.",
    "address": "Ping 192.168.1.1 first. |Then 10.0.0.1. |Done.",
    "domain": "See example.com today. |See https://example.com/a.b?c=def. |Write to a.b@example.com. |Bye.",
    "file": "Open main.py and notes.txt. |Read main.py. |Close it.",
    "ellipsis in a sentence": "I thought... well, no. |So… what? |So... |What?",
    "spaced ellipsis": "I waited . . . |Then I left.",
    "ellipsis opens": "He paused. |...And went on.",
    "enumeration": "1. First go in. |2. Then go out.",
    "year ends": "It was 1990. |Then came 1991. |Good.",
    "quote goes on": "He said 'Stop!' and left. |She stayed.",
    "quote ends": "He said 'Stop!' |Then he left.",
    "quote in curly marks": "“Is it?” she asked. |“It is.” |“Good.”",
    "brackets": "He left. |(She stayed.) |They wrote [often!]. |End.",
    "stop behind a bracket": "It is so (see Fig. 3). |Next.",
    "lower case": "it is so. we know. fine!",
    "markup": "**It is so.** |*Really.* |# Yes",
    "emoji": "Great! |😀 Go on 👍🏽. |Bye 😀",
    "emoji close by": "Great!😀 |Go on.",
    "blank line": "A title\n\n|a text\n \n|another\r\n\r\n|end",
    "line": "one\ntwo\r\nthree",
    "list": "We need:\n|- milk\n|- bread\n|* eggs",
    "heading": "So it ends.\n|## What comes\nnext",
    "line after a sentence": "One.\n|Two.\n|Three.",
    "rule between paragraphs": "One\n\n-----\n\n|two",
    "German": "Es gibt z. B. Äpfel, d. h. Obst, bzw. Gemüse usw. Alles gut. |Ja!",
    "German street": "Er wohnt in der Hauptstr. 12 hier. |Ja.",
    "German without spaces": "Es gibt z.B. Äpfel. |Ja.",
    "German ordinal": "Am 3. Mai im 19. Jahrhundert kam Nr. 5 an. |Gut.",
    "German quotes": "„Gut.“ |„Ja!“, sagte er. |Na.",
    "German era": "Im Jahr 44 v. Chr. Rom. |Ja.",
    "French": "M. Dupont et Mme. Durand sont là ! |Où ? |« Ici. » |Bien.",
    "Spanish": "¡Hola! |¿Qué tal? |El Sr. López y la Sra. Ruiz ven a Ud. Mañana. |¿sí?",
    "Italian": "Il sig. Rossi e la sig.ra Bianchi. |Il dott. Verdi, ecc. |Bene.",
    "Portuguese": "O Sr. Silva e a Dra. Costa vieram. |Não?",
    "Polish": "Owoce, np. Jabłka. |Dobrze.",
    "Russian": "А. С. Пушкин жил там, т. е. Здесь. |Да! |Он ушёл… |Всё.",
    "Greek": "Τι κάνεις; |Καλά. |Εσύ;",
    "Georgian has no capitals": "გამარჯობა. |როგორ ხარ? |კარგად.",
    "Chinese": "你好。|我是小明！|你呢？|好；|再见……|是",
    "Chinese quotes": "他说：“好。”|她走了。|「真的？」|（是的。）|《书》很好。",
    "Chinese with Latin marks": "你好!|我是小明.|你呢?|好",
    "Chinese and Latin": "我用Python 3.12。|它很好。|Hello！|是的",
    "Chinese number": "价格是３．１４元，共1，000元。|5月见。",
    "Japanese": "行きます。|本当？|はい！|そう…|うん",
    "Japanese quotation goes on": "「行くな！」と彼は言った。|「はい。」|『そう。』|彼女は笑った。",
    "Korean": "안녕하세요. |네. |저는 3.5배 빨라요! |정말요?",
    "Korean without spaces": "갔다.|왔다.|끝",
    "Arabic": "كيف حالك؟ |أنا بخير. |شكرا، جدا! |نعم",
    "Urdu": "یہ اچھا ہے۔ |کیا حال ہے؟ |ٹھیک",
    "Hebrew": "שלום. |מה נשמע? |טוב",
    "Hindi": "यह ठीक है। |क्या हाल है? |अच्छा॥ |जी",
    "Hindi without spaces": "यह ठीक है।|अच्छा",
    "Armenian": "Բարեւ։ |Ինչպես ես։ |Լավ",
    "Amharic": "ሰላም። |እንዴት ነህ፧ |ደህና",
    "Burmese": "မင်္ဂလာပါ။ |နေကောင်းလား။ |ဟုတ်",
    "Khmer": "សួស្តី។ |តើអ្នកសុខសប្បាយទេ? |បាទ",
    "Tibetan": "བཀྲ་ཤིས། |བདེ་ལེགས།",
    "Thai": "สวัสดีครับ ผมชื่อสมชาย ยินดีที่ได้รู้จัก",
    "decomposed accents": unicodedata.normalize("NFD", "Un café. |Été à Orléans. |Où ?"),
}


def join(pieces: Iterable[SegmentPiece]) -> list[str]:
    segments, growing = [], ""
    for piece in pieces:
        growing += piece.text
        if piece.ends:
            segments.append(growing)
            growing = ""
    assert growing == "", "the last piece ends its segment"
    return segments


def stream(texts: Iterable[str], config: SegmenterConfig) -> list[str]:
    """The segments of a streaming text."""
    segmenter = Segmenter(config)
    return join([piece for text in texts for piece in segmenter.push(text)] + segmenter.finish())


def weight(text: str) -> int:
    return sum(3 if char.isalnum() and unicodedata.east_asian_width(char) in "WH" else 1 for char in text)


def visible(text: str) -> str:
    return "".join(text.split())


def has_word(text: str) -> bool:
    return any(char.isalnum() for char in text)


@pytest.mark.parametrize("marked", SENTENCES.values(), ids=SENTENCES.keys())
def test_sentences_end_where_a_reader_would_end_them(marked: str) -> None:
    sentences = [sentence.strip() for sentence in marked.split("|")]
    assert segment_text(marked.replace("|", ""), EACH) == sentences


@pytest.mark.parametrize("marked", SENTENCES.values(), ids=SENTENCES.keys())
def test_streaming_text_ends_its_segments_there_too(marked: str) -> None:
    assert stream(marked.replace("|", ""), EACH) == marked.split("|")


def test_a_short_text_is_returned_unchanged() -> None:
    for text in ("", " ", " Hello. World \n", "Hi. " * 100, "。" * 400, "好" * 133):
        assert segment_text(text) == [text]


def test_a_text_that_cannot_be_split_is_returned_unchanged() -> None:
    for text in (" " * 1000, "?! " * 1000, "😀" * 1000, " " * 500 + "a" + "." * 500):
        assert segment_text(text) == [text]


def test_sentences_are_collected_and_the_first_segment_is_short() -> None:
    sentence = "This sentence has forty characters, all in. "
    segments = segment_text(sentence * 40)
    assert [round(len(segment) / len(sentence)) for segment in segments] == [4, 9, 9, 9, 9]


def test_wide_characters_count_as_three() -> None:
    lengths = {
        language: {len(segment) for segment in segment_text(sentence * 90)[1:-1]}
        for language, sentence in {"zh": "一二三四五六七八九。", "ko": "가나다라마바사아. ", "en": "Abcdefgh. "}.items()
    }
    assert lengths == {"zh": {140}, "ko": {149}, "en": {399}}


def test_a_sentence_is_not_cut_for_a_short_first_segment() -> None:
    long_one = "a long sentence " * 40 + "ends."
    segments = segment_text(long_one.capitalize() + " Next. " + "More here. " * 50)
    assert segments[0] == long_one.capitalize()


def test_a_short_rest_is_not_a_segment_of_its_own() -> None:
    text = "This is a sentence of some length, I think. " * 18 + "Yes."
    assert segment_text(text)[-1].startswith("This") and segment_text(text)[-1].endswith("think. Yes.")
    assert segment_text("Oh. A" + " long sentence" * 40 + ". Then.")[0].startswith("Oh. A long")


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("one line of words\n" * 100, "s"),
        ("words and words, " * 100, ","),
        ("so he said. " * 100, "."),  # no capitals anywhere
        ("和一些字和一些字和一些字，" * 100, "，"),
        ("words — " * 200, "—"),
        ("word " * 400, "d"),
        ("คำพูดภาษาไทยยาวมาก " * 60, "ก"),
    ],
    ids=["lines", "commas", "lower case", "Chinese commas", "dashes", "spaces", "Thai"],
)
def test_a_sentence_that_is_too_long_is_cut_at_the_best_border(text: str, ends: str) -> None:
    segments = segment_text(text)
    assert len(segments) > 2 and all(segment.endswith(ends) for segment in segments)
    assert all(100 < weight(segment) <= 400 for segment in segments[1:-1])
    for segment in stream(text, SegmenterConfig())[:-1]:
        assert 400 <= weight(segment) <= 800 and segment.strip().endswith(ends)


def test_a_better_border_is_preferred() -> None:
    text = "Well " + "some words, " * 20 + "\n" + "other words, " * 60
    assert segment_text(text)[0].endswith("some words,") and segment_text(text)[1].startswith("other")


@pytest.mark.parametrize(
    "word", ["a", "字", "가", "\u1112\u1161\u11ab", "क्ष", "กำ", "e\u0301\u0323", "ﾊﾟ", "x👩🏽\u200d🚀"]
)
def test_a_text_without_borders_is_cut_between_characters(word: str) -> None:
    for segments in (segment_text(word * 1000), stream(word * 1000, SegmenterConfig())):
        assert len(segments) > 1 and "".join(segments) == word * 1000
        assert all(len(segment) % len(word) == 0 for segment in segments)
        assert max(map(weight, segments)) <= 800 + len(word)


def test_a_long_rule_does_not_cut_a_word() -> None:
    text = "Title of it\n" + "=" * 3000 + "\nText of it."
    assert segment_text(text) == ["Title of it\n" + "=" * 3000, "Text of it."]


@pytest.mark.parametrize("lengths", [(0, 1, 2), (1, 3, 2), (3, 2, 4)])
def test_lengths_that_do_not_ascend_are_refused(lengths: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"at least 1 and ascend, got {lengths}")):
        SegmenterConfig(*lengths)


def test_streaming_text_passes_at_once_while_the_segment_is_short() -> None:
    segmenter = Segmenter()
    for piece in ("Hello", ".", " ", '"', "So", " I", " said", ". ", "\n\n", "好", "。", "「"):
        assert segmenter.push(piece) == [SegmentPiece(piece, ends=False)]
    assert segmenter.finish() == [SegmentPiece("", ends=True)]


def test_only_white_space_and_opening_marks_are_held_back_when_the_segment_may_end() -> None:
    segmenter = Segmenter(SMALL)
    assert segmenter.push("Twenty characters it") == [SegmentPiece("Twenty characters it", ends=False)]
    assert segmenter.push(" ") == []
    assert segmenter.push("has") == [SegmentPiece(" has", ends=False)]
    assert segmenter.push(".") == [SegmentPiece(".", ends=False)]
    assert segmenter.push("”") == [SegmentPiece("”", ends=False)]
    assert segmenter.push(" ") == [] and segmenter.push("“") == []
    assert segmenter.push("Th") == [SegmentPiece(" ", ends=True), SegmentPiece("“Th", ends=False)]
    assert segmenter.push("en.") == [SegmentPiece("en.", ends=False)]
    assert segmenter.finish() == [SegmentPiece("", ends=True)]


def test_an_opening_mark_at_the_end_of_the_text_starts_no_segment() -> None:
    segmenter = Segmenter(SMALL)
    assert segmenter.push("Twenty characters it has. (") == [SegmentPiece("Twenty characters it has.", ends=False)]
    assert segmenter.finish() == [SegmentPiece(" (", ends=True)]


def test_white_space_with_an_accent_is_not_a_border() -> None:
    text = "wordwor. \u0301-Word"
    assert stream(text, SegmenterConfig(5, 10, 20)) == stream([text], SegmenterConfig(5, 10, 20)) == [text]


@pytest.mark.parametrize(
    ("text", "ends", "may_end"),
    [
        ("Hello.", True, True),
        ("Hello. ", True, True),
        ("你好。", True, True),
        ("He said 'yes!'", True, True),
        ("Ask Dr.", False, True),
        ("I have 3.", False, True),
        ("Hello,", False, False),
        ("Hello ", False, False),
        ("Hello", False, False),
        ("...", False, False),
        ("", False, False),
    ],
)
def test_a_text_that_pauses_can_end_its_sentence(text: str, ends: bool, may_end: bool) -> None:
    for in_doubt, expected in ((False, ends), (True, may_end)):
        segmenter = Segmenter(SegmenterConfig(1, 1, 800))
        pieces = [*segmenter.push(text), *segmenter.end_sentence(in_doubt=in_doubt)]
        assert any(piece.ends for piece in pieces) == expected
        assert (
            "".join(piece.text for piece in (*pieces, *segmenter.push(" Next"), *segmenter.finish())) == f"{text} Next"
        )


def test_a_pause_ends_a_clause_where_clauses_are_segments() -> None:
    segmenter = Segmenter(SegmenterConfig(1, 1, 800, ends_at_clauses=True))
    assert "".join(piece.text for piece in (*segmenter.push("Well,"), *segmenter.end_sentence())) == "Well,"
    assert segmenter.finish() == []


def test_a_segmenter_starts_a_new_text_after_finish() -> None:
    segmenter = Segmenter(SMALL)
    assert segmenter.finish() == [] and segmenter.push("") == []
    segmenter.push("Nineteen characters")
    assert segmenter.finish() == [SegmentPiece("", ends=True)]
    assert segmenter.push("Go. On. ") == [SegmentPiece("Go. On. ", ends=False)]


# Words and marks of all kinds: borders depend on their neighbors.
SNIPPETS = [
    "Mr",
    "z",
    "B",
    "3",
    "14",
    "word",
    "Word",
    "字",
    "です",
    "と",
    "กำ",
    "하",
    "हि",
    ".",
    "...",
    "!",
    "?",
    "。",
    "，",
    ",",
]
SNIPPETS += [
    "”",
    "「",
    "」",
    '"',
    "(",
    ")",
    "¿",
    "—",
    "-",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\n\n",
    "\u200d",
    "\u0301",
    "\u200b",
    "😀",
]
texts = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=3)), max_size=60).map("".join)
configs = st.sampled_from([SMALL, EACH, SegmenterConfig(5, 5, 8), SegmenterConfig(1, 1, 1), SegmenterConfig(3, 30, 30)])
quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@quick
@given(text=texts, config=configs)
def test_no_text_is_lost_or_repeated_and_every_segment_has_a_word(text: str, config: SegmenterConfig) -> None:
    segments = segment_text(text, config)
    assert visible("".join(segments)) == visible(text)
    if len(segments) > 1:
        assert all(segment == segment.strip() and has_word(segment) for segment in segments)


@quick
@given(text=texts, config=configs, data=st.data())
def test_streaming_text_is_complete_and_its_segments_do_not_depend_on_the_pieces(
    text: str, config: SegmenterConfig, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    segments = stream(pieces, config)
    assert "".join(segments) == text
    assert segments == stream(text, config) == stream([text], config)
    if len(segments) > 1:
        assert all(has_word(segment) and not segment[0].isspace() for segment in segments[1:])


@quick
@given(text=texts)
def test_streaming_and_whole_texts_have_the_same_sentences(text: str) -> None:
    assert [s.strip() for s in stream([text], EACH)] == [s.strip() for s in segment_text(text, EACH) if text]


@quick
@given(text=texts, config=configs)
def test_no_character_is_separated_from_its_combining_marks(text: str, config: SegmenterConfig) -> None:
    for left, right in pairwise(stream([text], config)):
        assert unicodedata.category(right[0])[0] != "M" and not left.endswith("\u200d")
    assert all(unicodedata.category(segment[0])[0] != "M" for segment in segment_text(text, config)[1:])


@quick
@given(text=st.text(st.sampled_from("abA字 .,\n。-"), max_size=400))
def test_no_segment_is_longer_than_allowed(text: str) -> None:
    text = text.replace(".....", ".").replace("     ", " ")
    assert all(weight(segment) <= SMALL.max_chars + 8 for segment in segment_text(text, SMALL)[1:])
    assert all(weight(segment.rstrip(" .,\n。-")) <= SMALL.max_chars for segment in stream([text], SMALL))


PATHOLOGICAL = {
    "dots": "." * 200_000,
    "dots between words": "word" + "." * 200_000 + "word",
    "spaced dots": "word" + ". " * 40_000 + "word",
    "letters with dots": "a." * 50_000,
    "letters with spaced dots": "a. " * 20_000,
    "quotes": '"' * 200_000,
    "opening quotes": "word. " + "“" * 200_000 + "word",
    "newlines": "word" + "\n" * 200_000 + "word",
    "hyphens": "word " + "-" * 200_000 + " word",
    "one word": "a" * 200_000,
    "accents": "a" + "\u0301" * 200_000 + "a",
    "prose": "It is a truth, universally acknowledged, that Mr. Darcy has 3.14 words. " * 1_000,
    "Chinese": "这是一个很长的句子，里面有很多字。" * 3_000,
}


@pytest.mark.parametrize("text", PATHOLOGICAL.values(), ids=PATHOLOGICAL.keys())
def test_time_is_linear_in_the_text(text: str) -> None:
    start_s = time.process_time()
    segments = segment_text(text)
    live = stream((text[at : at + 16] for at in range(0, len(text), 16)), SegmenterConfig())
    # Under a second each; quadratic time would be minutes.
    assert time.process_time() - start_s < 10
    assert visible("".join(segments)) == visible(text) and "".join(live) == text
