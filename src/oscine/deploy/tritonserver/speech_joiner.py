"""Turns a talker's codes into a speech: cuts windows, has them decoded, trims silence and joins segments, as an engine
with its own codec does. No Triton here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from oscine.audio.clips import pcm16
from oscine.audio.pcm import CODEBOOKS, Codes, Pcm, Samples
from oscine.config import TrimConfig
from oscine.engine.trimming import SilenceTrimmer
from oscine.speech.run import SegmentJoiner

# Windows of one stream -> a row of samples for each: those of its new frames, then of its padding.
Decode = Callable[[Sequence["Window"]], Sequence[Samples]]
_EMPTY: Pcm = np.zeros(0, np.int16)


@dataclass(frozen=True, slots=True)
class CodecShape:
    """What the exported codec's file says about itself."""

    left_context_frames: int
    new_frames: int
    samples_per_frame: int
    sample_rate_hz: int


@dataclass(frozen=True, slots=True)
class TalkerPart:
    """One response of the talker."""

    codes: Codes
    context_codes: Codes  # on the first part of a segment: frames before its own
    segment_end: bool
    final: bool


class SpeechJoiner:
    """One speech. `push` takes the talker's responses in order and returns the samples that are ready."""

    def __init__(
        self, shape: CodecShape, decode: Decode, trim: TrimConfig, *, trim_silence: bool, segments: int
    ) -> None:
        self._shape, self._decode = shape, decode
        self._trimmer = SilenceTrimmer(trim, shape.sample_rate_hz, shape.samples_per_frame, enabled=trim_silence)
        self._joiner = SegmentJoiner(shape.sample_rate_hz) if segments > 1 else None
        self._cutter: WindowCutter | None = None  # None: the next part begins a segment

    def push(self, part: TalkerPart) -> Pcm:
        shape = self._shape
        if self._cutter is None:
            self._cutter = WindowCutter(shape.left_context_frames, shape.new_frames, part.context_codes)
        pieces = [self._trimmer.push(pcm) for pcm in self._decoded(part.codes, self._cutter)]
        if part.segment_end:
            pieces.append(self._trimmer.finish())  # later segments begin with their pause
            self._cutter = None
        pcm = np.concatenate([_EMPTY, *pieces])
        return pcm if self._joiner is None else self._joined(self._joiner, pcm, part)

    def _decoded(self, codes: Codes, cutter: WindowCutter) -> Iterator[Pcm]:
        if windows := list(cutter.cut(codes)):
            for window, samples in zip(windows, self._decode(windows), strict=True):
                yield pcm16(samples[: window.new_frames * self._shape.samples_per_frame])

    def _joined(self, joiner: SegmentJoiner, pcm: Pcm, part: TalkerPart) -> Pcm:
        joined = joiner.push(pcm.tobytes())
        if part.segment_end:
            joined += joiner.end_segment(last=part.final)
        return np.frombuffer(joined, "<i2")


# --- Cuts a stream of codes into the windows that the exported codec decodes, each frame new in exactly one of them.


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
