import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oscine.errors import RequestError
from oscine.text.cleaning import CleaningRule, is_plain
from oscine.text.options import TextOptions
from oscine.text.preparation import prepare_text
from oscine.text.scanner import TextScanner
from oscine.text.spoken_text import Pause, SpokenText

CLEAN = TextOptions(text_level="clean")


def cleaned(pieces: list[str]) -> tuple[str, str]:
    """What is left, and what was written."""
    scanner = TextScanner([CleaningRule()])
    passed = [passed for piece in pieces for passed in scanner.push(piece)] + list(scanner.finish())
    return "".join(piece.said for piece in passed), "".join(piece.written for piece in passed)


CASES = {
    # typographic characters
    "I can’t believe it’s Anna’s.": "I can't believe it's Anna's.",
    "“Well…” she said — “no”.": '"Well..." she said, "no".',
    "Wait—what? Pages 10–20": "Wait, what? Pages 10-20",
    "„Nein“, ‚ja‘; l’ami": "\"Nein\", 'ja'; l'ami",
    "«\u00a0Bonjour\u00a0» !": '"Bonjour" !',
    "a\u00a0b\u2009c\u202fd": "a b c d",
    "soft\u00adhy\u200bphen\u2060ated\ufeff": "softhyphenated",
    "bell\x07 and \u202ebidi\u202c": "bell and bidi",
    "ﬁne 𝓗𝓮𝓵𝓵𝓸": "fine Hello",
    "use --option, not -- this": "use --option, not, this",
    "x → y, a -> b": "x, y, a, b",
    # emoji
    "Hi 👋 there 🎉🎉": "Hi there",
    "👋🏽 Hi. I love it 😍 See you 👨‍👩‍👧": "Hi. I love it, See you",
    "Press 1️⃣ now ❤️": "Press 1 now",
    # Markdown
    "# Title\n\nSome **bold**, _it_ and `code`.": "Title.\n\nSome bold, it and code.",
    "Buy:\n- milk\n* eggs\n1. tea\n\nThanks": "Buy:\nmilk.\neggs.\n1. tea.\n\nThanks",
    "- [x] done\n- [ ] not": "done.\nnot",
    "See [the docs](https://a.b/c) and ![a cat](c.png).": "See the docs and a cat.",
    "A [^1] note, a [bracket] and a (paren)": "A  note, a [bracket] and a (paren)",
    "| a | b |\n|---|---|\n| 1 | 2 |": "a, b.\n\n1, 2",
    "```python\nrun(1)\n```\nDone": "\nrun(1).\n\nDone",
    "> quoted\n\nTitle\n=====\nText": "quoted.\n\nTitle.\n\nText",
    "a\n\n---\n\nb": "a.\n\n\n\nb",
    "snake_case 2*3 a * b **Un**likely": "snake_case 2*3 a * b Unlikely",
    r"\*not emphasis\*": "*not emphasis*",
    # HTML
    "a <b>bold</b><br>move &amp; more": "a bold. move & more",
    "<p>One</p><p>two</p>": "One. two.",
    "<speak>Hi</speak> <think>so</think>": "Hi so",
    "5 < 6 &lt;3 and x <y and y> z": "5 < 6 <3 and x <y and y> z",
    "<https://a.b/c> or <a@b.c>": "https://a.b/c or a@b.c",
    "Mail <007@mi6.uk> now, 5<6\uff0c<3": "Mail 007@mi6.uk now, 5<6\uff0c<3",
    "the <s>old</s> new": "the old new",
    "<a href=\"x\" title='y'>link</a><!-- no -->": "link",
    # lines
    "Shopping list\n\nMilk\nand eggs": "Shopping list.\n\nMilk\nand eggs",
    # Chinese and Japanese keep their own marks
    "你好“世界”——好……": "你好“世界”——好……",
}  # fmt: skip


@pytest.mark.parametrize(("written", "spoken"), CASES.items())
def test_what_is_not_words_is_taken_out(written: str, spoken: str) -> None:
    assert cleaned([written]) == (spoken, written)


@pytest.mark.parametrize("written", CASES)
def test_a_text_is_cleaned_alike_character_by_character(written: str) -> None:
    assert cleaned(list(written)) == cleaned([written])


PIECES = ["a", "Bc", " ", "  ", "\n", "\n\n", "- ", "# ", "**", "*", "_", "`", "```", "[", "]", "(", ")", "](u.v)"]
PIECES += ["<b>", "</p>", "<br>", "<", ">", "&", "amp;", "&#39", ";", "—", "–", "’", "“", "…", "👋", "\u200d", "\ufe0f"]
PIECES += [
    "1",
    ".",
    "!",
    "![",
    "[^",
    "1]",
    "|",
    "---",
    "--",
    "->",
    "=",
    "~",
    "~~",
    "\\",
    "\u00a0",
    "\u200b",
    "你",
    "\r",
]
PIECES += ["\t", "«", "@", "<s>", "<speak>", "</speak>", ' x="', '"']


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=20))
@example(["👋", "  ", "👋", "a"])
@example(["<", "=", ">"])
def test_no_cut_changes_what_is_left_and_no_character_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = cleaned([text])
    assert whole[1] == text
    assert cleaned(pieces) == whole
    assert cleaned(list(text)) == whole


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("abcXYZ 012.,:;?!'\"()$%@+-"), max_size=60))
def test_ascii_prose_does_not_change(text: str) -> None:
    if is_plain(text):
        assert cleaned([text])[0] == text


def test_written_words_keep_what_was_taken_out() -> None:
    (prepared,) = prepare_text("**Hi** 👋 there… 🎉", CLEAN)
    assert isinstance(prepared, SpokenText)
    assert (prepared.spoken, prepared.written) == ("Hi there...", "**Hi** 👋 there… 🎉")
    start = prepared.spoken.index("there")
    assert prepared.written[slice(*prepared.written_range(start, start + 5))] == "there"


def test_a_break_is_still_a_pause() -> None:
    assert [
        item.seconds if isinstance(item, Pause) else item.spoken
        for item in prepare_text("<p>One</p> <break time='1s'/> **two**", CLEAN)
    ] == ["One.", 1.0, "two"]


@pytest.mark.parametrize("text", ["…", "👍", "**", "<br>", "?!", "- \n- "])
def test_marks_alone_are_refused_as_an_empty_text_is(text: str) -> None:
    with pytest.raises(RequestError, match="no words, only marks"):
        prepare_text(text, CLEAN)
