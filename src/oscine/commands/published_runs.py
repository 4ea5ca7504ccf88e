"""Runs of published checkpoints that others have published: what greedy codes must be, without the official package.

From mingshi2333/Qwen3-TTS-ncnn (commit 7c58a67), made with the official package in float32 on a CPU. For the other
checkpoints no run is known that needs no clip.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oscine.errors import EngineError
from oscine.request import SpeechRequest

if TYPE_CHECKING:
    from oscine.audio.pcm import Codes
    from oscine.model.config import ModelConfig

# Greedy decoding is chaotic: the official package's own codes of one text on a GPU and a CPU differ from frame 26 on.
_SURE_FRAMES = 16


@dataclass(frozen=True, slots=True)
class PublishedRun:
    checkpoint: str  # its hub id
    kind: str
    width: int  # of the talker
    layers: int
    request: SpeechRequest
    hashes: str  # of the first frame, of the first two, ...; the run ends after the last

    @property
    def frames(self) -> int:
        return len(self.hashes.split())

    def is_of(self, config: ModelConfig) -> bool:
        """Whether a checkpoint has this shape: it is the published one, or was trained from it."""
        stack = config.talker.stack
        same_shape = (config.kind, stack.width, stack.layers) == (self.kind, self.width, self.layers)
        return same_shape and self.request.voice in config.talker.speakers


PUBLISHED_RUNS = (
    PublishedRun(
        checkpoint="Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
        kind="custom_voice",
        width=1024,
        layers=28,
        request=SpeechRequest(
            text="你好，这是内置音色的对齐测试。",
            voice="serena",
            language="chinese",
            text_level="raw",
            greedy=True,
            max_new_tokens=200,
        ),
        hashes="94ece445 ee418cb4 a129cf93 143f9eae d8ee2f2b a7b973f4 2848987a 027cc9a1 ff9052e6 98284729 5692a7b5 "
        "ed5ea75e 3e992791 e441560b 75eae1eb f66e9d94 5eb61455 23ef04ba 3a756797 47a3015d 67726ea0 45387dd5 d015188d "
        "1903c01a a00f3c8a b4ae34fd c3974188 4a96cdfa 132defc1 e6233f2e ee7e6b48 d2821cea 33a34765 d9f51c66 27afa91c "
        "d14a9e93 203d96e4 047c2965 523464dd 0f524d1a 4af44180",
    ),
)


def leading_hashes(codes: Codes) -> str:
    """Eight digits of the SHA-256 of the first frame, of the first two frames, and so on."""
    digest, found = hashlib.sha256(), []
    for frame in codes:
        digest.update(frame.astype("<i2").tobytes())
        found.append(digest.hexdigest()[:8])
    return " ".join(found)


def equal_frames(codes: Codes, run: PublishedRun) -> int:
    """How many leading frames are those of the run."""
    pairs = zip(leading_hashes(codes).split(), run.hashes.split(), strict=False)
    return next((frame for frame, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(codes), run.frames))


def verdict(codes: Codes, run: PublishedRun) -> str:
    """Raises EngineError if the codes are not those of the published weights."""
    same = equal_frames(codes, run)
    if same == run.frames == len(codes):
        return f"greedy codes equal the published run's ({same} of {run.frames} frames, float32 on the CPU)"
    if same >= _SURE_FRAMES:
        return (
            f"greedy codes equal the published run's up to frame {same} of {run.frames}; the official package's own "
            "differ about there between a GPU and a CPU"
        )
    raise EngineError(
        f"greedy codes differ from the published run's at frame {same} of {run.frames}: these are not the weights of "
        f"{run.checkpoint}, or they are damaged"
    )
