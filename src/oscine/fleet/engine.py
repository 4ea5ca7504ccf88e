"""An engine in virtual time: the real loop, admission, policy and forecast over a device that only takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from oscine.config import EngineConfig, RunawayConfig, TrimConfig
from oscine.engine.loop import EngineLoop
from oscine.engine.session import Session, StreamSpec
from oscine.errors import OverloadedError
from oscine.fleet.arrivals import SpeechSize
from oscine.fleet.machines import Machine
from oscine.request import SamplingParams, SpeechRequest
from oscine.runner.runner import FrameOutput, RunnerCounts, SlotAssignment, Ticket
from oscine.types import AudioChunk, EngineStatus, Prompt

_SAMPLE_RATE_HZ, _SAMPLES_PER_FRAME, _EOS_ID = 50, 4, 4000  # few samples, whose values do not matter; a frame is 80 ms
_SPEC = StreamSpec(_SAMPLE_RATE_HZ, _SAMPLES_PER_FRAME, _EOS_ID, positions=1_000_000)
_LEAST_STEP_S = 1e-6


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class Listener:
    """A client that plays what it gets. Times are those at which the engine sends a chunk."""

    speech: SpeechSize
    at_s: float  # when the engine gets the request
    clock: VirtualClock | None = None  # of the engine that speaks
    first_s: float | None = None
    last_s: float | None = None
    refused: bool = False
    lost: bool = False  # its engine died
    stall_s: float = 0.0  # how long its player had nothing to play
    ended: Callable[[Listener], None] | None = None  # called with the listener after its last chunk
    _dry_s: float = 0.0

    def __call__(self, chunk: AudioChunk) -> None:
        assert self.clock is not None
        now_s = self.clock.now_s
        if chunk.pcm:
            if self.first_s is None:
                self.first_s = self._dry_s = now_s
            self.stall_s += max(0.0, now_s - self._dry_s)
            self._dry_s = max(now_s, self._dry_s) + len(chunk.pcm) / 2 / _SAMPLE_RATE_HZ
        if isinstance(chunk.error, OverloadedError):
            self.refuse(now_s)
        elif chunk.finish_reason is not None:
            self._end(now_s)

    def refuse(self, now_s: float) -> None:
        self.refused = True
        self._end(now_s)

    def _end(self, now_s: float) -> None:
        self.last_s = now_s
        if self.ended:
            self.ended(self)


@dataclass(slots=True)
class _Ticket:
    slots: tuple[int, ...]
    begun_s: float
    done_s: float
    clock: VirtualClock
    with_prompts: bool
    codes: np.ndarray

    def begun(self) -> bool:
        return self.clock.now_s >= self.begun_s

    def device_free(self) -> bool:
        return self.clock.now_s >= self.done_s

    def wait_device_free(self) -> None:
        self.clock.now_s = max(self.clock.now_s, self.done_s)

    ready = device_free


@dataclass
class SimulatedRunner:
    """A Runner whose device takes the time that a machine was measured to take. A speech has as many frames as its
    seed says."""

    machine: Machine
    slots: int
    clock: VirtualClock
    sample_rate_hz: int = _SAMPLE_RATE_HZ
    samples_per_frame: int = _SAMPLES_PER_FRAME
    eos_id: int = _EOS_ID
    _left: dict[int, int] = field(default_factory=dict)  # slot -> frames
    _prompts: list[int] = field(default_factory=list)  # rows of each prompt that the next launch runs
    free_s: float = 0.0  # when the device has done all that was launched

    def admit(self, assignment: SlotAssignment) -> None:
        self._left[assignment.slot] = assignment.sampling.seed
        self._prompts.append(assignment.prompt.rows)

    def append_text(self, slot: int, text_ids: Sequence[int], *, ended: bool) -> None:
        raise NotImplementedError("a simulated text is whole")

    def launch(self, slots: Sequence[int]) -> Ticket:
        cost_s = self.machine.tick_s(len(slots), self._prompts)
        begun_s = max(self.free_s, self.clock.now_s)
        self.free_s = begun_s + cost_s
        codes = np.zeros((len(slots), 16), np.int64)
        for row, slot in enumerate(slots):
            if self._left[slot] <= 0:
                codes[row, 0] = _EOS_ID
            self._left[slot] -= 1
        beside, self._prompts = bool(self._prompts), []
        return _Ticket(tuple(slots), begun_s, self.free_s, self.clock, beside, codes)

    def collect(self, ticket: Ticket) -> FrameOutput:
        assert isinstance(ticket, _Ticket)
        ticket.wait_device_free()
        count = len(ticket.slots)
        pcm = np.full((count, _SAMPLES_PER_FRAME), 1000, np.int16)
        return FrameOutput(ticket.slots, ticket.codes, pcm, np.zeros(count, np.bool_))

    def release(self, slot: int) -> None:
        del self._left[slot]

    def room_for(self, prompt: Prompt, sampling: SamplingParams) -> bool:
        return True  # the number of slots is chosen so that all fit

    def counts(self) -> RunnerCounts:
        return RunnerCounts()


class SimulatedEngine:
    """The part of a SpeechEngine that a Router needs, and a way to let time pass."""

    def __init__(self, machine: Machine, config: EngineConfig, listeners: dict[str, Listener]) -> None:
        """`listeners`: the client of each utterance id."""
        self.clock, self._listeners = VirtualClock(), listeners
        self._config = replace(config, trim_silence=TrimConfig(enabled=False), runaway=RunawayConfig(enabled=False))
        slots = config.slots or machine.slots
        self.runner = SimulatedRunner(machine, slots, self.clock)
        self.loop = EngineLoop(self.runner, self._config, self.clock)
        self.alive = True
        self._warm_up()

    async def submit(
        self,
        utterance_id: str,
        request: SpeechRequest,
        deliver: Callable[[AudioChunk], None],
        *,
        streaming_text: bool = False,
    ) -> None:
        listener = self._listeners[utterance_id]
        listener.clock = self.clock
        self.loop.submit(self._session(utterance_id, listener.speech, deliver))

    def status(self) -> EngineStatus:
        status = self.loop.status()
        return status if self.alive else replace(status, ready=False)

    @property
    def wake_s(self) -> float | None:
        """The time at which the loop has something to do, if no request arrives before."""
        if (wake_s := self.loop.wake_s) is None:
            return self.clock.now_s if self.loop.status().queued else None
        return max(self.clock.now_s, wake_s, self.runner.free_s - self._config.pacing.launch_margin_s)

    def advance(self, until_s: float) -> None:
        """Lets time pass. A tick that has begun may end later."""
        while self.clock.now_s <= until_s:
            if self.loop.tick():
                continue
            if (wake_s := self.loop.wake_s) is None:
                break
            # The loop polls a device whose end it cannot know; each poll would cost as much as a tick here.
            wake_s = max(wake_s, self.runner.free_s - self._config.pacing.launch_margin_s)
            if wake_s > until_s:
                break
            self.clock.now_s = max(self.clock.now_s + _LEAST_STEP_S, wake_s)
        self.clock.now_s = max(self.clock.now_s, until_s)

    def _session(self, utterance_id: str, speech: SpeechSize, deliver: Callable[[AudioChunk], None]) -> Session:
        sampling = SamplingParams(seed=speech.frames, max_new_tokens=speech.frames + 2)
        session = Session(utterance_id, sampling, deliver, self._config, _SPEC, budgeted=False)
        ids = np.zeros(speech.prompt_rows, np.int64)
        session.begin(Prompt(ids, ids, ids[:0]), speech.text_ids, text_ended=True)
        return session

    def _warm_up(self) -> None:
        """Speaks batches of every size, as a starting engine does, so that the cost of a tick is known."""
        size = 1
        while size <= self.runner.slots:
            for row in range(size):
                self.loop.submit(self._session(f"warm-up {size} {row}", SpeechSize(8, 2, 16), lambda chunk: None))
            self.advance(self.clock.now_s + 60.0)
            size *= 2
        self.clock.now_s = self.runner.free_s = 0.0
