"""Long packs: as close to fp32 as the plain model in bf16 is, and the same bits for a row in any of them.

In Triton's interpreter the first promise only: a CPU's products depend on the row's place.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from oscine.model.config import read_config
from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import BackendOptions
from oscine.runner.cuda import long_prefill
from oscine.runner.cuda.backend import CudaBackend
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from oscine.types import Prompt, SamplingParams
from tests.conftest import CheckpointMaker
from tests.reference.generate import prefill
from tests.reference.kv_cache import DenseKVCache
from tests.runner.cuda.kernel_speaker import KernelSpeaker, needs_hopper
from tests.runner.tiny_model import random_prompt, tiny_model

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SAMPLING = SamplingParams(max_new_tokens=8)


def keys_values(runner: SlotRunner, slot: int, rows: int) -> Tensor:
    """[2, rows, layers, kv heads, head_dim]: what the prefill of the slot wrote."""
    return torch.stack(runner.backend.kv.read(runner.backend.state.block_table[slot], rows))


def plain_keys_values(model: SpeechModel, prompt: Prompt) -> Tensor:
    rows = model.prompt_rows(prompt)[None, :-1]  # the first frame runs the last row
    cache = DenseKVCache(model.config.talker.stack, 1, rows.shape[1], like=rows)
    prefill(model, rows, [rows.shape[1]], cache)
    kept = (side[:, 0, :, : rows.shape[1]].permute(2, 0, 1, 3) for side in (cache.keys, cache.values))
    return torch.stack([*kept])


def assert_close_to_fp32(ours: Tensor, exact: SpeechModel, plain: SpeechModel, prompt: Prompt) -> None:
    """In each layer, as tests/runner/cuda/test_decode_step.py compares hidden states."""
    truth = plain_keys_values(exact, prompt)
    errors = [(one.float() - truth).square().sum((0, 1, 3, 4)) for one in (ours, plain_keys_values(plain, prompt))]
    ours_error, plain_error = (error.sqrt() / truth.square().sum((0, 1, 3, 4)).sqrt() for error in errors)
    assert (ours_error < 1.3 * plain_error + 1e-3).all(), (ours_error, plain_error)


@pytest.mark.slow
@torch.inference_mode()
def test_without_a_gpu_a_long_pack_is_as_close_to_fp32_as_plain_bf16(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts that divide a pack, of which the second one continues in the next one."""
    if torch.cuda.is_available():
        pytest.skip("runs on a CPU, in Triton's interpreter")
    monkeypatch.setattr(long_prefill, "PACK_ROWS", 40)
    monkeypatch.setattr(long_prefill, "MIN_ROWS", 24)
    config = read_config(small_checkpoints("1b7", "custom_voice"))
    plain, exact = (tiny_model(config, dtype, seed=3) for dtype in (torch.bfloat16, torch.float32))
    sizes = {"slots": 2, "positions_per_slot": 64, "positions_total": 128, "text_capacity": 16}
    budget = plan_memory(plain.config, element_bytes=2, available_bytes=None, **sizes)
    runner = SlotRunner(CudaBackend(plain, budget, BackendOptions(graphs=False, codec=False)))
    prompts = random_prompt(26, 0), random_prompt(31, 1, prefix_rows=4)
    for slot, prompt in enumerate(prompts):
        runner.admit(SlotAssignment(slot, prompt, SAMPLING))
    runner.flush_admissions()
    for slot, prompt in enumerate(prompts):
        assert_close_to_fp32(keys_values(runner, slot, prompt.rows - 1), exact, plain, prompt)


def long_prompt(rows: int, seed: int, prefix_rows: int = 0) -> Prompt:
    rng = np.random.default_rng(seed)
    ids = {"text_ids": rng.integers(0, 1000, rows), "codec_ids": rng.integers(0, 2048, rows)}
    return Prompt(**ids, trailing_ids=rng.integers(0, 1000, 3), prefix_rows=prefix_rows)


PROMPT = long_prompt(400, 0)
KINDS = ("triton", pytest.param("cuda", marks=needs_hopper), pytest.param("fp8", marks=needs_hopper))


