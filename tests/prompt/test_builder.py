"""Prompts of requests: names become ids, and fields left out get the official defaults."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oscine.model.config import read_config
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import SpeechRequest
from oscine.types import Prompt
from oscine.voice import Voice
from tests.conftest import CheckpointMaker

# The small vocabulary: bytes, then merges; "user" and "assistant" are one id each.
NEWLINE = 10
CHINESE, ENGLISH, BEIJING, SICHUAN = 2055, 2050, 2074, 2062
THINK, NOTHINK, THINK_BOS, THINK_EOS, PAD, BOS = 2154, 2155, 2156, 2157, 2148, 2149
RYAN, ERIC, DYLAN, SERENA = 3061, 2875, 2878, 3066

Build = Callable[..., Prompt]


@pytest.fixture(scope="module")
def build(small_checkpoints: CheckpointMaker) -> Build:
    @cache
    def builder(folder: Path) -> PromptBuilder:
        return PromptBuilder(read_config(folder), Tokenizer.from_folder(folder))

    def prompt(model: str, **fields: Any) -> Prompt:
        request = SpeechRequest(**({"text": "hi"} | fields))
        return builder(small_checkpoints(*model.split("-"))).build(request)

    return prompt


def header(prompt: Prompt) -> list[int]:
    """The codec ids between the role and the first codec_pad."""
    ids = [int(i) for i in prompt.codec_ids if i != -1]
    return ids[: ids.index(PAD)]


@pytest.mark.parametrize(
    ("voice", "language", "expected"),
    [
        ("ryan", "auto", [NOTHINK, THINK_BOS, THINK_EOS, RYAN]),
        ("Ryan", "English", [THINK, THINK_BOS, ENGLISH, THINK_EOS, RYAN]),
        ("ryan", "chinese", [THINK, THINK_BOS, CHINESE, THINK_EOS, RYAN]),
        # A speaker of a dialect uses it unless the request names another language.
        ("eric", "auto", [THINK, THINK_BOS, SICHUAN, THINK_EOS, ERIC]),
        ("eric", "Chinese", [THINK, THINK_BOS, SICHUAN, THINK_EOS, ERIC]),
        ("eric", "english", [THINK, THINK_BOS, ENGLISH, THINK_EOS, ERIC]),
        ("dylan", "auto", [THINK, THINK_BOS, BEIJING, THINK_EOS, DYLAN]),
        (None, "auto", [NOTHINK, THINK_BOS, THINK_EOS, SERENA]),  # the first voice of the file
    ],
)
def test_the_header_holds_voice_and_language(
    build: Build, voice: str | None, language: str, expected: list[int]
) -> None:
    assert header(build("1b7-custom_voice", voice=voice, language=language)) == expected


def test_the_text_of_a_custom_voice_prompt(build: Build, small_checkpoints: CheckpointMaker) -> None:
    config = read_config(small_checkpoints("1b7", "custom_voice"))
    prompt = build("1b7-custom_voice", instructions="no")
    user, assistant = prompt.text_ids[1], prompt.text_ids[8]
    assert prompt.text_ids.tolist() == [
        *[config.im_start_id, user, NEWLINE, *b"no", config.im_end_id, NEWLINE],
        *[config.im_start_id, assistant, NEWLINE],
        *[config.tts_pad_id] * 4, config.tts_bos_id,
        *b"hi", config.tts_eos_id, config.tts_pad_id,
    ]  # fmt: skip
    assert prompt.codec_ids.tolist()[-4:] == [PAD, PAD, PAD, BOS]
    assert user > 255
    assert assistant > 255


@pytest.mark.parametrize(
    ("model", "fields", "whole"),
    [
        ("1b7-custom_voice", {}, True),
        ("0b6-custom_voice", {}, True),
        ("1b7-voice_design", {"instructions": "calm"}, True),
        ("1b7-base", {"voice": Voice(np.ones(96, np.float32))}, False),
        ("0b6-base", {"voice": Voice(np.ones(64, np.float32), np.zeros((2, 16), np.int64), "so")}, False),
    ],
)
def test_the_official_text_mode_is_the_default(build: Build, model: str, fields: dict[str, Any], whole: bool) -> None:
    prompts = {mode: build(model, text_mode=mode, **fields) for mode in (None, "whole", "streaming")}
    expected = prompts["whole" if whole else "streaming"]
    assert prompts[None].text_ids.tolist() == expected.text_ids.tolist()
    assert prompts[None].trailing_ids.tolist() == expected.trailing_ids.tolist()
    assert len(prompts["whole"].trailing_ids) == 0


def test_a_voice_without_a_transcript_adds_its_vector_only(build: Build) -> None:
    voice = Voice(np.ones(96, np.float32))
    prompt = build("1b7-base", voice=voice)
    assert prompt.speaker is voice.speaker
    assert prompt.reference_codes is None
    assert -2 in prompt.codec_ids


def test_empty_instructions_are_ignored(build: Build) -> None:
    assert build("1b7-custom_voice", instructions="").rows == build("1b7-custom_voice").rows
    assert build("1b7-base", instructions="", voice=Voice(np.ones(96, np.float32))).rows > 0
