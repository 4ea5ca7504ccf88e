"""A few threads that serve their clients in turn: one with many jobs delays another by one job, not by all of them."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Job = tuple[Future[Any], Callable[[], Any]]


class FairExecutor(Executor):
    """Jobs of one client run in their order, those of several clients in turn. A job that was cancelled while it waited
    does not start."""

    def __init__(self, threads: int, name: str, client: Callable[[], Hashable]) -> None:
        """`client` says whose job is being submitted; called on the thread that submits."""
        self._threads, self._client = ThreadPoolExecutor(threads, name), client
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Hashable, deque[_Job]] = OrderedDict()  # by client; the first one is next

    def submit(self, call: Callable[_P, _T], /, *arguments: _P.args, **options: _P.kwargs) -> Future[_T]:
        """Raises RuntimeError after a shutdown."""
        future: Future[_T] = Future()
        with self._lock:
            job = future, lambda: call(*arguments, **options)
            self._waiting.setdefault(self._client(), deque()).append(job)
        self._threads.submit(self._run_next)  # one for each job: which one is decided when a thread is free
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            with self._lock:
                left = [future for jobs in self._waiting.values() for future, _ in jobs]
                self._waiting.clear()
            for future in left:
                future.cancel()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:
                return  # of a shutdown
            client, jobs = self._waiting.popitem(last=False)
            future, call = jobs.popleft()
            if jobs:
                self._waiting[client] = jobs  # after the others
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
            del future  # the error's traceback holds this frame
        else:
            future.set_result(result)
