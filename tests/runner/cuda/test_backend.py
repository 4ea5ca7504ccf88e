"""The CUDA backend on a GPU, with Triton's and with CUDA's kernels, and with FP8 weights: graphs give the bits of eager
kernels, a row alone those of the row in a batch."""

import copy

import numpy as np
import pytest
import torch

from oscine.request import SpeechRequest
from oscine.runner.backend import BackendOptions
from oscine.runner.memory_budget import plan_memory
from oscine.runner.slot_runner import SlotRunner
from tests.runner.cuda.kernel_speaker import KERNELS, KernelSpeaker, needs_hopper

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from oscine.runner.cuda.backend import MIN_OVERLAP_ROWS, CudaBackend

pytestmark = pytest.mark.gpu

FRAMES = 24


@pytest.fixture(scope="module", params=(*KERNELS, pytest.param("fp8", marks=needs_hopper)))
def speaker(request, small_checkpoints) -> KernelSpeaker:
    quantize = "fp8" if request.param == "fp8" else "none"
    kernels = "triton" if request.param == "triton" else "cuda"
    return KernelSpeaker(small_checkpoints("1b7", "custom_voice"), kernels, "1b7", quantize=quantize)


def make_runner(speaker: KernelSpeaker, slots: int, *, graphs: bool, prefix_bytes: int = 0) -> SlotRunner:
    sizes = {"slots": slots, "positions_per_slot": 256, "positions_total": slots * 128}
    budget = plan_memory(speaker.config, element_bytes=2, available_bytes=None, prefix_bytes=prefix_bytes, **sizes)
    options = BackendOptions(graphs=graphs, kernels=speaker.kernels, quantize=speaker.quantize)
    # FP8 frees the weights of the model that it converts.
    model = speaker.model if speaker.quantize == "none" else copy.deepcopy(speaker.model)
    runner = SlotRunner(CudaBackend(model, budget, options))
    runner.capture()
    return runner


def request(number: int) -> SpeechRequest:
    text = ("Hello there.", "And you, the world.", "A third one", "x")[number % 4]
    mode = ("whole", "streaming")[number // 4 % 2]
    greedy = True if number % 3 == 0 else None
    return SpeechRequest(text=text, voice="ryan", text_mode=mode, seed=number, greedy=greedy, max_new_tokens=60)


def speak(speaker: KernelSpeaker, runner: SlotRunner, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
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


@pytest.mark.parametrize("batch", [2, 8, 16, 32, 64, 128, 256])
def test_a_row_alone_gives_the_codes_of_the_row_in_a_batch(speaker, batch, record_property):
    runner = make_runner(speaker, max(128, batch), graphs=True)
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


def test_a_cached_prefix_gives_the_bits_of_a_computed_one(speaker):
    runner = make_runner(speaker, 8, graphs=True, prefix_bytes=2**26)
    computed = speak(speaker, runner, [1, 2, 3])
    assert runner.counts().prefix_hits == 0
    cached = speak(speaker, runner, [1, 2, 3])
    assert runner.counts().prefix_hits == 3
    np.testing.assert_array_equal(computed[0], cached[0])
    np.testing.assert_array_equal(computed[1], cached[1])


@pytest.mark.parametrize("others", [0, 7, 40, 120, 127])
def test_a_prompt_that_runs_in_a_frame_gives_the_bits_of_a_prefill_before_it(speaker, others):
    """The same bits for the newcomer, and for the others in its frame."""
    runner = make_runner(speaker, 128, graphs=True)
    slots = list(range(others + 1))
    heard = []
    for prefill_first in (True, False):
        for slot in slots[1:]:
            runner.admit(speaker.assignment(slot, request(slot)))
        for _ in range(2 if others else 0):
            runner.collect(runner.launch(slots[1:]))
        runner.admit(speaker.assignment(0, request(others)))
        if prefill_first:
            runner.flush_admissions()
        outputs = [runner.collect(runner.launch(slots)) for _ in range(6)]
        heard.append((np.stack([o.codes for o in outputs]), np.stack([o.pcm for o in outputs])))
        for slot in slots:
            runner.release(slot)
    np.testing.assert_array_equal(heard[0][0], heard[1][0])
    np.testing.assert_array_equal(heard[0][1], heard[1][1])


def test_admitting_many_requests_takes_no_more_launches_than_one(speaker, record_property):
    runner = make_runner(speaker, 64, graphs=True, prefix_bytes=2**26)
    speak(speaker, runner, [0])  # its prefix is cached now
    launches = []
    for count in (1, 5):  # of few rows: one pack
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            for slot in range(count):
                runner.admit(speaker.assignment(slot, request(0)))
            runner.flush_admissions()
        names = [event.name for event in profile.events()]
        launches.append(sorted(name for name in names if name.startswith(("cuda", "aten::copy_"))))
        for slot in range(count):
            runner.release(slot)
    record_property("launches", launches[0])
    assert launches[0] == launches[1] and len(launches[0]) < 24


def test_a_frame_begins_after_its_prefill_and_before_it_ends(speaker):
    runner = make_runner(speaker, 8, graphs=True)
    runner.admit(speaker.assignment(0, request(0)))
    ticket = runner.launch([0])
    while not ticket.ready():
        pass
    assert ticket.begun() and ticket.device_free()
    runner.collect(ticket)
    runner.release(0)


@pytest.mark.parametrize("rows", [8, MIN_OVERLAP_ROWS])
def test_a_slot_that_is_freed_and_taken_while_its_audio_is_made_starts_anew(speaker, rows):
    runner = make_runner(speaker, 32, graphs=True)
    codes, pcm = speak(speaker, runner, [3])
    slots = list(range(rows))
    for old in (1, 2, 4):
        for slot in slots:
            runner.admit(speaker.assignment(slot, request(old + slot)))
        for _ in range(5):
            runner.collect(runner.launch(slots))
        in_flight = runner.launch(slots)
        runner.release(0)
        runner.admit(speaker.assignment(0, request(3)))
        outputs = []
        for _ in range(FRAMES):
            launched = runner.launch(slots)
            outputs.append(runner.collect(in_flight))
            in_flight = launched
        outputs.append(runner.collect(in_flight))
        for slot in slots:
            runner.release(slot)
        np.testing.assert_array_equal(np.stack([output.codes[0] for output in outputs[1:]]), codes[:, 0])
        # The codec may round a sample of a row in a batch differently.
        difference = np.stack([output.pcm[0] for output in outputs[1:]]).astype(int) - pcm[:, 0]
        assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("rows", [1, MIN_OVERLAP_ROWS - 1, MIN_OVERLAP_ROWS])
def test_only_many_rows_begin_the_next_frame_before_the_audio_is_complete(speaker, rows):
    runner = make_runner(speaker, 32, graphs=True)
    slots = list(range(rows))
    for slot in slots:
        runner.admit(speaker.assignment(slot, request(slot)))
    first = runner.launch(slots)
    assert (first.free is first.done) == (rows < MIN_OVERLAP_ROWS)
    with torch.cuda.stream(runner.backend.codec_stream.stream):
        torch.cuda._sleep(10**9)  # half a second in which no codec can run
    second = runner.launch(slots)
    runner.collect(first)
    while not second.begun():
        pass
    assert not second.device_free() and not second.ready(), "its codes are not taken before the codec is free"
    runner.collect(second)
    for slot in slots:
        runner.release(slot)


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
