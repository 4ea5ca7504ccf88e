"""The next frame is launched late enough for newcomers and early enough for the device."""

from __future__ import annotations

import dataclasses
import random

import pytest

from oscine.config import PacingConfig
from oscine.engine.launch_timer import LaunchTimer
from oscine.engine.loop import EngineLoop
from tests.engine.scripted_runner import PLAIN, Listener, ScriptedRunner, VirtualClock, session_of

FRAME_S = 0.010


@dataclasses.dataclass
class FakeTicket:
    is_begun: bool = True
    is_free: bool = False
    with_prompts: bool = False

    def begun(self) -> bool:
        return self.is_begun

    def device_free(self) -> bool:
        return self.is_free

    def wait_device_free(self) -> None: ...

    def ready(self) -> bool:
        return False


def in_flight(ticket: FakeTicket, margin_s: float = 0.001, host_s: float = 0.0) -> LaunchTimer:
    """Its frame is launched at 1 s; the one before it is collected at 2 s."""
    timer = LaunchTimer(margin_s)
    timer.launched(ticket, 1.0 - host_s, 1.0, FRAME_S)
    timer.device_freed(2.0, waited=True)
    return timer


def test_a_launch_is_due_before_the_frame_in_flight_ends_by_the_margin_and_the_hosts_time() -> None:
    assert in_flight(FakeTicket(), margin_s=0.002).due_s(2.0) == pytest.approx(2.008)
    assert in_flight(FakeTicket(), margin_s=0.002, host_s=0.003).due_s(2.0) == pytest.approx(2.005)


def test_a_frame_that_has_not_begun_leaves_more_time() -> None:
    ticket = FakeTicket(is_begun=False)
    timer = in_flight(ticket)
    assert timer.due_s(2.004) == pytest.approx(2.013)
    assert timer.wake_s(2.005) == pytest.approx(2.0055), "it looks again soon"
    ticket.is_begun = True
    assert timer.wake_s(2.008) == timer.due_s(2.008) == pytest.approx(2.014)


def test_the_hosts_time_for_prefills_does_not_make_later_launches_earlier() -> None:
    timer = in_flight(FakeTicket(), margin_s=0.002)
    timer.launched(FakeTicket(), 2.0, 2.005, FRAME_S, admits=True)
    timer.device_freed(2.005, waited=True)
    assert timer.due_s(2.005) == pytest.approx(2.013)


def test_a_frame_with_prompts_leaves_the_time_that_they_took_before() -> None:
    timer = in_flight(FakeTicket(), margin_s=0.002)
    now_s = 2.0
    for _ in range(40):  # each frame with prompts takes 14 ms, each one without them 10 ms
        for ticket, ends_s in ((FakeTicket(with_prompts=True), FRAME_S), (FakeTicket(), 0.014)):
            timer.launched(ticket, now_s, now_s, FRAME_S)
            now_s += ends_s
            timer.device_freed(now_s, waited=True)
    assert timer.due_s(now_s) == pytest.approx(now_s + 0.008)
    timer.launched(FakeTicket(with_prompts=True), now_s, now_s, FRAME_S)
    timer.device_freed(now_s + FRAME_S, waited=True)
    assert timer.due_s(now_s + FRAME_S) == pytest.approx(now_s + FRAME_S + 0.012, abs=0.0001)


def test_a_late_launch_makes_the_next_ones_earlier() -> None:
    ticket = FakeTicket()
    timer = in_flight(ticket)
    before_s = timer.due_s(2.0)
    ticket.is_free = True
    assert timer.is_due(2.02)
    timer.launched(FakeTicket(), 2.02, 2.02, FRAME_S)
    timer.device_freed(2.02, waited=False)
    assert timer.due_s(2.02) - 2.02 < before_s - 2.0


def test_a_device_that_becomes_free_during_a_launch_does_not_make_the_next_ones_earlier() -> None:
    """The launch took longer than others, because requests came."""
    timer = in_flight(FakeTicket())
    before_s = timer.due_s(2.0)
    assert timer.is_due(2.0 + FRAME_S)
    timer.launched(FakeTicket(), 2.01, 2.02, FRAME_S, admits=True)
    timer.device_freed(2.02, waited=False)
    assert timer.due_s(2.02) - 2.02 == pytest.approx(before_s - 2.0)


