"""A stream whose numbers are not finite fails alone: concurrent and later streams speak as if it had never existed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from oscine.model.config import ModelConfig, read_config
from oscine.request import DrawParams, SamplingParams
from oscine.runner.backend import Backend, BackendOptions, Kernels
from oscine.runner.cpu.backend import CpuBackend
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from oscine.runner.torch_backend import TorchBackend
from oscine.types import SPEAKER, Prompt
from random_codec import random_codec
from tests.conftest import CheckpointMaker
from tests.runner.cuda.kernel_speaker import needs_hopper
from tests.runner.tiny_model import random_prompt, tiny_model
from tests.runner.wide_model import wide_model

pytestmark = pytest.mark.slow

GREEDY = DrawParams(greedy=True)
SAMPLING = (SamplingParams(GREEDY, GREEDY, max_new_tokens=20), SamplingParams(seed=5, max_new_tokens=20))
PROMPT = random_prompt(7, 1)
FRAMES = 3
VALUES = (np.nan, np.inf, -3.4e38)
CASES = [
    (backend, value, sampling)
    for backend in ("torch-float32", "torch-bfloat16", "cpu-float32", "cpu-bfloat16")
    for value in VALUES
    for sampling in SAMPLING
]
CASES += [
    pytest.param(backend, value, sampling, marks=[pytest.mark.gpu, *([needs_hopper] if "hopper" in backend else [])])
    for backend in ("cuda-graphs", "cuda-eager", "hopper-graphs", "hopper-eager")
    for value in VALUES
    for sampling in SAMPLING
    # tests/runner/cuda/test_interpreted.py and tests/kernels/cuda/test_chain.py have the same without a GPU
    if torch.cuda.is_available()
]


@pytest.fixture(scope="module")
def config(small_checkpoints: CheckpointMaker) -> ModelConfig:
    return read_config(small_checkpoints("1b7", "custom_voice"))


def make_backend(config: ModelConfig, case: str) -> Backend:
    name, how = case.split("-")
    if name == "hopper":  # the CUDA kernels
        model = wide_model(config, "1b7", torch.bfloat16, random_codec(config.codec).to("cuda"))
    else:
        model = tiny_model(config, torch.float32 if how == "float32" else torch.bfloat16, 296)
    # One block per slot, so that a stream gets the block of the previous one.
    sizes = {"slots": 2, "positions_per_slot": 64, "positions_total": 128, "text_capacity": 16, "prefix_bytes": 0}
    budget = plan_memory(model.config, element_bytes=4, available_bytes=None, **sizes)
    if name in ("torch", "cpu"):
        return (TorchBackend if name == "torch" else CpuBackend)(model, budget)
    from oscine.runner.cuda.backend import CudaBackend

    kernels: Kernels = "cuda" if name == "hopper" else "triton"
    return CudaBackend(model.to("cuda"), budget, BackendOptions(graphs=how == "graphs", kernels=kernels))


def poisoned(value: float, width: int) -> Prompt:
    """The speaker's vector is such a number, as no voice may have it: voice.py refuses them."""
    codec_ids = PROMPT.codec_ids.copy()
    codec_ids[2] = SPEAKER
    return replace(PROMPT, codec_ids=codec_ids, speaker=np.full(width, value, np.float32))


def run(runner: SlotRunner, prompts: dict[int, Prompt], sampling: SamplingParams, frames: int = FRAMES):
    """Runs these slots together; codes, audio and failures by slot."""
    for slot, prompt in prompts.items():
        runner.admit(SlotAssignment(slot, prompt, sampling))
    outputs = [runner.collect(runner.launch(list(prompts))) for _ in range(frames)]
    for slot in prompts:
        runner.release(slot)
    return {
        slot: (
            np.stack([output.codes[row] for output in outputs]),
            np.stack([output.pcm[row] for output in outputs]),
            [bool(output.failed[row]) for output in outputs],
        )
        for row, slot in enumerate(prompts)
    }


@pytest.mark.parametrize(("backend", "value", "sampling"), CASES, ids=lambda value: str(value)[:24])
def test_a_stream_that_is_not_finite_fails_alone(
    config: ModelConfig, backend: str, value: float, sampling: SamplingParams
) -> None:
    runner = SlotRunner(make_backend(config, backend))
    runner.capture()
    bad = poisoned(value, runner.backend.model.config.talker.stack.width)
    expected = run(runner, {0: PROMPT, 1: PROMPT}, sampling)
    together = run(runner, {0: bad, 1: PROMPT}, sampling)
    check_equal(together[1], expected[1])
    codes, _, failed = together[0]
    if not np.isfinite(value):
        assert all(failed)
    assert (codes >= 0).all() and (codes < runner.backend.model.config.talker.code_vocab).all()
    # Every block has been of a poisoned stream, which went further than the next stream does.
    run(runner, {0: bad, 1: bad}, sampling, FRAMES + 1)
    after = run(runner, {0: PROMPT, 1: PROMPT}, sampling)
    check_equal(after[0], expected[0])
    check_equal(after[1], expected[1])


def check_equal(stream: tuple[np.ndarray, np.ndarray, list[bool]], expected: tuple[np.ndarray, ...]) -> None:
    codes, pcm, failed = stream
    assert not any(failed)
    np.testing.assert_array_equal(codes, expected[0])
    np.testing.assert_array_equal(pcm, expected[1])
