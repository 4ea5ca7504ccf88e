"""Streaming text gives the ids of the whole text, as early as possible; with the published vocabulary."""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from oscine.prompt.tokenizer import IncrementalTokenizer, Tokenizer

pytestmark = pytest.mark.slow

TEXTS = [
    "Hello, world! How are you today?",
    "I'm sure they'll say it's what we've done; you'd know, they're right, DON'T. 'tis rock'n'roll y'all'd've",
    "\n\n  Two of them.\n \n\r\n And   more \t spaces   ",
    "你好，世界！今天天气怎么样？没有空格but有English混排text。iPhone手机2026年1月",
    "こんにちは、世界。東京タワーは333メートルです。",
    "안녕하세요 세계! \u1112\u1161\u11ab\u1100\u1173\u11af ᄒ\u1161ᆫ",
    "cafe\u0301 nai\u0308ve a\u0323\u0302 =\u0338 1\u0338 \u0301x  \u0301 e\u0301\u0323 q\u0307\u0323",
    "नमस्ते दुनिया! कैसे हैं? সে গেল\u09be ো\u09d7 தமிழ் സ്വാഗതം",
    "สวัสดีชาวโลก น้ำ مُشَكَّلٌ בְּרֵאשִׁית",
    "👨‍👩‍👧‍👦 🏳️‍🌈 1️⃣ ☺\ufe0f :) ... !!!\n\n--- $5 3.14 ½ Ⅳ ①",
    "tab\tnbsp\u00a0line\u2028para\u2029nel\u0085end\x1cfs\x1dgs\x1ers\x1fus\u200bzw\u3000ideographic",
    "\u2126 \u212b \uf900 \ufb1d \u0958 \u1fef \u037e \u0344 \u0f73",
]
ALPHABET = [
    *"abzAZ019 .,!?'-\"\n\r\t  ",
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T"),
    *"\u00e9\u0301\u0308\u0323\u0338\u0327\u0345\u00df\u017f",
    *"你好，。、！かナ가각\u1100\u1161\u11a8\u1112\u1173",
    *"\u0915\u093c\u093f\u09c7\u09be\u09d7\u0bc6\u0bbe\u0d46\u0d3e\u0e19\u0e33",
    *"\u2028\u2029\u0085\u00a0\u3000\x1c\x1f\u200b\u200d\ufe0f👍🏽½²٣",
    *"\U000110a5\U000110ba\U00011131\U00011127\U00016d63\U00016d67\U000113c2\u2126\u0958",
]


@pytest.fixture(scope="module")
def tokenizer(vocabulary: Path) -> Tokenizer:
    return Tokenizer.from_folder(vocabulary)


def tokenized(tokenizer: Tokenizer, pieces: Sequence[str]) -> tuple[list[int], list[int]]:
    incremental = IncrementalTokenizer(tokenizer)
    body = list(itertools.chain.from_iterable(incremental.push(piece) for piece in pieces))
    return body + incremental.finish(), incremental.role_ids


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 8)))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *places, len(text)])]


def assert_same(tokenizer: Tokenizer, pieces: Sequence[str]) -> None:
    turn = tokenizer.encode_turn("assistant", "".join(pieces))
    assert tokenized(tokenizer, pieces) == (turn.body_ids, turn.role_ids), pieces


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_give_the_ids_of_the_whole(tokenizer: Tokenizer, text: str) -> None:
    rng = random.Random(text)
    assert_same(tokenizer, [text])
    assert_same(tokenizer, list(text))
    for _ in range(40):
        assert_same(tokenizer, cut(text, rng))


@pytest.mark.parametrize("seed", range(8))
def test_any_cut_of_any_text_gives_the_ids_of_the_whole(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(400):
        text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 30)))
        assert_same(tokenizer, list(text))
        assert_same(tokenizer, cut(text, rng))


@pytest.mark.parametrize("seed", range(4))
def test_random_characters_give_the_ids_of_the_whole(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    surrogates = range(0xD800, 0xE000)
    for _ in range(400):
        points = [rng.choice([rng.randrange(1, 0x3100), rng.randrange(1, 0x30000)]) for _ in range(12)]
        text = "".join(chr(point) for point in points if point not in surrogates)
        assert_same(tokenizer, list(text))


def test_a_word_is_final_when_the_next_one_begins(tokenizer: Tokenizer) -> None:
    incremental = IncrementalTokenizer(tokenizer)
    assert incremental.push("Hello") == []
    assert incremental.push(" world") == tokenizer.encode("Hello") and len(incremental.role_ids) == 2
    assert incremental.push(",") == tokenizer.encode(" world")
    assert incremental.push(" it") == tokenizer.encode(",")
    assert incremental.push("'s") == tokenizer.encode(" it")
    assert incremental.finish() == tokenizer.encode("'s")


def test_a_chinese_clause_is_final_with_its_punctuation(tokenizer: Tokenizer) -> None:
    incremental = IncrementalTokenizer(tokenizer)
    assert incremental.push("今天天气") == [] and incremental.push("真好") == []
    assert incremental.push("，") == tokenizer.encode("今天天气真好")


def test_an_empty_text_has_no_body_ids(tokenizer: Tokenizer) -> None:
    assert tokenized(tokenizer, []) == ([], tokenizer.encode("assistant\n"))
    assert tokenized(tokenizer, ["", "\n", "\n"])[0] == []


def test_every_character_that_nfc_joins_is_known() -> None:
    """Every character that NFC can join to the one before it is a mark or in the ranges of `_never_joins`."""
    composed = [chr(point) for point in range(0x110000) if unicodedata.decomposition(chr(point))[:1] not in ("", "<")]
    for char in composed:
        parts = [chr(int(part, 16)) for part in unicodedata.decomposition(char).split()]
        if len(parts) == 2 and unicodedata.normalize("NFC", "".join(parts)) == char:
            assert unicodedata.category(parts[1])[0] == "M", hex(ord(parts[1]))
