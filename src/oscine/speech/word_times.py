"""The aligner for the event loop: one thread, and a bounded queue before it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from oscine.align.aligner import Aligner, AlignerError, unknown_language
from oscine.align.word_split import TimedWord, split_words, written_words
from oscine.audio.pcm import Samples, samples_of
from oscine.errors import ConfigError, FieldError, OverloadedError
from oscine.process.resources import Account, Holding, Ledger
from oscine.speech.events import SegmentEnded, Words

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
AlignerJob = Literal["align", "transcribe"]


class JobMeter(Protocol):
    """Counts the aligner's jobs."""

    def refused(self, job: AlignerJob) -> None: ...

    def running(self, job: AlignerJob) -> AbstractContextManager[None]: ...


class _NoMeter:
    def refused(self, job: AlignerJob) -> None: ...

    def running(self, job: AlignerJob) -> AbstractContextManager[None]:
        return nullcontext()


class AsyncAligner:
    def __init__(self, folder: Path, threads: int, ledger: Ledger, meter: JobMeter | None = None) -> None:
        """Raises ConfigError for a folder that has no model."""
        self._aligner, self._meter = Aligner(folder, threads), meter or _NoMeter()
        self._pool = ledger.pool("alignment")
        self._closed = False

    @property
    def languages(self) -> frozenset[str]:
        """Codes of the languages that it knows; empty while the model is not loaded."""
        return self._aligner.languages

    def known(self, languages: Sequence[str]) -> list[str]:
        """Returns those languages that it can align; all while the model is not loaded."""
        return [name for name in languages if not self.languages or unknown_language(self.languages, name) is None]

    def start(self) -> None:
        """Loads the model in the background."""
        self._pool.executor.submit(self._load)

    async def align(self, pcm: bytes, rate_hz: int, text: str, language: str) -> list[TimedWord]:
        """Returns the words with their times. Raises AlignerError."""
        return await self._run("align", lambda: self._aligner.align(samples_of(pcm), rate_hz, text, language))

    async def transcribe(self, samples: Samples, rate_hz: int, language: str = "auto") -> str:
        """Returns what is said. Raises AlignerError."""
        return await self._run("transcribe", lambda: self._aligner.transcribe(samples, rate_hz, language))

    def close(self) -> None:
        self._closed = True
        self._pool.executor.shutdown(wait=False, cancel_futures=True)
        self._aligner.close()

    def _load(self) -> None:
        try:
            self._aligner.start()
        except ConfigError as error:
            if not self._closed:
                _log.error("the aligner cannot be started: %s", error)

    async def _run(self, name: AlignerJob, job: Callable[[], _Answer]) -> _Answer:
        try:
            running = self._pool.submit(job)
        except OverloadedError as error:
            self._meter.refused(name)
            raise AlignerError(f"the aligner is too busy: {error}") from None
        with self._meter.running(name):
            return await asyncio.wrap_future(running)


def check_aligner(aligner: AsyncAligner | None, language: str, param: str = "word_timestamps") -> None:
    """Raises a field error if words of this language cannot be timed. `language`: a name, or "auto"."""
    if aligner is None:
        message = "word timestamps need an aligner; start the server with --aligner FOLDER, or leave this field out"
        raise FieldError(message, param=param)
    if aligner.languages and (reason := unknown_language(aligner.languages, language)):
        raise FieldError(f"{reason}; leave {param} out", param=param)


# Times the words of one speech while it is sent. Audio never waits for it: each segment is aligned when its audio
# is complete, and the times follow later.


_LOOK_S = 0.05  # between two looks whether to give up
_LATE = "the aligner was not done in time"
_NO_ROOM = "the server holds too much audio"
_WAIT_SHARE = 0.25  # of the audio: how long its words may take after it


