"""The engine process: `oscine.engine.remote.worker` as the main module, with FOLDER and PARENT_PID; started by launch.py alone.

Four threads: the main one builds the engine and calls it, one carries messages, one makes voices, and the engine has
its own loop. The loop only ever appends to a list in memory: a slow or dead front end costs it nothing.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from oscine.engine.remote import messages as wire
from oscine.engine.remote.heap import freeze_gc
from oscine.engine.remote.transport import Transport
from oscine.types import AudioChunk, Cancel, EngineError, OscineError, SpeechEngine
from oscine.voice import Voice

# The stage, how much of it is done, of how much.
ReportProgress = Callable[[str, int, int], None]
Build = Callable[[ReportProgress], SpeechEngine]

BACKLOG_BYTES = 64 * 2**20  # a front end that is this far behind does not read any more
LAST_WORDS_S = 5.0
_PR_SET_PDEATHSIG = 1


def serve_engine(
    address: str, build: Build, *, lifeline: socket.socket | None = None, backlog_bytes: int = BACKLOG_BYTES
) -> int:
    """Builds the engine, says Ready and serves one front end until it says Stop. Returns the exit status. Where the
    other end of `lifeline` closes, the front end is dead and this process ends on the spot."""
    return _Server(address, lifeline, backlog_bytes).serve(build)


@dataclass(slots=True)
class _Utterance:
    engine_id: str | None = None  # known once the engine's `submit` has returned; chunks may come before
    heard: bool = True  # the front end still takes its chunks
    samples: int = 0  # sent so far


class _Server:
    def __init__(self, address: str, lifeline: socket.socket | None, backlog_bytes: int) -> None:
        self._channel = Transport(address, bind=False, lifeline=lifeline)
        self._backlog_bytes = backlog_bytes
        self._commands: queue.SimpleQueue[wire.ToEngine | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[str, _Utterance] = {}
        self._finish_by_s: float | None = None
        self._cloning = ThreadPoolExecutor(1, "oscine-clone")  # one at a time: frames need the device too

    def serve(self, build: Build) -> int:
        carrier = threading.Thread(target=self._carry, name="oscine-channel", daemon=True)
        carrier.start()
        try:
            return self._build_and_obey(build)
        except Exception:
            traceback.print_exc()
            return 1
        finally:
            self._cloning.shutdown(wait=False, cancel_futures=True)
            self._finish_by_s = time.monotonic() + LAST_WORDS_S
            self._channel.wake()
            carrier.join(2 * LAST_WORDS_S)

    def _build_and_obey(self, build: Build) -> int:
        self._report_progress("start", 0, 1)
        try:
            engine = build(self._report_progress)
        except Exception as error:
            if not isinstance(error, OscineError):
                traceback.print_exc()
            self._post(wire.Failed(wire.report_of(error)))
            return 1
        freeze_gc()
        self._post(wire.Ready(engine.status()))
        while (command := self._commands.get()) is not None:
            self._obey(engine, command)
        return 0

    def _obey(self, engine: SpeechEngine, command: wire.ToEngine) -> None:
        match command:
            case wire.Submit():
                self._submit(engine, command)
            case wire.Tell():
                with self._lock:
                    utterance = self._running.get(command.utterance_id)
                if utterance is not None and utterance.engine_id is not None:
                    self._tell(engine, command, utterance)
            case wire.Clone():
                self._cloning.submit(self._clone, engine, command)
            case wire.Ping():
                self._post(wire.Pong(engine.status()))
            case wire.Stop():
                # On its own thread: cancels and pings are obeyed while running utterances finish.
                threading.Thread(target=self._stop, args=(engine, command.drain_s), name="oscine-stop").start()

    def _tell(self, engine: SpeechEngine, message: wire.Tell, utterance: _Utterance) -> None:
        assert utterance.engine_id is not None
        try:
            engine.tell(utterance.engine_id, wire.command_of(message))
        except OscineError as error:  # a piece of text that cannot be spoken: nobody waits for an answer to it
            with self._lock:
                self._end(message.utterance_id, utterance, error)

    def _submit(self, engine: SpeechEngine, message: wire.Submit) -> None:
        utterance_id, utterance = message.utterance_id, _Utterance()
        with self._lock:
            self._running[utterance_id] = utterance
        try:
            utterance.engine_id = engine.submit(
                wire.request_of(message),
                lambda chunk: self._deliver(utterance_id, utterance, chunk),
                streaming_text=message.streaming_text,
            )
        except Exception as error:
            with self._lock:
                self._running.pop(utterance_id, None)
            if not isinstance(error, OscineError):
                traceback.print_exc()
            self._post(wire.Refused(utterance_id, wire.report_of(error)))
        else:
            self._post(wire.Accepted(utterance_id))

    def _clone(self, engine: SpeechEngine, message: wire.Clone) -> None:
        outcome: Voice | Exception
        try:
            clip, transcript = wire.clip_of(message)
            outcome = engine.clone((clip.samples, clip.rate_hz), transcript)
        except Exception as error:
            if not isinstance(error, OscineError):
                traceback.print_exc()
            outcome = error
        self._post(wire.cloned_message(message.clone_id, outcome))

    def _deliver(self, utterance_id: str, utterance: _Utterance, chunk: AudioChunk) -> None:
        """On the engine's loop thread."""
        with self._lock:
            if chunk.finish_reason is not None:
                self._running.pop(utterance_id, None)
            if not utterance.heard:
                return
            if self._channel.waiting_bytes <= self._backlog_bytes:
                utterance.samples = chunk.first_sample + len(chunk.pcm) // 2
                self._post(wire.chunk_message(utterance_id, chunk))
                return
            error = EngineError("the front end fell too far behind in taking audio; its utterances were ended")
            for behind_id, behind in [*self._running.items(), (utterance_id, utterance)]:
                self._end(behind_id, behind, error)

    def _end(self, utterance_id: str, utterance: _Utterance, error: OscineError) -> None:
        """Ends it for the front end now, and in the engine as soon as it can be told. The caller holds the lock."""
        if utterance.heard:
            utterance.heard = False
            self._post(wire.chunk_message(utterance_id, AudioChunk(b"", utterance.samples, "error", error)))
            self._commands.put(wire.tell_message(utterance_id, Cancel()))

    def _stop(self, engine: SpeechEngine, drain_s: float) -> None:
        try:
            engine.stop(drain_s)
        finally:
            self._commands.put(None)

    def _report_progress(self, stage: str, done: int, total: int) -> None:
        self._post(wire.Progress(stage, done, total))

    def _post(self, message: wire.ToFrontEnd) -> None:
        self._channel.post(wire.encode(message))

    def _carry(self) -> None:
        try:
            while True:
                received, parent_gone = self._channel.turn(1.0)
                if parent_gone:
                    os._exit(1)
                for message in received:
                    self._commands.put(wire.decode_for_engine(message))
                finish_by_s = self._finish_by_s
                if finish_by_s is not None and (not self._channel.waiting_bytes or time.monotonic() > finish_by_s):
                    return
        finally:
            self._channel.close(linger_s=LAST_WORDS_S)
            self._commands.put(None)


def _die_with(parent_pid: int) -> None:
    """The lifeline needs a thread that runs Python; the kernel's signal comes even where one call holds the lock."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _take_lifeline() -> socket.socket:
    """It came as standard input, which programs that the engine starts would inherit and hold open."""
    lifeline = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def main() -> None:
    folder, parent_pid = Path(sys.argv[1]), int(sys.argv[2])
    _die_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    lifeline = _take_lifeline()
    sys.path[:], pickled_build = pickle.loads((folder / "build").read_bytes())
    # Unpickled late, so that a build that cannot be imported is reported like any other failure.
    status = serve_engine(
        f"ipc://{folder}/line", lambda progress: pickle.loads(pickled_build)(progress), lifeline=lifeline
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # whatever threads the engine may have left


if __name__ == "__main__":
    main()
