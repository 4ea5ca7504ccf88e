import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine.errors import RequestError
from oscine.text.options import TextLevel, TextOptions
from oscine.text.preparation import StreamingPreparation, StreamPiece, prepare_text
from oscine.text.segmenter import SegmenterConfig
from oscine.text.spoken_text import Pause
from oscine.text.ssml import tag_warning


def spoken(text: str, level: TextLevel = "spoken", language: str = "english") -> str:
    parts = prepare_text(text, TextOptions(text_level=level), language)
    return "|".join(str(part.seconds) if isinstance(part, Pause) else part.spoken for part in parts)


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        ("characters", "FBI", "eff bee eye"),
        ("spell-out", "K7-a", "kay seven dash ay"),
        ("verbatim", "é&amp;", "ee and"),
        ("digits", "2026", "two zero two six"),
        ("telephone", "+1 555-0100", "plus one, five five five, zero one zero zero"),
        ("cardinal", "1984", "one thousand nine hundred eighty-four"),
        ("number", "-1,234.5", "minus one thousand two hundred thirty-four point five"),
        ("ordinal", "21", "twenty-first"),
        ("ordinal", "3rd", "third"),
        ("date", "5/6/2026", "May sixth, twenty twenty-six"),
        ("time", "9:05", "nine oh five"),
        ("currency", "$5.50", "five dollars fifty"),
        ("unit", "5 km", "five kilometers"),
        ("cardinal", "many", "many"),
        ("nonsense", "5", "five"),
        ("cardinal", "1984,", "one thousand nine hundred eighty-four,"),
        ("ordinal", "1,000", "one thousandth"),
        ("ordinal", "11TH", "eleventh"),
        ("date", "20260506", "May sixth, twenty twenty-six"),
        # with letters, as without the tag
        ("digits", "A12", "ay twelve"),
        ("telephone", "1-800-FLOWERS", "one, eight zero zero, flowers"),
        ("telephone", "555-0100 ext. 12", "five five five, zero one zero zero extension twelve"),
    ],
)
def test_say_as_says_how_its_content_is_read(kind: str, written: str, read: str) -> None:
    assert spoken(f"So <say-as interpret-as='{kind}'>{written}</say-as> it is.") == f"So {read} it is."


@pytest.mark.parametrize(
    ("form", "written", "read"),
    [
        ("dmy", "5/6/2026", "June fifth"),
        ("mdy", "5/6/2026", "May sixth"),
        ("mm/dd/yyyy", "05/06/2026", "May sixth"),
        ("ymd", "2026/5/6", "May sixth"),
        ("yyyymmdd", "20260506", "May sixth"),
        ("dmy", "05062026", "June fifth"),
        ("mdy", "May 6, 2026", "May sixth"),
    ],
)
def test_a_date_has_a_format(form: str, written: str, read: str) -> None:
    text = f'<say-as interpret-as="date" format="{form}">{written}</say-as>'
    assert spoken(text) == f"{read}, twenty twenty-six"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("5%", "five percent"),
        ("$5", "dollars five"),
        ("7(5)", "seven five"),
        ("5-6", "five minus six"),
        ("x=5/6", "x equals five slash six"),
        ("12A12", "twelve ay twelve"),
        ("FBIs", "eff bee eyes"),
        ("5-year", "five year"),
        ("55", "five five"),
    ],
)
def test_what_say_as_says_is_apart_from_what_is_written_out(text: str, read: str) -> None:
    tagged = re.sub("5|A|FBI", lambda one: f"<say-as interpret-as='{KINDS[one[0]]}'>{one[0]}</say-as>", text)
    assert spoken(tagged) == read
    assert streamed([*tagged], "spoken", "english")[0][0] == read  # type: ignore[index]


