"""Golden rows: the text id and the codec entry of each row in every mode, written by hand from the specification
(model.md, section 7), not computed."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from oscine.model.config import ModelConfig, read_config
from oscine.prompt.layout import LayoutInput, build_layout
from oscine.types import NO_CODEC, SPEAKER, Prompt, reference_frame
from tests.conftest import CheckpointMaker

# Text side
P, B, E, IM_END = 900, 901, 902, 903  # tts_pad, tts_bos, tts_eos
ROLE = [1, 2, 3]
INSTRUCT = [31, 32]
TEXT = [10, 11, 12]
TRANSCRIPT = [20, 21]
# Codec side, as published
PAD, BOS, THINK, NOTHINK, THINK_BOS, THINK_EOS = 2148, 2149, 2154, 2155, 2156, 2157
ENGLISH, RYAN = 2050, 3061
N, S = NO_CODEC, SPEAKER

AUTO_HEADER = [(P, NOTHINK), (P, THINK_BOS), (P, THINK_EOS)]
ENGLISH_HEADER = [(P, THINK), (P, THINK_BOS), (P, ENGLISH), (P, THINK_EOS)]
ROLE_ROWS = [(1, N), (2, N), (3, N)]
INSTRUCT_ROWS = [(31, N), (32, N)]
WHOLE_TEXT = [(10, PAD), (11, PAD), (12, PAD), (E, PAD), (P, BOS)]

VECTOR = np.arange(4, dtype=np.float32)


def frames(count: int) -> np.ndarray:
    return np.arange(count * 16).reshape(count, 16)


def F(index: int) -> int:  # noqa: N802 (the specification's name)
    return -3 - index


GOLDEN: dict[str, tuple[dict[str, Any], list[tuple[int, int]], list[int]]] = {
    "preset, whole text": (
        {"text_mode": "whole", "speaker_id": RYAN},
        [*ROLE_ROWS, *AUTO_HEADER, (P, RYAN), (B, PAD), *WHOLE_TEXT],
        [],
    ),
    "preset, whole text, a language": (
        {"text_mode": "whole", "speaker_id": RYAN, "language_id": ENGLISH},
        [*ROLE_ROWS, *ENGLISH_HEADER, (P, RYAN), (B, PAD), *WHOLE_TEXT],
        [],
    ),
    "preset, whole text, instruct": (
        {"text_mode": "whole", "speaker_id": RYAN, "instruct_ids": INSTRUCT},
        [*INSTRUCT_ROWS, *ROLE_ROWS, *AUTO_HEADER, (P, RYAN), (B, PAD), *WHOLE_TEXT],
        [],
    ),
    "preset, streaming text": (
        {"text_mode": "streaming", "speaker_id": RYAN},
        [*ROLE_ROWS, *AUTO_HEADER, (P, RYAN), (B, PAD), (10, BOS)],
        [11, 12, E],
    ),
    "preset, streaming text, a language: ten rows": (
        {"text_mode": "streaming", "speaker_id": RYAN, "language_id": ENGLISH},
        [*ROLE_ROWS, *ENGLISH_HEADER, (P, RYAN), (B, PAD), (10, BOS)],
        [11, 12, E],
    ),
    "streaming, one token": (
        {"text_mode": "streaming", "speaker_id": RYAN, "body_ids": [10]},
        [*ROLE_ROWS, *AUTO_HEADER, (P, RYAN), (B, PAD), (10, BOS)],
        [E],
    ),
    "streaming, empty text: the token after it comes first": (
        {"text_mode": "streaming", "speaker_id": RYAN, "body_ids": []},
        [*ROLE_ROWS, *AUTO_HEADER, (P, RYAN), (B, PAD), (IM_END, BOS)],
        [E],
    ),
    "whole, empty text": (
        {"text_mode": "whole", "speaker_id": RYAN, "body_ids": []},
        [*ROLE_ROWS, *AUTO_HEADER, (P, RYAN), (B, PAD), (E, PAD), (P, BOS)],
        [],
    ),
    "designed voice: no speaker row": (
        {"text_mode": "whole", "instruct_ids": INSTRUCT},
        [*INSTRUCT_ROWS, *ROLE_ROWS, *AUTO_HEADER, (B, PAD), *WHOLE_TEXT],
        [],
    ),
    "designed voice, streaming, a language": (
        {"text_mode": "streaming", "instruct_ids": INSTRUCT, "language_id": ENGLISH},
        [*INSTRUCT_ROWS, *ROLE_ROWS, *ENGLISH_HEADER, (B, PAD), (10, BOS)],
        [11, 12, E],
    ),
    "cloned timbre, streaming": (
        {"text_mode": "streaming", "speaker": VECTOR},
        [*ROLE_ROWS, *AUTO_HEADER, (P, S), (B, PAD), (10, BOS)],
        [11, 12, E],
    ),
    "cloned timbre, whole, a language": (
        {"text_mode": "whole", "speaker": VECTOR, "language_id": ENGLISH},
        [*ROLE_ROWS, *ENGLISH_HEADER, (P, S), (B, PAD), *WHOLE_TEXT],
        [],
    ),
    "in context, streaming, more text than audio": (
        {"text_mode": "streaming", "speaker": VECTOR, "reference_ids": TRANSCRIPT, "reference_codes": frames(2)},
        [*ROLE_ROWS, *AUTO_HEADER, (P, S), (B, PAD), (20, BOS), (21, F(0)), (10, F(1))],
        [11, 12, E],
    ),
    "in context, streaming, as much text as audio": (
        {"text_mode": "streaming", "speaker": VECTOR, "reference_ids": TRANSCRIPT, "reference_codes": frames(5)},
        [
            *[*ROLE_ROWS, *AUTO_HEADER, (P, S), (B, PAD)],
            *[(20, BOS), (21, F(0)), (10, F(1)), (11, F(2)), (12, F(3)), (E, F(4))],
        ],
        [],
    ),
    "in context, streaming, more audio than text": (
        {"text_mode": "streaming", "speaker": VECTOR, "reference_ids": TRANSCRIPT, "reference_codes": frames(7)},
        [
            *[*ROLE_ROWS, *AUTO_HEADER, (P, S), (B, PAD)],
            *[(20, BOS), (21, F(0)), (10, F(1)), (11, F(2)), (12, F(3)), (E, F(4)), (P, F(5)), (P, F(6))],
        ],
        [],
    ),
    "in context, whole, a language": (
        {
            "text_mode": "whole", "speaker": VECTOR, "language_id": ENGLISH,
            "reference_ids": TRANSCRIPT, "reference_codes": frames(2),
        },
        [
            *[*ROLE_ROWS, *ENGLISH_HEADER, (P, S), (B, PAD)],
            *[(20, PAD), (21, PAD), (10, PAD), (11, PAD), (12, PAD), (E, PAD)],
            *[(P, BOS), (P, F(0)), (P, F(1))],
        ],
        [],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def config(small_checkpoints: CheckpointMaker) -> ModelConfig:
    published = read_config(small_checkpoints("1b7", "custom_voice"))
    return replace(published, tts_pad_id=P, tts_bos_id=B, tts_eos_id=E, im_end_id=IM_END)


def laid_out(config: ModelConfig, fields: dict[str, Any]) -> Prompt:
    return build_layout(config, LayoutInput(**({"role_ids": ROLE, "body_ids": TEXT} | fields)))


@pytest.mark.parametrize("name", GOLDEN)
def test_the_rows_of_each_mode(config: ModelConfig, name: str) -> None:
    fields, rows, trailing = GOLDEN[name]
    prompt = laid_out(config, fields)
    assert list(zip(prompt.text_ids.tolist(), prompt.codec_ids.tolist(), strict=True)) == rows
    assert prompt.trailing_ids.tolist() == trailing
    assert prompt.rows == len(rows)
    assert prompt.speaker is fields.get("speaker")
    assert prompt.reference_codes is fields.get("reference_codes")
    assert {prompt.text_ids.dtype, prompt.codec_ids.dtype, prompt.trailing_ids.dtype} == {np.dtype(np.int64)}


def test_special_codec_entries_are_distinct_and_negative() -> None:
    assert len({NO_CODEC, SPEAKER, reference_frame(0), reference_frame(1)}) == 4
    assert max(NO_CODEC, SPEAKER, reference_frame(0)) < 0
    assert [reference_frame(i) for i in range(3)] == [F(i) for i in range(3)]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_prefix_does_not_depend_on_the_text(config: ModelConfig, name: str) -> None:
    fields, rows, _ = GOLDEN[name]
    prompt = laid_out(config, fields)
    other = laid_out(config, fields | {"body_ids": [77, 78, 79]})
    same = prompt.prefix_rows
    assert 0 < same < len(rows)
    np.testing.assert_array_equal(prompt.text_ids[:same], other.text_ids[:same])
    np.testing.assert_array_equal(prompt.codec_ids[:same], other.codec_ids[:same])
