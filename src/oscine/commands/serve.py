"""`oscine serve`: worker processes, the application in front of them, and the web server, until a clean end.

The port answers at once (`/ready` says "starting") while the engines load.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from oscine.engine.memory_plan import describe_plan
from oscine.errors import OscineError
from oscine.process.child import Child, freeze_gc
from oscine.server.http.listener import bind, check_tls_files, raise_file_limit
from oscine.server.http.logs import audit, log_fields, log_to_stderr
from oscine.serving.model_loader import ModelLoader
from oscine.serving.settings import Settings, changed_settings, forget_secrets
from oscine.serving.startup_display import StartupDisplay

if TYPE_CHECKING:
    from oscine.server.web_server import WebServer
    from oscine.speech.models import LoadedModel

_log = logging.getLogger(__name__)


def serve(settings: Settings, console: Console, spawned: Child | None = None) -> None:
    """`spawned` is a worker for the first engine. Returns after a clean end. Raises what the first start of an engine
    raised (of several models: if none could start), or ConfigError for a taken port, unusable TLS files or models that
    do not fit into memory."""
    forget_secrets()
    log_to_stderr(settings.server.log_format, settings.server.log_level)
    check_tls_files(settings.server.tls_cert, settings.server.tls_key)
    display = StartupDisplay(settings, console)
    loader = ModelLoader(settings, display.reporter, spawned)
    found = loader.find_all()
    raise_file_limit(settings.server.max_connections)
    listener = bind(settings.server.host, settings.server.port)
    audit("settings", **changed_settings(settings))
    with contextlib.ExitStack() as undo:
        undo.callback(listener.close)
        undo.enter_context(display)
        undo.callback(loader.close)
        models = loader.open_all(found)
        # Imported now, while the workers import torch.
        from oscine.server.app import build_models_app
        from oscine.server.web_server import WebServer

        if loader.plan:
            display.planned(describe_plan(loader.plan))
        allowed = (*settings.server.allowed_models, *(checkpoint.path for checkpoint in settings.checkpoints))
        server_config = replace(settings.server, allowed_models=allowed)
        server = WebServer(build_models_app(models, server_config, loader.open))
        announce = partial(_announce, models, server, display, listener)
        threading.Thread(target=announce, name="oscine-startup", daemon=True).start()
        server.run_until_stopped(listener)


def _announce(
    models: Sequence[LoadedModel], server: WebServer, display: StartupDisplay, listener: socket.socket
) -> None:
    """A model that fails leaves the others alone; the server ends if all have failed."""
    freeze_gc()  # what was imported, while the workers start: it takes as long as a frame
    errors: dict[str, OscineError] = {}
    for model in models:
        try:
            model.wait_ready()
        except OscineError as error:
            if server.stopping:
                return
            errors[model.card.name] = error
            if len(models) > 1:
                _log.error("the model could not be started: %s", error, extra=log_fields(model=model.card.name))
    ready = [(model.card, model.engine.status()) for model in models if model.card.name not in errors]
    if not ready:
        server.fail(next(iter(errors.values())))
        return
    freeze_gc()
    display.ready(listener, ready)
