"""The decode step on both kinds of kernels against the plain model: as close to fp32 as the plain model in bf16 is.

Codes are not compared: two computations in bf16 diverge at the first near tie, and random weights have many. (GPU only;
tests/runner/cuda/test_interpreted.py runs smaller shapes without one.)
"""

import pytest
import torch
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.model.speech_model import Predictor, SpeechModel
from oscine.request import SpeechRequest
from oscine.runner.backend import BackendOptions, Kernels
from oscine.runner.memory_budget import plan_memory
from oscine.runner.slot_runner import SlotRunner
from tests.reference.generate import prefill, trailing_rows
from tests.reference.kv_cache import DenseKVCache
from tests.runner.cuda.kernel_speaker import KernelSpeaker, needs_hopper

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from oscine.runner.cuda.backend import CudaBackend
from oscine.runner.cuda.decode_step import DecodeStep

pytestmark = pytest.mark.gpu

TEXTS = ("Hello there.", "And you", "A longer text, you know, with many more words in it.")


class Models:
    """The same checkpoint three times: plain fp32 (the truth), plain bf16, and kernels with three prompts prefilled."""

    def __init__(self, folder, size: str, kernels: Kernels) -> None:
        self.exact = KernelSpeaker(folder, kernels, size, torch.float32).model
        speaker = KernelSpeaker(folder, kernels, size)
        self.plain = speaker.model
        sizes = {"slots": len(TEXTS) + 1, "positions_per_slot": 256, "positions_total": 1024}
        budget = plan_memory(self.plain.config, element_bytes=2, available_bytes=None, **sizes)
        self.backend = CudaBackend(self.plain, budget, BackendOptions(graphs=False, kernels=kernels))
        self.step = self.backend.step
        requests = [SpeechRequest(text=text, voice="ryan", text_mode="whole", seed=7) for text in TEXTS]
        self.prompts = [speaker.builder.build(request) for request in requests]
        runner = SlotRunner(self.backend)
        for slot, request in enumerate(requests):
            runner.admit(speaker.assignment(slot, request))
        with torch.inference_mode():
            self.backend.flush_admissions()


@pytest.fixture(
    scope="module",
    params=[
        *(("1b7", "triton"), ("0b6", "triton")),
        *(pytest.param((size, "cuda"), marks=needs_hopper) for size in ("1b7", "0b6")),
    ],
    ids="-".join,
)
def models(request, small_checkpoints):
    size, kernels = request.param
    return Models(small_checkpoints(size, "custom_voice"), size, kernels)


def relative_error(actual: Tensor, truth: Tensor) -> float:
    return float((actual.float() - truth.float()).norm() / truth.float().norm())


def last_hidden(model: SpeechModel, prompt) -> Tensor:
    rows = model.prompt_rows(prompt)[None]
    cache = DenseKVCache(model.config.talker.stack, 1, rows.shape[1], like=rows)
    return prefill(model, rows, [prompt.rows], cache)[0]


def last_logits(predictor: Predictor, hidden: Tensor, code_row: Tensor, codes: Tensor) -> Tensor:
    """Logits of code 15, with all codes before it given."""
    cache = predictor.cache(1)
    logits = predictor.first(hidden[None], code_row[None], cache)
    for book in range(1, CODEBOOKS - 1):
        logits = predictor.next(book, codes[book : book + 1], cache)
    return logits[0]


@torch.inference_mode()
def test_prefill_step_and_predictor_are_as_close_to_fp32_as_plain_bf16(models):
    step = models.step
    failed = torch.zeros(4, dtype=torch.int16, device="cuda")
    codes = step.sample_codes(torch.tensor([2, 0, 1, -1], device="cuda"), failed)
    for row, slot in enumerate((2, 0, 1)):
        truth, plain = (last_hidden(model, models.prompts[slot]) for model in (models.exact, models.plain))
        assert relative_error(step.hidden[row], truth) < 1.3 * relative_error(plain, truth) + 1e-3
        truth, plain = (
            last_logits(
                model.predictor,
                step.hidden[row].to(model.talker.dtype),
                model.talker.code_embedding(codes[row, 0]),
                codes[row],
            )
            for model in (models.exact, models.plain)
        )
        assert relative_error(step.rest_logits[row], truth) < 1.3 * relative_error(plain, truth) + 1e-3


@torch.inference_mode()
def test_the_next_input_is_the_sum_of_the_codes_and_the_text(models):
    step, state, model = models.step, models.backend.state, models.plain
    slots = torch.tensor([1, 2, -1], device="cuda")
    before = state.ints.clone()
    codes = step.sample_codes(slots, torch.zeros(len(slots), dtype=torch.int16, device="cuda"))[:2].clone()
    step.advance(slots)
    for row, slot in enumerate((1, 2)):
        text = trailing_rows(model, models.prompts[slot])[-1]  # whole text: only padding follows
        expected = model.frame_rows(codes[row : row + 1])[0] + text
        assert (state.inputs[slot] - expected).abs().max() <= 2**-7 * expected.abs().max()
        assert state.seen[slot, codes[row, 0]]
    moved = state.ints - before
    assert moved[:2].sum(0).tolist() == [0, 2, 2, 0, 0]  # position and frame of the two slots only


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_the_qkv_tables_hold_the_bits_that_a_frame_would_compute(models, rows):
    layer, config = models.plain.predictor.stack.layers[0], models.plain.predictor.stack.config
    codes = torch.arange(rows, device="cuda") * 3
    x = models.step.rest_tables[2][codes]
    expected = x.new_empty(rows, layer.attention.qkv.out_features)
    norm, weight = layer.attention_norm.weight, layer.attention.qkv.weight
    models.step.operations.norm_linear(x, norm, config.eps, weight, expected)
    assert torch.equal(models.step.rest_qkv[2][codes], expected)


@needs_hopper
@torch.inference_mode()
@pytest.mark.parametrize("size", ["1b7", "0b6"])
def test_cuda_kernels_are_as_close_to_fp32_as_tritons(small_checkpoints, size, record_property):
    """Hidden states and the logits of the last code, all rows together. Both add in their own order, so the errors of
    single rows vary by a few percent."""
    models = Models(small_checkpoints(size, "custom_voice"), size, "cuda")
    slots, prompts = torch.tensor([2, 0, 1], device="cuda"), [models.prompts[slot] for slot in (2, 0, 1)]
    like, exact = models.backend, models.exact
    triton = DecodeStep(models.plain, like.state, like.kv, like.budget.slots, 1)
    truth = torch.stack([last_hidden(exact, prompt) for prompt in prompts])
    errors = {}
    for name, step in (("cuda", models.step), ("triton", triton)):
        codes = step.sample_codes(slots, torch.zeros(3, dtype=torch.int16, device="cuda"))
        rows = [
            last_logits(exact.predictor, hidden.float(), exact.talker.code_embedding(code[0]), code)
            for hidden, code in zip(step.hidden[:3], codes, strict=True)
        ]
        errors[name] = (relative_error(step.hidden[:3], truth), relative_error(step.rest_logits[:3], torch.stack(rows)))
        record_property(f"{name}_errors", errors[name])
    for cuda, other in zip(errors["cuda"], errors["triton"], strict=True):
        assert cuda < 1.15 * other + 1e-4, errors
