"""The engine loop: the one thread that drives the runner. Start reading at `_run_tick`.

A tick launches frame n+1 shortly before the device ends frame n, then delivers frame n while the device computes. Until
the launch, requests are admitted as they arrive. Other threads only call `submit`, `post` and `status`. An error of one
request ends that request; an error of the runner ends all running streams, and several in a row end the engine.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from oscine.audio.pcm import rms_dbfs
from oscine.config import EngineConfig
from oscine.engine import policy
from oscine.engine.admission import AdmissionControl, EndSession, PromptReady, SessionMessage, Shutdown
from oscine.engine.forecast import Forecast, Load, SpeechLength, max_queued_s
from oscine.engine.launch_timer import LaunchTimer
from oscine.engine.session import Session
from oscine.engine.tick_cost import TickCost, TickCostModel
from oscine.errors import EngineError, OscineError, RequestError, TooLongError
from oscine.runner.runner import Runner, Ticket
from oscine.types import AudioChunk, EngineStatus, FinishReason

_log = logging.getLogger(__name__)
_MAX_FAILURES = 3  # of the runner in a row, with no good tick in between
_NOT_FINITE = (
    "the model computed numbers that are not finite for this request, so it cannot be spoken; use another voice, or "
    "make the voice again"
)
_MAX_SLEEP_S = 1.0  # while streams wait for text
_MAX_QUEUE_SLEEP_S = 0.1  # while requests wait for the slots of such streams
_MIN_TICK_S = 1e-3


@dataclass(frozen=True, slots=True)
class TickInFlight:
    """A launched tick. It holds sessions, not slots: a slot may have a new owner when the frame arrives."""

    ticket: Ticket
    sessions: tuple[Session, ...]
    prefill_rows: int
    begun_s: float


class Slots:
    """Allocates the rows of the batch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))  # a heap: the lowest row first keeps the batch dense

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def taken(self) -> int:
        return self.count - len(self._free)

    def acquire(self) -> int:
        assert self._free, f"all {self.count} slots are taken"
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        assert 0 <= slot < self.count and slot not in self._free, f"slot {slot} was not taken"
        heapq.heappush(self._free, slot)


