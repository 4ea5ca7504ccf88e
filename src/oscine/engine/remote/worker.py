"""The worker process: owns the device, runs one engine, serves one front end.

The main thread builds the engine. The transport's reading thread then calls it, so that a request wakes up one thread
less; voices are cloned on another thread, and the engine has its own loop. The loop never waits for the front end: the
first chunk of an utterance leaves at once if the socket takes it, later ones are appended to the transport's outbox.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from oscine.config import EngineConfig
from oscine.engine.remote import messages as wire
from oscine.engine.remote.transport import Transport
from oscine.errors import EngineError, OscineError, clear_tracebacks
from oscine.process.child import connection_to_parent, die_with_parent, freeze_gc, importing
from oscine.process.log_writer import LogWriter
from oscine.types import AudioChunk, Cancel, LocalEngine, ReportProgress

_log = logging.getLogger(__name__)

Build = Callable[[ReportProgress], LocalEngine]

MAX_UNSENT_BYTES = 64 * 2**20  # more than this means that the front end has stopped reading
LINGER_S = 5.0  # for the last messages
_STDERR = 2


@dataclass(slots=True)
class RunningUtterance:
    accepted: bool = False  # the engine's `enqueue` has returned; chunks may come earlier
    delivering: bool = True  # False once it has ended for the front end; the engine may still run it
    samples: int = 0  # sent
    begun: bool = False  # its first chunk was sent


class EngineServer:
    """Serves one engine to one front end. `inbox` holds what the front end sent before the engine was ready, and what
    the engine's thread leaves to the main thread; None ends `serve`."""

    def __init__(
        self, transport: Transport, inbox: queue.SimpleQueue[bytes | None], *, max_unsent_bytes: int = MAX_UNSENT_BYTES
    ) -> None:
        self._transport, self._inbox, self._max_unsent_bytes = transport, inbox, max_unsent_bytes
        self._lock = threading.Lock()
        self._status = 0  # exit status
        self._calling = threading.Lock()  # one message at a time, whichever thread has received it
        self._running: dict[str, RunningUtterance] = {}
        self._cloning = ThreadPoolExecutor(1, "oscine-clone")  # one voice at a time: frames need the device too

    def serve(self, build: Build) -> int:
        """Builds the engine and serves it until StopWorker arrives. Returns the exit status."""
        self._report_progress("start", 0, 1)
        try:
            engine = build(self._report_progress)
        except Exception as error:
            self._send(wire.BuildFailed(_reported(error)))
            return 1
        freeze_gc()
        self._transport.on_message = lambda packed: self._receive(engine, packed)  # requests come after Ready
        self._send(wire.Ready(engine.status()))
        while (packed := self._inbox.get()) is not None:
            self._receive(engine, packed)
        self._cloning.shutdown(wait=False, cancel_futures=True)
        return self._status

    def _receive(self, engine: LocalEngine, packed: bytes) -> None:
        try:
            with self._calling:
                self._handle(engine, wire.decode_to_worker(packed))
        except Exception:
            _log.exception("the worker failed")
            self._status = 1
            self._inbox.put(None)

    def _handle(self, engine: LocalEngine, message: wire.ToWorker) -> None:
        match message:
            case wire.Submit():
                self._submit(engine, message)
            case wire.SendCommand():
                self._pass_command(engine, message)
            case wire.Clone() | wire.Preset():
                self._cloning.submit(self._make_voice, engine, message)
            case wire.Ping():
                self._send(wire.Pong(engine.status()))
            case wire.StopWorker(drain_s):
                # On its own thread: commands and pings are served while utterances finish.
                threading.Thread(target=self._shut_down, args=(engine, drain_s), name="oscine-stop").start()

    def _submit(self, engine: LocalEngine, message: wire.Submit) -> None:
        utterance_id, utterance = message.utterance_id, RunningUtterance()
        with self._lock:
            self._running[utterance_id] = utterance
        try:
            engine.enqueue(
                utterance_id,
                message.request(),
                lambda chunk: self._deliver(utterance_id, utterance, chunk),
                streaming_text=message.streaming_text,
            )
        except Exception as error:
            with self._lock:
                self._running.pop(utterance_id, None)
            self._send(wire.SubmitResult(utterance_id, _reported(error)))
            clear_tracebacks(error)
        else:
            utterance.accepted = True
            # Not on the writing thread, which would wake up and compete with the engine's: that one has just got work
            self._send(wire.SubmitResult(utterance_id))

    def _pass_command(self, engine: LocalEngine, message: wire.SendCommand) -> None:
        with self._lock:
            utterance = self._running.get(message.utterance_id)
        if utterance is None or not utterance.accepted:
            return
        try:
            engine.send(message.utterance_id, message.command())
        except OscineError as error:  # text that cannot be spoken: `send` has no answer, so the utterance ends
            with self._lock:
                self._end(message.utterance_id, utterance, error)

    def _make_voice(self, engine: LocalEngine, message: wire.Clone | wire.Preset) -> None:
        try:
            if isinstance(message, wire.Preset):
                voice = engine.preset(message.name)
            else:
                clip = (np.frombuffer(message.samples, np.float32), message.rate_hz)
                voice = engine.clone(clip, wire.unpack(message.transcript))
            self._send(wire.CloneResult(message.clone_id, wire.pack("voice", voice)))
        except Exception as error:
            self._send(wire.CloneResult(message.clone_id, error=_reported(error)))

    def _deliver(self, utterance_id: str, utterance: RunningUtterance, chunk: AudioChunk) -> None:
        """Runs on the engine's loop thread."""
        with self._lock:
            if chunk.finish_reason is not None:
                self._running.pop(utterance_id, None)
            if not utterance.delivering:
                return
            if self._transport.unsent_bytes <= self._max_unsent_bytes:
                utterance.samples = chunk.first_sample + len(chunk.pcm) // 2
                self._send_chunk(utterance_id, utterance, chunk)
                return
            error = EngineError("the front end fell too far behind in reading audio; its utterances were ended")
            for running_id, running in [*self._running.items(), (utterance_id, utterance)]:
                self._end(running_id, running, error)

    def _end(self, utterance_id: str, utterance: RunningUtterance, error: OscineError) -> None:
        """Ends the utterance for the front end now, and in the engine through the inbox. The caller holds the lock."""
        if utterance.delivering:
            utterance.delivering = False
            self._send_chunk(utterance_id, utterance, AudioChunk(b"", utterance.samples, "error", error))
            self._inbox.put(wire.encode(wire.SendCommand.of(utterance_id, Cancel())))

    def _shut_down(self, engine: LocalEngine, drain_s: float) -> None:
        try:
            engine.stop(drain_s)
        finally:
            self._inbox.put(None)

    def _report_progress(self, stage: str, done: int, total: int) -> None:
        self._send(wire.BuildProgress(stage, done, total))

    def _send_chunk(self, utterance_id: str, utterance: RunningUtterance, chunk: AudioChunk) -> None:
        packed = wire.encode(wire.Chunk(utterance_id, chunk))
        if utterance.begun:
            self._transport.post(packed)
        else:  # a listener waits for it
            utterance.begun = True
            self._transport.send(packed, overtake=True)

    def _send(self, message: wire.FromWorker) -> None:
        self._transport.send(wire.encode(message))


