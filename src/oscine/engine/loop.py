"""The one thread that drives the runner: take the inbox, choose, launch frame n+1, finish frame n while it runs.

Reading order: `tick`. Other threads only ever call `submit`, `post` and `status`. An error that belongs to a request
ends that request; one that belongs to the runner ends all that run, and after several in a row the engine itself.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oscine.config import EngineConfig
from oscine.engine.admission import AdmissionControl, End, PromptReady, Stop, TextAppended
from oscine.engine.policy import Load, Running, Snapshot, Waiting, choose_step, expected_frames
from oscine.engine.runaway import frame_levels_dbfs
from oscine.engine.session import Session
from oscine.engine.slots import Slots
from oscine.engine.tick_cost import TickCost, TickCostModel
from oscine.runner.runner import Runner, Ticket
from oscine.types import (
    AudioChunk,
    EngineError,
    EngineStatus,
    FinishReason,
    OscineError,
    RequestError,
    TooLongError,
)

_log = logging.getLogger(__name__)
_FAILURES_TO_DIE = 3  # runner failures in a row, no good tick between them
_LONGEST_WAIT_S = 1.0  # between looks at streams that wait for text


@dataclass(frozen=True, slots=True)
class _Flight:
    """A tick on the device, and whose frames it makes. A session that has ended since is known by its own state, so a
    frame never reaches whoever holds the slot now."""

    ticket: Ticket
    sessions: tuple[Session, ...]
    prefill_rows: int
    begun_s: float


class EngineLoop:
    def __init__(self, runner: Runner, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner, self._config, self._clock = runner, config, clock
        self._slots = Slots(runner.slots)
        self._sessions: dict[str, Session] = {}  # all that have not ended
        self._by_slot: dict[int, Session] = {}
        self._waiting: deque[Session] = deque()  # ready for a slot: who continues, then the longest waiting
        self._in_flight: _Flight | None = None
        self._collected_s = clock()
        self._meter = TickCostModel()
        self._frames_made = self._underruns = 0
        self._counts = runner.counts()
        self._failures = 0
        self._stop_s: float | None = None
        self._running: tuple[Session, ...] = ()  # all that have a slot; replaced whole, so that any thread may read it
        self._changed = False  # in this tick somebody got or lost a slot: there may be more to do at once
        self._dead = False
        self._turn_begun_s: float | None = None  # None: between turns
        self._door = AdmissionControl(config)

    # --- any thread ---

    def submit(self, session: Session) -> None:
        self._door.submit(session, self._load)

    def post(self, message: PromptReady | TextAppended | End | Stop) -> None:
        self._door.post(message)

    def status(self) -> EngineStatus:
        return EngineStatus(
            ready=self._door.open and not self._stuck,
            slots=self._slots.count,
            slots_active=self._slots.taken,
            queued=self._door.queued,
            frames=self._frames_made,
            tick_s=self._meter.smooth_tick_s,
            ticks=self._meter.histogram,
            underruns=self._underruns,
            prefix_hits=self._counts.prefix_hits,
            prefix_misses=self._counts.prefix_misses,
            prefix_bytes=self._counts.prefix_bytes,
            memory_bytes=self._counts.memory_bytes,
        )

    @property
    def cost(self) -> TickCost:
        return self._meter.cost

    @property
    def _stuck(self) -> bool:
        """The loop thread is in a call that does not come back, which only a device's can be."""
        begun_s = self._turn_begun_s
        return begun_s is not None and self._clock() - begun_s > self._config.stuck_s

    def _load(self, queued_frames: tuple[float, ...]) -> Load:
        pacing = self._config.pacing
        running_frames = tuple(expected_frames(one.text_ids, one.frames_made, pacing) for one in self._running)
        return Load(self._slots.free, running_frames, queued_frames, self._meter.cost)

    # --- the loop thread ---

    def run(self) -> None:
        """Until stopped or dead. Nobody is left without an answer, whatever happens."""
        while not self.finished:
            if not self.turn():
                self._wait_for_work()

    @property
    def finished(self) -> bool:
        return self._dead or (self._stop_s is not None and not self._sessions and self._in_flight is None)

    def turn(self) -> bool:
        """A tick, or the end of the engine. False: there was nothing to do."""
        self._turn_begun_s = self._clock()
        try:
            return self.tick()
        except BaseException as error:
            self._die(error)
            if not isinstance(error, Exception):
                raise
            return False
        finally:
            self._turn_begun_s = None

    def tick(self) -> bool:
        """One frame for everyone who runs."""
        self._changed = False
        self._take_inbox()
        self._end_overdue()
        begun_s = self._clock()
        step = choose_step(self._snapshot(begun_s), begun_s, self._meter.cost, self._config.pacing)
        admitted = self._admit(step.admit)
        running = [self._by_slot[slot] for slot in step.run]
        launched = self._launch([*running, *admitted], admitted, begun_s)
        finished, self._in_flight = self._in_flight, launched
        self._finish(finished)  # the previous frame's sound leaves while this one is made
        if self._in_flight and self._in_flight.ticket.ready():  # always so on a CPU: do not sit on it for a tick
            launched, self._in_flight = self._in_flight, None
            self._finish(launched)
        if self._changed:
            self._running = tuple(self._by_slot.values())
            # Here, not in `status`: that must answer also while this thread hangs in a call to the device.
            self._counts = self._runner.counts()
        return bool(launched or finished or self._changed)

    def _snapshot(self, now_s: float) -> Snapshot:
        running = tuple(
            Running(slot, session.can_launch, session.deadline_s(now_s)) for slot, session in self._by_slot.items()
        )
        waiting = tuple(
            Waiting(session.prompt.rows, session.continues, session.deadline_s(now_s))
            for session in self._waiting
            if session.prompt is not None
        )
        return Snapshot(running, waiting, self._slots.free)

    # --- inbox ---

    def _take_inbox(self) -> None:
        while message := self._door.take():
            if isinstance(message, Stop):
                self._stop_s = message.deadline_s
            elif isinstance(message, Session):
                self._sessions[message.utterance_id] = message
                if message.prompt is not None:
                    self._enqueue(message)
            elif session := self._sessions.get(message.utterance_id):  # or it has ended meanwhile
                self._take(session, message)

    def _take(self, session: Session, message: PromptReady | TextAppended | End) -> None:
        if isinstance(message, End):
            self._end(session, message.reason, message.error)
            return
        try:
            if isinstance(message, PromptReady):
                session.begin(message.prompt, message.text_ids, text_ended=message.text_ended)
                self._enqueue(session)
                self._door.words_came(session)
            else:
                session.take_text(message.text_ids, spoken_ids=message.spoken_ids, ended=message.ended)
                if session.slot is not None:
                    self._runner.append_text(session.slot, message.text_ids, ended=message.ended)
        except Exception as error:
            self._blame(session, error)

    def _enqueue(self, session: Session) -> None:
        """Who continues goes before those not yet let in; each kind keeps its order."""
        continuing = sum(waiting.continues for waiting in self._waiting)
        self._waiting.insert(continuing if session.continues else len(self._waiting), session)

    def _end_overdue(self) -> None:
        """Streams whose text does not come, and everything when the time to stop has come."""
        now_s = self._clock()
        stopped = self._stop_s is not None and now_s >= self._stop_s
        for session in list(self._sessions.values()):
            if stopped:
                self._end(session, "cancelled")
            elif not session.needs_text:
                session.idle_since_s = None
            elif session.idle_since_s is None:
                session.idle_since_s = now_s
            elif now_s - session.idle_since_s >= self._config.text_wait_s:
                message = f"no text came for {self._config.text_wait_s:g} s; end a text when it is complete"
                self._end(session, "error", RequestError(message, "text"))

    # --- forward ---

    def _admit(self, count: int) -> list[Session]:
        admitted: list[Session] = []
        for _ in range(count):
            session = self._waiting[0]
            try:
                if not self._has_room(session):
                    break  # it is next when somebody ends: nobody overtakes
                self._start(session)
                admitted.append(session)
            except Exception as error:
                self._blame(session, error)
        return admitted

    def _has_room(self, session: Session) -> bool:
        assert session.prompt is not None
        if self._runner.room_for(session.prompt, session.sampling):
            return True
        if not self._by_slot:
            raise TooLongError("the request needs more memory than the engine has; ask for less", "text")
        return False

    def _start(self, session: Session) -> None:
        slot = self._slots.take()
        try:
            self._runner.admit(session.admission(slot))
        except BaseException:
            self._slots.give(slot)
            raise
        self._waiting.popleft()
        session.slot, self._by_slot[slot] = slot, session
        self._door.forget(session)
        self._changed = True

    def _launch(self, sessions: Sequence[Session], admitted: Sequence[Session], begun_s: float) -> _Flight | None:
        sessions = [session for session in sessions if session.can_launch]
        if not sessions:
            return None
        prefill_rows = sum(session.prompt.rows for session in admitted if session.prompt is not None)
        try:
            ticket = self._runner.launch([session.slot for session in sessions if session.slot is not None])
        except Exception as error:
            self._runner_failed(error)
            return None
        for session in sessions:
            session.frames_launched += 1
        return _Flight(ticket, tuple(sessions), prefill_rows, begun_s)

    # --- back ---

    def _finish(self, flight: _Flight | None) -> None:
        if flight is None:
            return
        try:
            output = self._runner.collect(flight.ticket)
        except Exception as error:
            self._runner_failed(error)
            return
        self._failures = 0
        now_s = self._clock()
        self._meter.add(len(flight.sessions), flight.prefill_rows, now_s - max(flight.begun_s, self._collected_s))
        self._collected_s = now_s
        codes, levels_dbfs = output.codes[:, 0].tolist(), frame_levels_dbfs(output.pcm).tolist()
        for row, session in enumerate(flight.sessions):
            if session.finish_reason is not None:
                continue  # ended while this frame was on its way: it never leaves
            self._frames_made += 1
            try:
                reason = session.take_frame(codes[row], output.pcm[row], levels_dbfs[row])
            except Exception as error:
                self._blame(session, error)
                continue
            if reason:
                self._end(session, reason)
        for session in list(self._by_slot.values()):
            if chunk := session.due_chunk(now_s, self._meter.smooth_tick_s):
                self._underruns += session.ran_dry
                self._deliver(session, chunk)

    def _deliver(self, session: Session, chunk: AudioChunk) -> None:
        try:
            session.deliver(chunk)
        except Exception as error:
            _log.warning("the listener of %s failed", session.utterance_id, exc_info=True)
            self._end(session, "error", EngineError(f"the listener failed: {error!r}"))

    # --- ends ---

    def _end(self, session: Session, reason: FinishReason, error: OscineError | None = None) -> None:
        """The one way out: slot and memory go back at once, the listener hears why."""
        if session.finish_reason is not None:
            return
        chunk = session.last_chunk(reason, error, self._clock())
        self._underruns += session.ran_dry
        del self._sessions[session.utterance_id]
        self._changed = True
        try:
            self._give_back(session)
        finally:
            _tell_end(session, chunk)

    def _give_back(self, session: Session) -> None:
        if session.slot is not None:
            slot, session.slot = session.slot, None
            del self._by_slot[slot]
            self._slots.give(slot)
            self._runner.release(slot)
        elif session.prompt is not None:
            self._waiting.remove(session)
        self._door.forget(session)

    def _blame(self, session: Session, error: Exception) -> None:
        """The error belongs to this session and ends it alone, unless it is the runner's word that it is gone."""
        if isinstance(error, EngineError):
            raise error
        _log.warning("%s ends", session.utterance_id, exc_info=error)
        known = error if isinstance(error, OscineError) else EngineError(f"this request failed: {error!r}")
        self._end(session, "error", known)

    def _runner_failed(self, error: Exception) -> None:
        """Nobody's fault in particular: all that run end. An EngineError is the runner's word that it is gone."""
        self._failures += 1
        if isinstance(error, EngineError) or self._failures >= _FAILURES_TO_DIE:
            raise error
        _log.error("the runner failed; %d streams end", self._slots.taken, exc_info=error)
        for session in list(self._by_slot.values()):
            self._end(session, "error", EngineError(f"the engine failed while it spoke: {error}"))

    def _die(self, error: BaseException) -> None:
        _log.error("the engine ends", exc_info=error)
        gone = EngineError(f"the engine has failed and is gone: {error}")
        self._dead, self._in_flight = True, None
        for session in [*self._sessions.values(), *self._door.close_for_good(gone)]:
            _tell_end(session, session.last_chunk("error", gone, self._clock()))
        for holder in (self._sessions, self._by_slot, self._waiting):
            holder.clear()
        self._slots = Slots(self._slots.count)

    # --- rest ---

    def _wait_for_work(self) -> None:
        """Sleeps until a message comes; looks up once a second while streams wait for text."""
        longest_s: float | None = _LONGEST_WAIT_S if self._sessions else None
        if self._stop_s is not None:
            longest_s = max(0.0, min(self._stop_s - self._clock(), _LONGEST_WAIT_S))
        if not self.finished:
            self._door.wait(longest_s)


def _tell_end(session: Session, chunk: AudioChunk) -> None:
    try:
        session.deliver(chunk)
    except Exception:
        _log.warning("the listener of %s failed at the end", session.utterance_id, exc_info=True)