class EngineLoop:
    def __init__(self, runner: Runner, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner, self._config, self._clock = runner, config, clock
        self._lengths = SpeechLength(config.pacing.frames_per_text_id)
        self._admission = AdmissionControl(config, self._lengths, clock)
        self._slots = Slots(runner.slots)
        self._sessions: dict[str, Session] = {}  # all that have not ended
        self._by_slot: dict[int, Session] = {}
        self._waiting: deque[Session] = deque()  # the queue: continuations, resumed speeches, then the longest waiting
        self._running: tuple[Session, ...] = ()  # copy of _by_slot's values that other threads may read
        self._in_flight: TickInFlight | None = None
        self._timer = LaunchTimer(config.pacing.launch_margin_s)
        self._prefill_rows = 0  # admitted since the last launch
        self._cost_model = TickCostModel()
        self._done_s = clock()  # of the last frame
        self._frames_made = self._underruns = self._failures = 0
        self._counts = runner.counts()
        self._slots_changed = False  # in this tick
        self._tick_begun_s: float | None = None  # None: between ticks
        self._stop_s: float | None = None
        self._dead = False

    # --- any thread ---

    def submit(self, session: Session) -> None:
        session.queued_s = None if session.prompt is None else self._clock()
        self._admission.submit(session, self._load)

    def post(self, message: SessionMessage | Shutdown) -> None:
        self._admission.post(message)

    def status(self) -> EngineStatus:
        begun_s = self._tick_begun_s
        stuck = (
            begun_s is not None and self._clock() - begun_s > self._config.stuck_s
        )  # blocked in a call to the device
        return EngineStatus(
            ready=self._admission.open and not stuck,
            slots=self._slots.count,
            slots_active=self._slots.taken,
            queued=self._admission.queued,
            frames=self._frames_made,
            tick_s=self._cost_model.smooth_tick_s,
            ticks=self._cost_model.histogram,
            underruns=self._underruns,
            real_time_streams=policy.rows_in_real_time(self.cost, self._config.pacing, self._slots.count),
            **asdict(self._counts),
        )

    @property
    def cost(self) -> TickCost:
        return self._cost_model.cost

    def _load(self, queued_frames: tuple[float, ...]) -> Load:
        running_frames = tuple(map(self._frames_left, self._running))
        return Load(self._slots.count, self._slots.free, running_frames, queued_frames, self.cost)

    def _frames_left(self, session: Session) -> float:
        frames = self._lengths.frames_left(session.text_ids, session.frames_made)
        if session.text_ended or session.running_s is None:
            return frames
        # How much text will follow is unknown: assume that it takes as long again as it has so far.
        return max(frames, (self._clock() - session.running_s) / max(self._cost_model.smooth_tick_s, _MIN_TICK_S))

    # --- the loop's thread ---

    def run(self) -> None:
        """Runs until shutdown or death. Every session gets its last chunk."""
        while not self.finished:
            if not self.tick():
                self._guarded(self._sleep)

    @property
    def finished(self) -> bool:
        return self._dead or (self._stop_s is not None and not self._sessions and self._in_flight is None)

    def tick(self) -> bool:
        """Runs one tick. Returns False if there was nothing to do."""
        self._tick_begun_s = self._clock()
        try:
            return self._guarded(self._run_tick)
        finally:
            self._tick_begun_s = None

    def _guarded(self, step: Callable[[], bool]) -> bool:
        """Runs a step; an unhandled error ends the engine."""
        try:
            return step()
        except BaseException as error:
            self._die(error)
            if not isinstance(error, Exception):
                raise
            return False

    def _run_tick(self) -> bool:
        self._slots_changed = False
        self._take_messages()
        self._end_overdue()
        begun_s = self._clock()
        step = policy.choose_step(self._snapshot(begun_s), begun_s, self.cost, self._config.pacing)
        admitted = self._admit(step.admit)
        launch_is_due = self._in_flight is None or self._timer.is_due(begun_s)
        advanced = launch_is_due and self._advance([*(self._by_slot[slot] for slot in step.run), *admitted], begun_s)
        if self._slots_changed:
            self._counts = self._runner.counts()  # not in `status`, which must answer while the device hangs
        return advanced or self._slots_changed

    def _advance(self, sessions: Sequence[Session], begun_s: float) -> bool:
        """Launches a frame of these sessions, then delivers the previous one while the device computes."""
        launched, held_back = self._launch(sessions, begun_s), self._timer.held_back
        previous, self._in_flight = self._in_flight, launched
        if launched:
            frame_s, admits = self.cost.tick_s(len(launched.sessions)), launched.prefill_rows > 0
            times_s = begun_s, self._clock(), frame_s
            self._timer.launched(launched.ticket, *times_s, admits=admits, follows=previous is not None)
        if previous:
            host_waits = not previous.ticket.device_free()
            previous.ticket.wait_device_free()
            self._timer.device_freed(self._clock(), waited=host_waits)
            # Otherwise its duration is unknown: it ended while its successor was held back.
            self._collect(previous, timed=host_waits or not held_back)
        if launched and launched.ticket.ready():  # always true if nothing runs in parallel to the loop: deliver it now
            self._in_flight = None
            self._collect(launched)
        return bool(launched or previous)

    def _snapshot(self, now_s: float) -> policy.Snapshot:
        running = tuple(
            policy.Running(slot, session.can_launch, session.deadline_s(now_s))
            for slot, session in self._by_slot.items()
        )
        waiting = tuple(
            policy.Waiting(session.prompt.rows, session.continues and not session.resumes, session.deadline_s(now_s))
            for session in itertools.islice(self._waiting, self._slots.free + 1)  # no more can be admitted
            if session.prompt is not None
        )
        return policy.Snapshot(running, waiting, self._slots.free, self._prefill_rows)

    @property
    def wake_s(self) -> float | None:
        """The time to look at the frame in flight again, or None if there is none."""
        return self._timer.wake_s(self._clock()) if self._in_flight else None

    def _sleep(self) -> bool:
        """Waits for a message. The wait is limited while a frame is in flight, or while streams wait for text or a
        slot."""
        while (wake_s := self.wake_s) is not None:
            if wake_s <= (now_s := self._clock()) or self._admission.wait(wake_s - now_s):
                return True
        timeout_s = _MAX_QUEUE_SLEEP_S if self._waiting else _MAX_SLEEP_S if self._sessions else None
        if self._stop_s is not None:
            timeout_s = max(0.0, min(self._stop_s - self._clock(), _MAX_SLEEP_S))
        return not self.finished and self._admission.wait(timeout_s)

    # --- messages ---

    def _take_messages(self) -> None:
        while message := self._admission.take():
            if isinstance(message, Shutdown):
                self._stop_s = message.deadline_s
            elif isinstance(message, Session):
                self._sessions[message.utterance_id] = message
                if message.prompt is not None:
                    self._enqueue(message)
            elif session := self._sessions.get(message.utterance_id):  # or it has ended
                self._handle(session, message)

    def _handle(self, session: Session, message: SessionMessage) -> None:
        if isinstance(message, EndSession):
            self._end(session, message.reason, message.error)
            return
        try:
            if isinstance(message, PromptReady):
                session.begin(message.prompt, message.text_ids, text_ended=message.text_ended)
                session.queued_s = self._clock()
                self._enqueue(session)
                self._admission.prompt_ready(session)
            else:
                session.append_text(message.text_ids, spoken_ids=message.spoken_ids, ended=message.ended)
                if session.slot is not None:
                    self._runner.append_text(session.slot, message.text_ids, ended=message.ended)
        except Exception as error:
            self._fail(session, error)

    def _enqueue(self, session: Session) -> None:
        place = len(self._waiting)
        while place and self._waiting[place - 1].queue_rank > session.queue_rank:
            place -= 1
        self._waiting.insert(place, session)

    def _end_overdue(self) -> None:
        """Ends streams whose text or slot did not come in time, and all streams at the end of a shutdown."""
        now_s = self._clock()
        stopped = self._stop_s is not None and now_s >= self._stop_s
        limit_s, forecast = max_queued_s(self._config), None
        for session in list(self._sessions.values()):
            if stopped:
                self._end(session, "cancelled")
            elif not session.continues and session.queued_for_s(now_s) > limit_s:
                forecast = forecast or Forecast(self._load(self._admission.queued_frames), self._config)
                self._end(session, "error", forecast.timeout)
            elif not session.needs_text:
                session.idle_since_s = None
            elif session.idle_since_s is None:
                session.idle_since_s = now_s
            elif now_s - session.idle_since_s >= self._config.text_wait_s:
                message = f"no text arrived for {self._config.text_wait_s:g} s; end a text when it is complete"
                self._end(session, "error", RequestError(message, "text"))

    # --- launching ---

    def _admit(self, count: int) -> list[Session]:
        admitted: list[Session] = []
        for _ in range(count):
            session = self._waiting[0]
            try:
                if not self._has_memory(session):
                    break  # it is next when a stream ends; no request overtakes it
                self._assign_slot(session)
                admitted.append(session)
            except Exception as error:
                self._fail(session, error)
        return admitted

    def _has_memory(self, session: Session) -> bool:
        assert session.prompt is not None
        if self._runner.room_for(session.prompt, session.sampling):
            return True
        if not self._by_slot:
            raise TooLongError(
                "the request needs more memory than the engine has; shorten the text or lower max_new_tokens", "text"
            )
        return False

    def _assign_slot(self, session: Session) -> None:
        slot = self._slots.acquire()
        try:
            self._runner.admit(session.assignment(slot))
        except BaseException:
            self._slots.release(slot)
            raise
        self._waiting.popleft()
        self._prefill_rows += 0 if session.prompt is None else session.prompt.rows
        session.slot, session.running_s, self._by_slot[slot] = slot, self._clock(), session
        self._running = tuple(self._by_slot.values())
        self._admission.forget(session)
        self._slots_changed = True

    def _launch(self, sessions: Sequence[Session], begun_s: float) -> TickInFlight | None:
        sessions = [session for session in sessions if session.can_launch]
        if not sessions:
            return None
        prefill_rows, self._prefill_rows = self._prefill_rows, 0
        try:
            ticket = self._runner.launch([session.slot for session in sessions if session.slot is not None])
        except Exception as error:
            self._fail_all(error)
            return None
        for session in sessions:
            session.frames_launched += 1
        return TickInFlight(ticket, tuple(sessions), prefill_rows, begun_s)

    # --- delivering ---

    def _collect(self, tick: TickInFlight, *, timed: bool = True) -> None:
        try:
            output = self._runner.collect(tick.ticket)
        except Exception as error:
            self._fail_all(error)
            return
        self._failures = 0
        now_s = self._clock()
        done_s = now_s if output.done_s is None else output.done_s
        tick_s, paused_s = done_s - max(tick.begun_s, self._done_s), max(0.0, tick.begun_s - self._done_s)
        self._cost_model.add(len(tick.sessions), tick.prefill_rows, tick_s, timed=timed, paused_s=paused_s)
        self._done_s = done_s
        levels_dbfs = rms_dbfs(output.pcm).tolist()
        frames = zip(tick.sessions, output.codes, output.pcm, levels_dbfs, output.failed.tolist(), strict=True)
        for session, codes, pcm, level_dbfs, failed in sorted(frames, key=lambda frame: frame[0].has_sent_audio):
            if session.finish_reason is not None:
                continue  # it ended while this frame was in flight
            if failed:
                _log.warning("the logits of %s are not finite", session.utterance_id)
                self._end(session, "error", RequestError(_NOT_FINITE, "voice"))
                continue
            self._frames_made += 1
            try:
                reason = session.take_frame(codes, pcm, level_dbfs)
            except Exception as error:
                self._fail(session, error)
                continue
            if reason:
                self._end(session, reason)
            elif not session.has_sent_audio:  # a listener waits for it; the others have audio to play
                self._deliver_due(session, now_s)
        for session in list(self._by_slot.values()):
            self._deliver_due(session, now_s)

    def _deliver_due(self, session: Session, now_s: float) -> None:
        if chunk := session.due_chunk(now_s, self._cost_model.smooth_tick_s):
            self._underruns += session.ran_dry
            self._deliver(session, chunk)

    def _deliver(self, session: Session, chunk: AudioChunk) -> None:
        try:
            session.deliver(chunk)
        except Exception as error:
            _log.warning("the deliver callback of %s failed", session.utterance_id, exc_info=True)
            self._end(session, "error", EngineError(f"the deliver callback failed: {error!r}"))

    # --- ending ---

    def _end(self, session: Session, reason: FinishReason, error: OscineError | None = None) -> None:
        """Frees the slot and delivers the last chunk. While the engine lives, sessions end only here."""
        if session.finish_reason is not None:
            return
        chunk = session.last_chunk(reason, error, self._clock())
        self._underruns += session.ran_dry
        if reason == "stop":
            self._lengths.add(session.text_ids, session.frames_made)
        del self._sessions[session.utterance_id]
        self._slots_changed = True
        try:
            self._release(session)
        finally:
            self._deliver(session, chunk)

    def _release(self, session: Session) -> None:
        if session.slot is not None:
            slot, session.slot = session.slot, None
            del self._by_slot[slot]
            self._running = tuple(self._by_slot.values())
            self._slots.release(slot)
            self._runner.release(slot)
        elif session.prompt is not None:
            self._waiting.remove(session)
        self._admission.forget(session)

    def _fail(self, session: Session, error: Exception) -> None:
        """Ends one session. Raises an EngineError again, because it means that the runner is unusable."""
        if isinstance(error, EngineError):
            raise error
        _log.warning("request %s failed", session.utterance_id, exc_info=error)
        known = error if isinstance(error, OscineError) else EngineError(f"the request failed: {error!r}")
        self._end(session, "error", known)

    def _fail_all(self, error: Exception) -> None:
        """Ends all running sessions. Raises an EngineError again, and the last of too many failures in a row: the
        runner is unusable."""
        self._failures += 1
        if isinstance(error, EngineError) or self._failures >= _MAX_FAILURES:
            raise error
        _log.error("the runner failed; %d streams end", self._slots.taken, exc_info=error)
        for session in list(self._by_slot.values()):
            self._end(session, "error", EngineError(f"the engine failed during the speech: {error}"))

    def _die(self, error: BaseException) -> None:
        _log.error("the engine has failed", exc_info=error)
        failure = EngineError(f"the engine has failed and stopped: {error}")
        self._dead, self._in_flight = True, None
        for session in [*self._sessions.values(), *self._admission.die(failure)]:
            self._deliver(session, session.last_chunk("error", failure, self._clock()))
        for sessions in (self._sessions, self._by_slot, self._waiting):
            sessions.clear()
        self._slots = Slots(self._slots.count)
