"""The Ray Serve application: reads the settings, and decides what a replica needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve import Application

from oscine.commands.settings import Settings, load_settings
from oscine.deploy.ray.replica import Replica
from oscine.errors import ConfigError

METRICS_PORT = 9400
# Ray must not hold requests back: the engine's admission queues or refuses them, and says when to retry.
_MAX_ONGOING_REQUESTS = 10_000
_END_S = 10.0  # to stop the engine after the last stream


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
