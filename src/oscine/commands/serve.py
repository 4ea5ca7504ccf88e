"""`oscine serve`: engine processes, the application over them, and one web server, from start to a clean end.

The port answers at once (`/ready` says "starting"); the engines load meanwhile. SIGTERM and Ctrl-C let running streams
finish; a second one ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from oscine import __version__
from oscine.engine.remote.client import EngineClient
from oscine.engine.remote.heap import freeze_gc
from oscine.engine.router import Router
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.server.app import build_app
from oscine.server.http_protocol import BoundedHttpProtocol
from oscine.server.logs import log_fields, log_to_stderr
from oscine.server.service import Service
from oscine.commands.settings import Settings
from oscine.types import ConfigError, EngineHealth, ModelCard, OscineError

if TYPE_CHECKING:
    from oscine.engine.in_process import InProcessEngine
    from oscine.engine.remote.worker import ReportProgress

_log = logging.getLogger("oscine.commands.serve")

_ABOUT_PORTS: dict[int | None, str] = {
    errno.EADDRINUSE: "choose another port with --port",
    errno.EACCES: "choose a port from 1024 on with --port",
}
_POLL_S = 0.05
_CLOSE_S = 2.0  # for what is left of connections once their streams have ended


def build(settings: Settings, folder: str, device: str, progress: ReportProgress) -> InProcessEngine:
    """Runs in the engine's process: the front end stays without torch."""
    from oscine.engine.build import build_engine

    return build_engine(folder, settings.engine, progress, device=device, dtype=settings.dtype)  # type: ignore[arg-type]


def serve(settings: Settings, console: Console) -> None:
    """Returns after a clean end. Raises what the first start of an engine raised, or ConfigError for a taken port."""
    log_to_stderr(settings.server.log_format, settings.server.log_level)  # type: ignore[arg-type]
    folder = find_checkpoint(settings.model)
    card = read_config(folder).card(settings.served_name)
    listener = _bind(settings.server.host, settings.server.port)
    with contextlib.ExitStack() as undo:
        undo.callback(listener.close)
        display = undo.enter_context(_Display(settings, card, console))
        engines: list[EngineClient] = []
        for device in settings.devices:
            make = partial(build, settings, str(folder), device)
            engines.append(EngineClient(make, settings.worker, on_progress=display.reporter(device)))
            undo.callback(engines[-1].stop)
        engine = engines[0] if len(engines) == 1 else Router(engines)
        app = build_app(engine, card, settings.server, partial(_health, engines))
        server = _Server(_uvicorn_config(app), app.state.service)
        waiting = threading.Thread(target=_wait_ready, args=(engines, server, display, listener), daemon=True)
        waiting.start()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(server.serve(sockets=[listener]))
        if server.failure is not None:
            raise server.failure


