"""The aligner for the event loop: one thread, and a bounded queue before it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from oscine.align.aligner import Aligner, AlignerError
from oscine.align.languages import unknown_language
from oscine.align.words import TimedWord
from oscine.errors import ConfigError, FieldError
from oscine.frames import Samples
from oscine.server.metrics import AlignerJob, AlignerMetrics

_log = logging.getLogger(__name__)
_MAX_QUEUED = 64  # segments; a segment of half a minute has 1.4 MB
_Answer = TypeVar("_Answer")


class AsyncAligner:
    def __init__(self, folder: Path, threads: int, metrics: AlignerMetrics) -> None:
        """Raises ConfigError for a folder that has no model."""
        self._aligner, self._metrics = Aligner(folder, threads), metrics
        self._pool = ThreadPoolExecutor(1, "oscine-align")
        self._queued = 0
        self._closed = False

    @property
    def languages(self) -> frozenset[str]:
        """Codes; empty while the model is not loaded."""
        return self._aligner.languages

    def known(self, languages: Sequence[str]) -> list[str]:
        """Those that it can align; all while the model is not loaded."""
        return [name for name in languages if not self.languages or unknown_language(self.languages, name) is None]

    def start(self) -> None:
        """Loads the model in the background."""
        self._pool.submit(self._load)

    async def align(self, pcm: bytes, rate_hz: int, text: str, language: str) -> list[TimedWord]:
        """Raises AlignerError."""
        return await self._run("align", lambda: self._aligner.align(_samples(pcm), rate_hz, text, language))

    async def transcribe(self, samples: Samples, rate_hz: int, language: str = "auto") -> str:
        """Raises AlignerError."""
        return await self._run("transcribe", lambda: self._aligner.transcribe(samples, rate_hz, language))

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._aligner.close()

    def _load(self) -> None:
        try:
            self._aligner.start()
        except ConfigError as error:
            if not self._closed:
                _log.error("the aligner cannot be started: %s", error)

    async def _run(self, name: AlignerJob, job: Callable[[], _Answer]) -> _Answer:
        if self._queued >= _MAX_QUEUED:
            self._metrics.refused(name)
            raise AlignerError(f"the aligner is too busy: {self._queued} segments wait for it")
        self._queued += 1
        try:
            with self._metrics.running(name):
                return await asyncio.get_running_loop().run_in_executor(self._pool, job)
        finally:
            self._queued -= 1


def check_aligner(aligner: AsyncAligner | None, language: str, param: str = "word_timestamps") -> None:
    """Raises a field error if words of this language cannot be timed. `language`: a name, or "auto"."""
    if aligner is None:
        message = "word timestamps need an aligner; start the server with --aligner FOLDER, or leave this field out"
        raise FieldError(message, param=param)
    if aligner.languages and (reason := unknown_language(aligner.languages, language)):
        raise FieldError(f"{reason}; leave {param} out", param=param)


def _samples(pcm: bytes) -> Samples:
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
