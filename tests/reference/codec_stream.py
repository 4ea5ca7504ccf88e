"""One stream of the codec: frames of codes in, samples out, the state kept in between."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.streaming import StreamState

OFFICIAL_WINDOW_FRAMES = 300
OFFICIAL_CONTEXT_FRAMES = 25

CodecWindows = Literal["exact", "official"]


class CodecStream:
    """`exact` keeps the whole state. `official` restarts every 300 frames with 25 frames of context, sample for sample
    as the official package does; up to 300 frames the two are the same."""

    def __init__(self, codec: Codec, windows: CodecWindows = "exact") -> None:
        self._codec, self._windows = codec, windows
        self._state: StreamState | None = None
        self._in_window = 0
        self._recent: Tensor | None = None  # the last frames' codes, for the next window's context

    def push(self, codes: Tensor) -> Tensor:
        """codes [frames, 16] -> samples [frames * samples per frame]."""
        if self._windows == "exact":
            return self._decode(codes)
        pieces = []
        while len(codes):
            if self._in_window == OFFICIAL_WINDOW_FRAMES:
                self._restart()
            room = OFFICIAL_WINDOW_FRAMES - self._in_window
            piece, codes = codes[:room], codes[room:]
            pieces.append(self._decode(piece))
            self._in_window += len(piece)
            known = piece if self._recent is None else torch.cat((self._recent, piece))
            self._recent = known[-OFFICIAL_CONTEXT_FRAMES:]
        return torch.cat(pieces)

    def fork(self) -> CodecStream:
        """A second stream that continues from here. States are values, so only the handle is copied."""
        return copy.copy(self)

    def _restart(self) -> None:
        assert self._recent is not None
        self._state, self._in_window = None, 0
        self._decode(self._recent)

    def _decode(self, codes: Tensor) -> Tensor:
        samples, self._state = self._codec.decode(codes[None], self._state)
        return samples[0]
