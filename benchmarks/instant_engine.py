"""An engine without a model: ready-made frames, the first one at once, the others at a given pace. The rest of the time
of a request is the front end's. For front_end.py."""

from __future__ import annotations

import heapq
import itertools
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.config import ChunkConfig
from oscine.types import AudioChunk, ClipData, Command, Deliver, EngineStatus, SpeechRequest, Usage
from oscine.voice import Voice

FRAME_SAMPLES = 1920
FRAME_BYTES = 2 * FRAME_SAMPLES
# At the start of every chunk: readings of the machine's monotonic clock, which all processes share.
STAMPS = struct.Struct("<3d")
_SLOTS = 4096


def frames_after_chunks(frames: int) -> Iterator[int]:
    """Frames sent after each chunk. Chunks grow as the engine's do: with the audio that was sent before."""
    sent = 0
    while sent < frames:
        sent += min(max(1, sent), ChunkConfig().steady_chunk_frames, frames - sent)
        yield sent


class BuildsPrompts(Protocol):
    def build(self, request: SpeechRequest) -> object: ...


@dataclass(slots=True)
class _Stream:
    deliver: Deliver
    arrived_s: float
    queued_s: float
    ends: list[int]  # frames after each chunk that was not sent yet, the next one last
    sent: int = 0


class InstantEngine:
    """Delivers from another thread, as the engine loop does. A request gets `max_new_tokens` - 1 frames, or one.

    Each chunk begins with three stamps: when the request arrived, when its prompt was built, when the chunk left.
    """

    def __init__(self, builder: BuildsPrompts | None = None, x_real_time: float = 1.0) -> None:
        self._builder, self._frame_s = builder, 1 / FRAME_RATE_HZ / x_real_time
        self._streams: queue.SimpleQueue[_Stream] = queue.SimpleQueue()
        threading.Thread(target=self._speak, daemon=True).start()

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        arrived_s = time.perf_counter()
        if self._builder:
            self._builder.build(request)
        ends = [*frames_after_chunks(max(1, (request.max_new_tokens or 0) - 1))]
        self._streams.put(_Stream(deliver, arrived_s, time.perf_counter(), ends[::-1]))

    def _speak(self) -> None:
        due: list[tuple[float, int, _Stream]] = []  # when the next chunk is complete
        for number in itertools.count():
            wait_s = max(0.0, due[0][0] - time.perf_counter()) if due else None
            try:
                stream = self._streams.get(timeout=wait_s)
            except queue.Empty:
                _, _, stream = heapq.heappop(due)
            self._send_chunk(stream)
            if stream.ends:
                heapq.heappush(due, (stream.queued_s + (stream.ends[-1] - 1) * self._frame_s, number, stream))

    def _send_chunk(self, stream: _Stream) -> None:
        first, stream.sent = stream.sent, stream.ends.pop()
        stamps = STAMPS.pack(stream.arrived_s, stream.queued_s, time.perf_counter())
        pcm = stamps + bytes((stream.sent - first) * FRAME_BYTES - STAMPS.size)
        stream.deliver(AudioChunk(pcm, first * FRAME_SAMPLES))
        if not stream.ends:
            stream.deliver(AudioChunk(b"", stream.sent * FRAME_SAMPLES, "stop", usage=Usage(1, stream.sent)))

    def send(self, utterance_id: str, command: Command) -> None: ...

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        raise NotImplementedError

    def status(self) -> EngineStatus:
        return EngineStatus(True, _SLOTS, 0, 0, 0, 0.0)

    def stop(self, drain_s: float = 0.0) -> None: ...


def build_with_prompts(model: str, x_real_time: float, progress: Callable[[str, int, int], None]) -> InstantEngine:
    """Builds the prompts of this checkpoint's tokenizer, whose weights are not loaded."""
    from oscine.model.checkpoint import find_checkpoint
    from oscine.model.config import read_config
    from oscine.prompt.builder import PromptBuilder
    from oscine.prompt.tokenizer import Tokenizer

    folder = find_checkpoint(model)
    return InstantEngine(PromptBuilder(read_config(folder), Tokenizer.from_folder(folder)), x_real_time)
