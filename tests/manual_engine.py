"""The fake engine: a SpeechEngine and a LocalEngine without a model. ManualEngine speaks when the test says so.

SpeakingEngine speaks by itself, on a thread; tests/server/scripted_engine.py and tests/engine/remote/fake_engine.py say
what.
"""

import threading
import time
from dataclasses import dataclass

import numpy as np

from oscine.errors import EngineError, OverloadedError, RequestError
from oscine.request import SpeechRequest
from oscine.types import (
    AppendText,
    AudioChunk,
    Cancel,
    ClipData,
    Command,
    Deliver,
    EngineStatus,
    FinishReason,
    Usage,
)
from oscine.voice import Voice


@dataclass(eq=False)
class FakeUtterance:
    request: SpeechRequest
    deliver: Deliver
    text: str
    open: bool  # more text may come
    frames: int = 0
    samples: int = 0
    waiting: int = 0  # frames that a script has announced


class ManualEngine:
    def __init__(self, slots: int = 8, error: Exception | None = None) -> None:
        """`error` is raised instead of accepting a request or a clip."""
        self.slots, self.error = slots, error
        self.requests: list[SpeechRequest] = []
        self.utterances: list[str] = []  # the ids of the requests
        self.speaking: dict[str, FakeUtterance] = {}
        self.commands: list[tuple[str, Command]] = []
        self.frames = 0

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        self.utterances.append(utterance_id)
        self.speaking[utterance_id] = FakeUtterance(request, deliver, request.text, streaming_text)

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        self.enqueue(utterance_id, request, deliver, streaming_text=streaming_text)

    def send(self, utterance_id: str, command: Command) -> None:
        self.commands.append((utterance_id, command))

    def speak(self, utterance_id: str, pcm: bytes = b"\0\0") -> None:
        one = self.speaking[utterance_id]
        one.deliver(AudioChunk(pcm, one.samples, seed=one.request.seed or 0))
        one.frames, one.samples = one.frames + 1, one.samples + len(pcm) // 2
        self.frames += 1

    def end(self, utterance_id: str, reason: FinishReason = "stop", error: EngineError | None = None) -> None:
        one = self.speaking.pop(utterance_id)
        usage = Usage(len(one.text), one.frames)
        one.deliver(AudioChunk(b"", one.samples, reason, error, one.request.seed or 0, usage))

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        if self.error is not None:
            raise self.error
        return Voice(np.ones(8, np.float32))

    def preset(self, name: str) -> Voice:
        if self.error is not None:
            raise self.error
        return Voice(np.full(8, len(name), np.float32))

    def status(self) -> EngineStatus:
        return EngineStatus(True, self.slots, len(self.speaking), 0, 0, 0.0)

    def stop(self, drain_s: float = 0.0) -> None: ...


class SpeakingEngine(ManualEngine):
    """A tick gives every utterance in a slot a `step`, which subclasses define."""

    def __init__(self, slots: int = 8, queue: int = 8, frame_s: float = 0.0) -> None:
        """`frame_s` is the duration of a tick."""
        super().__init__(slots)
        self.queue, self.frame_s = queue, frame_s
        self.ready = True
        self.cancelled = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="fake-engine", daemon=True)
        self._thread.start()

    def step(self, utterance_id: str, utterance: FakeUtterance) -> bool:
        """Returns whether there was something to do. Nothing else happens meanwhile."""
        raise NotImplementedError

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        with self._changed:
            if self._stopping or not self.ready:
                raise EngineError("the engine is stopped")
            full = len(self.speaking) >= self.slots + self.queue
            if full and request.continues_s is None:
                raise OverloadedError("The server is full. Retry in 2.5 s.", 2.5)
            super().enqueue(utterance_id, request, deliver, streaming_text=streaming_text)
            self._changed.notify_all()

    def send(self, utterance_id: str, command: Command) -> None:
        with self._changed:
            super().send(utterance_id, command)
            utterance = self.speaking.get(utterance_id)
            if utterance is None:
                return
            if isinstance(command, Cancel):
                self.cancelled += 1
                self.end(utterance_id, "cancelled")
            elif not isinstance(command, AppendText):
                utterance.open = False
            elif "\0" in command.text:
                raise RequestError("the text holds a NUL", "text")
            else:
                utterance.text += command.text
            self._changed.notify_all()

    def status(self) -> EngineStatus:
        with self._changed:
            active = min(len(self.speaking), self.slots)
            return EngineStatus(self.ready, self.slots, active, len(self.speaking) - active, self.frames, 0.001)

    def stop(self, drain_s: float = 0.0) -> None:
        deadline_s = time.monotonic() + drain_s
        with self._changed:
            self._stopping = True
            while self.speaking and (rest_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(rest_s)
            for utterance_id in list(self.speaking):
                self.end(utterance_id, "cancelled")
            self._changed.notify_all()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._stopping and not self.speaking:
                    return
                running = list(self.speaking.items())
                steps = [self.step(*one) for one in running[: self.slots]]
                if len(self.speaking) < len(running):
                    self._changed.notify_all()  # `stop` may wait for it
                if not any(steps):
                    self._changed.wait(0.05)
            if self.frame_s and any(steps):
                time.sleep(self.frame_s)
