"""The web server: uvicorn with bounded protocols and a graceful stop, which drains streams first, then connections. A
status server shows the state of one process on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.errors import ConfigError, EngineError, OscineError
from oscine.server.app import build_status_app
from oscine.server.http.http_limits import BoundedHttpProtocol
from oscine.server.http.listener import bind
from oscine.server.http.logs import log_fields
from oscine.server.http.websocket_limits import MAX_MESSAGE_BYTES, BoundedWebSocketProtocol
from oscine.server.service import Service

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_TICKS_PER_CHECK = 10  # uvicorn ticks ten times a second
_CLOSE_S = 2.0  # for connections whose streams have ended


def uvicorn_config(app: FastAPI, **options: Any) -> uvicorn.Config:
    config: ServerConfig = app.state.service.config
    defaults: dict[str, Any] = {
        "http": BoundedHttpProtocol,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": bool(config.forwarded_allow_ips),
        "forwarded_allow_ips": list(config.forwarded_allow_ips),
        "ws": BoundedWebSocketProtocol,
        "ws_max_size": 2 * MAX_MESSAGE_BYTES,  # above the limit of a live session, whose refusal has a reason
        "ws_per_message_deflate": False,  # audio does not compress; it would only be late
        "timeout_graceful_shutdown": int(_CLOSE_S),
        "ssl_certfile": config.tls_cert,
        "ssl_keyfile": config.tls_key,
    }
    return uvicorn.Config(app, **{**defaults, **options})


class WebServer(uvicorn.Server):
    """The first SIGTERM or Ctrl-C refuses new requests and lets streams finish; the second one ends them."""

    def __init__(self, app: FastAPI) -> None:
        self._service: Service = app.state.service
        super().__init__(uvicorn_config(app))
        logging.getLogger("uvicorn.error").addFilter(_is_not_a_cancelled_stream)
        self.failure: OscineError | None = None
        self.stopping = False

    def run_until_stopped(self, listener: socket.socket) -> None:
        """Serves until it is stopped. Raises `failure`, if one was set."""
        sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)  # a body may have thousands of numbers
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self.serve(sockets=[listener]))
        if self.failure is not None:
            raise self.failure

    def fail(self, error: OscineError) -> None:
        """Stops the server with an error, unless it is stopping already. May be called from any thread."""
        if not self.should_exit and not self.stopping:
            self.failure = error
            self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            # Stopping the engines takes seconds at most; an impatient Ctrl-C must not interrupt it. Not undone: the
            # process has nothing else to do.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.stopping:
            self.should_exit = self.force_exit = True
            return
        self.stopping = self._service.draining = True
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_CHECK == 0 and self._service.config.exit_on_failure:
            about = self._service.readiness()
            if about["state"] == "failed":
                self.fail(EngineError(f"the engine has failed: {about['last_failure']}"))
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would cancel the application and report that as its failure
            await self.lifespan.shutdown()

    async def _drain(self) -> None:
        drain_s = self._service.config.drain_s
        deadline_s = time.monotonic() + drain_s
        _log.info("stopping", extra=log_fields(streams=self._service.streams, drain_s=drain_s))
        while self._service.streams and time.monotonic() < deadline_s:
            await asyncio.sleep(_POLL_S)
        if self._service.streams:
            _log.warning("cutting off running streams", extra=log_fields(streams=self._service.streams))
        self.should_exit = True


def _is_not_a_cancelled_stream(record: logging.LogRecord) -> bool:
    """Drops uvicorn's report of a stream that is cut off at shutdown as a bug of the application; our log has it
    already."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


class StatusServer:
    """Serves /metrics, /health, /ready and /version of one process: a proxy that chooses among several processes cannot
    be asked for the metrics of one of them.

    Made on the event loop of the service. Listens on the first free port of `ports`; raises ConfigError if none is
    free."""

    def __init__(self, service: Service, host: str, ports: Iterable[int]) -> None:
        listener = _bind_first_free(host, ports)
        self.port: int = listener.getsockname()[1]
        self._server = _StatusUvicorn(uvicorn_config(build_status_app(service), ws="none", lifespan="off"))
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))

    async def close(self) -> None:
        self._server.should_exit = True
        await self._serving


class _StatusUvicorn(uvicorn.Server):
    def capture_signals(self) -> contextlib.nullcontext[None]:  # type: ignore[override]
        """Leaves signals to the host of this process."""
        return contextlib.nullcontext()


def _bind_first_free(host: str, ports: Iterable[int]) -> socket.socket:
    error = ConfigError("no port is given")
    for port in ports:
        try:
            return bind(host, port)
        except ConfigError as taken:
            error = taken
    raise error
