"""The slot runner against the reference path: whatever else runs, whenever it came, a request says the same."""

import random
from dataclasses import replace

import numpy as np
import pytest

from oscine import Oscine, SpeechRequest
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from oscine.types import EngineError, TooLongError

SLOTS = 3


@pytest.fixture(scope="module")
def base(small_checkpoints):
    return Oscine(small_checkpoints("0b6", "base"), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def requests(base):
    noise = np.random.default_rng(0).normal(0, 0.2, 36000).astype(np.float32)
    in_context, timbre = base.clone((noise, 24000), "hello there you"), base.clone((noise[::-1].copy(), 24000))
    return [
        SpeechRequest(text="Hello there.", voice=in_context, seed=1, top_p=0.9, max_new_tokens=12),
        SpeechRequest(text="And you, the world.", voice=timbre, text_mode="whole", seed=2, max_new_tokens=9),
        SpeechRequest(text="Hi", voice=in_context, text_mode="whole", greedy=True, max_new_tokens=14),
        SpeechRequest(text="A b c d e f g", voice=timbre, seed=4, temperature=2.0, top_k=0, max_new_tokens=12),
        SpeechRequest(text="Hello again my friend", voice=in_context, seed=5, max_new_tokens=10),
        SpeechRequest(text="x", voice=timbre, greedy=True, repetition_penalty=1.5, max_new_tokens=12),
    ]


@pytest.fixture(scope="module")
def expected(base, requests):
    return [base.speak_batch([request])[0] for request in requests]


def make_runner(oscine: Oscine, **changed) -> SlotRunner:
    usual = {"slots": SLOTS, "positions_per_slot": 256, "positions_total": None}
    model = oscine._model
    return SlotRunner(model, plan_memory(model.config, element_bytes=4, available_bytes=None, **(usual | changed)))


def admit(oscine: Oscine, runner: SlotRunner, slot: int, request: SpeechRequest) -> None:
    prompt = oscine._builder.build(request)
    runner.admit(SlotAssignment(slot, prompt, request.sampling(oscine.config.sampling)))


class Company:
    """Random arrivals into random slots, random ticks, some leave early: collects what each request said."""

    def __init__(self, oscine: Oscine, requests: list[SpeechRequest], seed: int) -> None:
        self.rng = random.Random(seed)
        self.oscine, self.requests, self.runner = oscine, requests, make_runner(oscine)
        self.waiting = [self.rng.randrange(len(requests)) for _ in range(9)]
        self.running: dict[int, tuple[int, int | None, list, list]] = {}  # slot -> request, leaves after, codes, pcm
        self.said: list[tuple[int, bool, list, list]] = []

    def run(self) -> None:
        while self.waiting or self.running:
            free = [slot for slot in range(SLOTS) if slot not in self.running]
            if self.waiting and free and self.rng.random() < 0.4:
                self._arrive(self.rng.choice(free))
            chosen = [slot for slot in self.running if self.rng.random() < 0.8]
            self.rng.shuffle(chosen)
            if chosen:
                self._tick(chosen)

    def _arrive(self, slot: int) -> None:
        number = self.waiting.pop()
        admit(self.oscine, self.runner, slot, self.requests[number])
        leaves_after = self.rng.randint(1, 6) if self.rng.random() < 0.3 else None
        self.running[slot] = (number, leaves_after, [], [])

    def _tick(self, slots: list[int]) -> None:
        output = self.runner.collect(self.runner.launch(slots))
        for slot, codes, pcm in zip(output.slots, output.codes, output.pcm, strict=True):
            number, leaves_after, all_codes, all_pcm = self.running[slot]
            limit = self.requests[number].max_new_tokens - 1
            ended = codes[0] == self.runner.eos_id
            if not ended:
                all_codes.append(codes)
                all_pcm.append(pcm)
            cut = len(all_codes) == leaves_after
            if ended or cut or len(all_codes) == limit:
                self.runner.release(slot)
                self.said.append((number, cut, all_codes, all_pcm))
                del self.running[slot]


@pytest.mark.parametrize("seed", range(3))
def test_a_request_says_the_same_whatever_runs_beside_it(base, requests, expected, seed):
    company = Company(base, requests, seed)
    company.run()
    assert len(company.said) == 9
    for number, cut, codes, pcm in company.said:
        whole = expected[number]
        frames = len(codes) if cut else len(whole.codes)
        np.testing.assert_array_equal(np.array(codes).reshape(-1, 16), whole.codes[:frames])
        samples = np.concatenate(pcm) if pcm else np.zeros(0)
        # PCM16 rounds to the nearest: half a step, and a little for the order of sums.
        assert np.abs(samples / 32767 - whole.audio[: len(samples)]).max(initial=0) < 0.6 / 32767


def test_nothing_is_held_after_release(base, requests):
    runner = make_runner(base)
    free = runner._pool.free
    for _ in range(3):
        for slot in range(SLOTS):
            admit(base, runner, slot, requests[slot])
        runner.collect(runner.launch(range(SLOTS)))
        for slot in range(SLOTS):
            runner.release(slot)
    assert runner._pool.free == free and not runner._held


def test_a_beginning_is_computed_once(base, requests):
    runner = make_runner(base)
    for _ in range(3):
        admit(base, runner, 0, requests[0])
        runner.release(0)
    assert (runner._prefixes.hits, runner._prefixes.misses) == (2, 1)


class LatePrefill:
    """As prefill on kernels: nothing is done before it must, and prompts of one pack are written in no order."""

    def __init__(self, prefill) -> None:
        self._prefill, self._waiting = prefill, []

    def add(self, rows, first, page_row) -> None:
        self._waiting.append((rows, first, page_row.clone()))

    def flush(self) -> None:
        for prompt in reversed(self._waiting):
            self._prefill.add(*prompt)
        self._waiting.clear()


def test_prompts_that_wait_are_prefilled_before_their_slots_run_or_their_pages_change_hands(base, requests, expected):
    # Pages for one request at a time: whoever comes next gets those of whoever left.
    runner = make_runner(base, positions_total=256)
    runner._prefill = LatePrefill(runner._prefill)
    for number in (0, 1, 0):
        admit(base, runner, 2, requests[5])
        runner.release(2)
        admit(base, runner, 0, requests[number])
        said = [runner.collect(runner.launch([0])).codes[0] for _ in range(5)]
        np.testing.assert_array_equal(said, expected[number].codes[:5])
        runner.release(0)
    assert runner._prefixes.hits > 0  # and beginnings were kept when they were there, not before


def test_text_that_comes_later_is_spoken_as_if_it_had_been_there(base, requests):
    """Greedy: holding end of speech back takes its share out of a random draw, and so may change it."""
    request = replace(requests[3], greedy=True)
    whole = base.speak_batch([request])[0]
    prompt = base._builder.build(request)
    later = prompt.trailing_ids.tolist()
    early = type(prompt)(prompt.text_ids, prompt.codec_ids, prompt.trailing_ids[:1], prompt.speaker)
    runner = make_runner(base)
    runner.admit(SlotAssignment(0, early, request.sampling(base.config.sampling), streaming_text=True))
    codes = []
    for frame in range(len(whole.codes)):
        if frame + 1 < len(later):
            runner.append_text(0, [later[frame + 1]], ended=frame + 2 == len(later))
        codes.append(runner.collect(runner.launch([0])).codes[0])
    np.testing.assert_array_equal(np.array(codes), whole.codes)


def test_end_of_speech_is_held_back_while_text_is_open(base):
    request = SpeechRequest(text="x", voice=base.clone((np.full(24000, 0.1, np.float32), 24000)), seed=3)
    prompt = base._builder.build(request)
    runner = make_runner(base)
    runner.admit(SlotAssignment(0, prompt, request.sampling(base.config.sampling), streaming_text=True))
    first = [runner.collect(runner.launch([0])).codes[0, 0] for _ in range(60)]
    assert runner.eos_id not in first


def test_a_prompt_that_does_not_fit_is_refused_and_holds_nothing(base, requests):
    runner = make_runner(base, positions_per_slot=64, positions_total=64 * 4)
    free = runner._pool.free
    long = SpeechRequest(text="word " * 200, voice=requests[1].voice, text_mode="whole")
    with pytest.raises(TooLongError, match="a slot has 64"):
        admit(base, runner, 0, long)
    assert runner._pool.free == free
    admit(base, runner, 0, requests[5])


def test_room_is_counted_for_the_longest_speech(base, requests):
    runner = make_runner(base, positions_per_slot=128, positions_total=256)
    prompt, sampling = base._builder.build(requests[5]), requests[5].sampling(base.config.sampling)
    long = type(sampling)(max_new_tokens=5000)
    assert runner.room_for(prompt, long)
    runner.admit(SlotAssignment(0, prompt, long))
    runner.admit(SlotAssignment(1, prompt, long))
    assert not runner.room_for(prompt, sampling)
    runner.release(0)
    assert runner.room_for(prompt, sampling)


def test_a_failed_device_is_the_end_of_the_engine_and_other_errors_are_not(base, requests, monkeypatch):
    runner = make_runner(base)
    admit(base, runner, 0, requests[5])
    for message, kind in [
        ("CUDA error: an illegal memory access was encountered\nand more", EngineError),
        ("Triton Error [CUDA]: misaligned address", EngineError),
        ("shapes do not match", RuntimeError),
    ]:

        def fail(*args, message=message):
            raise RuntimeError(message)

        monkeypatch.setattr(runner._frame, "launch", fail)
        with pytest.raises(kind, match=message.splitlines()[0].replace("[", r"\[")):
            runner.launch([0])
