"""Trims the beginning of a stream: an echo of the reference, and silence.

In-context cloning sometimes says the last words of the reference before the text. They come back with similar codes,
not with the same ones. Code 0 of a frame describes what is spoken rather than how, so an echo shows as an alignment of
the first frames with the end of the reference in which many of these codes agree. Speech with other words agrees in a
few.

Frames are held back until the answer is known, so a stream begins later; only requests that ask for it pay this. Only
samples are dropped; frames, codes and the codec's state stay as they are, and AudioChunk.first_sample counts the
samples that were sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import FRAME_RATE_HZ, Codes, Pcm, first_audible
from oscine.config import EchoConfig, TrimConfig

_MISS = 0.34  # cost of a frame without a counterpart; an agreement scores 1
_TAIL_FRAMES = 40  # of the reference, 3.2 s: echoes have 1 to 2 s
_LATE_FRAMES = 12  # maximum from an echo's end to the end of the reference, which may be silence
_SETTLED_FRAMES = 4  # so many without a better alignment mean that the echo is over
_LIKELY = 2.0  # a lower score after `probe_frames` means that there is no echo
_FADE_S = 0.005
_WORDS = re.compile(r"\w+")
_COMMON_WORDS, _COMMON_CHARS = 8, 12  # at the end of the transcript


def begins_like_end(text: str, transcript: str) -> bool:
    """Whether the text itself may begin with words from the end of the transcript; then nothing counts as an echo."""
    words, last = _WORDS.findall(text.casefold()), _WORDS.findall(transcript.casefold())[-_COMMON_WORDS:]
    if not words or words[0] in last:
        return True
    # Scripts without spaces: a "word" may be a whole sentence.
    return "".join(words)[:2] in "".join(last)[-_COMMON_CHARS:] and not words[0].isascii()


class EchoDetector:
    """Aligns codes with the end of the reference, frame by frame."""

    def __init__(self, config: EchoConfig, reference: Sequence[int] | npt.NDArray[np.int64]) -> None:
        self._config = config
        self._tail = np.asarray(reference, np.int64)[-_TAIL_FRAMES:]
        # Scores of alignments that end at the previous frame and each frame of the tail.
        self._scores = np.zeros(len(self._tail) + 1)
        self._costs = _MISS * np.arange(len(self._scores))
        self._frames = self._audible = self._best_frame = self._best_column = 0
        self._best = 0.0

    def push(self, code: int, *, audible: bool) -> bool | None:
        """Returns True when the echo has ended (see `frames`), False if there is none, and None while more frames are
        needed."""
        self._frames += 1
        if audible:
            self._audible += 1
            self._align(code)
        found = self.found
        left = len(self._tail) - self._best_column  # of the reference, after the best alignment
        if found and self._frames - self._best_frame >= left + _SETTLED_FRAMES:
            return True
        if self._frames >= self._config.max_frames:
            return found
        return None if found or self._is_likely else False

    @property
    def found(self) -> bool:
        return self._best >= self._config.min_agreement

    @property
    def frames(self) -> tuple[int, int]:
        """The smallest and the largest number of frames that the echo may have."""
        left = len(self._tail) - self._best_column
        return self._best_frame, min(self._best_frame + left + 1, self._frames)

    @property
    def _is_likely(self) -> bool:
        return self._audible < self._config.probe_frames or float(self._scores.max()) >= _LIKELY

    def _align(self, code: int) -> None:
        before = self._scores
        agrees = np.where(self._tail == code, 1.0, -_MISS)
        scores = np.zeros(len(before))
        scores[1:] = np.maximum(np.maximum(before[:-1] + agrees, before[1:] - _MISS), 0.0)
        # Frames of the reference may be skipped: no score is below the previous one minus the cost.
        scores = self._scores = np.maximum.accumulate(scores + self._costs) - self._costs
        late = max(1, len(scores) - _LATE_FRAMES)
        column = late + int(scores[late:].argmax()) if late < len(scores) else 0
        if scores[column] > self._best:
            self._best, self._best_frame, self._best_column = float(scores[column]), self._frames, column


class EchoTrimmer:
    """Trims the echo at the beginning of one stream. `push` returns the frames that are released, without the echo."""

    def __init__(self, config: EchoConfig, reference_codes: Codes, sample_rate_hz: int) -> None:
        self._detector = EchoDetector(config, reference_codes[:, 0])
        self._silence_dbfs = config.silence_dbfs
        self._fade = np.linspace(0.0, 1.0, round(_FADE_S * sample_rate_hz), dtype=np.float32)
        self._held: list[Pcm] = []
        self._levels_dbfs: list[float] = []
        self._active = True
        self.echo_frames = 0

    @property
    def echo_s(self) -> float:
        return self.echo_frames / FRAME_RATE_HZ

    def push(self, pcm: Pcm, code: int, level_dbfs: float) -> list[Pcm]:
        if not self._active:
            return [pcm]
        self._held.append(pcm.copy())  # the runner may reuse its arrays
        self._levels_dbfs.append(level_dbfs)
        answer = self._detector.push(code, audible=level_dbfs > self._silence_dbfs)
        return [] if answer is None else self.finish()

    def finish(self) -> list[Pcm]:
        """Returns the frames held back, for a stream that ended before the answer was known. Later ones pass
        through."""
        if self._active and self._detector.found:
            self._cut()
        held, self._held, self._active = self._held, [], False
        return held

    def _cut(self) -> None:
        """Cuts at the quietest frame where the echo may end."""
        first, last = self._detector.frames
        cut = first + int(np.argmin(self._levels_dbfs[first:last])) if last > first else first
        if max(self._levels_dbfs[cut:], default=-np.inf) <= self._silence_dbfs:
            return  # the stream has only the echo
        self.echo_frames, self._held = cut, self._held[cut:]
        if self._held and len(self._held[0]) >= len(self._fade):
            start = self._held[0]
            start[: len(self._fade)] = np.rint(start[: len(self._fade)] * self._fade)


# --- Silence before the first sound.


_EMPTY: Pcm = np.zeros(0, np.int16)


class SilenceTrimmer:
    """Trims the silence at the beginning of one stream: 80 ms for a preset voice, sometimes more for a cloned one.
    `push` returns the samples in order, without the silence before the onset."""

    def __init__(self, config: TrimConfig, sample_rate_hz: int, samples_per_frame: int, *, enabled: bool) -> None:
        self._threshold_dbfs = config.threshold_dbfs
        self._keep_samples = round(config.keep_ms / 1000 * sample_rate_hz)
        self._max_dropped = config.max_frames * samples_per_frame
        self._held = _EMPTY  # silence that may turn out to lie just before the onset
        self._active = enabled and self._max_dropped > 0
        self.dropped_samples = 0

    def push(self, pcm: Pcm) -> Pcm:
        if not self._active:
            return pcm
        held = np.concatenate((self._held, pcm))
        onset = first_audible(held, self._threshold_dbfs)
        silent = len(held) if onset is None else onset
        dropped = min(max(0, silent - self._keep_samples), self._max_dropped - self.dropped_samples)
        self._held = held[dropped:]
        self.dropped_samples += dropped
        return _EMPTY if onset is None and self.dropped_samples < self._max_dropped else self.finish()

    def finish(self) -> Pcm:
        """Returns the samples held back. Later ones pass through."""
        held, self._held, self._active = self._held, _EMPTY, False
        return held
