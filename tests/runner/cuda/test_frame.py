"""Captured frames on a GPU: graph = eager, alone = in company, and what holds in bfloat16."""

import numpy as np
import pytest
import torch

from oscine import Oscine, SpeechRequest
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

FRAMES = 24


@pytest.fixture(scope="module")
def oscine(small_checkpoints):
    return Oscine(small_checkpoints("1b7", "custom_voice"), device="cuda", dtype="bfloat16")


def make_runner(oscine: Oscine, slots: int, *, graphs: bool) -> SlotRunner:
    model = oscine._model
    sizes = {"slots": slots, "positions_per_slot": 256, "positions_total": slots * 128}
    runner = SlotRunner(
        model, plan_memory(model.config, element_bytes=2, available_bytes=None, prefix_bytes=0, **sizes), graphs=graphs
    )
    runner.capture()
    return runner


def request(number: int) -> SpeechRequest:
    text = ("Hello there.", "And you, the world.", "A third one", "x")[number % 4]
    mode = ("whole", "streaming")[number // 4 % 2]
    greedy = True if number % 3 == 0 else None
    return SpeechRequest(text=text, voice="ryan", text_mode=mode, seed=number, greedy=greedy, max_new_tokens=60)


def admit(oscine: Oscine, runner: SlotRunner, slot: int, asked: SpeechRequest) -> None:
    runner.admit(SlotAssignment(slot, oscine._builder.build(asked), asked.sampling(oscine.config.sampling)))


def spoken(oscine: Oscine, runner: SlotRunner, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Codes [frames, rows, 16] and PCM of requests that run side by side, two ticks in flight; ends are ignored."""
    slots = list(range(len(numbers)))
    for slot, number in zip(slots, numbers, strict=True):
        admit(oscine, runner, slot, request(number))
    outputs, in_flight = [], None
    for _ in range(FRAMES):
        launched = runner.launch(slots)
        if in_flight is not None:
            outputs.append(runner.collect(in_flight))
        in_flight = launched
    outputs.append(runner.collect(in_flight))
    for slot in slots:
        runner.release(slot)
    return np.stack([o.codes for o in outputs]), np.stack([o.pcm for o in outputs])


def test_a_graph_gives_the_bits_of_the_same_kernels_without_it(oscine):
    numbers = list(range(5))
    with_graphs = spoken(oscine, make_runner(oscine, 8, graphs=True), numbers)
    without = spoken(oscine, make_runner(oscine, 8, graphs=False), numbers)
    np.testing.assert_array_equal(with_graphs[0], without[0])
    np.testing.assert_array_equal(with_graphs[1], without[1])


@pytest.mark.parametrize("company", [2, 8, 16, 32, 64, 128])
def test_a_row_alone_says_what_it_says_in_company(oscine, company, record_property):
    runner = make_runner(oscine, 128, graphs=True)
    together, _ = spoken(oscine, runner, list(range(company)))
    equal = 0
    for number in range(0, company, max(1, company // 4)):
        alone, _ = spoken(oscine, runner, [number])
        equal += np.array_equal(alone[:, 0], together[:, number])
    record_property("rows_equal", int(equal))
    assert equal == len(range(0, company, max(1, company // 4)))


def test_slots_are_clean_when_they_are_used_again(oscine):
    runner = make_runner(oscine, 4, graphs=True)
    first = spoken(oscine, runner, [1, 2, 3])
    spoken(oscine, runner, [9, 8, 7, 6])
    again = spoken(oscine, runner, [1, 2, 3])
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])


def test_the_codec_in_bf16_sounds_as_the_plain_one(oscine):
    """Whatever codes the kernels drew, the plain fp32 codec makes nearly the same sound of them."""
    codes, pcm = spoken(oscine, make_runner(oscine, 4, graphs=True), [1, 2, 4])
    for row in range(3):
        known = torch.tensor(codes[:, row], device="cuda").clamp(max=2047)
        truth = oscine._model.codec.decode_whole(known[None])[0].cpu().numpy()
        error = np.sqrt(np.mean((pcm[:, row].ravel() / 32767 - truth) ** 2)) / np.sqrt(np.mean(truth**2))
        assert error < 0.05, error


def test_many_random_requests_leak_nothing(oscine):
    runner = make_runner(oscine, 16, graphs=True)
    rng = np.random.default_rng(0)
    free, held, memory = runner._pool.free, set(), None
    for turn in range(500):
        for slot in range(16):
            if slot in held and rng.random() < 0.2:
                runner.release(slot)
                held.discard(slot)
            elif slot not in held and rng.random() < 0.4:
                admit(oscine, runner, slot, request(int(rng.integers(1000))))
                held.add(slot)
        if held:
            runner.collect(runner.launch(sorted(held)))
        if turn == 50:
            torch.cuda.synchronize()
            memory = torch.cuda.memory_allocated()
    for slot in held:
        runner.release(slot)
    torch.cuda.synchronize()
    assert runner._pool.free == free
    assert torch.cuda.memory_allocated() <= memory + 2**20
