"""The kernel chain against the plain model: in bfloat16 it must be as near to fp32 as the plain model in bfloat16 is.

Codes are no measure here: two computations in bf16 part at the first near tie, and random weights have many.
(In Triton's interpreter this would take minutes: GPU only.)
"""

import pytest
import torch
from torch import Tensor

from oscine import Oscine, SpeechRequest
from oscine.model.predictor import Predictor
from oscine.model.speech_model import SpeechModel
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from oscine.types import CODEBOOKS

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

TEXTS = ("Hello there.", "And you", "A longer text, you know, with many more words in it.")


class Voices:
    """The same checkpoint three times: plain fp32 (the truth), plain bf16, and kernels."""

    def __init__(self, folder) -> None:
        self.exact = Oscine(folder, device="cuda", dtype="float32")
        self.plain = Oscine(folder, device="cuda", dtype="bfloat16")
        model = self.plain._model
        sizes = {"slots": len(TEXTS) + 1, "positions_per_slot": 256, "positions_total": 1024}
        budget = plan_memory(model.config, element_bytes=2, available_bytes=None, **sizes)
        self.runner = SlotRunner(model, budget, kernels=True, graphs=False)
        requests = [SpeechRequest(text=text, voice="ryan", text_mode="whole", seed=7) for text in TEXTS]
        self.prompts = [self.plain._builder.build(request) for request in requests]
        for slot, (prompt, request) in enumerate(zip(self.prompts, requests, strict=True)):
            self.runner.admit(SlotAssignment(slot, prompt, request.sampling(model.config.sampling)))
        with torch.inference_mode():
            self.runner._flush()


@pytest.fixture(scope="module", params=["1b7", "0b6"])
def voices(request, small_checkpoints):
    return Voices(small_checkpoints(request.param, "custom_voice"))


def off(actual: Tensor, truth: Tensor) -> float:
    return float((actual.float() - truth.float()).norm() / truth.float().norm())


def hidden_of(model: SpeechModel, prompt) -> Tensor:
    from oscine.model.streaming import KVCache

    rows = model.prompt_rows(prompt)[None]
    cache = KVCache(model.config.talker.stack, 1, rows.shape[1], like=rows)
    return model.talker.prefill(rows, torch.tensor([prompt.rows], device=rows.device), cache)[0]


def last_logits(predictor: Predictor, hidden: Tensor, code_row: Tensor, codes: Tensor) -> Tensor:
    """Logits of code 15, with all codes before it given."""
    cache = predictor.cache(1)
    logits = predictor.first(hidden[None], code_row[None], cache)
    for book in range(1, CODEBOOKS - 1):
        logits = predictor.next(book, codes[book : book + 1], cache)
    return logits[0]


@torch.inference_mode()
def test_prefill_step_and_predictor_are_as_near_to_fp32_as_plain_bf16(voices):
    chain = voices.runner._frame._chain
    codes = chain.speak(torch.tensor([2, 0, 1, -1], device="cuda"))
    for row, slot in enumerate((2, 0, 1)):
        prompt = voices.prompts[slot]
        truth, plain = (hidden_of(tts._model, prompt) for tts in (voices.exact, voices.plain))
        assert off(chain._hidden[row], truth) < 1.3 * off(plain, truth) + 1e-3
        given = {
            name: (
                tts._model.predictor,
                chain._hidden[row].to(tts._model.talker.dtype),
                tts._model.talker.code_embedding,
            )
            for name, tts in (("truth", voices.exact), ("plain", voices.plain))
        }
        truth, plain = (
            last_logits(predictor, hidden, embedding(codes[row, 0]), codes[row])
            for predictor, hidden, embedding in given.values()
        )
        assert off(chain._rest_logits[row], truth) < 1.3 * off(plain, truth) + 1e-3


@torch.inference_mode()
def test_what_follows_a_frame_is_the_sum_of_its_codes_and_the_text(voices):
    chain, state, model = voices.runner._frame._chain, voices.runner._state, voices.plain._model
    slots = torch.tensor([1, 2, -1], device="cuda")
    before = state.ints.clone()
    codes = chain.speak(slots)[:2].clone()
    chain.advance(slots)
    for row, slot in enumerate((1, 2)):
        text = model.trailing_rows(voices.prompts[slot])[-1]  # whole text: only padding follows
        expected = model.frame_rows(codes[row : row + 1])[0] + text
        assert (state.inputs[slot] - expected).abs().max() <= 2**-7 * expected.abs().max()
        assert state.seen[slot, codes[row, 0]]
    moved = state.ints - before
    assert moved[:2].sum(0).tolist() == [0, 2, 2, 0, 0]  # position and frame of the two slots, nobody else's


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_what_is_looked_up_is_what_would_be_computed(voices, rows):
    chain = voices.runner._frame._chain
    stack = voices.plain._model.predictor.stack
    seen = []
    codes = torch.arange(rows, device="cuda") * 3
    x = chain._rest_tables[2][codes].clone()
    chain._layer(stack, 0, x, lambda layer, qkv, mixed: seen.append(qkv.clone()))
    assert torch.equal(seen[0], chain._rest_qkv[2][codes])
