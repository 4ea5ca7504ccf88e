"""More requests than fit: admitted streams have no gap, the others are refused at once."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
from collections.abc import Iterator

import pytest

from oscine.config import ChunkConfig, EngineConfig, PacingConfig
from oscine.engine.loop import EngineLoop
from oscine.errors import OverloadedError
from oscine.model.checkpoint import DEMO, find_checkpoint
from oscine.model.config import read_config
from tests.engine.scripted_runner import PLAIN, SAMPLE_RATE_HZ, Listener, ScriptedRunner, VirtualClock, session_of

CONFIG = dataclasses.replace(PLAIN, chunks=ChunkConfig(), queue_limit=16, queue_wait_s=2.0, pacing=PacingConfig())


def drive(
    runner: ScriptedRunner, arrivals: list[tuple[float, int]], config: EngineConfig = CONFIG
) -> tuple[list[Listener], int, list[float]]:
    """Open loop: (time, frames) of each request. Returns the listeners of admitted requests, the number of refusals and
    their retry times."""
    loop = EngineLoop(runner, config, runner.clock)
    listeners: list[Listener] = []
    retries_s: list[float] = []
    coming = sorted(arrivals, reverse=True)
    while True:
        while coming and coming[-1][0] <= runner.clock.now_s:
            listener = Listener(runner.clock)
            frames = coming.pop()[1]
            tag = len(listeners) % 30 + 1
            session = session_of(tag, frames, listener, config, text_ids=frames // 4)
            session.utterance_id = f"{len(listeners)}-{len(retries_s)}"
            try:
                loop.submit(session)
                listeners.append(listener)
            except OverloadedError as error:
                retries_s.append(error.retry_after_s)
        if not loop.tick():
            next_s = [coming[-1][0]] if coming else []
            next_s += [] if loop.wake_s is None else [loop.wake_s]
            if not next_s:
                break
            runner.clock.now_s = max(runner.clock.now_s, min(next_s))
    assert not runner.held and loop.status().slots_active == loop.status().queued == 0
    return listeners, len(retries_s), retries_s


def poisson(rate_hz: float, seconds: float, seed: int) -> list[tuple[float, int]]:
    rng = random.Random(seed)
    arrivals, at_s = [], 0.0
    while (at_s := at_s + rng.expovariate(rate_hz)) < seconds:
        arrivals.append((at_s, rng.randint(10, 90)))
    return arrivals


# (fixed, per row, per prefilled row): a large GPU, a small one, and a CPU that can keep five streams at most.
MACHINES = {
    "h200": (0.0035, 0.00003, 0.00002, 32),
    "small gpu": (0.020, 0.001, 0.0001, 32),
    "cpu": (0.004, 0.011, 0.0003, 16),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_at_three_times_the_load_no_admitted_stream_has_a_gap(machine: str, seed: int) -> None:
    fixed_s, row_s, prefill_row_s, slots = MACHINES[machine]
    runner = ScriptedRunner(slots, fixed_s=fixed_s, row_s=row_s, prefill_row_s=prefill_row_s)
    rows = min(slots, int((0.064 - fixed_s) / row_s))
    capacity_hz = rows / (fixed_s + row_s * rows) / 50  # 50 frames per request on average
    seconds = min(20.0, 300 / capacity_hz)
    arrivals = poisson(3 * capacity_hz, seconds, seed)
    listeners, refused, retries_s = drive(runner, arrivals)
    assert [listener.ends for listener in listeners] == [["stop"]] * len(listeners)
    assert sum(listener.underrun_s() > 0.001 for listener in listeners) == 0
    assert refused > len(arrivals) / 3 and all(0.1 <= retry_s <= 60 for retry_s in retries_s)
    # The machine must be busy: refusals are no excuse for idle slots.
    assert len(listeners) > 0.7 * capacity_hz * seconds


def test_at_half_the_load_no_request_is_refused() -> None:
    fixed_s, row_s, prefill_row_s, slots = MACHINES["h200"]
    runner = ScriptedRunner(slots, fixed_s=fixed_s, row_s=row_s, prefill_row_s=prefill_row_s)
    capacity_hz = slots / (fixed_s + row_s * slots) / 50
    listeners, refused, _ = drive(runner, poisson(capacity_hz / 2, 4.0, seed=1))
    assert refused == 0 and sum(listener.underrun_s() for listener in listeners) == 0


@pytest.mark.parametrize(("machine", "burst"), [("h200", 256), ("h200", 512), ("cpu", 30)])
def test_a_burst_has_no_refusal_of_a_request_that_would_get_a_slot_in_time(machine: str, burst: int) -> None:
    """The settings are the defaults. The tick's cost is known, as after the warm-up."""
    fixed_s, row_s, prefill_row_s, slots = (0.0023, 0.000034, 0.000005, 128) if machine == "h200" else MACHINES["cpu"]
    defaults = EngineConfig()
    waits = {"queue_limit": defaults.queue_limit, "queue_wait_s": defaults.queue_wait_s}
    config = dataclasses.replace(CONFIG, slots=slots, **waits)
    runner = ScriptedRunner(slots, fixed_s=fixed_s, row_s=row_s, prefill_row_s=prefill_row_s)
    warm_up = [(float(size), 17) for size in (1, 2, 4, 8, 16, 32, 64, 128) for _ in range(min(size, slots))]
    at_s = 200.0
    listeners, _, _ = drive(runner, [*warm_up, *[(at_s, 30)] * burst], config)
    served = [listener for listener in listeners if listener.arrived_s[0] > at_s]
    longest_s = max(listener.arrived_s[0] for listener in served) - at_s
    if machine == "h200":
        assert len(served) == burst and longest_s < defaults.queue_wait_s
    else:  # five at once, which takes 1.8 s: a second five, but no third
        assert len(served) == 10 and longest_s < defaults.queue_wait_s
    assert sum(listener.underrun_s() > 0.001 for listener in served) == 0


