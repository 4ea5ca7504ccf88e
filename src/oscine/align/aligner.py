"""The handle of an aligner process (aligner_process.py): aligns text to audio, and transcribes audio.

The process is spawned before the first job and again after it died. A job that crashes it or takes too long costs its
own answer only.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from oscine.align.languages import unknown_language
from oscine.align.whisper_folder import check_folder
from oscine.align.words import TimedWord, split_words
from oscine.errors import ConfigError, OscineError
from oscine.frames import Samples

_START_S = 120.0  # to load the model
_JOB_S = 60.0  # for one job, and twice as long as its audio
_EXIT_S = 5.0
_RETRY_S = 10.0  # after a failed start
_MAIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from oscine.align.aligner_process import main
main()
"""


class AlignerError(OscineError):
    """This audio has no timestamps or no transcript: the aligner failed, or is too busy."""


class Aligner:
    """`folder`: a Whisper model in CTranslate2's format. May be used by any thread; jobs run one at a time."""

    def __init__(self, folder: Path, threads: int = 1, *, job_s: float = _JOB_S) -> None:
        """Raises ConfigError for a folder without the files of a model."""
        check_folder(folder)
        self._settings = {"folder": str(folder), "threads": threads}
        self._job_s = job_s
        self._lock = threading.Lock()  # of the process: one job at a time
        self._process: subprocess.Popen[bytes] | None = None
        self.languages: frozenset[str] = frozenset()  # codes, once the model is loaded
        self._closed = False
        self._failed: tuple[float, str] | None = None  # when and why the last start failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Loads the model, which the first job would do otherwise. Raises ConfigError if it cannot be used."""
        with self._lock:
            self._started()

    def align(self, samples: Samples, rate_hz: int, text: str, language: str = "auto") -> list[TimedWord]:
        """All words of the text in order, with their times in these samples. `language`: a name or a code.
        Raises AlignerError."""
        words = split_words(text)
        if not words:
            return []
        if self.languages and (reason := unknown_language(self.languages, language, text)):
            raise AlignerError(reason)
        times = self._run({"method": "align", "text": text, "language": language}, samples, rate_hz)["times"]
        return [
            TimedWord(word.text, round(start_s, 3), round(end_s, 3))
            for word, (start_s, end_s) in zip(words, times, strict=True)
        ]

    def transcribe(self, samples: Samples, rate_hz: int, language: str = "auto") -> str:
        """What is said. `language`: a name or a code; "auto": detect it. Raises AlignerError."""
        text: str = self._run({"method": "transcribe", "language": language}, samples, rate_hz)["text"]
        return text

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def close(self) -> None:
        """Ends the process, and a job that is running."""
        self._closed = True
        if not self._lock.acquire(blocking=False):
            if process := self._process:
                process.kill()
            self._lock.acquire()
        try:
            if self._process:
                _pipe(self._process.stdin).close()  # tells the process to end
                self._end(_EXIT_S)
        finally:
            self._lock.release()

    def _run(self, job: dict[str, Any], samples: Samples, rate_hz: int) -> dict[str, Any]:
        with self._lock:
            try:
                self._started()
            except ConfigError as error:
                raise AlignerError(str(error)) from None
            answer = self._call({**job, "rate_hz": rate_hz}, samples, self._job_s + 2 * len(samples) / rate_hz)
        if "error" in answer:
            raise AlignerError(f"the aligner failed: {answer['error']}")
        return answer

    def _started(self) -> None:
        if self._process and self._process.poll() is None:
            return
        self._end(0.0)
        if self._closed:
            raise ConfigError("the aligner is closed")
        if self._failed and time.monotonic() - self._failed[0] < _RETRY_S:
            raise ConfigError(self._failed[1])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, json.dumps([*map(str, sys.path)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            answer = self._call(self._settings, None, _START_S)
            if "error" in answer:
                raise ConfigError(answer["error"])
        except (AlignerError, ConfigError) as error:
            self._end(0.0)
            self._failed = time.monotonic(), str(error)
            raise ConfigError(str(error)) from None
        self._failed = None
        self.languages = frozenset(answer["languages"])

    def _call(self, message: dict[str, Any], samples: Samples | None, limit_s: float) -> dict[str, Any]:
        """Raises AlignerError, and ends the process, if there is no answer within the limit."""
        process = self._process
        assert process
        content = b"" if samples is None else samples.astype("<f4").tobytes()
        watchdog = threading.Timer(limit_s, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            with contextlib.suppress(OSError):  # a process that no longer reads has ended, or says why it will
                stdin = _pipe(process.stdin)
                stdin.write(json.dumps({**message, "bytes": len(content)}).encode() + b"\n" + content)
                stdin.flush()
            line = _pipe(process.stdout).readline()
        finally:
            watchdog.cancel()
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        late = f", or took more than {limit_s:.0f} s"
        self._end(0.0)
        raise AlignerError(f"the aligner process ended with status {process.returncode}{late}; it is started again")

    def _end(self, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                _pipe(pipe).close()


def _pipe(pipe: Any) -> BinaryIO:
    return cast(BinaryIO, pipe)
