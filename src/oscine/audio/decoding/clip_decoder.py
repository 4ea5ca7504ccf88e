"""Decodes audio files in a process of its own (decoder_process.py). A file that crashes its decoder affects no other
file."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import threading
from typing import Self

import numpy as np

from oscine.audio.decoding import decoders, wire
from oscine.audio.decoding.wire import ClipLimits
from oscine.audio.pcm import Samples
from oscine.errors import EngineError
from oscine.process.child import Child

# Limits of one decoder. Published formats need a few tens of MiB, and a minute of audio takes a tenth of a second.
MEMORY_BYTES = 256 * 2**20
CPU_S = 10
_ANSWER_S = 60.0  # longest wait for the next block
_EXIT_S = 5.0
_MAX_MESSAGE_BYTES = 4096
_HAS_FORK = hasattr(os, "fork")
# The only environment variables that the process gets; others may hold API keys.
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONHOME")


class ClipDecoder:
    """Decodes files for any thread. The process starts with the first file, and again if it died."""

    def __init__(
        self, module: str = decoders.__name__, *, memory_bytes: int = MEMORY_BYTES, cpu_s: int = CPU_S
    ) -> None:
        """`module` has the function `decode`, which the process imports."""
        self._module, self._memory_bytes, self._cpu_s = module, memory_bytes, cpu_s
        self._lock = threading.Lock()
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the process before the first file needs it."""
        self._started()

    def decode(self, encoded: bytes, name: str, limits: ClipLimits) -> tuple[Samples, int]:
        """Returns mono samples and their rate. Raises VoiceError, or EngineError if no process can be started."""
        job = wire.DecodingJob(name, len(encoded), limits, self._memory_bytes, self._cpu_s)
        with contextlib.suppress(EOFError, OSError):
            return self._run(job, encoded)
        try:  # the process has died or hangs
            return self._run(job, encoded)
        except (EOFError, OSError) as error:
            raise EngineError(f"audio files cannot be decoded at the moment: {error}; try again") from error

    @property
    def pid(self) -> int | None:
        return self._child.popen.pid if self._child else None

    def close(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.end(_EXIT_S)  # running jobs continue: they are processes of their own
            self._child = None

    def _run(self, job: wire.DecodingJob, encoded: bytes) -> tuple[Samples, int]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(_ANSWER_S)
            child = self._started()
            try:
                socket.send_fds(child.connection, [b"j"], [theirs.fileno()])
                theirs.close()  # so that the stream ends with the decoder
                wire.send_job(ours, job, encoded)
                return self._receive(ours, job)
            except (EOFError, OSError):
                self._replace(child)
                raise

    def _receive(self, connection: socket.socket, job: wire.DecodingJob) -> tuple[Samples, int]:
        """Raises EOFError if no decoder has accepted the job."""
        samples, rate_hz, max_bytes = bytearray(), 0, 4 * job.limits.max_samples
        accepted = False
        while True:
            try:
                limit = max(_MAX_MESSAGE_BYTES, max_bytes - len(samples))
                kind, value, content = wire.receive_answer(connection, limit)
            except (EOFError, OSError, ValueError):
                if not accepted:
                    raise
                reason = f"it crashed the decoder, or takes more than {job.cpu_s} s of its time"
                raise wire.clip_error(
                    f"{job.name} cannot be decoded ({reason}); export it again as wav or flac"
                ) from None
            match kind:
                case wire.ACCEPTED:
                    accepted = True
                case wire.BLOCK:
                    samples += content
                    rate_hz = value
                case wire.REFUSAL:
                    raise wire.clip_error(content.decode(errors="replace"))
                case _:
                    return np.frombuffer(samples, np.float32), rate_hz

    def _started(self) -> Child:
        with self._lock:
            if self._child is None:
                kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
                # Threads of numerical libraries do not survive a fork.
                environment = {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
                self._child = Child("oscine.audio.decoding.decoder_process", self._module, environment=environment)
            return self._child

    def _replace(self, broken: Child) -> None:
        """Ends the process, unless another thread has replaced it."""
        with self._lock:
            if self._child is broken:
                self._child = None
                broken.end()


@functools.cache
def _shared_decoder() -> ClipDecoder:
    decoder = ClipDecoder()
    atexit.register(decoder.close)
    return decoder


def start_decoder() -> None:
    """Prepares `decode_clip`, which otherwise takes a quarter of a second longer the first time."""
    if _HAS_FORK:
        _shared_decoder().start()


def decode_clip(encoded: bytes, name: str, limits: ClipLimits) -> tuple[Samples, int]:
    """Returns mono samples and their rate. Messages call the file `name`. Raises VoiceError or EngineError."""
    if _HAS_FORK:
        return _shared_decoder().decode(encoded, name, limits)
    # Windows: no fork and no limits, so files are decoded here.
    blocks = list(decoders.decode(encoded, name, limits))
    samples = np.concatenate([block.samples for block in blocks]) if blocks else np.zeros(0, np.float32)
    return samples, blocks[-1].rate_hz if blocks else 0
