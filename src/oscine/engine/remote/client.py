"""An engine in a process of its own, as a front end holds it: the SpeechEngine protocol over a channel, and the thread
that starts the process, listens to it, notices its death or silence and starts it again.

    starting ─► ready ─► restarting ─► ready ...      stop(): ─► stopping ─► stopped
        └─────────────────────┴─► failed: the first start failed, or too many restarts in a while
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from oscine.audio import check_reference, read_clip
from oscine.config import WorkerConfig
from oscine.engine.remote import messages as wire
from oscine.engine.remote.spawn import WorkerProcess, pickled_build
from oscine.engine.remote.transport import Delivery, Listener
from oscine.engine.remote.worker import Build, ReportProgress
from oscine.types import (
    AudioChunk,
    Cancel,
    CheckpointError,
    ClipData,
    Command,
    ConfigError,
    EngineError,
    EngineHealth,
    EngineState,
    EngineStatus,
    FinishReason,
    OscineError,
    OverloadedError,
    SpeechRequest,
)
from oscine.voice import Voice

_log = logging.getLogger(__name__)

_FIRST_START_GUESS_S = 10.0  # what to tell callers before any start has been measured
# How long what a process sent before its end may take to arrive: one that was killed had no last words.
_KILLED_UNHEARD_S, _ENDED_UNHEARD_S = 0.05, 0.5


@dataclass(slots=True, eq=False)
class _Utterance:
    utterance_id: str
    listener: Listener
    answered: threading.Event = field(default_factory=threading.Event)
    accepted: bool = False
    refusal: OscineError | None = None
    samples: int = 0  # heard so far
    seed: int = 0


@dataclass(slots=True, eq=False)
class _Cloning:
    answered: threading.Event = field(default_factory=threading.Event)
    outcome: Voice | OscineError | None = None

    def answer(self, outcome: Voice | OscineError) -> None:
        self.outcome = outcome
        self.answered.set()


class EngineClient:
    """`build` runs in the new process and gets a function to report its progress with; it travels by pickle, so it is a
    module's function or a functools.partial over one. `environment` is added to the process's own, for instance
    CUDA_VISIBLE_DEVICES. Returns at once: `wait_ready` tells when it serves, or why it cannot."""

    def __init__(
        self,
        build: Build,
        config: WorkerConfig | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        on_progress: ReportProgress = lambda stage, done, total: None,
    ) -> None:
        self._pickled = pickled_build(build)
        self._config = config or WorkerConfig()
        self._environment = dict(environment or {})
        self._on_progress = on_progress
        self._lock = threading.RLock()  # guards everything below
        self._changed = threading.Condition(self._lock)
        self._utterances: dict[str, _Utterance] = {}
        self._clonings: dict[str, _Cloning] = {}
        self._child: WorkerProcess | None = None
        self._state: EngineState = "starting"
        self._status = EngineStatus(ready=False, slots=0, slots_active=0, queued=0, frames=0, tick_s=0.0)
        self._silence_s = 0.0
        self._was_ready = False
        self._start_took_s = _FIRST_START_GUESS_S
        self._ready_expected_s = time.monotonic() + _FIRST_START_GUESS_S
        self._restarts = 0
        self._ended_at_s: deque[float] = deque()  # within the window
        self._last_reason: str | None = None
        self._failure: OscineError | None = None
        self._stop_wanted = threading.Event()
        self._stop_by_s = 0.0
        self._delivery = Delivery(self._config.delivery_threads, "oscine-deliver", self._drop)
        self._supervisor = threading.Thread(target=self._supervise, name="oscine-supervisor", daemon=True)
        self._supervisor.start()
        atexit.register(self.stop)

    # What callers use, from any thread.

    def submit(
        self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, streaming_text: bool = False
    ) -> str:
        utterance_id = secrets.token_hex(8)
        message = wire.encode(wire.submit_message(utterance_id, request, streaming_text))
        utterance = _Utterance(utterance_id, Listener(deliver))
        with self._lock:
            self._refuse_unless_ready()
            assert self._child is not None
            self._utterances[utterance_id] = utterance
            self._child.channel.post(message)
        utterance.answered.wait(self._config.submit_s)
        with self._lock:
            if utterance.refusal is not None:
                raise utterance.refusal
            if utterance.accepted:
                return utterance_id
            self._cancel(utterance)
        raise EngineError(f"the engine did not answer within {self._config.submit_s:g} s; send the request again")

    def tell(self, utterance_id: str, command: Command) -> None:
        with self._lock:
            if utterance_id in self._utterances and self._child is not None:
                self._child.channel.post(wire.encode(wire.tell_message(utterance_id, command)))

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """The clip is read here: what a decoder does with it shall not delay a frame."""
        read = read_clip(clip)
        check_reference(read)
        clone_id, cloning = secrets.token_hex(8), _Cloning()
        message = wire.encode(wire.clone_message(clone_id, read, transcript))
        with self._lock:
            self._refuse_unless_ready()
            assert self._child is not None
            self._clonings[clone_id] = cloning
            self._child.channel.post(message)
        cloning.answered.wait(self._config.clone_s)
        with self._lock:
            self._clonings.pop(clone_id, None)
        if isinstance(cloning.outcome, Voice):
            return cloning.outcome
        raise cloning.outcome or EngineError(f"the engine made no voice within {self._config.clone_s:g} s; try again")

    def status(self) -> EngineStatus:
        """Never waits: as of the last heartbeat, with the utterances that came or ended since counted in."""
        with self._lock:
            told, running = self._status, len(self._utterances)
            if self._state != "ready":
                return replace(told, ready=False, slots_active=0, queued=0)
        if running >= told.slots_active + told.queued:
            return replace(told, queued=running - told.slots_active)
        queued = min(told.queued, running)
        return replace(told, slots_active=running - queued, queued=queued)

    @property
    def health(self) -> EngineHealth:
        with self._lock:
            pid = None if self._child is None else self._child.popen.pid
            return EngineHealth(self._state, pid, self._restarts, self._last_reason)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Raises what the build raised (CheckpointError, ConfigError, ...), or EngineError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._state not in ("starting", "restarting"), timeout_s):
                raise EngineError(f"the engine is not ready after {timeout_s:g} s (it is {self._state})")
            if self._state != "ready":
                raise self._failure or EngineError("the engine is stopped")

    def stop(self, drain_s: float = 0.0) -> None:
        with self._lock:
            if not self._stop_wanted.is_set():
                if self._state == "ready" and self._child is not None:
                    self._child.channel.post(wire.encode(wire.Stop(drain_s)))
                    self._stop_by_s = time.monotonic() + drain_s + self._config.terminate_s
                self._set_state("stopping")
                self._stop_wanted.set()
                if self._child is not None:
                    self._child.channel.wake()
        self._supervisor.join()
        self._set_state("stopped")
        self._delivery.close(self._config.terminate_s)
        atexit.unregister(self.stop)

    # The supervisor's thread.

    def _supervise(self) -> None:
        try:
            while True:
                reason = self._live()
                if self._stop_wanted.is_set():
                    return
                self._last_reason = reason
                self._end_all("error", f"{reason}; send the request again")
                backoff_s = self._backoff_s(reason)
                if backoff_s is None:
                    return
                self._ready_expected_s = time.monotonic() + backoff_s + self._start_took_s
                if self._stop_wanted.wait(backoff_s):
                    return
                self._restarts += 1
        except Exception as error:
            self._failure = EngineError(f"the engine process cannot be supervised: {error}")
            if not isinstance(error, OscineError | OSError):
                raise
        finally:
            self._set_state("stopping" if self._stop_wanted.is_set() else "failed")
            self._end_all("cancelled" if self._stop_wanted.is_set() else "error", "the engine is stopped")

    def _live(self) -> str:
        """One process from start to end, with everything that it said heard. -> why it ended."""
        child = WorkerProcess(self._pickled, self._environment)
        started_s = time.monotonic()
        with self._lock:
            self._child = child
        try:
            reason, terminate_s = self._listen(child, started_s)
            with self._lock:
                was_built = self._state in ("ready", "stopping")
                if self._state == "ready":
                    self._set_state("restarting")
            child.end(terminate_s)
            self._hear_rest(child, started_s, was_built)
            if self._failure is not None:
                return f"the engine could not be built: {self._failure}"
            return reason or child.describe_exit()
        finally:
            with self._lock:
                self._child = None
            child.end(0)
            child.close()

    def _hear_rest(self, child: WorkerProcess, started_s: float, was_built: bool) -> None:
        """What the process said before its end: last chunks, or why it could not be built."""
        unheard_s = _KILLED_UNHEARD_S if child.popen.returncode < 0 else _ENDED_UNHEARD_S
        until_s = time.monotonic() + unheard_s
        while time.monotonic() < until_s and (self._utterances or self._clonings or not (was_built or self._failure)):
            heard, _ = child.channel.turn(until_s - time.monotonic(), heed_lifeline=False)
            if heard:
                self._take_all(heard, child, started_s)
                until_s = time.monotonic() + unheard_s

    def _listen(self, child: WorkerProcess, started_s: float) -> tuple[str, float]:
        """-> why to end it ("" where it has ended itself), and how long to wait for that before killing it."""
        period_s = min(self._config.heartbeat_s / 4, 0.25)
        last_s, next_ping_s, self._silence_s = started_s, 0.0, 0.0
        while True:
            heard, gone = child.channel.turn(period_s)
            now_s = time.monotonic()
            # A longer turn than asked for means that this process was held up: not the engine's silence.
            self._silence_s += min(now_s - last_s, 2 * period_s)
            last_s = now_s
            self._take_all(heard, child, started_s)
            if gone:
                child.wait(1.0)
            if gone or child.popen.poll() is not None:
                return "", 0.0
            if self._stop_wanted.is_set():
                if now_s > self._stop_by_s:
                    return "it did not stop in time", self._config.terminate_s
                continue
            ready = self._state == "ready"
            max_silence_s = self._config.heartbeat_s if ready else self._config.start_s
            if self._silence_s > max_silence_s:
                return f"the engine process gave no sign of life for {max_silence_s:g} s", 0.0
            if ready and not self._status.ready:
                return "the engine reported that it does not work any more", self._config.terminate_s
            if ready and now_s >= next_ping_s:
                child.channel.post(wire.encode(wire.Ping()))
                next_ping_s = now_s + period_s

    def _backoff_s(self, reason: str) -> float | None:
        """How long to wait before the next start; None where there is no point in one."""
        if not self._was_ready or isinstance(self._failure, ConfigError | CheckpointError):
            self._failure = self._failure or EngineError(f"{reason} before it was ready")
            return None
        config, now_s = self._config, time.monotonic()
        while self._ended_at_s and self._ended_at_s[0] < now_s - config.restarts_window_s:
            self._ended_at_s.popleft()
        ended = len(self._ended_at_s)
        if ended >= config.max_restarts:
            self._failure = EngineError(
                f"{reason}; this was failure {ended + 1} within {config.restarts_window_s:g} s, so it stays down"
            )
            return None
        self._failure = None
        self._ended_at_s.append(now_s)
        return min(config.backoff_s * 2**ended, config.max_backoff_s)

    def _take_all(self, heard: list[bytes], child: WorkerProcess, started_s: float) -> None:
        for packed in heard:
            message = wire.decode_for_front_end(packed)
            with self._lock:
                self._take(message, child, started_s)
            if isinstance(message, wire.Progress):
                try:
                    self._on_progress(message.stage, message.done, message.total)
                except Exception:
                    _log.exception("progress could not be shown")

    def _take(self, message: wire.ToFrontEnd, child: WorkerProcess, started_s: float) -> None:
        match message:
            case wire.Chunk():
                self._take_chunk(message)
            case wire.Accepted():
                self._accept(self._utterances.get(message.utterance_id))
            case wire.Refused():
                refused = self._utterances.pop(message.utterance_id, None)
                if refused is not None:
                    refused.refusal = wire.error_of(message.error)
                    refused.answered.set()
            case wire.Cloned():
                if cloning := self._clonings.get(message.clone_id):  # or nobody waits for it any more
                    cloning.answer(wire.outcome_of(message))
            case wire.Pong():
                self._silence_s, self._status = 0.0, message.status
            case wire.Progress():
                self._silence_s = 0.0
                child.remove_files()
            case wire.Ready():
                self._silence_s, self._status = 0.0, message.status
                self._start_took_s, self._was_ready = time.monotonic() - started_s, True
                if child.popen.poll() is None and not self._stop_wanted.is_set():
                    self._set_state("ready")
            case wire.Failed():
                self._failure = wire.error_of(message.error)

    def _take_chunk(self, message: wire.Chunk) -> None:
        utterance = self._utterances.get(message.utterance_id)
        if utterance is None:  # cancelled here meanwhile
            return
        self._accept(utterance)  # a fast engine's first chunk may overtake its answer
        if message.finish_reason is not None:
            del self._utterances[message.utterance_id]
        chunk = wire.chunk_of(message)
        utterance.samples, utterance.seed = chunk.first_sample + len(chunk.pcm) // 2, chunk.seed
        self._delivery.put(utterance.listener, chunk)

    def _end_all(self, finish: FinishReason, text: str) -> None:
        with self._lock:
            for utterance in self._utterances.values():
                if utterance.accepted:
                    error = EngineError(text) if finish == "error" else None
                    last = AudioChunk(b"", utterance.samples, finish, error, utterance.seed)
                    self._delivery.put(utterance.listener, last)
                else:
                    utterance.refusal = EngineError(text)
                    utterance.answered.set()
            self._utterances.clear()
            for cloning in self._clonings.values():
                if not cloning.answered.is_set():
                    cloning.answer(EngineError(text))
            self._clonings.clear()

    # Small steps; the caller holds the lock, or none is needed.

    def _accept(self, utterance: _Utterance | None) -> None:
        if utterance is not None and not utterance.accepted:
            utterance.accepted = True
            utterance.answered.set()

    def _cancel(self, utterance: _Utterance) -> None:
        self.tell(utterance.utterance_id, Cancel())
        self._utterances.pop(utterance.utterance_id, None)

    def _drop(self, listener: Listener) -> None:
        with self._lock:
            for utterance in [one for one in self._utterances.values() if one.listener is listener]:
                self._cancel(utterance)

    def _set_state(self, state: EngineState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _refuse_unless_ready(self) -> None:
        if self._state in ("starting", "restarting"):
            wait_s = max(1.0, self._ready_expected_s - time.monotonic())
            raise OverloadedError(f"the engine is {self._state}; try again in {wait_s:.0f} s", wait_s)
        if self._state != "ready":
            raise EngineError(str(self._failure) if self._failure else f"the engine is {self._state}")
