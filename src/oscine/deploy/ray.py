"""Oscine on Ray Serve: `serve run oscine.deploy.ray:app`. Needs the extra `ray`.

Each replica has engines in worker processes, and the application of `oscine serve` in front of them. Ray supervises the
replicas, so a replica does not restart an engine that has failed. It ends, and Ray starts another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from rich.console import Console
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oscine.errors import ConfigError, EngineError
from oscine.process.child import freeze_gc
from oscine.server.app import build_models_app
from oscine.server.http.logs import log_to_stderr
from oscine.server.service import Service
from oscine.server.web_server import StatusServer
from oscine.serving.model_loader import ModelLoader
from oscine.serving.settings import Settings, load_settings
from oscine.serving.startup_display import StartupDisplay
from oscine.speech.models import LoadedModel
from oscine.types import EngineStatus

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

_log = logging.getLogger(__name__)

METRICS_PORT = 9400
# Ray must not hold requests back: the engine's admission queues or refuses them, and says when to retry.
_MAX_ONGOING_REQUESTS = 10_000
_END_S = 10.0  # to stop the engine after the last stream
_STATUS_PORTS = 100  # so many replicas may run on one machine
_WATCH_INTERVAL_S = 0.5
_LAST_BYTES_S = 0.5  # for the errors of broken streams to reach Ray's proxy
# The metric that each replica reports: its streams, as a share of those that it can run in real time.
LOAD = "oscine_load"


def app(arguments: dict[str, Any]) -> Application:
    """`config` names a TOML file and `metrics_port` the first port for metrics of replicas; all other arguments are
    settings of `oscine serve`, such as "engine.slots". Environment variables count too."""
    flags = dict(arguments)
    config, metrics_port = flags.pop("config", None), _port(flags.pop("metrics_port", METRICS_PORT))
    settings = load_settings(Path(config) if config else None, flags)
    deployment = serve.deployment(
        name="Oscine",
        ray_actor_options={"num_cpus": 1, "num_gpus": _gpus(_device(settings))},
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        health_check_period_s=2.0,
        graceful_shutdown_wait_loop_s=1.0,
        graceful_shutdown_timeout_s=settings.server.drain_s + _END_S,
    )
    return deployment(Replica).bind(settings, metrics_port)


def _port(value: object) -> int:
    text = str(value)
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ConfigError(f"metrics_port must be a port from 1 to 65535, got {value!r}")
    return int(text)


def _device(settings: Settings) -> str:
    """The one device of a replica."""
    devices = {device for model in settings.checkpoints for device in model.devices or settings.devices}
    if len(devices) != 1:
        names = ", ".join(sorted(devices))
        raise ConfigError(f"a replica has one device, not {names}; name one, and let Ray run more replicas")
    return devices.pop()


def _gpus(device: str) -> int:
    """Whole GPUs of a replica. In a YAML file, `ray_actor_options` override it, also with a share of a GPU."""
    if device != "auto":
        return int(device.startswith("cuda"))
    if ray.is_initialized():
        return int(ray.cluster_resources().get("GPU", 0) > 0)
    # `serve run oscine.deploy.ray:app` builds the application before it starts Ray.
    return int(shutil.which("nvidia-smi") is not None)


@serve.ingress()  # the application comes from __serve_build_asgi_app__
class Replica:
    async def __init__(self, settings: Settings, metrics_port: int) -> None:  # type: ignore[misc]  # Ray awaits it
        """Returns when the engines have spoken. Ray sends no requests to this replica before."""
        log_to_stderr(settings.server.log_format, settings.server.log_level)
        settings = settings.model_copy(update={"worker": replace(settings.worker, max_restarts=0)})
        self._loader = ModelLoader(settings, StartupDisplay(settings, Console(stderr=True)).reporter)
        try:
            self._app = build_models_app(await asyncio.to_thread(self._open_models), settings.server)
            self._service: Service = self._app.state.service
            ports = range(metrics_port, min(metrics_port + _STATUS_PORTS, 65536))
            self._status_server = StatusServer(self._service, settings.server.host, ports)
        except BaseException:
            await asyncio.to_thread(self._loader.close)
            raise
        if (niceness := os.nice(0)) > 0:
            _log.warning(
                "This replica has niceness %d: on a busy machine its audio will have gaps. Set RAY_worker_niceness=0 "
                "before Ray is started.",
                niceness,
            )
        _log.info("metrics of this replica: http://%s:%d/metrics", settings.server.host, self._status_server.port)
        self._watching = asyncio.create_task(self._watch())
        freeze_gc()

    # --- called by Ray, on the event loop ---

    def __serve_build_asgi_app__(self) -> FastAPI:
        self._app.add_middleware(_WithoutRequestId)
        return self._app

    def check_health(self) -> None:
        """Raises what ended the engines. Ray then sends no more requests here after three checks, lets the streams end,
        and starts another replica."""
        if self._failure is not None:
            raise EngineError(self._failure)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The load of the busiest model: its running and queued streams, as a share of what it can run in real time."""
        return {LOAD: max(load_of(model.engine.status()) for model in self._service.models)}

    async def __del__(self) -> None:
        """Called when the last request has ended."""
        self._watching.cancel()
        await self._status_server.close()
        await asyncio.to_thread(self._loader.close)

    # --- our own ---

    def _open_models(self) -> list[LoadedModel]:
        models = self._loader.open_all(self._loader.find_all())
        for model in models:
            model.wait_ready()
        return models

    @property
    def _failure(self) -> str | None:
        failed = [model.health().last_reason for model in self._service.models if model.state == "failed"]
        return (failed[0] or "unknown") if failed else None

    async def _watch(self) -> None:
        while self._failure is None:
            stopping = _is_stopping()
            await asyncio.sleep(_WATCH_INTERVAL_S)
            # Later, because requests still arrive for a moment after Ray has told the replica to stop.
            self._service.draining = stopping
        _log.error("the engine has failed, so this replica ends: %s", self._failure)
        while self._service.streams:  # of other models; those of this engine end with an error at once
            await asyncio.sleep(_WATCH_INTERVAL_S)
        await asyncio.sleep(_LAST_BYTES_S)
        os._exit(1)  # Ray notices it sooner than three failed health checks


