"""A SpeechEngine without a model: every character is a frame with a tone that depends on character, seed and voice, so
that lost, repeated, foreign or reordered frames are detected. Words with an effect:

!break   the stream fails here        !refuse  the request is refused        !run   the segment ends as a runaway
"""

import math
import zlib

import numpy as np

from oscine.errors import EngineError, RequestError
from oscine.request import SpeechRequest
from oscine.types import ClipData, Deliver, ModelCard
from oscine.voice import Voice
from tests.manual_engine import FakeUtterance, SpeakingEngine

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


class ScriptedEngine(SpeakingEngine):
    def __init__(
        self, slots: int = 8, queue: int = 8, frame_s: float = 0.0, max_frames: float = math.inf, ready: bool = True
    ) -> None:
        """It speaks `max_frames` since the start, and pauses until this is raised."""
        super().__init__(slots, queue, frame_s)
        self.max_frames, self.ready = max_frames, ready
        self.clones = 0
        self.presets: list[str] = []  # whose vectors were asked for

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        if not streaming_text and not request.text.strip():
            raise RequestError("the text is empty; give at least one word to speak", "text")
        if "!refuse" in request.text:
            raise RequestError("this text is refused", "text")
        if any("\ud800" <= character <= "\udfff" for character in request.text):
            raise RequestError("the text holds a lone surrogate", "text")
        super().enqueue(utterance_id, request, deliver, streaming_text=streaming_text)

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        self.clones += 1
        content = clip if isinstance(clip, bytes) else clip[0].tobytes()
        speaker = np.arange(8, dtype=np.float32) + zlib.crc32(content) % 1000
        return Voice(speaker) if transcript is None else Voice(speaker, np.zeros((2, 16), np.int64), transcript)

    def preset(self, name: str) -> Voice:
        self.presets.append(name)
        return preset_vector(name)

    def step(self, utterance_id: str, utterance: FakeUtterance) -> bool:
        request, rest = utterance.request, utterance.text[utterance.frames :]
        if rest.startswith("!break"):
            self.end(utterance_id, "error", EngineError("the engine failed while it spoke"))
        elif rest.startswith("!run"):
            self.end(utterance_id, "runaway")
        elif rest and self.frames >= self.max_frames:
            return False
        elif rest and request.max_new_tokens is not None and utterance.frames + 1 >= request.max_new_tokens:
            self.end(utterance_id, "length")
        elif rest:
            self.speak(utterance_id, frame(rest[0], utterance.frames, request.seed or 0, request.voice))
        elif not utterance.open:
            self.end(utterance_id, "stop")
        else:
            return False
        return True
