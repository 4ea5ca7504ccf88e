"""The SpeechEngine protocol over a worker process: the front end's handle on an engine."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Self

from oscine.audio.clips import check_reference, read_clip
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.config import WorkerConfig
from oscine.engine.remote import messages as wire
from oscine.engine.remote.supervisor import Supervisor, pickle_build
from oscine.engine.remote.worker import Build
from oscine.errors import EngineError, OscineError
from oscine.process.child import Child
from oscine.request import SpeechRequest
from oscine.types import (
    AudioChunk,
    Cancel,
    ClipData,
    Command,
    Deliver,
    EngineHealth,
    EngineStatus,
    FinishReason,
    ReportProgress,
)
from oscine.voice import Voice

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PendingUtterance:
    deliver: Deliver
    accepted: Future[None] = field(default_factory=Future)
    samples: int = 0  # received
    seed: int = 0


class EngineClient:
    """The front end's engine. `build` runs in the worker and reports its progress with the function that it is given.
    It is pickled, so it must be a function of a module, or a functools.partial of one. `environment` is added to the
    worker's, for instance CUDA_VISIBLE_DEVICES. `spawned`, if given, is the first worker, with the environment that it
    has. The constructor returns at once; call `wait_ready`."""

    def __init__(
        self,
        build: Build,
        config: WorkerConfig | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        spawned: Child | None = None,
        on_progress: ReportProgress = lambda stage, done, total: None,
    ) -> None:
        self._config = config or WorkerConfig()
        self._lock = threading.Lock()
        self._utterances: dict[str, PendingUtterance] = {}
        self._clones: dict[str, Future[Voice]] = {}
        pickled = pickle_build(build)
        self._supervisor = Supervisor(
            pickled,
            self._config,
            environment or {},
            spawned=spawned,
            on_message=self._receive,
            on_exit=self._end_all,
            on_progress=on_progress,
        )
        atexit.register(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- any thread ---

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        message = wire.Submit.of(utterance_id, request, streaming_text)
        utterance = self._utterances[utterance_id] = PendingUtterance(deliver)
        with self._submitting(utterance_id):
            self._supervisor.send(message, only_if_ready=True)
            async with asyncio.timeout(self._config.submit_s):
                await asyncio.wrap_future(utterance.accepted)

    @contextlib.contextmanager
    def _submitting(self, utterance_id: str) -> Iterator[None]:
        """Forgets a refused utterance, and cancels one whose caller has stopped waiting."""
        try:
            yield
        except OscineError:
            self._utterances.pop(utterance_id, None)
            raise
        except TimeoutError:
            self._cancel(utterance_id)
            reason = f"the engine did not answer within {self._config.submit_s:g} s; send the request again"
            raise EngineError(reason) from None
        except asyncio.CancelledError:
            self._cancel(utterance_id)
            raise

    def send(self, utterance_id: str, command: Command) -> None:
        if utterance_id in self._utterances:
            self._supervisor.send(wire.SendCommand.of(utterance_id, command))

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """Decodes the clip in this process, so that decoding delays no frame."""
        read = read_clip(clip, REFERENCE_CLIP)
        check_reference(read)
        packed = read.samples.tobytes(), read.rate_hz, wire.pack("ref_text", transcript)
        return self._voice(lambda clone_id: wire.Clone(clone_id, *packed))

    def preset(self, name: str) -> Voice:
        return self._voice(lambda clone_id: wire.Preset(clone_id, name))

    def _voice(self, message_of: Callable[[str], wire.Clone | wire.Preset]) -> Voice:
        clone_id, voice = secrets.token_hex(8), Future[Voice]()
        message = message_of(clone_id)
        self._clones[clone_id] = voice
        try:
            self._supervisor.send(message, only_if_ready=True)
            return voice.result(self._config.clone_s)
        except TimeoutError:
            reason = f"the engine did not make the voice within {self._config.clone_s:g} s; try again"
            raise EngineError(reason) from None
        finally:
            self._clones.pop(clone_id, None)

    def status(self) -> EngineStatus:
        """Returns the status of the last heartbeat, corrected by utterances that started or ended since. Never
        waits."""
        last, running = self._supervisor.status, len(self._utterances)
        if self._supervisor.state != "ready":
            return replace(last, ready=False, slots_active=0, queued=0)
        queued = min(last.queued, running) if running < last.slots_active + last.queued else running - last.slots_active
        if (running - queued, queued) == (last.slots_active, last.queued):
            return last
        return replace(last, slots_active=running - queued, queued=queued)

    @property
    def health(self) -> EngineHealth:
        return self._supervisor.health

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Raises the build's error (CheckpointError, ConfigError, ...), or EngineError."""
        self._supervisor.wait_ready(timeout_s)

    def stop(self, drain_s: float = 0.0) -> None:
        self._supervisor.stop(drain_s)
        atexit.unregister(self.stop)

    def _cancel(self, utterance_id: str) -> None:
        self.send(utterance_id, Cancel())
        with self._lock:
            self._utterances.pop(utterance_id, None)

    # --- the supervisor's threads ---

    def _receive(self, message: wire.FromWorker) -> None:
        with self._lock:
            match message:
                case wire.Chunk(utterance_id, chunk):
                    self._receive_chunk(utterance_id, chunk)
                case wire.SubmitResult(utterance_id, error):
                    find = self._utterances.pop if error else self._utterances.get
                    if utterance := find(utterance_id, None):
                        _settle(utterance.accepted, error)
                case wire.CloneResult(clone_id, voice, error):
                    if clone := self._clones.get(clone_id):  # None if it took too long
                        _settle(clone, error or wire.unpack(voice))

    def _receive_chunk(self, utterance_id: str, chunk: AudioChunk) -> None:
        utterance = self._utterances.get(utterance_id)
        if utterance is None:  # cancelled
            return
        _settle(utterance.accepted, None)  # the first chunk of a fast engine may overtake the acceptance
        if chunk.finish_reason is not None:
            del self._utterances[utterance_id]
        utterance.samples, utterance.seed = chunk.first_sample + len(chunk.pcm) // 2, chunk.seed
        self._deliver(utterance_id, utterance, chunk)

    def _deliver(self, utterance_id: str, utterance: PendingUtterance, chunk: AudioChunk) -> None:
        """The caller holds the lock."""
        try:
            utterance.deliver(chunk)
        except Exception:
            _log.exception("a deliver callback failed; its utterance is cancelled")
            if self._utterances.pop(utterance_id, None):
                self._supervisor.send(wire.SendCommand.of(utterance_id, Cancel()))

    def _end_all(self, reason: FinishReason, text: str) -> None:
        with self._lock:
            ended = list(self._utterances.items())
            self._utterances.clear()
            for utterance_id, utterance in ended:
                if utterance.accepted.done():
                    error = EngineError(text) if reason == "error" else None
                    end = AudioChunk(b"", utterance.samples, reason, error, utterance.seed)
                    self._deliver(utterance_id, utterance, end)
                else:
                    _settle(utterance.accepted, EngineError(text))
            for clone in self._clones.values():
                _settle(clone, EngineError(text))


def _settle(future: Future[Any], outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, OscineError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