def _reported(error: Exception) -> OscineError:
    """Returns the error as one of ours. Logs the traceback of an unexpected one."""
    if isinstance(error, OscineError):
        return error
    _log.error("an unexpected error", exc_info=error)
    return EngineError(f"{type(error).__name__}: {error}".removesuffix(": "))


def main(descriptor: str, *imports: str) -> None:
    """Runs a worker. Imports the modules `imports` while the build function is on its way."""
    # The transport notices the parent's death with a thread that runs Python; the kernel's signal also ends a process
    # whose interpreter is blocked in one call.
    die_with_parent()
    log = LogWriter(_STDERR)
    log.setFormatter(logging.Formatter("engine: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    transport = Transport(connection_to_parent(descriptor), inbox.put, on_disconnect=lambda: os._exit(1))

    def build(progress: ReportProgress) -> LocalEngine:
        with importing():
            for module in imports:
                try:
                    importlib.import_module(module)
                except Exception:  # the build function reports it, perhaps as another error
                    _log.warning("could not import %s", module, exc_info=True)
        pickled = inbox.get()
        assert pickled is not None
        unpickled: Build = pickle.loads(pickled)
        return unpickled(progress)

    status = 1
    try:
        status = EngineServer(transport, inbox).serve(build)
    except Exception:
        _log.exception("the worker failed")
    finally:
        transport.close(LINGER_S)
        logging.shutdown()
        os._exit(status)  # even if the engine left threads behind


def import_and_build(
    folder: str, config: EngineConfig, device: str, dtype: str, progress: ReportProgress
) -> LocalEngine:
    """The build function of the server's workers. The front end has no torch and sends only its name, so it imports the
    engine when it is called."""
    with importing():
        from oscine.model.device import begin_context

        begin_context(device)
        from oscine.engine.build import build_engine

    return build_engine(folder, config, progress, device=device, dtype=dtype)  # type: ignore[arg-type]
