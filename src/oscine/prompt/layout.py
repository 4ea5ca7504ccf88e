"""Pairs text ids with codec entries for every mode: the model's input as integers.

A row of the talker's input is T(text id) + codec entry (types.py); `trailing` text ids are added to generated frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from oscine.audio.pcm import Codes, Samples
from oscine.model.config import ModelConfig
from oscine.request import TextMode
from oscine.types import NO_CODEC, SPEAKER, Prompt, reference_frame


@dataclass(frozen=True, slots=True)
class LayoutInput:
    """Everything that a layout depends on."""

    role_ids: Sequence[int]  # <|im_start|> assistant \n
    body_ids: Sequence[int]  # the text to speak
    text_mode: TextMode
    instruct_ids: Sequence[int] = ()  # the whole user turn, or nothing
    language_id: int | None = None  # None: the model detects it
    speaker_id: int | None = None  # a preset voice
    speaker: Samples | None = None  # a cloned voice; at most one of the two
    reference_ids: Sequence[int] = ()  # transcript of the reference clip
    reference_codes: Codes | None = None  # with the transcript: in-context cloning


@dataclass(slots=True)
class _Rows:
    text: list[int] = field(default_factory=list)
    codec: list[int] = field(default_factory=list)

    def add(self, text: Sequence[int], codec: Sequence[int]) -> None:
        assert len(text) == len(codec), (len(text), len(codec))
        self.text += text
        self.codec += codec


def build_layout(config: ModelConfig, given: LayoutInput) -> Prompt:
    rows = _Rows()
    rows.add(given.instruct_ids, [NO_CODEC] * len(given.instruct_ids))
    rows.add(given.role_ids, [NO_CODEC] * len(given.role_ids))
    header = _header(config, given)
    rows.add([config.tts_pad_id] * (len(header) - 1) + [config.tts_bos_id], header)
    prefix_rows = len(rows.text)
    if given.reference_codes is None:
        trailing = _body(config, given, rows)
    else:
        trailing = _body_in_context(config, given, rows)
        # In both text modes the transcript comes first; its codec entries do not depend on the text.
        prefix_rows += min(len(given.reference_ids), 1 + len(given.reference_codes))
    return Prompt(
        text_ids=np.array(rows.text, dtype=np.int64),
        codec_ids=np.array(rows.codec, dtype=np.int64),
        trailing_ids=np.array(trailing, dtype=np.int64),
        speaker=given.speaker,
        reference_codes=given.reference_codes,
        prefix_rows=prefix_rows,
    )


def _header(config: ModelConfig, given: LayoutInput) -> list[int]:
    talker = config.talker
    if given.language_id is None:
        tags = [talker.nothink_id, talker.think_bos_id, talker.think_eos_id]
    else:
        tags = [talker.think_id, talker.think_bos_id, given.language_id, talker.think_eos_id]
    speaker = [given.speaker_id] if given.speaker_id is not None else [SPEAKER] if given.speaker is not None else []
    return [*tags, *speaker, talker.pad_id]


def _body(config: ModelConfig, given: LayoutInput, rows: _Rows) -> list[int]:
    talker = config.talker
    if given.text_mode == "whole":
        text = [*given.body_ids, config.tts_eos_id]
        rows.add(text, [talker.pad_id] * len(text))
        rows.add([config.tts_pad_id], [talker.bos_id])
        return []
    # Official quirk: an empty text speaks the token after it (<|im_end|>).
    first, *later = given.body_ids or [config.im_end_id]
    rows.add([first], [talker.bos_id])
    return [*later, config.tts_eos_id]


def _body_in_context(config: ModelConfig, given: LayoutInput, rows: _Rows) -> list[int]:
    assert given.reference_codes is not None
    text = [*given.reference_ids, *given.body_ids, config.tts_eos_id]
    audio = [config.talker.bos_id, *(reference_frame(i) for i in range(len(given.reference_codes)))]
    if given.text_mode == "whole":
        rows.add(text, [config.talker.pad_id] * len(text))
        rows.add([config.tts_pad_id] * len(audio), audio)
        return []
    paired = text[: len(audio)]
    rows.add(paired + [config.tts_pad_id] * (len(audio) - len(paired)), audio)
    return text[len(audio) :]
