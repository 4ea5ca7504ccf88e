"""Runs of published checkpoints that others have published: what greedy codes must be, without the official package.

From mingshi2333/Qwen3-TTS-ncnn (commit 7c58a67), made with the official package in float32 on a CPU; one on a GPU. The
voice of the Base runs is the speaker vector of Qwen's public clip clone_2.wav.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oscine.errors import EngineError
from oscine.request import SpeechRequest

if TYPE_CHECKING:
    from oscine.audio.pcm import Codes
    from oscine.model.config import ModelConfig
    from oscine.voice import Voice

_SURE_FRAMES = 16  # greedy decoding is chaotic: later ones may differ with the order of the sums
CLIP = "clone_2.wav, which the README of Qwen3-TTS links"
VECTOR = (0.0319, -0.0134, 0.0050, -0.0558, -0.0398, 0.0462, -0.1129, -0.0762)  # its first numbers, of 1024
_VECTOR_TOLERANCE = 0.002  # a GPU's differ by 0.0004
_ASSUMED = "the run's language was not published, Chinese is assumed"


@dataclass(frozen=True, slots=True)
class PublishedRun:
    checkpoint: str  # its hub id
    kind: str
    width: int  # of the talker
    layers: int
    request: SpeechRequest
    hashes: str  # of the first frame, of the first two, ...; the run ends after the last, or is compared up to there
    known_divergence: int | None = None  # the first frame where the official package's GPU and CPU were seen to differ
    assumed: str = ""  # about the request, because the publisher does not say it; such a run cannot fail

    @property
    def frames(self) -> int:
        return len(self.hashes.split())

    @property
    def clones(self) -> bool:
        """Whether its voice is that of the clip."""
        return self.kind == "base"

    def is_of(self, config: ModelConfig) -> bool:
        """Whether a checkpoint has this shape: it is the published one, or was trained from it."""
        stack = config.talker.stack
        same_shape = (config.kind, stack.width, stack.layers) == (self.kind, self.width, self.layers)
        return same_shape and (self.clones or self.request.voice in config.talker.speakers)


def _base_run(text: str, max_new_tokens: int, hashes: str, **more: Any) -> PublishedRun:
    return PublishedRun(
        checkpoint="Qwen/Qwen3-TTS-12Hz-0.6B-Base",
        kind="base",
        width=1024,
        layers=28,
        request=SpeechRequest(
            text=text, language="chinese", text_level="raw", greedy=True, max_new_tokens=max_new_tokens
        ),
        hashes=hashes,
        **more,
    )


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
    _base_run(
        "你好，这是 ncnn 移植的对齐测试。",
        512,
        "f3abbdc5 5ecd319e d4aa67e0 e7052943 9d74181a b0d3b681 27dfd68f b055af21 33ce0e5d 9804d586 29d276b8 "
        "9d2b98aa 89122b8e 8f8c8fc0 bb86448b 4964ccd5 0e18fa5e 9ef38684 dd04e2b1 08be405e d6c92587 25c4540d "
        "324f260f 1a9f1c78 bd009178 e059a592 bfc40d0d a9db6df2 07f08d08 c789c9ad a0c86cfb 0da09160 5ac12d36 "
        "44d5c1bf cb174abf f148307b c77bb046 7a8583b8 edba003a df25d23e 56abb980 4edd533b 46e2b3b7 c0f35802",
    ),
    _base_run(
        "这个项目把 Qwen3-TTS 移植到了 ncnn，全部 15 个坑都记录在 GitHub Discussion 里，欢迎复现！",
        512,
        "f3abbdc5 5ecd319e d4aa67e0 e7052943 9d74181a b0d3b681 735dff60 6a115c58 87af85c3 677a4c59 4a6def28 "
        "ef3de0a9 11970b7c ab5c57d3 05ea3460 4415c8db 766c08ef 91d145e5 f9409d96 c1fe38a6 84a79184 149a9af6 "
        "935350eb 1af7a19c 30f9c8fb 09f8e02e f1212d82 44045b80 ef65ad33 de9852b8 c6c41bbe af7413d6 82275f68 "
        "e48d79ad b20a5cf6 6ec98ce3 d7ff7759 1341bc0b 36419c27 e5e0ee4f a982f041 bef0355d d0d44878 aaf0448a "
        "05fc9151 825b9e5a 2676f902 cc1db1e3 ea7fb83a 4f4e40fb b14b1f74 e73a619f bb042789 c5a4f3b3 bd03e603 "
        "5d9b2ff6 fcf7e7cb 1aa0f4b9 32b16bc1 e60cdbea",
        known_divergence=26,
        assumed=_ASSUMED,
    ),
    # Of a GPU, and a runaway of 511 frames: its beginning.
    _base_run(
        "The quick brown fox jumps over the lazy dog, and the port to ncnn works perfectly.",
        41,
        "f3abbdc5 5ecd319e d4aa67e0 e7052943 9d74181a b0d3b681 5dc3899a 8dd0571a 84b2ca72 b43fc60d 2bff732a "
        "f0be646c 2b8b8a73 cf42a9a2 15d43dba 575af5dc aa9be6da a2e4f722 9edbb0c6 507140b7 e9a2f608 20ee69a6 "
        "d58027e1 88fb46a4 b0b3d185 2d01aed6 bf5272da 640d7e2a 31e03b65 9628d322 f1bcb6e2 a2d4ce6c ba28e18b "
        "3b6dd22d fea75f88 0a601828 ed398f66 c3e6aa5d d9207648 ce56f5ae",
        assumed=_ASSUMED,
    ),
)


def check_clip(voice: Voice) -> str:
    """Raises EngineError if it is not the voice of the published clip."""
    differences = [abs(ours - theirs) for ours, theirs in zip(voice.speaker.tolist(), VECTOR, strict=False)]
    if max(differences) > _VECTOR_TOLERANCE:
        message = f"the speaker vector differs from the published one by {max(differences):.2g}"
        raise EngineError(f"{message}: this is not {CLIP}, or these are not the published weights")
    return f"the speaker vector of the clip is the published one, in its first {len(VECTOR)} numbers"


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
        why = "sums in another order change greedy codes sooner or later"
        if run.known_divergence is not None and same >= run.known_divergence:
            why = f"the official package's own differ from frame {run.known_divergence} on between a GPU and a CPU"
        return f"greedy codes equal the published run's up to frame {same} of {run.frames}; {why}"
    differ = f"greedy codes differ from the published run's at frame {same} of {run.frames}"
    if run.assumed:
        return f"{differ}; {run.assumed}"
    raise EngineError(f"{differ}: these are not the weights of {run.checkpoint}, or they are damaged")
