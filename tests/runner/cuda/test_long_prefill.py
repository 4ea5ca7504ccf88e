"""Long packs: as close to fp32 as the plain model in bf16 is, and the same bits for a row in any of them.

In Triton's interpreter the first promise only: a CPU's products depend on the row's place and on the pack's size.
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
from oscine.request import SamplingParams
from oscine.runner.backend import BackendOptions
from oscine.runner.cuda import long_prefill
from oscine.runner.cuda.backend import CudaBackend
from oscine.runner.cuda.decode_step import PromptRows
from oscine.runner.cuda.long_prefill import LONG_PACK_SIZES, LongPrefill, sizes_of_equal_bits
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from oscine.types import Prompt
from tests.conftest import CheckpointMaker
from tests.reference.generate import prefill
from tests.reference.kv_cache import DenseKVCache
from tests.runner.cuda.kernel_speaker import KernelSpeaker, needs_hopper
from tests.runner.tiny_model import random_prompt, tiny_model

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SAMPLING = SamplingParams(max_new_tokens=8)


@torch.inference_mode()
def prefilled(runner: SlotRunner, prompts: Sequence[Prompt]) -> list[Tensor]:
    """Keys and values [2, rows, layers, kv heads, head_dim] of each prompt, of prompts that are admitted together. The
    cache is NaN before, so what is not written, or depends on what is not, cannot be finite."""
    kv, table = runner.backend.kv, runner.backend.state.block_table
    for side in (kv.keys, kv.values):
        side.fill_(torch.nan)
    for slot, prompt in enumerate(prompts):
        runner.admit(SlotAssignment(slot, prompt, SAMPLING))
    runner.flush_admissions()
    results = [torch.stack(kv.read(table[slot], prompt.rows - 1)) for slot, prompt in enumerate(prompts)]
    for slot in range(len(prompts)):
        runner.release(slot)
    assert all(result.isfinite().all() for result in results)
    return results


@pytest.fixture
def sizes_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the long packs that run without graphs."""
    sizes: list[int] = []
    run = LongPrefill.prefill

    def noted(step: LongPrefill, prompts: PromptRows) -> None:
        sizes.append(len(prompts.inputs))
        run(step, prompts)

    monkeypatch.setattr(LongPrefill, "prefill", noted)
    return sizes


def plain_keys_values(model: SpeechModel, prompt: Prompt) -> Tensor:
    rows = model.prompt_rows(prompt)[None, :-1]  # the first frame runs the last row
    cache = DenseKVCache(model.config.talker.stack, 1, rows.shape[1], like=rows)
    prefill(model, rows, [rows.shape[1]], cache)
    kept = (side[:, 0, :, : rows.shape[1]].permute(2, 0, 1, 3) for side in (cache.keys, cache.values))
    return torch.stack([*kept])


def assert_close_to_fp32(ours: Tensor, exact: SpeechModel, plain: SpeechModel, prompt: Prompt) -> None:
    """Compares each layer, as tests/runner/cuda/test_decode_step.py compares hidden states."""
    truth = plain_keys_values(exact, prompt)
    errors = [(one.float() - truth).square().sum((0, 1, 3, 4)) for one in (ours, plain_keys_values(plain, prompt))]
    ours_error, plain_error = (error.sqrt() / truth.square().sum((0, 1, 3, 4)).sqrt() for error in errors)
    assert (ours_error < 1.3 * plain_error + 1e-3).all(), (ours_error, plain_error)


@pytest.mark.slow
@torch.inference_mode()
def test_without_a_gpu_a_long_pack_is_as_close_to_fp32_as_plain_bf16(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch, sizes_run: list[int]
) -> None:
    """Two prompts that divide a pack, of which the second one continues in the next one, of another size."""
    if torch.cuda.is_available():
        pytest.skip("runs on a CPU, in Triton's interpreter")
    monkeypatch.setattr(long_prefill, "LONG_PACK_SIZES", (16, 40))
    monkeypatch.setattr(long_prefill, "MIN_ROWS", 24)
    config = read_config(small_checkpoints("1b7", "custom_voice"))
    plain, exact = (tiny_model(config, dtype, seed=3) for dtype in (torch.bfloat16, torch.float32))
    sizes = {"slots": 2, "positions_per_slot": 64, "positions_total": 128, "text_capacity": 16}
    budget = plan_memory(plain.config, element_bytes=2, available_bytes=None, **sizes)
    runner = SlotRunner(CudaBackend(plain, budget, BackendOptions(graphs=False, codec=False)))
    prompts = random_prompt(26, 0), random_prompt(31, 1, prefix_rows=4)
    for ours, prompt in zip(prefilled(runner, prompts), prompts, strict=True):
        assert_close_to_fp32(ours, exact, plain, prompt)
    assert sizes_run == [40, 16]


@pytest.mark.parametrize("place", [0, 200, -1])
def test_sizes_at_which_a_row_has_other_bits_than_at_the_largest_are_not_used(place: int) -> None:
    x, out = torch.empty(512, 3), torch.empty(512, 3)

    def product(rows: Tensor, result: Tensor) -> None:
        torch.mul(rows, 3.0, out=result)
        if len(rows) == 384:
            result[place, 1] += 1e-5

    assert sizes_of_equal_bits(product, x, out, (256, 384, 512)) == [256, 512]