KINDS = {"5": "cardinal", "A": "characters", "FBI": "characters"}


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        ("characters", "FBI", "F B I"),
        ("digits", "20", "2 0"),
        ("digits", "20,", "2 0,"),
        ("digits", "A12", "A12"),
        ("telephone", "555-01", "5 5 5, 0 1"),
        ("date", "5/6", "5/6"),
    ],
)
def test_below_the_level_spoken_say_as_sets_characters_apart(kind: str, written: str, read: str) -> None:
    for level, language in (("raw", "english"), ("clean", "english"), ("clean", "chinese")):
        text = f'So <say-as interpret-as="{kind}">{written}</say-as>.'
        assert spoken(text, level, language) == f"So {read}."  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('The <sub alias="World Wide Web">WWW</sub>.', "The World Wide Web."),
        ("<SUB ALIAS='5 km &amp; more'>far</SUB> away", "five kilometers and more away"),
        ('A <sub alias="">silent</sub> word', "A  word"),
        ("A <sub>plain</sub> word", "A plain word"),
        ('<sub alias="x">a <b>b</b></sub>', "a b"),
        ('<b><sub alias="one">1</sub></b>', "one"),
        ('<b><break time="1s"/>two', "1.0|two"),
        ("<speak><p>One</p><p><s>Two</s><s>Three</s></p></speak>", "One. Two. Three."),
        ("It is <emphasis level='strong'>very</emphasis> <prosody pitch='high'>nice</prosody>.", "It is very nice."),
        ('<phoneme alphabet="ipa" ph="pɪˈkɑːn">pecan</phoneme> pie', "pecan pie"),
    ],
)
def test_other_tags_leave_what_is_to_be_spoken(text: str, read: str) -> None:
    assert spoken(text) == read


@pytest.mark.parametrize("level", ["raw", "clean", "spoken"])
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<p>One</p>\n<p>Two</p>", "One.\nTwo."),
        ("<speak>\n  <p>Hi there.</p>\n  <p>\n    One.\n  </p>\n</speak>\n", "Hi there.\n  \n    One."),
        ('Hello <break time="1s"/>\n <p>World</p>', "Hello|1.0|World."),
        ("Really?</p> <p>Yes", "Really? Yes"),
        ("One <p>two</p>\n three", "One. two.\n three"),
        ("One\n  <p>two", "One.\n  two"),
        ("So <break/> \u2014 it is", "So|0.5|it is"),
    ],
)
def test_a_block_ends_with_one_mark_however_its_tags_are_laid_out(level: TextLevel, text: str, read: str) -> None:
    assert spoken(text, level) == (read.replace("it", "\u2014 it") if level == "raw" else read)
    assert [*streamed(list(text), level, "english")] == streamed([text], level, "english")


def test_a_page_of_html_has_no_stray_marks() -> None:
    page = "<html>\n<body>\n<h1>Title</h1>\n\n<p>One.</p>\n\n<p>Two</p>\n</body>\n</html>"
    assert spoken(page, "clean") == "Title.\n\nOne.\n\nTwo."
    assert spoken("a <br> b, <hr>\nc", "clean") == "a. b, \nc"


def test_a_raw_text_keeps_tags_that_are_not_ssml() -> None:
    text = '<speak>a < b <b>c</b> <sub alias="d">e</sub> <emphasis>f</emphasis></speak> <subs> <p'
    assert spoken(text, "raw") == "a < b <b>c</b> d f <subs> <p"


def test_markup_false_keeps_all_tags() -> None:
    text = '<sub alias="d">e</sub> <say-as interpret-as="digits">12</say-as>'
    assert prepare_text(text, TextOptions(text_level="clean", markup=False))[0].written == text  # type: ignore[union-attr]


@pytest.mark.parametrize("level", ["raw", "clean", "spoken"])
def test_a_text_of_tags_only_is_refused(level: TextLevel) -> None:
    with pytest.raises(RequestError, match="no words"):
        spoken('<speak> <sub alias=""></sub> </speak>', level)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("plain < text", None),
        ("<speak><p><s>a</s></p><break/><sub alias='x'>y</sub><b>z</b><br/></speak>", None),
        ("<prosody rate='fast'><phoneme ph='x'>a</phoneme></prosody>", "without effect, .*: <phoneme>"),
        ("<prosody PITCH='low' rate='slow'>a</prosody><prosody contour='x'>b</prosody>", "without .*: contour, pitch"),
        ("<think>a</think> <amazon:effect name='x'>b</amazon:effect>", "unknown tags: <amazon:effect>, <think>"),
        ("<say-as interpret-as='shout'>a</say-as>", "unknown values of interpret-as: shout"),
        ("".join(f"<x{n}>" for n in range(20)), "unknown tags: <x0>, .* and others"),
        ("x <y and z> w, if i <len and n> 0", None),
        ("<lexicon uri='x'/><metadata><foo/></metadata>", "without .*: <lexicon>, <metadata>; unknown tags: <foo>"),
        (f"<voice name='{'x' * 300}'>a</voice>", "without effect, .*: <voice>"),
    ],
)
def test_tags_without_effect_are_named(text: str, warning: str | None) -> None:
    found = tag_warning(text, "clean")
    assert (found is None) if warning is None else re.fullmatch(warning, found or "")