def test_without_a_wait_the_frame_may_have_begun_when_it_was_launched() -> None:
    timer = LaunchTimer(0.001)
    timer.launched(FakeTicket(), 1.0, 1.0, FRAME_S)
    timer.device_freed(1.005, waited=False)
    assert timer.due_s(1.005) < 1.0 + FRAME_S


class Arrivals:
    """Streams that start again when they end, and a loop that sleeps in virtual time."""

    def __init__(self, margin_s: float, **costs: float) -> None:
        self.clock, self.rng = VirtualClock(), random.Random(0)
        costs = {"fixed_s": 0.005, "row_s": 0.00002, "prefill_row_s": 0.00002} | costs
        self.runner = ScriptedRunner(64, self.clock, **costs)
        config = dataclasses.replace(PLAIN, pacing=PacingConfig(launch_margin_s=margin_s))
        self.config, self.loop = config, EngineLoop(self.runner, config, self.clock)
        self.loop._admission.wait = self.wait  # type: ignore[method-assign]
        self.coming_s = [self.rng.random() * 0.2 for _ in range(32)]
        self.arrived: list[tuple[float, Listener]] = []

    def run(self, until_s: float) -> None:
        while self.clock.now_s < until_s:
            self.arrive()
            if not self.loop.tick():
                self.loop._sleep()

    def wait(self, timeout_s: float | None) -> bool:
        next_s = [*self.coming_s, *(() if timeout_s is None else (self.clock.now_s + timeout_s,))]
        self.clock.now_s = max(self.clock.now_s, min(next_s))
        return self.arrive()

    def arrive(self) -> bool:
        """Submits streams whose time has come. Returns whether there were any."""
        arriving_s = [at_s for at_s in self.coming_s if at_s <= self.clock.now_s]
        for at_s in arriving_s:
            self.coming_s.remove(at_s)
            self.speak(at_s)
        return bool(arriving_s)

    def speak(self, at_s: float) -> None:
        listener = Listener(self.clock)
        session = session_of(1, self.rng.randint(20, 60), listener, self.config)
        session.utterance_id = str(len(self.arrived))
        self.loop.submit(session)
        self.arrived.append((at_s, listener))
        self.coming_s.append(at_s + self.rng.uniform(0.1, 0.4))

    def first_audio_s(self) -> list[float]:
        return sorted(listener.arrived_s[0] - at_s for at_s, listener in self.arrived if listener.arrived_s)


