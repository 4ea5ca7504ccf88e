"""Times the words of one speech while it is sent. Audio never waits for it: each segment is aligned when its audio is
complete, and the times follow later."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from oscine.align.aligner import AlignerError
from oscine.align.words import TimedWord, split_words
from oscine.align.written_words import written_words
from oscine.narration import NarrationChunk, SegmentTiming
from oscine.server.async_aligner import AsyncAligner
from oscine.server.speech_plan import SpeechPlan

_log = logging.getLogger(__name__)
_LOOK_S = 0.05  # between two looks whether to give up
_LATE = "the aligner was not done in time"


@dataclass(frozen=True, slots=True)
class SegmentWords:
    """All words of a segment, in order; without times if `warning` says why."""

    index: int
    words: tuple[TimedWord, ...]  # seconds in the audio that the client gets
    warning: str | None = None


class WordTimer:
    def __init__(self, aligner: AsyncAligner, plan: SpeechPlan) -> None:
        self._aligner, self._plan = aligner, plan
        self._pcm = bytearray()
        self._begin = 0  # samples before `_pcm`
        self._segments: deque[tuple[SegmentTiming, asyncio.Task[SegmentWords]]] = deque()

    def push(self, chunk: NarrationChunk) -> None:
        """Takes every chunk of the speech."""
        self._pcm += chunk.pcm
        segment = chunk.segment
        if segment is None:
            return
        first, last = (round(time_s * self._plan.rate_hz) - self._begin for time_s in (segment.start_s, segment.end_s))
        task = asyncio.create_task(self._align(segment, bytes(self._pcm[2 * first : 2 * last])))
        self._segments.append((segment, task))
        self._begin += len(self._pcm) // 2
        self._pcm.clear()

    def finished(self) -> list[SegmentWords]:
        """The next segments, as far as they are aligned."""
        found = []
        while self._segments and self._segments[0][1].done():
            found.append(self._segments.popleft()[1].result())
        return found

    async def rest(self, gives_up: Callable[[], bool] | None = None) -> list[SegmentWords]:
        """The segments that are left. Those that are not aligned when `gives_up` says so have no times."""
        try:
            while waiting := [task for _, task in self._segments if not task.done()]:
                if gives_up and gives_up():
                    break
                await asyncio.wait(waiting, timeout=_LOOK_S if gives_up else None)
            return [task.result() if task.done() else _untimed(segment, _LATE) for segment, task in self._segments]
        finally:
            self.close()

    def close(self) -> None:
        for _, task in self._segments:
            task.cancel()
        self._segments.clear()

    async def _align(self, segment: SegmentTiming, pcm: bytes) -> SegmentWords:
        plan = self._plan
        try:
            text = segment.spoken.spoken if segment.spoken else segment.text
            words = await self._aligner.align(pcm, plan.rate_hz, text, plan.request.language)
            words = written_words(segment.spoken, words) if segment.spoken else words
        except AlignerError as error:
            _log.warning("word timestamps are missing: %s", error)
            return _untimed(segment, str(error))
        except Exception:  # a bug here must not fail the speech
            _log.exception("word timestamps are missing")
            return _untimed(segment, "an internal error")
        return SegmentWords(segment.index, tuple(_shifted(word, segment.start_s, plan.speed) for word in words))


def _untimed(segment: SegmentTiming, reason: str) -> SegmentWords:
    words = tuple(TimedWord(word.text) for word in split_words(segment.text))
    return SegmentWords(segment.index, words, f"the words have no times: {reason}")


def _shifted(word: TimedWord, start_s: float, speed: float) -> TimedWord:
    assert word.start_s is not None and word.end_s is not None
    return TimedWord(word.word, round((start_s + word.start_s) / speed, 3), round((start_s + word.end_s) / speed, 3))