def test_no_size_is_used_if_a_rows_bits_depend_on_its_place_at_the_largest() -> None:
    x, out = torch.empty(512, 3), torch.empty(512, 3)

    def product(rows: Tensor, result: Tensor) -> None:
        torch.mul(rows, 3.0, out=result)
        if len(rows) == 512:
            result[300:] += 1e-5

    assert sizes_of_equal_bits(product, x, out, (256, 512)) == []


KINDS = ("triton", pytest.param("cuda", marks=needs_hopper), pytest.param("fp8", marks=needs_hopper))


class WideModel:
    """Published widths with any kernels, since the products are those of cuBLAS."""

    def __init__(self, folder, size: str) -> None:
        self.exact, self.plain = (
            KernelSpeaker(folder, "cuda", size, dtype).model for dtype in (torch.float32, torch.bfloat16)
        )
        self.prompt = self.random_prompt(400, 0)

    def random_prompt(self, rows: int, seed: int, prefix_rows: int = 0) -> Prompt:
        """A prompt of ids that the model has: the kernels do not check them."""
        talker, rng = self.plain.config.talker, np.random.default_rng(seed)
        text_ids, trailing_ids = (rng.integers(0, talker.text_vocab, count) for count in (rows, 3))
        codec_ids = rng.integers(0, talker.code_vocab, rows)
        return Prompt(text_ids, codec_ids, trailing_ids, prefix_rows=prefix_rows)

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


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_of_a_row_depend_neither_on_its_place_nor_on_its_company(wide: WideModel, kind: str) -> None:
    """Also holds for a prompt divided between two packs, and for rows in a batch with rows of short packs."""
    runner = wide.runner(kind)
    (alone,) = prefilled(runner, [wide.prompt])
    for company in ((1,), (7,), (33,), (300,), (640,), (1000,), (1030, 300), (513, 500, 9, 300), (1700, 257, 258)):
        others = [wide.random_prompt(rows, seed) for seed, rows in enumerate(company, start=1)]
        for place in {0, len(others)}:
            together = prefilled(runner, [*others[:place], wide.prompt, *others[place:]])[place]
            assert torch.equal(together, alone), (company, place)


@pytest.mark.gpu
@needs_gpu
def test_the_bits_of_a_row_do_not_depend_on_the_size_of_its_pack(wide: WideModel, sizes_run: list[int]) -> None:
    """Runs the smallest size alone, the others with more rows. A size that the GPU's products do not allow is not
    used."""
    runner = wide.runner("triton", graphs=False)
    (alone,) = prefilled(runner, [wide.prompt])
    for size in LONG_PACK_SIZES[1:]:
        other = wide.random_prompt(size - 400, size)
        first, last = prefilled(runner, [wide.prompt, other])[0], prefilled(runner, [other, wide.prompt])[1]
        assert torch.equal(first, alone) and torch.equal(last, alone), size
    usable = LongPrefill(wide.plain.talker.stack, runner.backend.kv, runner.backend.step.rope).sizes
    needed = (LONG_PACK_SIZES[0], *(size for size in LONG_PACK_SIZES[1:] for _ in range(2)))
    assert sizes_run == [min(size for size in usable if size >= rows) for rows in needed]


@pytest.mark.gpu
@needs_gpu
def test_every_place_of_a_pack_gives_a_row_the_same_bits(wide: WideModel) -> None:
    """The pack is the largest: the prompt is first, or after a prompt of every 17th length. The last prompt fills
    it."""
    runner = wide.runner("triton")
    (alone,) = prefilled(runner, [wide.prompt])
    last = wide.random_prompt(LONG_PACK_SIZES[-1] - 300, 1)
    assert torch.equal(prefilled(runner, [wide.prompt, last])[0], alone)
    for rows in range(257, LONG_PACK_SIZES[-1] - 2, 17):
        together = prefilled(runner, [wide.random_prompt(rows, rows), wide.prompt, last])[1]
        assert torch.equal(together, alone), rows


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix_rows", [100, 300, 350])
def test_a_cached_prefix_gives_the_bits_of_a_computed_one(wide: WideModel, kind: str, prefix_rows: int) -> None:
    """A short and a long stretch, two long ones, a long and a short one."""
    runner = wide.runner(kind, prefix_bytes=2**28)
    prompt = wide.random_prompt(600 if prefix_rows < 350 else 400, 0, prefix_rows)
    (computed,) = prefilled(runner, [prompt])
    _, cached = prefilled(runner, [wide.random_prompt(300, 1), prompt])
    assert runner.counts().prefix_hits == 1
    assert torch.equal(cached, computed)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_gives_the_bits_of_the_same_calls_without_it(wide: WideModel, kind: str) -> None:
    prompts = [wide.random_prompt(300, 1), wide.prompt, wide.random_prompt(20, 2), wide.random_prompt(700, 3)]
    graphs, eager = (wide.runner(kind, graphs=on) for on in (True, False))
    for some in (prompts[1:2], prompts[:2], prompts):  # packs of all sizes
        for ours, theirs in zip(prefilled(graphs, some), prefilled(eager, some), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.gpu
@needs_gpu
@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS[:2])
def test_keys_and_values_are_as_close_to_fp32_as_plain_bf16(wide: WideModel, kind: str) -> None:
    prompts = [wide.random_prompt(900, 1), wide.prompt]
    for ours, prompt in zip(prefilled(wide.runner(kind), prompts), prompts, strict=True):
        assert_close_to_fp32(ours, wide.exact, wide.plain, prompt)
