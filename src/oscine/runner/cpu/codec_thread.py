"""Runs a codec on a thread of its own: the samples of a frame are computed while the next frame's codes are."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from oscine.model.device import set_own_threads, usable_cpus
from oscine.model.streaming import StreamState
from oscine.runner.backend import SlotCodec


def divide_threads() -> tuple[int, int]:
    """Returns torch's threads for the codes and for the codec: together as many as the calling thread has. With 0 for
    the codec, it has no thread of its own. Each getting all threads was slower on two cores than one thread each."""
    threads = torch.get_num_threads()
    if threads < 2 or usable_cpus() < 2:
        return threads, 0
    return threads - threads // 2, threads // 2


class _Job(NamedTuple):
    codes: Tensor
    slots: Tensor
    pcm: Tensor
    done: Future[float]


class CodecThread(SlotCodec):
    """Runs another codec on a thread, which the first `run` starts. `close` ends the thread, and so does the end of
    this object."""

    def __init__(self, codec: SlotCodec, threads: int) -> None:
        self.scratch, self.nbytes = codec.scratch, codec.nbytes
        self._codec, self._threads = codec, threads  # torch's number of threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # not bounded: the finalizer must not wait
        self._thread: threading.Thread | None = None
        self._runs: deque[Future[float]] = deque(maxlen=2)  # the last two
        weakref.finalize(self, self._jobs.put, None).atexit = False  # the process ends a daemon thread by itself

    @property
    def last_run(self) -> Future[float]:
        """Completes with the samples of the last `run`. The result is the time of that, or the error."""
        return self._runs[-1]

    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        """Returns at once. The tensors must not change before `last_run` is done."""
        if self._thread is None:
            work = (self._codec, self._jobs, self._threads)
            self._thread = threading.Thread(target=_run_jobs, args=work, name="oscine-codec", daemon=True)
            self._thread.start()
        if len(self._runs) == 2:
            self._runs[0].exception()  # waits, so that at most one run is queued behind another
        self._runs.append(Future())
        self._jobs.put(_Job(codes, slots, pcm16_out, self.last_run))

    def wait(self) -> None:
        """Waits until the samples of every `run` are complete. Their errors belong to `last_run`."""
        for run in self._runs:
            run.exception()

    def close(self) -> None:
        """Ends the thread after its queued jobs. Another `run` would start it again."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    # Every use of a state waits: a frame in flight may belong to the slot's previous stream and would overwrite it.
    def load_state(self, slot: int, state: StreamState) -> None:
        self.wait()
        self._codec.load_state(slot, state)

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        self.wait()  # for `snapshot` and `restore` too
        return self._codec.state_views(slot)

    def cleared_views(self, slot: int) -> tuple[Tensor, ...]:
        self.wait()  # for `reset` too
        return self._codec.cleared_views(slot)


def _run_jobs(codec: SlotCodec, jobs: SimpleQueue[_Job | None], threads: int) -> None:
    """Runs the thread's jobs. It refers to the codec but not to its CodecThread, which could otherwise never be
    freed."""
    set_own_threads(threads)
    while job := jobs.get():
        try:
            codec.run(job.codes, job.slots, job.pcm)
        except BaseException as error:
            job.done.set_exception(error)
        else:
            job.done.set_result(time.monotonic())