def _uvicorn_config(app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=BoundedHttpProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="websockets-sansio",
        ws_per_message_deflate=False,  # sound does not get smaller, only later
        timeout_graceful_shutdown=int(_CLOSE_S),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def _bind(host: str, port: int) -> socket.socket:
    """Before anything is loaded: a taken port should not cost a minute to find out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except (OSError, TypeError, ValueError) as error:  # the last two: no name that a host could have
        listener.close()
        reason = getattr(error, "strerror", None) or error
        advice = _ABOUT_PORTS.get(getattr(error, "errno", None), "choose an address of this machine with --host")
        raise ConfigError(f"{host}:{port} cannot be listened on: {reason}; {advice}") from error


def _health(engines: list[EngineClient]) -> EngineHealth:
    """The best engine's state; what has failed is still told."""
    healths = [engine.health for engine in engines]
    order = ("ready", "restarting", "starting", "stopping", "stopped", "failed")
    best = min(healths, key=lambda health: order.index(health.state))
    reasons = [health.last_reason for health in healths if health.last_reason]
    return EngineHealth(
        best.state, best.pid, sum(health.restarts for health in healths), reasons[0] if reasons else None
    )


def _wait_ready(engines: list[EngineClient], server: _Server, display: _Display, listener: socket.socket) -> None:
    try:
        for engine in engines:
            engine.wait_ready()
    except OscineError as error:
        if not server.should_exit and not server.stopping:
            server.failure = error
            server.should_exit = True
        return
    freeze_gc()
    display.ready(listener, sum(engine.status().slots for engine in engines))


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Uvicorn takes a stream that is cut off at the end for a bug of the application; our own log tells of it."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class _Server(uvicorn.Server):
    """Uvicorn, with our way to stop: first no new requests, then no more streams, then no connections."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
        self.failure: OscineError | None = None
        self.stopping = False

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
            # What is left, the engines' end and Python's own, takes seconds at most: an impatient Ctrl-C shall not
            # break it off. Not undone: the process has nothing else to do.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.stopping:
            self.should_exit = self.force_exit = True
            return
        self.stopping = self._service.draining = True
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would leave the application to be cancelled, and call that its failure
            await self.lifespan.shutdown()

    async def _drain(self) -> None:
        deadline_s = time.monotonic() + self._service.config.drain_s
        _log.info("stopping", extra=log_fields(streams=self._service.streams, drain_s=self._service.config.drain_s))
        while self._service.streams and time.monotonic() < deadline_s:
            await asyncio.sleep(_POLL_S)
        if self._service.streams:
            _log.warning("streams are cut off", extra=log_fields(streams=self._service.streams))
        self.should_exit = True


class _Display:
    """What a person sees from the start to "ready": a bar where there is a terminal, lines elsewhere."""

    def __init__(self, settings: Settings, card: ModelCard, console: Console) -> None:
        self._settings, self._card, self._console = settings, card, console
        self._begun_s = time.monotonic()
        self._memory = ""
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._live = console.is_terminal and settings.server.log_format == "console"

    def __enter__(self) -> _Display:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_bar()

    def _stop_bar(self) -> None:
        if self._live:  # where none was shown, it would end with an empty line: no JSON
            self._bar.stop()

    def reporter(self, device: str) -> ReportProgress:
        task = self._bar.add_task(f"{self._card.name} on {device}: starting", total=None)
        last_stage = ""

        def report(stage: str, done: int, total: int) -> None:
            nonlocal last_stage
            if stage.startswith("memory: "):  # too long for a bar; told when it is ready
                self._memory = stage.removeprefix("memory: ")
            else:
                what = f"{self._card.name} on {device}: {stage}"
                self._bar.update(task, description=what, completed=done, total=total)
            if not self._live and stage != last_stage:
                _log.info("%s", stage, extra=log_fields(device=device))
            last_stage = stage

        return report

    def ready(self, listener: socket.socket, slots: int) -> None:
        self._stop_bar()
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        took_s = time.monotonic() - self._begun_s
        if self._settings.server.log_format == "json":
            _log.info("ready", extra=log_fields(url=url, model=self._card.name, slots=slots, ready_s=round(took_s, 1)))
            return
        docs = f"API under {url}/v1, its description at {url}/docs"
        page = f"playground; {docs}" if self._settings.server.playground else docs
        # Texts, so that nothing in a name or an address is taken for markup or an emoji's name.
        show = partial(self._console.print, highlight=False, soft_wrap=True)
        show(Text.assemble("\n", (f"Oscine {__version__}", "bold green"), f" is ready after {took_s:.1f} s"))
        show(Text.assemble("  ", (url, "bold"), f"        {page}"))
        show(Text(f"  model   {self._card.name} ({self._card.kind}), {slots} streams at once"))
        if self._memory:
            show(Text(f"  memory  {self._memory}"))
        if not self._settings.server.api_keys and host not in ("127.0.0.1", "::1"):
            show(Text("  anyone who reaches this address may use it; --api-key asks for a key", "yellow"))