# --- the forecast, and a machine whose speed changes ---

FRAMES, FRAMES_PER_ID = 60, 2  # the engine guesses four at first


def forecast_and_wait(loop: EngineLoop, runner: ScriptedRunner) -> tuple[float, float]:
    """Returns for the first request of a burst that gets no slot when a slot should be free, and when one is."""
    begun_s, tags, running = runner.clock.now_s, iter(range(1, 31)), []
    while True:
        listener = Listener(runner.clock)
        try:
            loop.submit(session_of(next(tags), FRAMES, listener, CONFIG, text_ids=FRAMES // FRAMES_PER_ID))
            running.append(listener)
        except OverloadedError as refused:
            forecast_s = refused.retry_after_s
            break
    while loop.status().slots_active or loop.status().queued:
        if not loop.tick():
            assert loop.wake_s is not None
            runner.clock.now_s = max(runner.clock.now_s, loop.wake_s)
    runner.clock.now_s += 10.0
    return forecast_s, min(listener.arrived_s[-1] for listener in running) - begun_s


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_the_forecast_comes_true_on_a_machine_that_becomes_slower_or_faster(factor: float) -> None:
    config = dataclasses.replace(CONFIG, queue_wait_s=0.0)
    runner = ScriptedRunner(16, fixed_s=0.012, row_s=0.004, prefill_row_s=0.0001)
    loop = EngineLoop(runner, config, runner.clock)
    before = [forecast_and_wait(loop, runner) for _ in range(8)]
    for forecast_s, wait_s in before[1:]:  # the first burst learns what a tick costs, and how long a speech is
        assert forecast_s == pytest.approx(wait_s, rel=0.15)
    runner.fixed_s, runner.row_s = factor * runner.fixed_s, factor * runner.row_s
    changed = [forecast_and_wait(loop, runner) for _ in range(4)]
    assert changed[1][0] == pytest.approx(changed[1][1], rel=0.5)
    for forecast_s, wait_s in changed[2:]:
        assert forecast_s == pytest.approx(wait_s, rel=0.15)


# --- speeches of several segments ---

HOP_S = 0.01  # between two segments of a speech: a new request may take the slot meanwhile


@dataclasses.dataclass
class Speech:
    """The next segment is submitted when the last one has ended."""

    segments: list[int]  # frames of each
    listeners: list[Listener]
    next_s: float | None = None

    def player(self) -> Listener:
        """All segments as one player receives them."""
        player = Listener(self.listeners[0].clock)
        player.chunks = [chunk for one in self.listeners for chunk in one.chunks]
        player.arrived_s = [arrived_s for one in self.listeners for arrived_s in one.arrived_s]
        return player

    def dry_s(self) -> float:
        dry_s = 0.0
        for one in self.listeners:
            for chunk, arrived_s in zip(one.chunks, one.arrived_s, strict=True):
                dry_s = max(dry_s, arrived_s) + len(chunk.pcm) / 2 / SAMPLE_RATE_HZ
        return dry_s


def speak_segment(loop: EngineLoop, clock: VirtualClock, speech: Speech) -> None:
    listener, frames = Listener(clock), speech.segments[len(speech.listeners)]
    continues, dry_s = bool(speech.listeners), speech.dry_s()
    plays_until_s = dry_s if dry_s > clock.now_s else None
    session = session_of(
        1, frames, listener, CONFIG, text_ids=frames // 4, continues=continues, plays_until_s=plays_until_s
    )
    session.utterance_id = f"{id(speech)}.{len(speech.listeners)}"
    loop.submit(session)
    speech.listeners.append(listener)
    speech.next_s = None


def drive_speeches(runner: ScriptedRunner, arrivals: list[tuple[float, list[int]]]) -> tuple[list[Speech], int]:
    """Returns the speeches that were not refused, at once or after the longest wait, and the engine's underruns."""
    loop, clock = EngineLoop(runner, CONFIG, runner.clock), runner.clock
    speeches: list[Speech] = []
    coming = sorted(arrivals, reverse=True)
    while True:
        while coming and coming[-1][0] <= clock.now_s:
            speech = Speech(coming.pop()[1], [])
            with contextlib.suppress(OverloadedError):
                speak_segment(loop, clock, speech)
                speeches.append(speech)
        for speech in speeches:
            if speech.next_s is not None and speech.next_s <= clock.now_s:
                speak_segment(loop, clock, speech)  # never refused
        busy = loop.tick()
        speeches = [speech for speech in speeches if not isinstance(speech.listeners[0].error, OverloadedError)]
        for speech in speeches:
            if speech.listeners[-1].ends and speech.next_s is None and len(speech.listeners) < len(speech.segments):
                speech.next_s = clock.now_s + HOP_S
        next_s = [coming[-1][0]] if coming else []
        next_s += [speech.next_s for speech in speeches if speech.next_s is not None]
        next_s += [] if loop.wake_s is None else [loop.wake_s]
        if not busy and not next_s:
            return speeches, loop.status().underruns
        if not busy:
            clock.now_s = max(clock.now_s, min(next_s))


@pytest.mark.parametrize("machine", ["h200", "cpu"])
def test_at_three_times_the_load_admitted_speeches_have_no_gap_between_segments(machine: str) -> None:
    fixed_s, row_s, prefill_row_s, slots = MACHINES[machine]
    runner = ScriptedRunner(slots, fixed_s=fixed_s, row_s=row_s, prefill_row_s=prefill_row_s)
    rows = min(slots, int((0.064 - fixed_s) / row_s))
    capacity_hz = rows / (fixed_s + row_s * rows) / 200
    rng, seconds = random.Random(4), min(20.0, 100 / capacity_hz)
    times_s = [at_s for at_s, _ in poisson(3 * capacity_hz, seconds, seed=4)]
    arrivals = [(at_s, [rng.randint(10, 90) for _ in range(4)]) for at_s in times_s]
    speeches, underruns = drive_speeches(runner, arrivals)
    assert len(arrivals) > 1.3 * len(speeches) > 10, "some are refused"
    assert [[one.ends for one in speech.listeners] for speech in speeches] == [[["stop"]] * 4] * len(speeches)
    assert underruns == 0 and sum(speech.player().underrun_s() > 0.001 for speech in speeches) == 0


# --- the first burst after a start: with what the warm-up and the checkpoint tell of the demo voice on two CPU cores

FREE = (0.008, 0.004)  # s of a tick and of each row: about 14 streams in real time
BUSY = (0.024, 0.012)  # 3 streams
TEXT_IDS, FRAMES = 30, 66  # of 98 characters


def first_burst(cost_s: tuple[float, float], queue_wait_s: float) -> tuple[list[Listener], list[float], float]:
    """Twelve requests at once. Returns the admitted ones, the waits that the refused ones were told, and when the first
    speech ended."""
    fixed_s, row_s = cost_s
    frames_per_text_id = read_config(find_checkpoint(DEMO)).frames_per_text_token
    pacing = PacingConfig(frames_per_text_id=frames_per_text_id)
    config = dataclasses.replace(PLAIN, chunks=ChunkConfig(), queue_wait_s=queue_wait_s, pacing=pacing)
    runner = ScriptedRunner(32, fixed_s=fixed_s, row_s=row_s, prefill_row_s=0.0003)
    clock = runner.clock
    loop = EngineLoop(runner, config, clock)

    def run() -> Iterator[float]:
        while (ticked := loop.tick()) or loop.wake_s is not None:
            if not ticked and loop.wake_s is not None:
                clock.now_s = max(clock.now_s, loop.wake_s)
            yield clock.now_s

    for size in (1, 2, 4, 8, 16):  # the warm-up
        for tag in range(1, size + 1):
            warm = session_of(tag, 100, Listener(clock), config, max_new_tokens=17, continues=True)
            warm.utterance_id = f"warm-up {size} {tag}"
            loop.submit(warm)
        list(run())
    begun_s, admitted, told_s = clock.now_s, list[Listener](), list[float]()
    for tag in range(1, 13):
        listener = Listener(clock)
        try:
            loop.submit(session_of(tag, FRAMES, listener, config, text_ids=TEXT_IDS))
            admitted.append(listener)
        except OverloadedError as error:
            told_s += map(float, re.findall(r"a slot is free in ([\d.]+)", str(error)))
    freed_s = [now_s for now_s in run() if any(listener.ends for listener in admitted)]
    assert [listener.ends for listener in admitted] == [["stop"]] * len(admitted)
    return admitted, told_s, freed_s[0] - begun_s


def test_an_idle_machine_admits_a_first_burst_of_the_demo_voice() -> None:
    admitted, told_s, _ = first_burst(FREE, EngineConfig().queue_wait_s)
    assert len(admitted) == 12 and not told_s


def test_the_first_forecast_of_the_demo_voice_is_right() -> None:
    admitted, told_s, free_s = first_burst(BUSY, 0.0)
    assert len(admitted) + len(told_s) == 12 and len(told_s) > 6
    assert all(0.9 * free_s < one_s < 1.2 * free_s for one_s in told_s)