class WideModel:
    """Published widths with any kernels, since the products are those of cuBLAS."""

    def __init__(self, folder, size: str) -> None:
        self.exact, self.plain = (
            KernelSpeaker(folder, "cuda", size, dtype).model for dtype in (torch.float32, torch.bfloat16)
        )

    def runner(self, kind: str, *, graphs: bool = True, prefix_bytes: int = 0) -> SlotRunner:
        sizes = {"slots": 8, "positions_per_slot": 2048, "positions_total": 16384, "prefix_bytes": prefix_bytes}
        budget = plan_memory(self.plain.config, element_bytes=2, available_bytes=None, **sizes)
        options = BackendOptions((), graphs=graphs, codec=False, kernels="triton" if kind == "triton" else "cuda")
        if kind == "fp8":
            options = replace(options, quantize="fp8")
        model = copy.deepcopy(self.plain) if kind == "fp8" else self.plain  # FP8 frees the weights that it converts
        runner = SlotRunner(CudaBackend(model, budget, options))
        runner.capture()
        return runner


@pytest.fixture(scope="module", params=["1b7", "0b6"])
def wide(request, small_checkpoints: CheckpointMaker) -> WideModel:
    return WideModel(small_checkpoints(request.param, "custom_voice"), request.param)


def prefilled(runner: SlotRunner, prompts: Sequence[Prompt], place: int) -> Tensor:
    """Keys and values of the prompt at this place, of prompts that are admitted together."""
    for slot, prompt in enumerate(prompts):
        runner.admit(SlotAssignment(slot, prompt, SAMPLING))
    runner.flush_admissions()
    result = keys_values(runner, place, prompts[place].rows - 1).clone()
    for slot in range(len(prompts)):
        runner.release(slot)
    return result


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_of_a_row_depend_neither_on_its_place_nor_on_its_company(wide: WideModel, kind: str) -> None:
    """Also where the prompt is divided between two packs, and beside rows that run in short packs."""
    runner = wide.runner(kind)
    alone = prefilled(runner, [PROMPT], 0)
    assert alone.isfinite().all()
    for company in ((1,), (7,), (33,), (300,), (640,), (1000,), (1030, 300), (513, 500, 9, 300), (1700, 257, 258)):
        others = [long_prompt(rows, seed) for seed, rows in enumerate(company, start=1)]
        for place in {0, len(others)}:
            together = prefilled(runner, [*others[:place], PROMPT, *others[place:]], place)
            assert torch.equal(together, alone), (company, place)


@pytest.mark.gpu
@needs_gpu
def test_every_place_of_a_pack_gives_a_row_the_same_bits(wide: WideModel) -> None:
    """A company of every 16th length: the prompt's rows pass all places."""
    runner = wide.runner("triton")
    alone = prefilled(runner, [PROMPT], 0)
    for rows in range(257, 257 + long_prefill.PACK_ROWS, 16):
        assert torch.equal(prefilled(runner, [long_prompt(rows, rows), PROMPT], 1), alone), rows


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix_rows", [100, 300, 350])
def test_a_cached_prefix_gives_the_bits_of_a_computed_one(wide: WideModel, kind: str, prefix_rows: int) -> None:
    """A short and a long stretch, two long ones, a long and a short one."""
    runner = wide.runner(kind, prefix_bytes=2**28)
    prompt = long_prompt(600 if prefix_rows < 350 else 400, 0, prefix_rows)
    computed = prefilled(runner, [prompt], 0)
    cached = prefilled(runner, [long_prompt(300, 1), prompt], 1)
    assert runner.counts().prefix_hits == 1
    assert torch.equal(cached, computed)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_gives_the_bits_of_the_same_calls_without_it(wide: WideModel, kind: str) -> None:
    prompts = [long_prompt(300, 1), PROMPT, long_prompt(20, 2), long_prompt(700, 3)]
    graphs, eager = (wide.runner(kind, graphs=on) for on in (True, False))
    for place in range(len(prompts)):
        assert torch.equal(prefilled(graphs, prompts, place), prefilled(eager, prompts, place))


@pytest.mark.gpu
@needs_gpu
@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS[:2])
def test_keys_and_values_are_as_close_to_fp32_as_plain_bf16(wide: WideModel, kind: str) -> None:
    runner = wide.runner(kind)
    prompts = [long_prompt(900, 1), PROMPT]
    for place, prompt in enumerate(prompts):
        assert_close_to_fp32(prefilled(runner, prompts, place), wide.exact, wide.plain, prompt)
