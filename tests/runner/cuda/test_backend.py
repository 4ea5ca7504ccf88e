"""The CUDA backend on a GPU: graphs give the bits of eager kernels, a row alone those of the row in a batch."""

import numpy as np
import pytest
import torch

from oscine.runner.backend import BackendOptions
from oscine.runner.memory_budget import plan_memory
from oscine.runner.slot_runner import SlotRunner
from oscine.types import SpeechRequest
from tests.reference.speaker import ReferenceSpeaker

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from oscine.runner.cuda.backend import CudaBackend

pytestmark = pytest.mark.gpu

FRAMES = 24


@pytest.fixture(scope="module")
def speaker(small_checkpoints) -> ReferenceSpeaker:
    return ReferenceSpeaker(small_checkpoints("1b7", "custom_voice"), "cuda", torch.bfloat16)


def make_runner(speaker: ReferenceSpeaker, slots: int, *, graphs: bool) -> SlotRunner:
    sizes = {"slots": slots, "positions_per_slot": 256, "positions_total": slots * 128}
    budget = plan_memory(speaker.config, element_bytes=2, available_bytes=None, prefix_bytes=0, **sizes)
    runner = SlotRunner(CudaBackend(speaker.model, budget, BackendOptions(graphs=graphs)))
    runner.capture()
    return runner


def request(number: int) -> SpeechRequest:
    text = ("Hello there.", "And you, the world.", "A third one", "x")[number % 4]
    mode = ("whole", "streaming")[number // 4 % 2]
    greedy = True if number % 3 == 0 else None
    return SpeechRequest(text=text, voice="ryan", text_mode=mode, seed=number, greedy=greedy, max_new_tokens=60)


def speak(speaker: ReferenceSpeaker, runner: SlotRunner, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Codes [frames, rows, 16] and PCM of requests that run together, two ticks in flight; ends are ignored."""
    slots = list(range(len(numbers)))
    for slot, number in zip(slots, numbers, strict=True):
        runner.admit(speaker.assignment(slot, request(number)))
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


def test_a_graph_gives_the_bits_of_the_same_kernels_without_it(speaker):
    numbers = list(range(5))
    with_graphs = speak(speaker, make_runner(speaker, 8, graphs=True), numbers)
    without = speak(speaker, make_runner(speaker, 8, graphs=False), numbers)
    np.testing.assert_array_equal(with_graphs[0], without[0])
    np.testing.assert_array_equal(with_graphs[1], without[1])


@pytest.mark.parametrize("batch", [2, 8, 16, 32, 64, 128])
def test_a_row_alone_gives_the_codes_of_the_row_in_a_batch(speaker, batch, record_property):
    runner = make_runner(speaker, 128, graphs=True)
    together, _ = speak(speaker, runner, list(range(batch)))
    numbers = range(0, batch, max(1, batch // 4))
    equal = sum(np.array_equal(speak(speaker, runner, [number])[0][:, 0], together[:, number]) for number in numbers)
    record_property("rows_equal", equal)
    assert equal == len(numbers)


def test_a_reused_slot_has_no_trace_of_the_previous_request(speaker):
    runner = make_runner(speaker, 4, graphs=True)
    first = speak(speaker, runner, [1, 2, 3])
    speak(speaker, runner, [9, 8, 7, 6])
    again = speak(speaker, runner, [1, 2, 3])
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])


def test_the_audio_is_close_to_that_of_the_plain_codec(speaker):
    codes, pcm = speak(speaker, make_runner(speaker, 4, graphs=True), [1, 2, 4])
    for row in range(3):
        known = torch.tensor(codes[:, row], device="cuda").clamp(max=2047)
        truth = speaker.model.codec.decode_whole(known[None])[0].cpu().numpy()
        error = np.sqrt(np.mean((pcm[:, row].ravel() / 32767 - truth) ** 2)) / np.sqrt(np.mean(truth**2))
        assert error < 0.05, error


def test_many_random_requests_leak_nothing(speaker):
    runner = make_runner(speaker, 16, graphs=True)
    rng = np.random.default_rng(0)
    free, running, memory = runner.free_blocks, set(), None
    for tick in range(500):
        for slot in range(16):
            if slot in running and rng.random() < 0.2:
                runner.release(slot)
                running.discard(slot)
            elif slot not in running and rng.random() < 0.4:
                runner.admit(speaker.assignment(slot, request(int(rng.integers(1000)))))
                running.add(slot)
        if running:
            runner.collect(runner.launch(sorted(running)))
        if tick == 50:
            torch.cuda.synchronize()
            memory = torch.cuda.memory_allocated()
    for slot in running:
        runner.release(slot)
    torch.cuda.synchronize()
    assert runner.free_blocks == free
    assert torch.cuda.memory_allocated() <= memory + 2**20
