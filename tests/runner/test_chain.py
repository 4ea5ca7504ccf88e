"""The kernel chain against the plain frame, both in bfloat16, without graphs. (The interpreter would take minutes.)"""

import pytest
import torch

from oscine import Oscine, SpeechRequest
from oscine.runner.budget import plan_memory
from oscine.runner.chain import KernelChain
from oscine.runner.kernel_prefill import PREFILL_SIZES, KernelPrefill
from oscine.runner.runner import Admission
from oscine.runner.slot_runner import SlotRunner

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

SLOTS = 3
FRAMES = 20


@pytest.fixture(scope="module", params=["1b7", "0b6"])
def oscine(request, small_checkpoints):
    return Oscine(small_checkpoints(request.param, "custom_voice"), device="cuda", dtype="bfloat16")


def plain_runner(oscine: Oscine) -> SlotRunner:
    model = oscine._model
    sizes = {"slots": SLOTS, "positions_per_slot": 128, "positions_total": 1024}
    budget = plan_memory(model.config, element_bytes=2, available_bytes=None, **sizes)
    return SlotRunner(model, budget, kernels=False)


def prompts(oscine: Oscine, mode: str) -> list[tuple]:
    requests = [
        SpeechRequest(text=text, voice="ryan", text_mode=mode, seed=7, greedy=greedy)
        for text, greedy in (("Hello there.", True), ("And you", None), ("A longer text, you know.", None))
    ]
    return [(oscine._builder.build(r), r.sampling(oscine.config.sampling)) for r in requests]


def test_the_chain_speaks_as_the_plain_frame(oscine):
    """Both begin each frame from the plain path's state, so that one near tie cannot spoil the rest."""
    runner = plain_runner(oscine)
    for slot, (prompt, sampling) in enumerate(prompts(oscine, "streaming")):
        runner.admit(Admission(slot, prompt, sampling))
    state = runner._state
    chain = KernelChain(oscine._model, state, runner._kv, SLOTS + 1, PREFILL_SIZES[-1])
    order = [2, 0, 1]
    slots = torch.tensor([*order, -1], device=oscine._model.device)  # a row that only fills up
    equal = 0
    with torch.inference_mode():
        for _ in range(FRAMES):
            before = {name: getattr(state, name).clone() for name in ("ints", "inputs", "seen")}
            codes = chain.speak(slots)[:SLOTS].clone()
            chain.advance(slots)
            after = {name: getattr(state, name).clone() for name in before}
            for name, value in before.items():
                getattr(state, name).copy_(value)
            expected = runner.collect(runner.launch(order)).codes
            same = codes.cpu().numpy() == expected
            equal += same.sum()
            assert torch.equal(after["ints"], state.ints)
            for row, slot in enumerate(order):
                if same[row].all():
                    assert torch.equal(after["seen"][slot], state.seen[slot])
                    assert (after["inputs"][slot] - state.inputs[slot]).abs().max() <= 0.02 * state.inputs.abs().max()
    # A frame's later codes hang on its earlier ones, so a single near tie costs up to fifteen.
    assert equal >= 0.9 * FRAMES * SLOTS * 16


def test_prefill_fills_the_pages_as_the_plain_one(oscine):
    runner = plain_runner(oscine)
    ((prompt, sampling), *_) = prompts(oscine, "whole")
    runner.admit(Admission(0, prompt, sampling))
    expected = [side.float() for side in runner._kv.read(runner._state.page_table[0], prompt.rows - 1)]
    model, kv = oscine._model, runner._kv
    chain = KernelChain(model, runner._state, kv, SLOTS, PREFILL_SIZES[-1])
    width, pages = model.config.talker.stack.width, runner._state.page_table.shape[1]
    prefill = KernelPrefill(chain, width, pages, model.talker.head.weight, captured=False)
    kv.keys.zero_()
    kv.values.zero_()
    with torch.inference_mode():
        rows = model.prompt_rows(prompt)[:-1]
        prefill.run(rows[:5], 0, runner._state.page_table[0])
        prefill.run(rows[5:], 5, runner._state.page_table[0])
        actual = kv.read(runner._state.page_table[0], prompt.rows - 1)
    for ours, plain in zip(actual, expected, strict=True):
        # bf16 rounds to 2^-8 of a value; three layers of it add up to a few of those.
        assert (ours.float() - plain).abs().max() <= 0.03 * plain.abs().max()