def test_requests_that_arrive_during_a_frame_run_in_the_next_one() -> None:
    at_once, late = Arrivals(margin_s=1.0), Arrivals(margin_s=0.001)
    for arrivals in (at_once, late):
        arrivals.run(3.0)
    early, later = at_once.first_audio_s(), late.first_audio_s()
    assert len(early) > 100 and len(later) > 100
    # A frame takes 5.6 ms. At once: half a frame, then the frame in flight, then the own one.
    assert later[len(later) // 2] < early[len(early) // 2] - 0.004
    assert late.runner.busy_share() > 0.995 * at_once.runner.busy_share(), "the device does not wait for the host"


def test_the_next_frame_does_not_wait_for_the_audio_of_this_one() -> None:
    arrivals = Arrivals(margin_s=0.001, audio_s=0.003)
    arrivals.run(0.5)
    busy_s, begun_s = arrivals.runner.busy_s, arrivals.clock.now_s
    arrivals.run(3.0)
    assert arrivals.runner.busy_s - busy_s > 0.99 * (arrivals.clock.now_s - begun_s)


def test_a_stall_of_the_device_does_not_hold_later_frames_back() -> None:
    arrivals = Arrivals(margin_s=0.001)
    arrivals.run(0.5)
    arrivals.runner.free_s += 0.3
    arrivals.run(1.0)
    busy_s, begun_s = arrivals.runner.busy_s, arrivals.clock.now_s
    arrivals.run(2.0)
    assert arrivals.runner.busy_s - busy_s > 0.98 * (arrivals.clock.now_s - begun_s)


def test_one_slow_frame_with_prompts_does_not_hold_later_frames_back() -> None:
    arrivals = Arrivals(margin_s=0.0002, prefill_row_s=0.0001, mixed_rows=60)
    arrivals.run(0.5)
    while not (arrivals.runner.flying and arrivals.runner.flying[-1].with_prompts):
        arrivals.run(arrivals.clock.now_s + 0.001)
    arrivals.runner.delay_last(0.3)
    arrivals.run(arrivals.clock.now_s + 0.35)
    busy_s, begun_s = arrivals.runner.busy_s, arrivals.clock.now_s
    arrivals.run(begun_s + 0.6)
    assert arrivals.runner.busy_s - busy_s > 0.97 * (arrivals.clock.now_s - begun_s)


def test_a_guess_of_the_time_for_prompts_does_not_keep_a_free_device_waiting() -> None:
    timer, ticket = in_flight(FakeTicket(with_prompts=True)), FakeTicket(with_prompts=True)
    timer.launched(ticket, 2.01, 2.01, FRAME_S)
    timer.device_freed(2.5, waited=True)  # the first one took half a second
    timer.launched(ticket, 2.51, 2.51, FRAME_S)
    timer.device_freed(2.52, waited=True)
    ends_s = 2.52 + FRAME_S
    assert not timer.is_due(ends_s) and timer.wake_s(ends_s) <= ends_s + 0.0005
    ticket.is_free = True
    assert timer.wake_s(ends_s) == ends_s, "the loop wakes up"
    assert timer.is_due(ends_s)


def test_a_frame_after_a_pause_says_nothing_about_the_time_for_prompts() -> None:
    timer = in_flight(FakeTicket(with_prompts=True))
    timer.launched(FakeTicket(), 60.0, 60.0, FRAME_S, follows=False)
    timer.device_freed(60.0 + FRAME_S, waited=True)
    timer.launched(FakeTicket(with_prompts=True), 61.0, 61.0, FRAME_S, follows=False)
    assert timer.due_s(61.0) == pytest.approx(61.0 + FRAME_S - 0.001)


def test_a_device_that_never_begins_a_frame_gets_another_launch_for_which_the_loop_waits() -> None:
    timer = in_flight(FakeTicket(is_begun=False))
    assert not timer.is_due(2.9) and timer.is_due(3.1)


@pytest.mark.parametrize(("codes_s", "audio_s"), [(0.011, 0.009), (0.009, 0.011), (0.011, 0.002), (0.002, 0.011)])
def test_on_a_cpu_the_audio_of_a_frame_is_made_beside_the_codes_of_the_next_one(codes_s: float, audio_s: float) -> None:
    clock, frames = VirtualClock(), 100
    runner = ScriptedRunner(1, clock, fixed_s=audio_s, row_s=0.0, prefill_row_s=0.0, codes_s=codes_s)
    config = dataclasses.replace(PLAIN, pacing=PacingConfig(launch_margin_s=0.001))
    loop, listener, ticks = EngineLoop(runner, config, clock), Listener(clock), 0
    loop.submit(session_of(1, frames, listener, config))
    while not listener.ends:
        ticks += 1
        if not loop.tick():
            assert loop.wake_s is not None and loop.wake_s > clock.now_s
            clock.now_s = loop.wake_s
    assert listener.arrived_s[-1] < 1.05 * frames * max(codes_s, audio_s)
    assert listener.arrived_s[0] < codes_s + audio_s + codes_s, "the next frame delays the first audio by its codes"
    assert ticks < 4 * len(runner.launches), "it sleeps until there is something to do"


def test_on_a_cpu_prefills_count_for_the_frame_that_follows_them() -> None:
    clock, rng = VirtualClock(), random.Random(0)
    runner = ScriptedRunner(8, clock, fixed_s=0.009, row_s=0.0, prefill_row_s=0.001, codes_s=0.011)
    config = dataclasses.replace(PLAIN, pacing=PacingConfig(launch_margin_s=0.001))
    loop = EngineLoop(runner, config, clock)
    for number in range(30):
        session = session_of(1, 40, Listener(clock), config, rows=20)
        session.utterance_id = str(number)
        loop.submit(session)
        until_s = clock.now_s + 0.2 * rng.random()
        while clock.now_s < until_s:
            if not loop.tick():
                clock.now_s = until_s if loop.wake_s is None else loop.wake_s
    assert loop.cost.tick_s(1) == pytest.approx(0.011, rel=0.05)
    assert loop.cost.prefill_row_s == pytest.approx(0.001, rel=0.1)
