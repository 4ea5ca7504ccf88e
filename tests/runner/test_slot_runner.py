"""The slot runner against the reference path: a request gives the same codes at any time and under any load."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from oscine.errors import EngineError, TooLongError
from oscine.request import SamplingParams, SpeechRequest
from oscine.runner import slot_runner
from oscine.runner.backend import Backend, Newcomer
from oscine.runner.cpu.backend import CpuBackend
from oscine.runner.factory import make_backend
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.memory_budget import MemoryBudget, plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from oscine.runner.torch_backend import TorchBackend
from tests.reference.speaker import ReferenceSpeaker, varied_requests

pytestmark = pytest.mark.slow

SLOTS = 3


@pytest.fixture(scope="module")
def base(small_checkpoints) -> ReferenceSpeaker:
    return ReferenceSpeaker(small_checkpoints("0b6", "base"))


@pytest.fixture(scope="module")
def requests(base):
    return varied_requests(base)


@pytest.fixture(scope="module")
def expected(base, requests):
    return [base.speak(request) for request in requests]


def budget(base: ReferenceSpeaker, **changed) -> MemoryBudget:
    usual = {"slots": SLOTS, "positions_per_slot": 256, "positions_total": None}
    return plan_memory(base.config, element_bytes=4, available_bytes=None, **(usual | changed))


def make_runner(base: ReferenceSpeaker, **changed) -> SlotRunner:
    return SlotRunner(make_backend(base.model, budget(base, **changed)))


class RandomLoad:
    """Random arrivals in random slots, random ticks, some early releases. Collects the frames of each request."""

    def __init__(self, base: ReferenceSpeaker, requests: list[SpeechRequest], backend: Backend, seed: int) -> None:
        self.rng = random.Random(seed)
        self.base, self.requests, self.runner = base, requests, SlotRunner(backend)
        self.waiting = [self.rng.randrange(len(requests)) for _ in range(9)]
        self.running: dict[int, tuple[int, int | None, list, list]] = {}  # slot -> request, frame limit, codes, pcm
        self.finished: list[tuple[int, bool, list, list]] = []

    def run(self) -> None:
        while self.waiting or self.running:
            free = [slot for slot in range(SLOTS) if slot not in self.running]
            if self.waiting and free and self.rng.random() < 0.4:
                self._admit(self.rng.choice(free))
            chosen = [slot for slot in self.running if self.rng.random() < 0.8]
            self.rng.shuffle(chosen)
            if chosen:
                self._tick(chosen)

    def _admit(self, slot: int) -> None:
        number = self.waiting.pop()
        self.runner.admit(self.base.assignment(slot, self.requests[number]))
        cancel_after = self.rng.randint(1, 6) if self.rng.random() < 0.3 else None
        self.running[slot] = (number, cancel_after, [], [])

    def _tick(self, slots: list[int]) -> None:
        output = self.runner.collect(self.runner.launch(slots))
        for slot, codes, pcm in zip(output.slots, output.codes, output.pcm, strict=True):
            number, cancel_after, all_codes, all_pcm = self.running[slot]
            limit = self.requests[number].max_new_tokens - 1
            ended = codes[0] == self.runner.eos_id
            if not ended:
                all_codes.append(codes)
                all_pcm.append(pcm)
            cancelled = len(all_codes) == cancel_after
            if ended or cancelled or len(all_codes) == limit:
                self.runner.release(slot)
                self.finished.append((number, cancelled, all_codes, all_pcm))
                del self.running[slot]


@pytest.mark.parametrize("backend", [CpuBackend, TorchBackend])
@pytest.mark.parametrize("seed", range(2))
def test_a_request_gives_the_same_frames_under_any_load(base, requests, expected, backend, seed):
    load = RandomLoad(base, requests, backend(base.model, budget(base)), seed)
    load.run()
    assert len(load.finished) == 9
    for number, cancelled, codes, pcm in load.finished:
        whole = expected[number]
        frames = len(codes) if cancelled else len(whole.codes)
        np.testing.assert_array_equal(np.array(codes).reshape(-1, 16), whole.codes[:frames])
        samples = np.concatenate(pcm) if pcm else np.zeros(0)
        # PCM16 rounds to nearest: half a step, plus a little for the order of sums.
        assert np.abs(samples / 32767 - whole.audio[: len(samples)]).max(initial=0) < 0.6 / 32767


def test_release_frees_the_slot_and_its_blocks(base, requests):
    runner = make_runner(base)
    free = runner.free_blocks
    for _ in range(3):
        for slot in range(SLOTS):
            runner.admit(base.assignment(slot, requests[slot]))
        runner.collect(runner.launch(range(SLOTS)))
        for slot in range(SLOTS):
            runner.release(slot)
    assert runner.free_blocks == free


def test_a_prefix_is_computed_once(base, requests):
    runner = make_runner(base)
    for _ in range(3):
        runner.admit(base.assignment(0, requests[0]))
        runner.release(0)
    counts = runner.counts()
    assert (counts.prefix_hits, counts.prefix_misses) == (2, 1) and counts.prefix_bytes > 0


def test_allocated_memory_is_measured_once_a_second(base, monkeypatch):
    runner, now_s, measured = make_runner(base), [100.0], []
    monkeypatch.setattr(runner, "device", torch.device("cuda"))
    monkeypatch.setattr(slot_runner.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: measured.append(device) or len(measured))
    assert [runner.counts().memory_bytes for _ in range(3)] == [1, 1, 1]
    now_s[0] += 1.1
    assert [runner.counts().memory_bytes for _ in range(3)] == [2, 2, 2]


def test_a_launch_that_fails_caches_no_prefix(base, requests, expected, monkeypatch):
    """Does not know which keys were computed."""
    runner = SlotRunner(LateBackend(base.model, budget(base)))

    def fail(*args):
        runner.backend.pending.clear()
        raise RuntimeError("the launch failed")

    with monkeypatch.context() as failing:
        failing.setattr(runner.backend, "launch", fail)
        runner.admit(base.assignment(0, requests[0]))
        with pytest.raises(RuntimeError, match="the launch failed"):
            runner.launch([0])
    runner.release(0)
    assert runner.counts().prefix_bytes == 0
    runner.admit(base.assignment(0, requests[0]))
    codes = [runner.collect(runner.launch([0])).codes[0] for _ in range(5)]
    np.testing.assert_array_equal(codes, expected[0].codes[:5])


def test_a_prefix_for_which_there_is_no_memory_is_not_cached(base, requests, expected, monkeypatch, caplog):
    runner = make_runner(base)

    def read(kv, block_table, rows):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(PagedKVCache, "read", read)
    runner.admit(base.assignment(0, requests[0]))
    codes = [runner.collect(runner.launch([0])).codes[0] for _ in range(5)]
    np.testing.assert_array_equal(codes, expected[0].codes[:5])
    runner.release(0)
    assert runner.counts().prefix_bytes == 0 and "no memory for a cached prefix" in caplog.text


class LateBackend(TorchBackend):
    """Writes requests only at a flush or launch and in reverse order, as batched admission may."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.pending: list[Newcomer] = []

    def admit(self, newcomer: Newcomer) -> None:
        self.pending.append(newcomer)

    def flush_admissions(self) -> None:
        for newcomer in reversed(self.pending):
            super().admit(newcomer)
        self.pending.clear()

    def launch(self, *args):
        self.flush_admissions()
        return super().launch(*args)


