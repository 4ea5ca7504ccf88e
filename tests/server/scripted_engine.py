"""A SpeechEngine without a model: every character is a frame with a tone that depends on character, seed and voice, so
that lost, repeated, foreign or reordered frames are detected. Words with an effect:

!break   the stream fails here        !refuse  the request is refused        !run   the segment ends as a runaway
"""

import math
import threading
import time
import zlib
from dataclasses import dataclass, field

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
    EndText,
    EngineStatus,
    FinishReason,
    ModelCard,
    Usage,
)
from oscine.voice import Voice

RATE_HZ, FRAME_SAMPLES = 24_000, 1920
CARD = ModelCard(
    name="scripted",
    kind="custom_voice",
    speakers=("wren", "finch"),
    languages=("english", "chinese"),
    dialects=(),
    takes_instructions=True,
    sample_rate_hz=RATE_HZ,
    samples_per_frame=FRAME_SAMPLES,
    speaker_width=8,
)
BASE_CARD = ModelCard(**{**{name: getattr(CARD, name) for name in CARD.__slots__}, "kind": "base", "speakers": ()})


def frame(character: str, number: int, seed: int, voice: str | Voice | None) -> bytes:
    """80 ms of a sine with a whole number of periods per frame: frames join without a step."""
    name = voice.content_hash if isinstance(voice, Voice) else voice or ""
    periods = 10 + (ord(character) * 7 + number * 3 + seed * 13 + sum(map(ord, name))) % 60
    wave = np.sin(2 * np.pi * periods * np.arange(FRAME_SAMPLES) / FRAME_SAMPLES)
    return np.rint(12000 * wave).astype("<i2").tobytes()


def spoken(text: str, seed: int, voice: str | Voice | None = None) -> bytes:
    """The whole utterance of this text."""
    return b"".join(frame(character, number, seed, voice) for number, character in enumerate(text))


def preset_vector(name: str) -> Voice:
    return Voice(
        np.arange(8, dtype=np.float32) + zlib.crc32(name.encode()) % 100 * np.arange(8, 0, -1, dtype=np.float32)
    )


@dataclass(eq=False)
class _Utterance:
    request: SpeechRequest
    deliver: Deliver
    text: str
    open: bool
    frames: int = 0
    samples: int = 0


@dataclass
class ScriptedEngine:
    slots: int = 8
    queue: int = 8
    frame_s: float = 0.0  # duration of a frame
    max_frames: float = math.inf  # since the start; then it pauses until this is raised
    ready: bool = True
    submitted: list[SpeechRequest] = field(default_factory=list)
    cancelled: int = 0
    clones: int = 0
    presets: list[str] = field(default_factory=list)  # whose vectors were asked for

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[str, _Utterance] = {}
        self._frames = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="scripted-engine", daemon=True)
        self._thread.start()

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        if not streaming_text and not request.text.strip():
            raise RequestError("the text is empty; give at least one word to speak", "text")
        if "!refuse" in request.text:
            raise RequestError("this text is refused", "text")
        if any("\ud800" <= character <= "\udfff" for character in request.text):
            raise RequestError("the text holds a lone surrogate", "text")
        with self._changed:
            if self._stopping or not self.ready:
                raise EngineError("the engine is stopped")
            full = len(self._running) >= self.slots + self.queue
            if full and request.continues_s is None:
                raise OverloadedError("The server is full. Retry in 2.5 s.", 2.5)
            self.submitted.append(request)
            self._running[utterance_id] = _Utterance(request, deliver, request.text, streaming_text)
            self._changed.notify_all()

    def send(self, utterance_id: str, command: Command) -> None:
        with self._changed:
            utterance = self._running.get(utterance_id)
            if utterance is None:
                return
            match command:
                case AppendText(text):
                    if "\0" in text:
                        raise RequestError("the text holds a NUL", "text")
                    utterance.text += text
                case EndText():
                    utterance.open = False
                case Cancel():
                    self.cancelled += 1
                    self._end(utterance_id, "cancelled")
            self._changed.notify_all()

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        self.clones += 1
        content = clip if isinstance(clip, bytes) else clip[0].tobytes()
        speaker = np.arange(8, dtype=np.float32) + zlib.crc32(content) % 1000
        return Voice(speaker) if transcript is None else Voice(speaker, np.zeros((2, 16), np.int64), transcript)

    def preset(self, name: str) -> Voice:
        self.presets.append(name)
        return preset_vector(name)

    def status(self) -> EngineStatus:
        with self._changed:
            active = min(len(self._running), self.slots)
            return EngineStatus(self.ready, self.slots, active, len(self._running) - active, self._frames, 0.001)

    def stop(self, drain_s: float = 0.0) -> None:
        with self._changed:
            self._stopping = True
            for utterance_id in list(self._running):
                self._end(utterance_id, "cancelled")
            self._changed.notify_all()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                steps = [self._step(one) for one in list(self._running)[: self.slots]]
                if not any(steps):
                    self._changed.wait(0.05)
            if self.frame_s and any(steps):
                time.sleep(self.frame_s)

    def _step(self, utterance_id: str) -> bool:
        one = self._running[utterance_id]
        rest = one.text[one.frames :]
        if rest.startswith("!break"):
            self._end(utterance_id, "error", EngineError("the engine failed while it spoke"))
        elif rest.startswith("!run"):
            self._end(utterance_id, "runaway")
        elif rest and self._frames >= self.max_frames:
            return False
        elif rest:
            limit = one.request.max_new_tokens
            if limit is not None and one.frames + 1 >= limit:
                self._end(utterance_id, "length")
                return True
            pcm = frame(rest[0], one.frames, one.request.seed or 0, one.request.voice)
            one.deliver(AudioChunk(pcm, one.samples, seed=one.request.seed or 0))
            one.frames += 1
            one.samples += FRAME_SAMPLES
            self._frames += 1
        elif not one.open:
            self._end(utterance_id, "stop")
        else:
            return False
        return True

    def _end(self, utterance_id: str, reason: FinishReason, error: EngineError | None = None) -> None:
        one = self._running.pop(utterance_id)
        usage = Usage(len(one.text), one.frames)
        one.deliver(AudioChunk(b"", one.samples, reason, error, one.request.seed or 0, usage))
