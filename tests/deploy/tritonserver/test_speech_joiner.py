"""A toy codec of two samples per frame, whose samples depend on the frame before, stands for the exported one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from oscine.config import TrimConfig
from oscine.deploy.tritonserver.speech_joiner import CodecShape, SpeechJoiner, TalkerPart, Window
from oscine.speech.run import SegmentJoiner

SHAPE = CodecShape(left_context_frames=3, new_frames=4, samples_per_frame=2, sample_rate_hz=1000)
NONE = np.zeros((0, 16), np.int64)


def frames(values: Sequence[int]) -> np.ndarray:
    return np.repeat(np.array(values, np.int64).reshape(-1, 1), 16, axis=1)


def decode(windows: Sequence[Window]) -> list[np.ndarray]:
    rows = []
    for window in windows:
        first = window.codes[:, 0]
        before = np.concatenate(([0], first))[:-1]
        samples = np.stack((first, before), axis=1) / 1000.0
        rows.append(samples[window.context_frames :].reshape(-1)[: 2 * SHAPE.new_frames].astype(np.float32))
    return rows


def spoken(parts: Sequence[TalkerPart], *, segments: int = 1, trim_silence: bool = False) -> list[int]:
    trim = TrimConfig(keep_ms=0, threshold_dbfs=-60)
    joiner = SpeechJoiner(SHAPE, decode, trim, trim_silence=trim_silence, segments=segments)
    return np.concatenate([joiner.push(part) for part in parts]).tolist()


def expected(values: Sequence[int], before: int = 0) -> list[int]:
    pairs = np.stack((values, np.concatenate(([before], values))[:-1]), axis=1).reshape(-1)
    return np.rint(pairs / 1000.0 * 32767).astype(int).tolist()


VALUES = [7, 100, 200, 300, 150, 50, 900, 800, 20, 10, 5]


def cut(values: Sequence[int], sizes: Sequence[int], **fields: object) -> list[TalkerPart]:
    ends = np.cumsum(sizes)
    return [
        TalkerPart(frames(values[end - size : end]), NONE, bool(end == len(values)), bool(end == len(values)))
        for end, size in zip(ends, sizes, strict=True)
    ]


@pytest.mark.parametrize("sizes", [[11], [1] * 11, [1, 2, 8], [6, 5]])
def test_samples_do_not_depend_on_how_codes_arrive(sizes: list[int]) -> None:
    assert spoken(cut(VALUES, sizes)) == expected(VALUES)


def test_a_segment_continues_its_reference_clip() -> None:
    part = TalkerPart(frames(VALUES), frames([1, 2, 42]), True, True)
    assert spoken([part]) == expected(VALUES, before=42)


def test_silence_before_the_first_sound_is_dropped_once() -> None:
    values = [0, 0, 0, 500, 0, 0, 400]
    parts = [
        TalkerPart(frames(values), NONE, True, False),
        TalkerPart(frames([0, 0, 300]), NONE, True, True),
    ]
    trimmed = spoken(parts, trim_silence=True)
    assert trimmed == expected(values)[6:] + expected([0, 0, 300]), "the pause before a later segment stays"
    assert spoken(parts) == expected(values) + expected([0, 0, 300])


def test_segments_are_joined_as_an_engine_joins_them() -> None:
    first, second = [400, 500, 600, 700, 800, 900], [900, 800, 700, 600]
    parts = [
        TalkerPart(frames(first[:2]), NONE, False, False),
        TalkerPart(frames(first[2:]), NONE, True, False),
        TalkerPart(frames(second), NONE, False, False),
        TalkerPart(frames([]), NONE, True, True),
    ]
    joiner = SegmentJoiner(SHAPE.sample_rate_hz)
    joined = joiner.push(np.array(expected(first), np.int16).tobytes()) + joiner.end_segment(last=False)
    joined += joiner.push(np.array(expected(second), np.int16).tobytes()) + joiner.end_segment(last=True)
    assert spoken(parts, segments=2) == np.frombuffer(joined, "<i2").tolist()