class WordTimer:
    def __init__(
        self, aligner: AsyncAligner, account: Account, language: str, rate_hz: int, speed: float, *, wait_s: float
    ) -> None:
        """`rate_hz`: of the audio that it gets. `speed`: of the audio that the client gets. `wait_s`: how long `rest`
        may take, beside its share of the audio."""
        self._aligner, self._language, self._rate_hz, self._speed = aligner, language, rate_hz, speed
        self._wait_s, self._account, self._held = wait_s, account, account.open()
        self._pcm: bytearray | None = bytearray()  # of the next segment; None: there is no room for it
        self._samples = self._begin = 0  # of the file, and those before `_pcm`
        self._segments: deque[tuple[SegmentEnded, asyncio.Task[Words]]] = deque()

    def push(self, pcm: bytes, segment: SegmentEnded | None) -> None:
        """Takes all audio of the file; `segment` ends with it."""
        self._samples += len(pcm) // 2
        try:
            self._held.add(len(pcm))
        except OverloadedError:
            self._pcm = None
            self._held.close()
        if self._pcm is not None:
            self._pcm += pcm
        if segment is None:
            return
        rate_hz = self._rate_hz * self._speed
        first, last = (round(time_s * rate_hz) - self._begin for time_s in (segment.start_s, segment.end_s))
        audio = None if self._pcm is None else bytes(self._pcm[2 * first : 2 * last])
        task = asyncio.create_task(self._align(segment, audio))
        task.add_done_callback(partial(_uncount, self._held))
        self._segments.append((segment, task))
        self._begin, self._pcm, self._held = self._samples, bytearray(), self._account.open()

    def finished(self) -> list[Words]:
        """The next segments, as far as they are aligned."""
        found = []
        while self._segments and self._segments[0][1].done():
            found.append(self._segments.popleft()[1].result())
        return found

    async def rest(self, gives_up: Callable[[], bool] | None = None) -> list[Words]:
        """The segments that are left. Those that are not aligned when `gives_up` says so, or in time, have no times."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._wait_s + _WAIT_SHARE * self._samples / self._rate_hz
        try:
            while waiting := [task for _, task in self._segments if not task.done()]:
                left_s = until_s - loop.time()
                if left_s <= 0 or (gives_up and gives_up()):
                    break
                await asyncio.wait(waiting, timeout=min(left_s, _LOOK_S) if gives_up else left_s)
            return [task.result() if task.done() else _untimed(segment, _LATE) for segment, task in self._segments]
        finally:
            self.close()

    def close(self) -> None:
        for _, task in self._segments:
            task.cancel()
        self._segments.clear()
        self._held.close()

    async def _align(self, segment: SegmentEnded, pcm: bytes | None) -> Words:
        if pcm is None:
            return _untimed(segment, _NO_ROOM)
        try:
            text = segment.spoken.spoken if segment.spoken else segment.text
            language = segment.turn.request.language if segment.turn else self._language
            words = await self._aligner.align(pcm, self._rate_hz, text, language)
            words = written_words(segment.spoken, words) if segment.spoken else words
        except AlignerError as error:
            _log.warning("word timestamps are missing: %s", error)
            return _untimed(segment, str(error))
        except Exception:  # a bug here must not fail the speech
            _log.exception("word timestamps are missing")
            return _untimed(segment, "an internal error")
        shifted = tuple(_shifted(word, segment.start_s, self._speed) for word in words)
        return Words(segment.index, shifted, turn=segment.turn)


def _uncount(held: Holding, _: object) -> None:
    held.close()


def _untimed(segment: SegmentEnded, reason: str) -> Words:
    words = tuple(TimedWord(word.text) for word in split_words(segment.text))
    return Words(segment.index, words, f"the words have no times: {reason}", segment.turn)


def _shifted(word: TimedWord, start_s: float, speed: float) -> TimedWord:
    assert word.start_s is not None and word.end_s is not None
    return TimedWord(word.word, round(start_s + word.start_s / speed, 3), round(start_s + word.end_s / speed, 3))