def load_of(status: EngineStatus) -> float:
    """Returns the load that is reported to Ray; 1 is a full replica."""
    return min(status.load, 2.0)  # a burst whose queue is several times the slots is served in seconds


def _is_stopping() -> bool:
    """Whether Ray waits for the requests of this replica to end. Ray has no public sign of that. Without one, silent
    WebSocket sessions would hold the replica until they are idle for too long or `graceful_shutdown_timeout_s` ends."""
    actors = getattr(ray._private.worker.global_worker, "actors", {})
    return any(getattr(getattr(one, "_replica_impl", None), "_shutting_down", False) for one in actors.values())


class _WithoutRequestId:
    """Removes x-request-id from responses: Ray's proxy adds it itself, with the same value."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [one for one in message["headers"] if one[0] != b"x-request-id"]
            await send(message)

        await self._app(scope, receive, send_without)


class LoadPolicy:
    """Keeps the load of each replica near `target_load`. Ray applies the bounds and delays of its `autoscaling_config`.

    Ray's own policy counts open requests. That would count WebSocket sessions that are silent, and needs a number of
    requests per replica that depends on the GPU; the replica knows its own capacity.
    """

    def __init__(self, target_load: float = 0.7) -> None:
        if not 0 < target_load <= 1:
            raise ValueError(f"target_load must be above 0 and at most 1, got {target_load}")
        self._target_load = target_load

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        loads = (context.aggregated_metrics or {}).get(LOAD, {})
        return sum(loads.values()) / self._target_load, {}
