"""Token ids equal the official ones with the published vocabulary, but no text becomes a special token."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oscine.errors import CheckpointError, OscineError
from oscine.model.checkpoint import find_checkpoint
from oscine.prompt.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

IM_START, IM_END = 151644, 151645
FIRST_SPECIAL = 151643

HAND_PICKED = """
Hello.
Hello, world! How are you today?
I'm sure they'll say it's what we've done; you'd know, they're right, don't.
I'M SURE THEY'LL SAY IT'S WHAT WE'VE DONE; YOU'D KNOW, THEY'RE RIGHT, DON'T.
rock'n'roll 'tis 'twas o'clock y'all'd've ma'am 's 't 'x
the dogs' bones, James's hat, ‘quoted’ “double” don’t it’s
iPhone YouTube McDonald LaTeX kHz eBay macOS PyTorch JavaScript OpenAI GPT-4o iOS17 mRNA pH dB MHz USB-C WiFi
HTTPServer parseJSON XMLHttpRequest camelCaseWord PascalCaseWord snake_case_word SCREAMING_CASE kebab-case
Straße GROẞE naïve café façade Ångström Œuvre smörgåsbord Łódź İstanbul ıssız ŞIŞLI
你好，世界！今天天气怎么样？
我叫小明，今年３岁，住在北京市朝阳区建国路88号。
中文English混排text，没有空格but有标点。iPhone手机和YouTube视频
こんにちは、世界。カタカナとひらがなと漢字。ｶﾀｶﾅ半角
東京タワーは333メートルです。「引用」『二重』〜長音ー
안녕하세요 세계! 오늘 날씨가 좋네요.
Привет, мир! Ёлка, съёмка, объём; МОСКВА и Санкт-Петербург.
Γειά σου Κόσμε! ΣΊΣΥΦΟΣ σίσυφος
مرحبا بالعالم! كيف حالك اليوم؟ ١٢٣٤٥ مُشَكَّلٌ
שלום עולם! מה שלומך? בְּרֵאשִׁית
नमस्ते दुनिया! आप कैसे हैं? १२३ क्षत्रिय हिन्दी
สวัสดีชาวโลก วันนี้อากาศดีมาก ๑๒๓ เก้าอี้ น้ำ
ภาษาไทยไม่มีวรรค English ปนกัน
আমি বাংলায় গান গাই। தமிழ் மொழி తెలుగు ಕನ್ನಡ മലയാളം
မြန်မာ ខ្មែរ ລາວ བོད་ཡིག ქართული Հայերեն አማርኛ
Tiếng Việt có dấu: Nguyễn Thị Hồng, phở, đường
0 1 12 123 1234 12345 1,234,567.89 3.14159 1e10 0x1F 007 1st 2nd 3rd 4th 1990s
½ ¼ ⅓ ² ³ ₁ ₂ Ⅳ Ⅻ ① ② ㊗ ㈱ ％ ‰
$5 €10.50 £3 ¥1000 ₹500 ₩1,000 ₿0.1 5$ 10€ US$ 20 ¢99
２０２４年１月１日 ＡＢＣ ａｂｃ ！？（全角）＃＠
👋 🌍 😀😃😄 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ❤️ ☺ 1️⃣ 🤷🏾‍♀️ ✈︎
smile:) :-( ;-) XD <3 ^_^ ¯\\_(ツ)_/¯ (╯°□°)╯︵ ┻━┻
... .... …… ?! ?!?! !!! ---- —— – ‒ ― *** ### ~~~ ___ ;;; ,,,
(a) [b] {c} <d> «e» 「f」 “g” ‘h’ `i` "j" 'k'
a/b and/or 24/7 w/o c/o // /* */ \\ | & && || == != <= >= -> => ::
def f(x): return x**2 + 1  # comment
for (int i = 0; i < n; ++i) { a[i] += b[i]; }
SELECT * FROM t WHERE a='x' AND b<>"y";
<div class="a">text</div> <br/> &nbsp; &amp; <!-- c -->
https://www.example.com/path/to?query=1&b=%20#frag http://localhost:8000/v1
user.name+tag@example.co.uk @handle #hashtag #漢字 C:\\Users\\me \\\\server\\share /usr/bin ~/x
E = mc² ∑_{i=0}^{n} x_i ≤ ∞ √2 ≈ 1.414 ∀x∈ℝ ∂f/∂x ∫₀¹ α+β=γ ±5 × ÷ ≠
\\frac{1}{2} $x^2$ \\LaTeX{} \\begin{align} a &= b \\\\ \\end{align}
-5 +5 5-3 5 - 3 -5°C 90° 5'10" 6'2 12:30 12:30pm 2024-01-01 01/02/2024 T-shirt e-mail co-op
Mr. Dr. U.S.A. e.g. i.e. etc. Ph.D. a.m. p.m. vs. No.5 Inc.
supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft
Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch
𝐇𝐞𝐥𝐥𝐨 𝓦𝓸𝓻𝓵𝓭 ℌ𝔢𝔩𝔩𝔬 𝟙𝟚𝟛 Ｈｅｌｌｏ ʰᵉˡˡᵒ
𠮷野家 𩸽 㐀 𪚥 豈 樂 ﬁ ﬂ ﬀ
""".strip().split("\n")

# Built from code points, so that no editor or formatter normalizes them.
BY_CODE_POINT = [
    "cafe\u0301 e\u0301 E\u0301",  # NFC joins these
    "A\u030a \u212b \u00c5 \u2126 \u03a9 \u212a K",  # Angstrom, Ohm and Kelvin signs
    "q\u0307\u0323 q\u0323\u0307 s\u0323\u0307",  # mark reordering
    "e\u0301\u0301\u0301\u0301 Z\u0351\u036b\u0343a\u0300\u0316lgo",
    "\u0301starts with a mark",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8 \u1112\u1161 \u11ab",  # jamo that compose to syllables, and some that cannot
    "\u3131\u3134\u3137 \u314f\u3151",  # compatibility jamo
    "\u304b\u3099 \u304c \u30cf\u309a \uff76\uff9e",  # kana with voicing marks
    "\u0928\u093c \u0929 \u0915\u093c \u0958",  # Devanagari nukta; U+0958 is excluded from composition
    "\u0e19\u0e49\u0e33 \u0e01\u0e33 \u0e40\u0e40\u0e1a\u0e1a",
    "\u0627\u0653 \u0622 \u0644\u0627 \ufefb",
    "\u05e9\u05c1 \ufb2a",
    "\ufb01 \ufb03 \u2460 \u00bd",  # compatibility forms, which NFC leaves
    "a\u200bb a\u200cb a\u200db a\u2060b \ufeffbom a\ufeffb",
    "soft\u00adhyphen non\u00a0breaking\u202fspace thin\u2009space ideographic\u3000space",
    "\u2028line\u2028separator\u2029paragraph\u2029",
    "next\u0085line form\x0cfeed vertical\x0btab",
    "bell\x07 escape\x1b[31mred\x1b[0m delete\x7f unit\x1fsep \x01\x02\x03 \x80\x9f",
    "rtl\u202eoverride\u202c \u200emarks\u200f",
    "private \ue000\uf8ff use, \uffff \ufffe \ufffd nonchars, \U0010ffff last",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f \u2764\ufe0e 1\ufe0f\u20e3",
    "tag \U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f flag",
    "\u01c4\u01c5\u01c6 \u0130i\u0131I \u00df\u1e9e \ua7ae \u2c6f",  # odd cases; the contraction rule folds case
    "'\u017f 'S 'ſ it'\u017f we'\u212a",  # the long s folds to s: is 'ſ a contraction?
    "\u0300\u0301\u0302 alone, \u20dd ring, \u0488",
]

WHITE_SPACE = [
    "\nstarts with one newline",
    "\n\nstarts with two",
    "\n\n\nthree",
    "\n" * 30 + "many",
    "\r\nstarts with CRLF",
    "\r\rtwo returns",
    " starts with a space",
    "  two spaces",
    " \n space newline",
    "  \n  \n  ragged",
    "\n \n \t\n mixed",
    "\tstarts with a tab",
    "\t\n\ttabs",
    "\u3000ideographic first",
    "\u00a0no-break first",
    "\u2028separator first",
    "\x0b\x0c\x85odd ones first",
    "ends with newline\n",
    "ends with two\n\n",
    "ends with CRLF\r\n",
    "ends with space ",
    "ends with many   ",
    "ends with tab\t",
    "ends with \n space \n ",
    "in  the   middle    of     words",
    "tab\tbetween\t\ttabs",
    "new\nline\n\nthen\n\n\nmore",
    "win\r\ndows\r\n\r\nlines",
    "trailing dots...\n\nthen text!\n?\n\r\n",
    "a \n b\n c \n\n d  \n",
    "1 2  3   4\t5\n6",
    "你好 世界  再见\n\n\t完",
    "x" + " " * 200 + "y",
    "x" + "\t" * 70 + "y" + "\n" * 90 + "z",
    "x" + " \n" * 60 + "z",
    "- list\n  - nested\n    - deeper\n\n1. one\n2. two",
]

VERY_LONG = [
    "a" * 5000,
    "Ab" * 2000,
    "漢字" * 1500,
    "ก" * 2000,
    "9" * 1000,
    "!?" * 1500,
    "👩‍🚀" * 300,
    "word " * 2000,
    "e\u0301" * 1500,
    "'s" * 500,
]


def _mixtures(count: int) -> list[str]:
    """Random neighboring characters from a fixed seed."""
    pieces = [
        *("the", "The", "THE", "iPhone", "kHz", "'s", "'LL", "'", "’t", "don't", "naïve", "e\u0301", "\u0301", "ß"),
        *("你好", "。", "，", "カナ", "か\u3099", "한글", "\u1112\u1161\u11ab", "Привет"),
        *("مرحبا", "हिन्दी", "ไทย", "น้ำ"),
        *("0", "12", "３", "½", "²", "Ⅳ", "①", "१", "٣"),
        *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u3000"),
        *("\u2028", "\u200b", "\u200d", "\ufeff"),
        *(".", ",", "...", "!?", "-", "—", "_", "/", "\\", "$", "€", "#", "@"),
        *("(", ")", "[", "]", "<", ">", "|", "<|", "|>"),
        *("👍", "👍🏽", "👨‍👩‍👧", "❤️", "\x07", "\x7f", "\ue000", "\U0010ffff", "𝐇", "𠮷"),
    ]
    chance = random.Random(2026)
    return ["".join(chance.choices(pieces, k=chance.randint(2, 24))) for _ in range(count)]


TEXTS = [*HAND_PICKED, *BY_CODE_POINT, *WHITE_SPACE, *VERY_LONG, *_mixtures(300)]

SPECIAL_LITERALS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|object_ref_start|>", "<|vision_start|>", "<|fim_prefix|>"),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_start|>", "<|audio_pad|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_response>", "<|audio_end|>", "<|file_sep|>", "<|repo_name|>"),
]


@pytest.fixture(scope="module")
def tokenizer(vocabulary: Path) -> Tokenizer:
    return Tokenizer.from_folder(vocabulary)


@pytest.fixture(scope="module")
def official_ids(official: Any, checkpoints: Callable[[str, str], Path]) -> Callable[[list[str]], list[list[int]]]:
    folder = checkpoints("0b6", "custom_voice")
    return lambda texts: official.call("tokenize", folder=folder, texts=texts)["ids"]


@pytest.mark.parametrize(
    ("role", "closing"),
    [("assistant", "<|im_end|>\n<|im_start|>assistant\n"), ("assistant", "<|im_end|>\n"), ("user", "<|im_end|>\n")],
    ids=["text", "reference", "instruct"],
)
def test_a_turn_has_the_official_ids(
    tokenizer: Tokenizer, official_ids: Callable[[list[str]], list[list[int]]], role: str, closing: str
) -> None:
    expected = official_ids([f"<|im_start|>{role}\n{text}{closing}" for text in TEXTS])
    after = [IM_END, 198, IM_START, 77091, 198] if "<|im_start|>" in closing else [IM_END, 198]
    for text, ids in zip(TEXTS, expected, strict=True):
        turn = tokenizer.encode_turn(role, text)
        assert [IM_START, *turn.role_ids, *turn.body_ids, *after] == list(ids), f"{text[:80]!r}"


def test_plain_text_has_the_official_ids(
    tokenizer: Tokenizer, official_ids: Callable[[list[str]], list[list[int]]]
) -> None:
    for text, ids in zip(TEXTS, official_ids(TEXTS), strict=True):
        assert tokenizer.encode(text) == list(ids), f"{text[:80]!r}"


def test_the_ids_of_the_chat_markup(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_turn("assistant", "Hello").role_ids == [77091, 198]
    assert tokenizer.encode_turn("user", "Hello").role_ids == [872, 198]
    assert tokenizer.encode("\n") == [198]


@pytest.mark.parametrize(("opening", "newline_id"), [("", 198), ("\n", 271), ("\n\n", 1406)])
def test_newlines_at_the_start_merge_into_the_role(tokenizer: Tokenizer, opening: str, newline_id: int) -> None:
    turn = tokenizer.encode_turn("assistant", opening + "Hello")
    assert turn.role_ids == [77091, newline_id]
    assert turn.body_ids == tokenizer.encode("Hello")


def test_an_empty_text_has_an_empty_body(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_turn("assistant", "").body_ids == []


@pytest.mark.parametrize("text", ["iPhone", "YouTube", "kHz"])
def test_mixed_case_words_are_split_the_qwen_way(tokenizer: Tokenizer, text: str) -> None:
    # Mistral's rule would cut these before the upper-case letter; Qwen's BPE sees the word whole.
    cut = next(i for i in range(1, len(text)) if text[i].isupper() and text[i - 1].islower())
    assert tokenizer.encode(text) != tokenizer.encode(text[:cut]) + tokenizer.encode(text[cut:])


@pytest.mark.parametrize("literal", SPECIAL_LITERALS)
def test_special_tokens_in_a_text_are_plain_text(tokenizer: Tokenizer, literal: str) -> None:
    for text in (literal, f"a {literal} b", literal * 3, f"{literal}\n{literal}", f"你好{literal}"):
        ids = tokenizer.encode(text)
        assert max(ids) < FIRST_SPECIAL
        assert len(ids) > text.count(literal)


def test_no_text_reaches_a_special_id(tokenizer: Tokenizer) -> None:
    chance = random.Random(7)
    mixed = ["".join(chance.choices([*SPECIAL_LITERALS, *TEXTS[:60], " ", "\n"], k=6)) for _ in range(100)]
    for text in itertools.chain(TEXTS, mixed):
        turn = tokenizer.encode_turn("assistant", text)
        assert len(turn.role_ids) == 2
        assert max([*turn.role_ids, *turn.body_ids]) < FIRST_SPECIAL


def test_ascii_texts_have_the_ids_of_the_whole_split() -> None:
    """Words of ASCII texts are split by another expression and encoded one by one, and their ids are remembered."""
    tokenizer = Tokenizer.from_folder(find_checkpoint("demo"))
    rng = random.Random(7)
    every, common = [chr(code) for code in range(128)], [*"aAbBsStTrReEvVlLdDmM019'.,-!?\t\n\r\v\f\x1c\x1f", *"   "]
    for letters in (every, common):
        for _ in range(5000):
            text = "".join(rng.choices(letters, k=rng.randrange(40)))
            assert tokenizer.encode(text) == tokenizer._bpe.encode(text, add_special_tokens=False).ids, repr(text)


def test_encoding_from_many_threads_gives_the_same_ids(tokenizer: Tokenizer) -> None:
    expected = [tokenizer.encode(text) for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, TEXTS)) == expected


# Vocabulary files


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _without_a_byte(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    del table["Ċ"]
    path.write_text(json.dumps(table), encoding="utf-8")


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_missing_file_is_named(vocabulary: Path, tmp_path: Path, name: str) -> None:
    other = {"vocab.json": "merges.txt", "merges.txt": "vocab.json"}[name]
    shutil.copy(vocabulary / other, tmp_path)
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("vocab.json", _cut, "not JSON"),
        ("vocab.json", lambda path: path.write_bytes(b""), "not JSON"),
        ("vocab.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "decode"),
        ("vocab.json", lambda path: path.write_text("[1, 2]"), "not a table"),
        ("vocab.json", lambda path: path.write_text('{"a": "b"}'), "not a table"),
        ("vocab.json", lambda path: path.write_text('{"a": 0}'), "single-byte tokens are missing"),
        ("vocab.json", _without_a_byte, "1 of the 256 single-byte tokens"),
        ("merges.txt", lambda path: path.write_bytes(b""), "no merges"),
        ("merges.txt", lambda path: path.write_text("#version: 0.2\nqwertz uiopü\n", encoding="utf-8"), "line 2"),
        ("merges.txt", lambda path: path.write_text("single\n"), "line 1"),
        ("merges.txt", lambda path: path.write_bytes(b"\x80\x81"), "decode"),
    ],
)
def test_a_damaged_file_is_named(
    vocabulary: Path, tmp_path: Path, name: str, spoil: Callable[[Path], object], said: str
) -> None:
    for file_name in ("vocab.json", "merges.txt"):
        shutil.copyfile(vocabulary / file_name, tmp_path / file_name)
    spoil(tmp_path / name)
    with pytest.raises(CheckpointError, match=name) as caught:
        Tokenizer.from_folder(tmp_path)
    assert said in str(caught.value)
    assert isinstance(caught.value, OscineError)


def test_merges_with_windows_line_ends_are_read(vocabulary: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    shutil.copyfile(vocabulary / "vocab.json", tmp_path / "vocab.json")
    merges = (vocabulary / "merges.txt").read_bytes()
    (tmp_path / "merges.txt").write_bytes(merges.replace(b"\n", b"\r\n"))
    assert Tokenizer.from_folder(tmp_path).encode(HAND_PICKED[2]) == tokenizer.encode(HAND_PICKED[2])