def test_pending_admissions_are_written_before_their_slots_run_or_release_their_blocks(base, requests, expected):
    # Blocks for one request at a time: the next request gets the blocks of the previous one.
    runner = SlotRunner(LateBackend(base.model, budget(base, positions_total=256)))
    for number in (0, 1, 0):
        runner.admit(base.assignment(2, requests[5]))
        runner.release(2)
        runner.admit(base.assignment(0, requests[number]))
        codes = [runner.collect(runner.launch([0])).codes[0] for _ in range(5)]
        np.testing.assert_array_equal(codes, expected[number].codes[:5])
        runner.release(0)
    assert runner.counts().prefix_hits > 0  # prefixes were read after their prefill, not before


def test_appended_text_gives_the_codes_of_the_whole_text(base, requests):
    """Greedy: suppressing the end of speech changes the probabilities of a random draw."""
    request = replace(requests[3], greedy=True)
    whole = base.speak(request)
    prompt = base.builder.build(request)
    later = prompt.trailing_ids.tolist()
    early = replace(prompt, trailing_ids=prompt.trailing_ids[:1])
    runner = make_runner(base)
    runner.admit(SlotAssignment(0, early, request.sampling(base.config.sampling), streaming_text=True))
    codes = []
    for frame in range(len(whole.codes)):
        if frame + 1 < len(later):
            runner.append_text(0, [later[frame + 1]], ended=frame + 2 == len(later))
        codes.append(runner.collect(runner.launch([0])).codes[0])
    np.testing.assert_array_equal(np.array(codes), whole.codes)


