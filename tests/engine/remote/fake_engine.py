"""A SpeechEngine without a model, importable from a spawned process. Its text is a list of commands:

say 20            twenty chunks of 100 samples, numbered so that lost, repeated or foreign samples are detected
die exit | kill   the process ends here; `die sick`: the engine reports that it is not ready
hang submit | loop
refuse VoiceError

The transcript of a clip to clone may contain `die kill`, `refuse VoiceError`, `sleep 0.5`, or `hold FOLDER`, which
writes a line to FOLDER/begun and waits for FOLDER/go_on.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from oscine import errors, types
from oscine.errors import EngineError, OscineError, OverloadedError, RequestError, VoiceError
from oscine.request import SpeechRequest
from oscine.types import AppendText, AudioChunk, Cancel, ClipData, Command, Deliver, EngineStatus
from oscine.voice import Voice

CHUNK_SAMPLES = 100


def pcm(seed: int, first_sample: int, samples: int) -> bytes:
    """Samples that encode their index and the seed."""
    return ((np.arange(first_sample, first_sample + samples) + seed * 2003) % 2**16).astype("<u2").tobytes()


@dataclass(frozen=True)
class FakeConfig:
    slots: int = 8
    tick_s: float = 0.001
    max_queue: int = 10_000
    fail_build: str = ""
    build_s: float = 0.0
    wait_for: str = ""  # a file: builds wait until it exists
    marker: str = ""  # a file: with fail_build, only builds after the first fail
    log: str = ""  # a file that gets a line for each build
    failures: int = 10_000  # with `log` and fail_build: only so many builds fail


@dataclass
class _Utterance:
    deliver: Callable[[AudioChunk], None]
    seed: int
    streaming_text: bool
    words: deque[str] = field(default_factory=deque)
    chunks_left: int = 0
    samples: int = 0


def refusal(kind: str) -> OscineError:
    if kind == "OverloadedError":
        return OverloadedError("full", 2.5)
    cls: type[OscineError] = getattr(errors, kind)
    return cls(f"no {kind}", "voice") if issubclass(cls, RequestError) else cls(f"no {kind}")


def wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def build_fake(config: FakeConfig, progress: Callable[[str, int, int], None]) -> "FakeEngine":
    if config.wait_for:
        wait_for_file(Path(config.wait_for))
    for done in range(3):
        time.sleep(config.build_s / 3)
        progress(os.environ.get("FAKE_STAGE", "weights"), done + 1, 3)
    works = bool(config.marker) and not os.path.exists(config.marker)
    if config.marker:
        with open(config.marker, "a") as file:
            file.write("built\n")
    if config.log:
        with open(config.log, "a+") as file:
            file.write("built\n")
            file.seek(0)
            works = works or len(file.readlines()) > config.failures
    if config.fail_build == "exit" and not works:
        os._exit(7)
    if config.fail_build == "kill" and not works:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.fail_build and not works:
        raise ValueError("a stranger") if config.fail_build == "ValueError" else refusal(config.fail_build)
    return FakeEngine(config)


class FakeEngine:
    def __init__(self, config: FakeConfig | None = None) -> None:
        self._config = config or FakeConfig()
        self._changed = threading.Condition()
        self._running: dict[str, _Utterance] = {}
        self._frames = 0
        self._ready, self._stopping = True, False
        self.tell_log: list[tuple[str, Command]] = []
        self._thread = threading.Thread(target=self._loop, name="fake-loop", daemon=True)
        self._thread.start()

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        words = deque(request.text.split())
        if words[0] == "refuse":
            raise ValueError("a stranger") if words[1] == "ValueError" else refusal(words[1])
        if list(words)[:2] == ["hang", "submit"]:
            time.sleep(1000)
        with self._changed:
            if self._stopping:
                raise EngineError("the engine is stopped")
            if len(self._running) >= self._config.slots + self._config.max_queue:
                raise OverloadedError("full", 2.5)
            self._running[utterance_id] = _Utterance(deliver, request.seed or 0, streaming_text, words)
            self._changed.notify()

    def send(self, utterance_id: str, command: Command) -> None:
        with self._changed:
            self.tell_log.append((utterance_id, command))
            utterance = self._running.get(utterance_id)
            if utterance is None:
                return
            if isinstance(command, AppendText) and "\0" in command.text:
                raise RequestError("no NUL", "text")
            if isinstance(command, AppendText):
                utterance.words.extend(command.text.split())
            elif isinstance(command, Cancel):
                self._end(utterance_id, "cancelled")
            else:
                utterance.streaming_text = False
            self._changed.notify()

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """The speaker vector encodes the rate and the length of the clip, in thousands: a vector has a limit."""
        verb, _, what = (transcript or "").partition(" ")
        if verb == "refuse":
            raise refusal(what)
        if verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "sleep":
            time.sleep(float(what))
        if verb == "hold":
            with (Path(what) / "begun").open("a") as begun:
                begun.write("begun\n")
            wait_for_file(Path(what) / "go_on")
        assert isinstance(clip, tuple)
        speaker = np.array([clip[1], len(clip[0])], np.float32) / 1000
        return Voice(speaker) if transcript is None else Voice(speaker, np.zeros((1, 16), np.int64), transcript)

    def preset(self, name: str) -> Voice:
        if name == "stranger":
            raise VoiceError("unknown voice 'stranger'", "voice")
        return Voice(np.full(2, len(name), np.float32))

    def status(self) -> EngineStatus:
        with self._changed:
            active = min(len(self._running), self._config.slots)
            queued = len(self._running) - active
            return EngineStatus(self._ready, self._config.slots, active, queued, self._frames, self._config.tick_s)

    def stop(self, drain_s: float = 0.0) -> None:
        deadline_s = time.monotonic() + drain_s
        with self._changed:
            self._stopping = True
            while self._running and time.monotonic() < deadline_s:
                self._changed.wait(0.01)
            for utterance_id in list(self._running):
                self._end(utterance_id, "cancelled")
            self._changed.notify_all()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._stopping and not self._running:
                    return
                progress = [self._step(one) for one in list(self._running)[: self._config.slots]]
                if not any(progress):
                    self._changed.wait(0.05)
            time.sleep(self._config.tick_s)

    def _step(self, utterance_id: str) -> bool:
        utterance = self._running[utterance_id]
        while not utterance.chunks_left and len(utterance.words) >= 2:
            self._obey(utterance, utterance.words.popleft(), utterance.words.popleft())
        if utterance.chunks_left:
            sound = pcm(utterance.seed, utterance.samples, CHUNK_SAMPLES)
            utterance.deliver(AudioChunk(sound, utterance.samples, seed=utterance.seed))
            utterance.samples += CHUNK_SAMPLES
            utterance.chunks_left -= 1
            self._frames += 1
            return True
        if not utterance.streaming_text:
            self._end(utterance_id, "stop")
            return True
        return False

    def _obey(self, utterance: _Utterance, verb: str, what: str) -> None:
        if verb == "say":
            utterance.chunks_left = int(what)
        elif verb == "hang":
            time.sleep(1000)
        elif what == "sick":
            self._ready = False
        elif what == "exit":
            os._exit(3)
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def _end(self, utterance_id: str, reason: types.FinishReason) -> None:
        utterance = self._running.pop(utterance_id)
        utterance.deliver(AudioChunk(b"", utterance.samples, reason, None, utterance.seed))
