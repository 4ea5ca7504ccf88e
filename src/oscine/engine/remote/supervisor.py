"""Starts a worker process, watches it, and restarts it when it dies or hangs, for as long as this process lives.

starting ─► ready ─► restarting ─► ready ...      stop(): ─► stopping ─► stopped
    │                    └─► failed ─► ready ...   too many failures; it is still restarted, after the longest wait
    ├─► failed                                     the first start failed for a reason that stays, such as wrong
    │                                              settings; it is not repeated
    └─► failed ─► ready ...                        too many first starts failed for a reason that may pass
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import pickle
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from oscine.config import WorkerConfig
from oscine.engine.remote import WORKER
from oscine.engine.remote import messages as wire
from oscine.engine.remote.messages import ToWorker, encode
from oscine.engine.remote.transport import Transport
from oscine.engine.remote.worker import Build
from oscine.errors import ConfigError, EngineError, NotReadyError, OscineError, OutOfMemoryError, OverloadedError
from oscine.process.child import Child
from oscine.types import EngineHealth, EngineState, EngineStatus, FinishReason, ReportProgress

_log = logging.getLogger(__name__)
_FIRST_START_S = 10.0  # a guess, until a start has been measured
_MAX_DOUBLINGS = 30  # of the wait before a restart
_PASSING_ERRNOS = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)  # a resource is exhausted
_PASSING_SIGNALS = (signal.SIGKILL, signal.SIGTERM)  # from a system without memory, or from an operator
_EXIT_S = 1.0  # maximum between the disconnect of a process and its exit


class Supervisor:
    """Runs the worker. `on_message` gets its messages about utterances and voices, on another thread. `on_exit` is
    called when a worker has ended and all its messages were handled; utterances that still run end with this reason and
    text. `spawned` is the first worker, if it exists already."""

    def __init__(
        self,
        build: bytes,
        config: WorkerConfig,
        environment: Mapping[str, str],
        *,
        spawned: Child | None,
        on_message: Callable[[wire.FromWorker], None],
        on_exit: Callable[[FinishReason, str], None],
        on_progress: ReportProgress,
    ) -> None:
        self._build, self._config, self._environment = build, config, environment
        self._spawned = spawned
        self._on_message, self._on_exit, self._on_progress = on_message, on_exit, on_progress
        self._changed = threading.Condition()
        self._worker: WorkerProcess | None = None
        self._state: EngineState = "starting"
        self._build_error: OscineError | None = None  # of the last start
        self._may_pass = False  # the last worker ended for a reason that may pass
        self._failure: OscineError | None = None  # why the state is "failed"
        self._last_reason: str | None = None
        self._restarts = 0
        self._failed_at_s: deque[float] = deque()  # within the window
        self._was_ready = self._answered = False
        self._start_s = _FIRST_START_S
        self._started_s = time.monotonic()
        self._ready_expected_s = self._started_s + _FIRST_START_S
        self._stopping = threading.Event()
        self._stop_by_s = 0.0
        self.status = EngineStatus(ready=False, slots=0, slots_active=0, queued=0, frames=0, tick_s=0.0)  # last known
        self._thread = threading.Thread(target=self._run, name="oscine-supervisor", daemon=True)
        self._thread.start()

    # --- any thread ---

    def send(self, message: wire.ToWorker, *, only_if_ready: bool = False) -> None:
        """Sends to the worker, if there is one. With `only_if_ready`, raises NotReadyError while a worker starts and
        EngineError if none will."""
        with self._changed:
            if only_if_ready and self._state != "ready":
                raise self._unavailable()
            if self._worker is not None:
                self._worker.send(message)

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def health(self) -> EngineHealth:
        with self._changed:
            pid = None if self._worker is None else self._worker.popen.pid
            return EngineHealth(self._state, pid, self._restarts, self._last_reason)

    def wait_ready(self, timeout_s: float | None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._state not in ("starting", "restarting"), timeout_s):
                raise EngineError(f"the engine is not ready after {timeout_s:g} s (it is {self._state})")
            if self._state != "ready":
                raise self._failure or EngineError("the engine is stopped")

    def stop(self, drain_s: float) -> None:
        with self._changed:
            if not self._stopping.is_set():
                if self._state == "ready":
                    self.send(wire.StopWorker(drain_s))
                    self._stop_by_s = time.monotonic() + drain_s + self._config.terminate_s
                self._set_state("stopping")
                self._stopping.set()
        self._thread.join()
        self._set_state("stopped")

    def _unavailable(self) -> OscineError:
        if self._state in ("starting", "restarting"):
            wait_s = max(1.0, self._ready_expected_s - time.monotonic())
            return NotReadyError(f"the engine is {self._state}; retry in {wait_s:.0f} s", wait_s)
        return EngineError(str(self._failure or f"the engine is {self._state}"))

    def _set_state(self, state: EngineState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    # --- the supervisor's thread ---

    def _run(self) -> None:
        try:
            while True:
                reason = self._try_worker()
                if self._stopping.is_set():
                    return
                self._last_reason = reason
                self._on_exit("error", f"{reason}; send the request again")
                if not self._was_ready and not self._may_pass:
                    self._failure = self._build_error or EngineError(f"{reason} before it was ready")
                    return
                backoff_s = self._note_failure(reason)
                self._ready_expected_s = time.monotonic() + backoff_s + self._start_s
                if self._stopping.wait(backoff_s):
                    return
                self._restarts += 1
        finally:
            stopping = self._stopping.is_set()
            self._set_state("stopping" if stopping else "failed")
            self._on_exit("cancelled" if stopping else "error", "the engine is stopped")

    def _try_worker(self) -> str:
        """Does the same as `_run_worker`, except that an error at the start or the end of the worker only causes a
        retry."""
        self._may_pass = False
        try:
            return self._run_worker()
        except OSError as error:  # no more processes, memory or open files
            self._may_pass = error.errno in _PASSING_ERRNOS
            return f"the worker process could not be started: {error}"
        except OscineError as error:
            return str(error)
        except Exception as error:
            _log.exception("supervising the worker process failed")
            return f"the worker process could not be supervised: {error!r}"

    def _run_worker(self) -> str:
        """Runs one worker from start to end. Returns why it ended."""
        self._started_s, self._build_error = time.monotonic(), None
        spawned, self._spawned = self._spawned or Child(WORKER, environment={**os.environ, **self._environment}), None
        worker = WorkerProcess(spawned, self._build, self._receive)
        with self._changed:
            self._worker = worker
        reason, terminate_s = "", 0.0
        try:
            reason, terminate_s = self._watch(worker)
        finally:
            with self._changed:
                if self._state == "ready":
                    self._set_state("restarting")
            worker.end(terminate_s)
            with self._changed:
                self._worker = None
        if self._build_error is not None:
            self._may_pass = isinstance(self._build_error, OverloadedError | OutOfMemoryError)
            return f"the engine could not be built: {self._build_error}"
        # Before a worker was ready, silence is the only reason to end it: the machine may be busy, or a download stuck.
        self._may_pass = bool(reason) or worker.popen.returncode in [-one for one in _PASSING_SIGNALS]
        return reason or worker.describe_exit()

    def _watch(self, worker: WorkerProcess) -> tuple[str, float]:
        """Returns why to end the worker ("" if it has ended by itself) and how long to wait for its exit."""
        period_s = min(self._config.heartbeat_s / 4, 0.25)
        last_s, silent_s = time.monotonic(), 0.0
        while not worker.disconnected.wait(period_s) and worker.popen.poll() is None:
            now_s = time.monotonic()
            # A much longer wait means that this process was suspended, not that the worker failed.
            silent_s = 0.0 if self._answered else silent_s + min(now_s - last_s, 2 * period_s)
            last_s, self._answered = now_s, False
            if self._stopping.is_set():
                if now_s > self._stop_by_s:
                    return "it did not stop in time", self._config.terminate_s
                continue
            ready = self._state == "ready"
            max_silent_s = self._config.heartbeat_s if ready else self._config.start_s
            if silent_s > max_silent_s:
                return f"the worker process gave no sign of life for {max_silent_s:g} s", 0.0
            if ready and not self.status.ready:
                return "the engine reported that it does not work any more", self._config.terminate_s
            if ready:
                worker.send(wire.Ping())
        worker.wait(_EXIT_S)
        return "", 0.0

    def _note_failure(self, reason: str) -> float:
        """Logs and counts a failure. Returns the wait before the next start."""
        config, now_s = self._config, time.monotonic()
        while self._failed_at_s and self._failed_at_s[0] < now_s - config.restarts_window_s:
            self._failed_at_s.popleft()
        failures = len(self._failed_at_s)
        self._failed_at_s.append(now_s)
        backoff_s = min(config.backoff_s * 2 ** min(failures, _MAX_DOUBLINGS), config.max_backoff_s)
        if failures < config.max_restarts:
            _log.error("the engine failed: %s; it is restarted in %.1f s", reason, backoff_s)
            return backoff_s
        count = f"failure {failures + 1} within {config.restarts_window_s:g} s"
        self._failure = EngineError(f"{reason}; this was {count}")
        self._set_state("failed")
        _log.error("the engine failed: %s (%s); the next try is in %.1f s", reason, count, config.max_backoff_s)
        return config.max_backoff_s

    # --- the transport's thread ---

    def _receive(self, packed: bytes) -> None:
        message = wire.decode_from_worker(packed)
        match message:
            case wire.Pong(status):
                self.status, self._answered = status, True
            case wire.BuildProgress(stage, done, total):
                self._answered = True
                try:
                    self._on_progress(stage, done, total)
                except Exception:
                    _log.exception("the progress callback failed")
            case wire.Ready(status):
                self.status, self._answered, self._was_ready = status, True, True
                self._start_s = time.monotonic() - self._started_s
                with self._changed:
                    alive = self._worker is not None and self._worker.popen.poll() is None
                    if alive and not self._stopping.is_set():
                        self._failure = None
                        self._set_state("ready")
                if self._restarts:
                    _log.warning("the engine is ready again after %.1f s (restart %d)", self._start_s, self._restarts)
            case wire.BuildFailed(error):
                self._build_error = error
            case _:
                self._on_message(message)


KILL_S = 30.0  # a process that hangs in a driver may not even die
_LAST_MESSAGES_S = 5.0  # for the last messages of an ended process; only a process that it forked can delay them


class WorkerProcess:
    """A spawned worker that builds an engine, and the transport to it."""

    def __init__(self, spawned: Child, build: bytes, on_message: Callable[[bytes], None]) -> None:
        self.popen = spawned.popen
        self.disconnected = threading.Event()
        with contextlib.ExitStack() as on_error:
            on_error.callback(spawned.end)
            self._transport = Transport(spawned.connection, on_message, self.disconnected.set)
            on_error.pop_all()
        self._transport.post(build)

    def send(self, message: ToWorker) -> None:
        self._transport.send(encode(message))

    def wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        return self.popen.returncode is not None

    def end(self, terminate_s: float) -> None:
        """Terminates the process and kills it after `terminate_s`, or at once if that is 0. Receives its last
        messages, then disconnects."""
        try:
            if self.popen.poll() is None and terminate_s > 0:
                self.popen.terminate()
                self.wait(terminate_s)
            if self.popen.poll() is None:
                self.popen.kill()
                if not self.wait(KILL_S):
                    raise EngineError(f"the worker process {self.popen.pid} cannot be killed; a driver may hold it")
            self._transport.wait_disconnected(_LAST_MESSAGES_S)
        finally:
            self._transport.close()

    def describe_exit(self) -> str:
        status = self.popen.returncode
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                return f"the worker process was killed by {signal.Signals(-status).name}"
        return f"the worker process ended with status {status}"


def pickle_build(build: Build) -> bytes:
    """Raises ConfigError for a function that a worker cannot import."""
    function: object = build
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__module__", None) == "__main__":
        raise ConfigError("the build function must be in a module that the worker can import, not in a script")
    try:
        return pickle.dumps(build)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"the build function cannot be sent to a worker: {error}") from None
