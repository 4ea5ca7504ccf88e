"""`oscine serve`: worker processes, the application in front of them, and the web server, until a clean end.

The port answers at once (`/ready` says "starting") while the engines load.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from oscine.commands.settings import Settings
from oscine.commands.startup_display import StartupDisplay
from oscine.decoding.clip_decoder import start_decoder
from oscine.engine.remote.client import EngineClient
from oscine.engine.remote.heap import freeze_gc
from oscine.engine.router import Router
from oscine.errors import OscineError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.server.app import build_app
from oscine.server.logs import log_to_stderr
from oscine.server.tls import check_tls_files
from oscine.server.web_server import WebServer, bind
from oscine.types import EngineHealth, SpeechEngine

if TYPE_CHECKING:
    from oscine.config import EngineConfig
    from oscine.engine.in_process import InProcessEngine
    from oscine.types import ReportProgress


def build(folder: str, config: EngineConfig, device: str, dtype: str, progress: ReportProgress) -> InProcessEngine:
    """Runs in the worker process, so that the front end does not load torch."""
    from oscine.engine.build import build_engine

    return build_engine(folder, config, progress, device=device, dtype=dtype)  # type: ignore[arg-type]


def serve(settings: Settings, console: Console) -> None:
    """Returns after a clean end. Raises what the first start of an engine raised, or ConfigError for a taken port or
    unusable TLS files."""
    log_to_stderr(settings.server.log_format, settings.server.log_level)
    check_tls_files(settings.server.tls_cert, settings.server.tls_key)
    folder = find_checkpoint(settings.model)
    card = read_config(folder).card(settings.served_name)
    listener = bind(settings.server.host, settings.server.port)
    if card.clones:
        start_decoder()
    with contextlib.ExitStack() as undo:
        undo.callback(listener.close)
        display = undo.enter_context(StartupDisplay(settings, card, console))
        engines: list[EngineClient] = []
        for device in settings.devices:
            make = partial(build, str(folder), settings.engine, device, settings.dtype)
            engines.append(EngineClient(make, settings.worker, on_progress=display.reporter(device)))
            undo.callback(engines[-1].stop)
        engine: SpeechEngine = engines[0] if len(engines) == 1 else Router(engines)
        server = WebServer(build_app(engine, card, settings.server, partial(_health, engines)))
        announce = partial(_announce, engines, engine, server, display, listener)
        threading.Thread(target=announce, name="oscine-startup", daemon=True).start()
        server.run_until_stopped(listener)


def _announce(
    engines: list[EngineClient],
    engine: SpeechEngine,
    server: WebServer,
    display: StartupDisplay,
    listener: socket.socket,
) -> None:
    try:
        for one in engines:
            one.wait_ready()
    except OscineError as error:
        server.fail(error)
        return
    freeze_gc()
    display.ready(listener, engine.status())


def _health(engines: list[EngineClient]) -> EngineHealth:
    """The state of the best engine, with the first failure of any."""
    healths = [engine.health for engine in engines]
    order = ("ready", "restarting", "starting", "stopping", "stopped", "failed")
    best = min(healths, key=lambda health: order.index(health.state))
    reasons = [health.last_reason for health in healths if health.last_reason]
    restarts = sum(health.restarts for health in healths)
    return EngineHealth(best.state, best.pid, restarts, reasons[0] if reasons else None)
