"""An engine that delivers one frame at once, so that the rest of a request's time is the server's. For overhead.py."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from oscine.types import AudioChunk, ClipData, Command, EngineStatus, SpeechRequest, Usage
from oscine.voice import Voice

RATE_HZ, FRAME_SAMPLES = 24_000, 1920


class InstantEngine:
    """Delivers from another thread, as the engine loop does."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Callable[[AudioChunk], None]] = queue.SimpleQueue()
        threading.Thread(target=self._speak, daemon=True).start()

    def submit(
        self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, streaming_text: bool = False
    ) -> str:
        self._requests.put(deliver)
        return "1"

    def _speak(self) -> None:
        while True:
            deliver = self._requests.get()
            deliver(AudioChunk(bytes(2 * FRAME_SAMPLES), 0))
            deliver(AudioChunk(b"", FRAME_SAMPLES, "stop", usage=Usage(1, 1)))

    def tell(self, utterance_id: str, command: Command) -> None: ...

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        raise NotImplementedError

    def status(self) -> EngineStatus:
        return EngineStatus(True, 1, 0, 0, 0, 0.0)

    def stop(self, drain_s: float = 0.0) -> None: ...


def build(progress: Callable[[str, int, int], None]) -> InstantEngine:
    return InstantEngine()