def test_speech_does_not_end_while_text_may_follow(base):
    request = SpeechRequest(text="x", voice=base.clone((np.full(24000, 0.1, np.float32), 24000)), seed=3)
    runner = make_runner(base)
    runner.admit(base.assignment(0, request, streaming_text=True))
    first = [runner.collect(runner.launch([0])).codes[0, 0] for _ in range(60)]
    assert runner.eos_id not in first


def test_a_prompt_that_does_not_fit_is_refused_and_its_slot_stays_free(base, requests):
    runner = make_runner(base, positions_per_slot=64, positions_total=64 * 4)
    free = runner.free_blocks
    long = SpeechRequest(text="word " * 200, voice=requests[1].voice, text_mode="whole")
    with pytest.raises(TooLongError, match="a slot has 64"):
        runner.admit(base.assignment(0, long))
    assert runner.free_blocks == free
    runner.admit(base.assignment(0, requests[5]))


def test_more_text_than_a_slot_holds_is_refused(base, requests):
    runner = make_runner(base, text_capacity=10)
    with pytest.raises(TooLongError, match="at most 10 fit"):
        runner.admit(base.assignment(0, replace(requests[3], text="a b c d e f g h i j k l m")))
    runner.admit(base.assignment(0, replace(requests[3], text="a"), streaming_text=True))
    with pytest.raises(TooLongError, match="at most 10 tokens"):
        runner.append_text(0, [1] * 10, ended=False)


def test_room_is_counted_for_the_longest_possible_speech(base, requests):
    runner = make_runner(base, positions_per_slot=128, positions_total=256)
    prompt, sampling = base.builder.build(requests[5]), requests[5].sampling(base.config.sampling)
    long = SamplingParams(max_new_tokens=5000)
    assert runner.room_for(prompt, long)
    runner.admit(SlotAssignment(0, prompt, long))
    runner.admit(SlotAssignment(1, prompt, long))
    assert not runner.room_for(prompt, sampling)
    runner.release(0)
    assert runner.room_for(prompt, sampling)


class FailingBackend(TorchBackend):
    message = ""

    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], max_context: int):
        raise RuntimeError(self.message)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered\nand more", EngineError),
        ("Triton Error [CUDA]: misaligned address", EngineError),
        ("shapes do not match", RuntimeError),
    ],
)
def test_device_failures_become_engine_errors_and_other_errors_do_not(base, requests, message, kind):
    backend = FailingBackend(base.model, budget(base))
    backend.message = message
    runner = SlotRunner(backend)
    runner.admit(base.assignment(0, requests[5]))
    with pytest.raises(kind, match=message.splitlines()[0].replace("[", r"\[")):
        runner.launch([0])
