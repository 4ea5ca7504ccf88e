from __future__ import annotations

import numpy as np
import pytest

from oscine.deploy.tritonserver.speech_joiner import Window, WindowCutter

LEFT, NEW = 5, 4


def frames(count: int, first: int = 0) -> np.ndarray:
    return np.repeat(np.arange(first, first + count)[:, None], 16, axis=1)


@pytest.mark.parametrize("pieces", [[1] * 23, [23], [1, 2, 4, 8, 8], [0, 3, 0, 20], [4, 4, 4, 4, 4, 3]])
def test_every_frame_is_new_in_exactly_one_window_however_they_arrive(pieces: list[int]) -> None:
    cutter, codes, new = WindowCutter(LEFT, NEW), frames(23), []
    for start, count in zip(np.cumsum([0, *pieces]), pieces, strict=False):
        for window in cutter.cut(codes[start : start + count]):
            assert window.codes.shape == (LEFT + NEW, 16), "all windows can share a batch"
            assert window.context_frames == min(LEFT, len(new)) and 1 <= window.new_frames <= NEW
            before, after = _split(window)
            assert before == new[len(new) - window.context_frames :], "the frames just before"
            new += after
    assert new == list(range(23))


def test_the_frames_of_a_reference_clip_come_before_the_first_one() -> None:
    (window,) = WindowCutter(LEFT, NEW, frames(9)).cut(frames(2, first=9))
    assert _split(window) == ([4, 5, 6, 7, 8], [9, 10])
    (short,) = WindowCutter(LEFT, NEW, frames(2)).cut(frames(1, first=2))
    assert _split(short) == ([0, 1], [2])


def _split(window: Window) -> tuple[list[int], list[int]]:
    """The first codes of the context and of the new frames."""
    end = window.context_frames + window.new_frames
    first = window.codes[:, 0].tolist()
    return first[: window.context_frames], first[window.context_frames : end]
