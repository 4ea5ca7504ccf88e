"""The web server in a process of its own, held by a pipe: it tells its port, answers questions, and ends when the pipe
is closed. For benchmarks that put their own engine or clock points behind the server."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.process.child import freeze_gc
from oscine.server.http.listener import bind, raise_file_limit
from oscine.server.http.logs import log_to_stderr
from oscine.server.web_server import WebServer

_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class PipedServer:
    url: str
    _pipe: Pipe

    def ask(self) -> Any:
        """What the `answer` of `serve_app` returns."""
        self._pipe.send(None)
        return self._pipe.recv()


@contextlib.contextmanager
def piped_server(serve: Callable[..., None], *arguments: Any) -> Iterator[PipedServer]:
    """Calls `serve(pipe, *arguments)` in a new process. It must send its port, and serve until the pipe is closed, as
    `serve_app` does."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, *arguments))
    process.start()
    there.close()
    try:
        yield PipedServer(f"http://127.0.0.1:{here.recv()}", here)
    finally:
        here.close()
        process.join(_STOP_S)


def serve_app(
    pipe: Pipe, app: FastAPI, answer: Callable[[], Any] = lambda: None, server_class: type[WebServer] = WebServer
) -> None:
    """Serves as `oscine serve` does, until the pipe is closed. Nobody reads the log, but its lines are written."""
    config: ServerConfig = app.state.service.config
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    log_to_stderr(config.log_format, config.log_level)
    raise_file_limit(config.max_connections)
    listener, server = bind("127.0.0.1", 0), server_class(app)

    def answer_all() -> None:
        with contextlib.suppress(EOFError):
            while True:
                pipe.recv()
                pipe.send(answer())
        server.should_exit = True

    freeze_gc()
    pipe.send(listener.getsockname()[1])
    threading.Thread(target=answer_all, daemon=True).start()
    server.run_until_stopped(listener)
