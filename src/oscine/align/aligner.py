"""Controls an aligner process (whisper.py), which aligns text to audio and transcribes audio.

The process is spawned before the first job and again after it died. A job that crashes it or takes too long loses only
its own answer.
"""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Self

from oscine.align.word_split import TimedWord, split_words
from oscine.audio.pcm import Samples
from oscine.errors import ConfigError, OscineError
from oscine.process.child import Child, Message, read_message, write_message

_START_S = 120.0  # to load the model
_JOB_S = 60.0  # for one job, in addition to twice the length of its audio
_EXIT_S = 5.0
_RETRY_S = 10.0  # after a failed start


class AlignerError(OscineError):
    """The aligner failed or is too busy, so this audio has no timestamps or no transcript."""


class Aligner:
    """Runs jobs one at a time; any thread may call it. `folder`: a Whisper model in CTranslate2's format."""

    def __init__(self, folder: Path, threads: int = 1, *, job_s: float = _JOB_S) -> None:
        """Raises ConfigError for a folder without the files of a model."""
        check_folder(folder)
        self._settings = {"folder": str(folder), "threads": threads}
        self._job_s = job_s
        self._lock = threading.Lock()  # held during a job: the process takes one at a time
        self._child: Child | None = None
        self.languages: frozenset[str] = frozenset()  # codes, once the model is loaded
        self._closed = False
        self._failed: tuple[float, str] | None = None  # when and why the last start failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Loads the model before the first job needs it. Raises ConfigError if it cannot be used."""
        with self._lock:
            self._started()

    def align(self, samples: Samples, rate_hz: int, text: str, language: str = "auto") -> list[TimedWord]:
        """Returns all words of the text in order, with their times in these samples. `language`: a name or a code.
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
        """Returns what is said. `language`: a name, a code, or "auto" to detect it. Raises AlignerError."""
        text: str = self._run({"method": "transcribe", "language": language}, samples, rate_hz)["text"]
        return text

    @property
    def pid(self) -> int | None:
        return self._child.popen.pid if self._child else None

    def close(self) -> None:
        """Ends the process, even during a job."""
        self._closed = True
        if not self._lock.acquire(blocking=False):
            if child := self._child:
                child.end()
            self._lock.acquire()
        try:
            self._end(_EXIT_S)
        finally:
            self._lock.release()

    def _run(self, job: Message, samples: Samples, rate_hz: int) -> Message:
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
        if self._child and self._child.popen.poll() is None:
            return
        self._end()
        if self._closed:
            raise ConfigError("the aligner is closed")
        if self._failed and time.monotonic() - self._failed[0] < _RETRY_S:
            raise ConfigError(self._failed[1])
        try:
            self._child = Child("oscine.align.whisper")
            answer = self._call(self._settings, None, _START_S)
            if "error" in answer:
                raise ConfigError(answer["error"])
        except (AlignerError, ConfigError, OSError) as error:
            self._end()
            self._failed = time.monotonic(), str(error)
            raise ConfigError(str(error)) from None
        self._failed = None
        self.languages = frozenset(answer["languages"])

    def _call(self, message: Message, samples: Samples | None, limit_s: float) -> Message:
        """Raises AlignerError, and ends the process, if there is no answer within the limit."""
        child = self._child
        assert child
        child.connection.settimeout(limit_s)
        try:
            write_message(child.pipe, message, b"" if samples is None else samples.astype("<f4").tobytes())
            return read_message(child.pipe)[0]
        except (EOFError, OSError):
            self._end()
            late = f", or took more than {limit_s:.0f} s"
            status = child.popen.returncode
            raise AlignerError(f"the aligner process ended with status {status}{late}; it is started again") from None

    def _end(self, timeout_s: float = 0.0) -> None:
        child, self._child = self._child, None
        if child:
            child.end(timeout_s)


# --- Languages: names and Whisper's codes.


CODES = {
    "chinese": "zh", "english": "en", "japanese": "ja", "korean": "ko", "german": "de", "french": "fr",
    "russian": "ru", "portuguese": "pt", "spanish": "es", "italian": "it",
}  # fmt: skip


def unknown_language(known: Collection[str], language: str, text: str = "") -> str | None:
    """Returns why a model that knows these codes cannot align this text, or None if it can. `language`: a name, a code
    or "auto"."""
    code = CODES.get(language, language)
    if len(code) <= 3 and code not in known:
        return f"the aligner knows {', '.join(sorted(known))}, not {language}"
    letters = [unicodedata.name(char, "").startswith("LATIN") for char in text if char.isalpha()]
    if set(known) == {"en"} and sum(letters) < len(letters) / 2:
        return "the aligner knows only English, and the text is in another script"
    return None


# --- The folder of a Whisper model in CTranslate2's format.


TOKENIZER = "tokenizer.json"
_FILES = ("model.bin", TOKENIZER)


def check_folder(folder: Path) -> None:
    """Raises ConfigError for a folder without a model's files. Loads nothing."""
    for name in _FILES:
        if not (folder / name).is_file():
            hint = "name the folder of a Whisper model in CTranslate2's format"
            raise ConfigError(f"the aligner {str(folder)!r} has no {name}; {hint}")