def test_tags_that_a_raw_text_speaks_are_not_named() -> None:
    assert tag_warning("vector<int> <think>a</think>", "raw") is None
    assert tag_warning("<voice>a</voice>", "raw") == "without effect, only their content is spoken: <voice>"


LONG = "x" * 225
NAMESPACES = " ".join(f'xmlns:n{number}="http://www.example.org/{number}"' for number in range(12))


@pytest.mark.parametrize("level", ["raw", "clean"])
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('<?xml version="1.0"?>\n<!DOCTYPE speak SYSTEM "s.dtd">\n<speak>Hi <!-- no -->you</speak>', "Hi you"),
        ("<speak>One <![CDATA[a < b]]></speak>", "One a < b"),
        (f'Hello <audio src="https://example.org/{LONG}.mp3"/>there', "Hello there"),
        (f"<speak {NAMESPACES}>Hi</speak>", "Hi"),
        ('<phoneme ph="a>b">one</phoneme> <prosody pitch="<5">two</prosody>', "one two"),
        ('<sub alias="a > b">x</sub>', "a > b"),
        (f"<sub alias='{LONG}{LONG}'>x</sub>", LONG + LONG),
        (f"<sub alias='{LONG}{LONG}{LONG}'>x</sub>", "x"),
    ],
)
def test_what_xml_allows_is_no_text(level: TextLevel, text: str, read: str) -> None:
    assert spoken(text, level) == read
    said = "".join(str(part[0]) for part in streamed([*text], level, "english") if isinstance(part, tuple))
    assert said.strip() == read


def test_comments_of_a_raw_text_without_ssml_are_text() -> None:
    assert spoken("a <!-- b --> <?php c ?>", "raw") == "a <!-- b --> <?php c ?>"


@pytest.mark.parametrize("level", ["raw", "clean", "spoken"])
def test_s_is_a_sentence_in_ssml_only(level: TextLevel) -> None:
    assert spoken("<speak><s>One</s><s>Two</s></speak> <p>x</p>", level).startswith("One. Two. ")
    html = "the <s>old</s> new, <speak></speak>x<s>y</s>"
    assert spoken(html, "clean") == "the old new, xy"


PIECES = [
    "<sub alias=",
    '"x y"',
    ">",
    "</sub>",
    "<say-as interpret-as=",
    "'digits'",
    "'characters'",
    "</say-as>",
    "<p>",
]
PIECES += [
    "<",
    "/",
    "s>",
    "<s>",
    "<speak>",
    "</speak>",
    "<b>",
    "<break/>",
    "<emphasis>",
    "word",
    " ",
    "FBI",
    "12",
    ". ",
    "&",
    "\n",
    "<?xml ",
    "?>",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    '<audio src="',
    "%",
    "-",
    "  <p>",
    "</s>",
    "</p>",
]


def streamed(pieces: list[str], level: TextLevel, language: str) -> list[tuple[str, str] | float | str]:
    stream = StreamingPreparation(TextOptions(text_level=level), language, SegmenterConfig(20, 40, 80))
    joined: list[tuple[str, str] | float | str] = []
    said = written = ""
    for result in [result for piece in pieces for result in stream.push(piece)] + stream.finish():
        if isinstance(result, StreamPiece):
            said, written = said + result.text.spoken, written + result.text.written
            if result.ends:
                joined.append((said, written))
                said = written = ""
        else:
            joined.append(result.seconds if isinstance(result, Pause) else str(result))
    return joined


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=20),
    st.sampled_from(["raw", "clean", "spoken"]),
    st.sampled_from(["english", "german"]),
)
def test_a_streaming_text_with_tags_is_read_alike_however_it_is_cut(
    pieces: list[str], level: TextLevel, language: str
) -> None:
    whole = streamed(["".join(pieces)], level, language)
    assert streamed(pieces, level, language) == whole
    assert streamed(list("".join(pieces)), level, language) == whole
