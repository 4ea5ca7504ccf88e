"""From a request to sound on the event loop: one utterance, or a long text as many, heard as one.

Nothing here blocks: the engine's answer to `submit` is awaited on a small pool of threads, sound comes through a queue.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from oscine.types import MAX_CONTINUES_S, AudioChunk, FinishReason, SpeechEngine, SpeechRequest, Usage
from oscine.utterance import Utterance

NOTHING_YET = Usage(0, 0)
_FADE_S = 0.005  # at the joints of a long text: too short to be heard, long enough not to click


@dataclass(frozen=True, slots=True)
class Sound:
    """A piece of a speech: sound, or, with an empty `pcm`, only news."""

    pcm: bytes
    segment: Segment | None = None  # this segment has been heard to its end
    finish_reason: FinishReason | None = None  # on the last piece
    usage: Usage = NOTHING_YET


@dataclass(frozen=True, slots=True)
class Segment:
    index: int
    text: str
    start_s: float  # of the sound, at speed 1
    end_s: float


class PlaybackClock:
    """How much of what was sent a player that started at once has not yet played."""

    def __init__(self) -> None:
        self._dry_s: float | None = None  # when the player will have played all

    def sent(self, duration_s: float) -> None:
        if duration_s:
            self._dry_s = max(time.monotonic(), self._dry_s or 0.0) + duration_s

    def stop(self) -> None:
        """The player has thrown away what it had."""
        self._dry_s = None

    @property
    def unplayed_s(self) -> float:
        return 0.0 if self._dry_s is None else max(0.0, self._dry_s - time.monotonic())


class Narration:
    """Parts spoken one after the other, in one voice and with one seed, and joined without a click. A part is asked for
    when the last one has been made: the engine never refuses it, and its listener still has sound to play."""

    def __init__(
        self,
        engine: SpeechEngine,
        request: SpeechRequest,
        rate_hz: int,
        pool: Executor,
        *,
        speed: float = 1.0,
        clock: PlaybackClock | None = None,
        alone: bool = False,
    ) -> None:
        """`alone`: there will be one part only, so that nothing has to be held back for a joint."""
        self._engine, self._request, self._rate_hz, self._pool = engine, request, rate_hz, pool
        self._speed, self._clock = speed, clock or PlaybackClock()
        self._joint = None if alone else Joint(rate_hz)
        self._tokens_left = request.max_new_tokens
        self._parts = self._samples = self._part_start = 0
        self._used = NOTHING_YET
        self._finish: FinishReason = "stop"

    def part(self, text: str, *, streaming_text: bool = False) -> Utterance:
        """The next part, to be entered."""
        request = replace(self._request, text=text, max_new_tokens=self._tokens_left)
        if self._parts:  # the silence before a later part is the pause between two sentences
            left_s = min(self._clock.unplayed_s, MAX_CONTINUES_S)
            request = replace(request, continues_s=left_s, trim_silence=False)
        self._part_start = self._samples
        return Utterance(self._engine, request, self._pool, streaming_text=streaming_text)

    def sound(self, chunk: AudioChunk) -> Sound:
        """Of a chunk that is not a part's last."""
        return Sound(self._leaving(self._joint.push(chunk.pcm) if self._joint else chunk.pcm), usage=self._used)

    def end_part(self, chunk: AudioChunk, text: str, *, last: bool) -> Sound:
        """Of a part's last chunk. Where the speech is over, its sound says so: that need not be the last part."""
        pcm = chunk.pcm
        if self._joint:
            pcm = self._joint.push(pcm) + self._joint.end_segment(last=last)
        pcm = self._leaving(pcm)
        self._used = _sum(self._used, chunk.usage)
        self._finish = _worse(self._finish, chunk.finish_reason)
        if self._tokens_left is not None and chunk.usage is not None:
            self._tokens_left = max(2, self._tokens_left - chunk.usage.frames)
        segment = Segment(self._parts, text, self._part_start / self._rate_hz, self._samples / self._rate_hz)
        self._parts += 1
        over = last or self._finish == "length"
        return Sound(pcm, segment, self._finish if over else None, self._used)

    def _leaving(self, pcm: bytes) -> bytes:
        samples = len(pcm) // 2
        self._samples += samples
        self._clock.sent(samples / self._rate_hz / self._speed)
        return pcm


async def narrate(
    engine: SpeechEngine,
    request: SpeechRequest,
    segments: Sequence[str],
    rate_hz: int,
    pool: Executor,
    speed: float = 1.0,
) -> AsyncGenerator[Sound, None]:
    """The segments, heard as one. A single one is the engine's sound to the bit, and as the engine cut it."""
    narration = Narration(engine, request, rate_hz, pool, speed=speed, alone=len(segments) == 1)
    for index, text in enumerate(segments):
        async with narration.part(text) as utterance:
            while not (chunk := await utterance.next()).finish_reason:
                yield narration.sound(chunk)
        sound = narration.end_part(chunk, text, last=index == len(segments) - 1)
        yield sound
        if sound.finish_reason:
            return


def _sum(used: Usage, more: Usage | None) -> Usage:
    return used if more is None else Usage(used.text_ids + more.text_ids, used.frames + more.frames)


def _worse(one: FinishReason, other: FinishReason | None) -> FinishReason:
    """A segment that ran away does not end the speech, but the listener is told."""
    order: tuple[FinishReason, ...] = ("stop", "runaway", "length", "cancelled", "error")
    return max(one, other or "stop", key=order.index)


class Joint:
    """Fades the last samples of a segment out and the first of the next one in. Holds these last samples back until it
    is known that they are."""

    def __init__(self, rate_hz: int) -> None:
        self._fade = np.linspace(0.0, 1.0, round(_FADE_S * rate_hz), dtype=np.float32)
        self._held = b""
        self._faded_in = len(self._fade)  # the very beginning is left as it is

    def push(self, pcm: bytes) -> bytes:
        pcm = self._held + self._fade_in(pcm)
        cut = max(0, len(pcm) - 2 * len(self._fade))
        self._held = pcm[cut:]
        return pcm[:cut]

    def end_segment(self, *, last: bool) -> bytes:
        tail, self._held = self._held, b""
        if not last:
            self._faded_in = 0
            tail = _scaled(tail, self._fade[::-1][len(self._fade) - len(tail) // 2 :])
        return tail

    def _fade_in(self, pcm: bytes) -> bytes:
        count = min(len(pcm) // 2, len(self._fade) - self._faded_in)
        if not count:
            return pcm
        faded = _scaled(pcm[: 2 * count], self._fade[self._faded_in : self._faded_in + count])
        self._faded_in += count
        return faded + pcm[2 * count :]


def _scaled(pcm: bytes, gains: np.ndarray) -> bytes:
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) * gains
    return np.rint(samples).astype("<i2").tobytes()
