"""A whole engine on a Hopper GPU, with the kernels that it chooses by itself, with Triton's, and with FP8 weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oscine.config import EngineConfig, MemoryConfig, RunawayConfig, TrimConfig
from oscine.engine import build
from oscine.engine.build import build_engine
from oscine.engine.in_process import InProcessEngine
from oscine.model.config import read_config
from oscine.model.weights import load_model
from oscine.request import SpeechRequest
from tests.conftest import CheckpointMaker
from tests.engine.recorder import ChunkRecorder, submit
from tests.runner.cuda.kernel_speaker import needs_hopper
from tests.runner.wide_model import wide_config, wide_model

pytestmark = [pytest.mark.gpu, needs_hopper]

SLOTS = 64
CONFIG = EngineConfig(
    slots=SLOTS,
    queue_wait_s=3600.0,
    trim_silence=TrimConfig(enabled=False),
    runaway=RunawayConfig(enabled=False),
    memory=MemoryConfig(positions_per_slot=256),
)


def speak(engine: InProcessEngine, numbers: range) -> list[np.ndarray]:
    """The codes of requests that are submitted at once."""
    recorders = []
    for number in numbers:
        greedy = True if number % 2 == 0 else None
        request = SpeechRequest(
            text="Hello there.", voice="ryan", seed=number, greedy=greedy, max_new_tokens=25, return_codes=True
        )
        recorders.append(ChunkRecorder())
        submit(engine, request, recorders[-1])
    return [recorder.last().codes for recorder in recorders]


@pytest.mark.parametrize(
    ("kernels", "quantize", "shown"),
    [
        ("auto", "none", "CUDA kernels"),
        ("triton", "none", "Triton kernels"),
        ("auto", "fp8", "CUDA kernels, FP8 weights"),
    ],
)
def test_an_engine_speaks_the_same_alone_and_in_company(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch, kernels: str, quantize: str, shown: str
) -> None:
    folder = small_checkpoints("0b6", "custom_voice")
    tiny = read_config(folder)
    # The layers of a published checkpoint in the place of the folder's.
    monkeypatch.setattr(build, "read_config", lambda folder: wide_config(tiny, "0b6"))

    def load_wide(folder, device, dtype, progress):
        codec = load_model(folder, device=device, dtype=dtype, progress=progress).codec
        return wide_model(tiny, "0b6", dtype, codec, device)

    monkeypatch.setattr(build, "load_model", load_wide)
    engine = build_engine(folder, replace(CONFIG, kernels=kernels, quantize=quantize))
    try:
        assert engine.status().device.endswith(f"bfloat16, {shown}")
        together = speak(engine, range(SLOTS))
        for number in (0, 1, SLOTS // 2, SLOTS - 1):
            np.testing.assert_array_equal(speak(engine, range(number, number + 1))[0], together[number])
        assert len(together[0]) > 0 and not np.array_equal(together[1], together[3])
    finally:
        engine.stop()
