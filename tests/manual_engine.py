"""A SpeechEngine without a model or a thread, which speaks when the test says so.

It stands behind what submits requests: utterances, routers, programs. tests/server/scripted_engine.py speaks by itself.
"""

import numpy as np

from oscine.errors import EngineError
from oscine.request import SpeechRequest
from oscine.types import AudioChunk, ClipData, Command, Deliver, EngineStatus, FinishReason
from oscine.voice import Voice


class ManualEngine:
    def __init__(self, slots: int = 8, error: Exception | None = None) -> None:
        """`error` is raised instead of accepting a request or a clip."""
        self.slots, self.error = slots, error
        self.requests: list[SpeechRequest] = []
        self.utterances: list[str] = []  # the ids of the requests
        self.deliver: dict[str, Deliver] = {}  # of the running ones
        self.commands: list[tuple[str, Command]] = []

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        self.utterances.append(utterance_id)
        self.deliver[utterance_id] = deliver

    def send(self, utterance_id: str, command: Command) -> None:
        self.commands.append((utterance_id, command))

    def speak(self, utterance_id: str, pcm: bytes = b"\0\0") -> None:
        self.deliver[utterance_id](AudioChunk(pcm, 0))

    def end(self, utterance_id: str, reason: FinishReason = "stop", error: EngineError | None = None) -> None:
        self.deliver.pop(utterance_id)(AudioChunk(b"", 0, reason, error))

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        if self.error is not None:
            raise self.error
        return Voice(np.ones(8, np.float32))

    def preset(self, name: str) -> Voice:
        if self.error is not None:
            raise self.error
        return Voice(np.full(8, len(name), np.float32))

    def status(self) -> EngineStatus:
        return EngineStatus(True, self.slots, len(self.deliver), 0, 0, 0.0)

    def stop(self, drain_s: float = 0.0) -> None: ...
