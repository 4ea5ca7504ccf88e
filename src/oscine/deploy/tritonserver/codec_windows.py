"""Cuts a stream of codes into the windows that the exported codec decodes, each frame new in exactly one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from oscine.frames import CODEBOOKS, Codes


@dataclass(frozen=True, slots=True)
class Window:
    """One row of the codec's input: context frames, new frames, then padding."""

    codes: Codes  # [window frames, 16]
    context_frames: int
    new_frames: int


class WindowCutter:
    """The windows of one stream. All have the same shape, so windows of different streams can share a batch."""

    def __init__(self, left_context_frames: int, new_frames: int, context: Codes | None = None) -> None:
        """`context` are frames before the first one, such as those of a reference clip."""
        self._left, self._new = left_context_frames, new_frames
        self._context: Codes = np.zeros((0, CODEBOOKS), np.int64)
        if context is not None:
            self._keep(context)

    def cut(self, codes: Codes) -> Iterator[Window]:
        """Windows in which these frames are new, in order."""
        for start in range(0, len(codes), self._new):
            piece = codes[start : start + self._new]
            window = np.zeros((self._left + self._new, CODEBOOKS), np.int64)
            context = len(self._context)
            window[:context] = self._context
            window[context : context + len(piece)] = piece
            yield Window(window, context, len(piece))
            self._keep(piece)

    def _keep(self, codes: Codes) -> None:
        joined = np.concatenate((self._context, codes))
        self._context = joined[max(0, len(joined) - self._left) :]
