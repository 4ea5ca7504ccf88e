"""Checks that import Ray, so they run in its environment: test_application.py starts pytest there."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from ray import cloudpickle
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from oscine.deploy.ray import LoadPolicy, app, load_of
from oscine.errors import ConfigError
from oscine.serving.settings import Settings
from oscine.types import EngineStatus

EXAMPLES = Path(__file__).parents[2] / "deploy" / "ray"


def settings_of(application: Application) -> Settings:
    return application._bound_deployment.init_args[0]


def test_arguments_are_a_file_and_settings_of_oscine_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "oscine.toml").write_text('[server]\napi_keys = ["sesame"]\n[engine]\nqueue_limit = 5\nslots = 1\n')
    monkeypatch.setenv("OSCINE_SERVE_ENGINE__SLOTS", "2")
    application = app({"config": str(tmp_path / "oscine.toml"), "engine.queue_wait_s": "7", "name": "bird"})
    for settings in (settings_of(application), cloudpickle.loads(cloudpickle.dumps(settings_of(application)))):
        assert settings.engine.slots == 2 and settings.engine.queue_limit == 5 and settings.engine.queue_wait_s == 7
        assert settings.name == "bird" and settings.server.api_keys == ("sesame",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine.slotz": 4}, "unknown setting 'engine.slotz'"),
        ({"engine.slots": "many"}, "engine.slots"),
        ({"config": "nowhere.toml"}, "cannot read the settings file 'nowhere.toml'"),
        ({"devices": "cuda:0,cuda:1"}, "one device, not cuda:0, cuda:1; name one, and let Ray run more replicas"),
        ({"metrics_port": "high"}, "metrics_port must be a port from 1 to 65535, got 'high'"),
    ],
)
def test_bad_arguments_are_refused_when_the_application_is_built(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app(arguments)


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda:0", 1)])
def test_a_replica_takes_a_gpu_if_its_device_is_one(device: str, gpus: int) -> None:
    assert app({"devices": device})._bound_deployment.ray_actor_options["num_gpus"] == gpus


def test_a_replica_may_take_longer_to_stop_than_its_streams() -> None:
    deployment = app({"server.drain_s": 100})._bound_deployment
    assert deployment._deployment_config.graceful_shutdown_timeout_s > 100


@pytest.mark.parametrize(
    ("loads", "replicas"), [({}, 0), ({"a": 0.35}, 0.5), ({"a": 0.7}, 1), ({"a": 1.4, "b": 0.7}, 3)]
)
def test_the_policy_wants_replicas_for_the_load(loads: dict[str, float], replicas: float) -> None:
    context = SimpleNamespace(aggregated_metrics={"oscine_load": loads} if loads else None)
    assert LoadPolicy(target_load=0.7)(context)[0] == pytest.approx(replicas)


def test_a_burst_of_many_times_the_slots_counts_as_two_full_replicas() -> None:
    status = EngineStatus(ready=True, slots=32, slots_active=32, queued=8, frames=0, tick_s=0.01)
    assert load_of(status) == 1.25
    assert load_of(replace(status, queued=1000)) == 2.0


def test_the_policy_refuses_a_load_that_no_replica_can_have() -> None:
    with pytest.raises(ValueError, match="target_load"):
        LoadPolicy(target_load=70)


def examples() -> dict[str, dict[str, Any]]:
    """The content of each Serve config file, and of the one inside the manifest of KubeRay."""
    files = {file.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in EXAMPLES.glob("*.yaml")}
    manifest = files["kuberay.yaml"]
    return {**files, "kuberay.yaml": yaml.safe_load(manifest["spec"]["serveConfigV2"])}


def unknown_keys(written: dict[str, Any], parsed: BaseModel) -> list[str]:
    """Keys that Ray's schema has dropped without a word."""
    unknown = []
    for name, value in written.items():
        known = getattr(parsed, name, None)
        if name not in type(parsed).model_fields:
            unknown.append(name)
        elif isinstance(known, BaseModel):
            unknown += unknown_keys(value, known)
        elif isinstance(known, list) and known and isinstance(known[0], BaseModel):
            for one, model in zip(value, known, strict=True):
                unknown += unknown_keys(one, model)
    return unknown


def test_a_key_that_ray_does_not_know_is_found() -> None:
    config = examples()["oscine.yaml"]
    config["applications"][0]["deployments"][0]["num_gpus"] = 1
    assert unknown_keys(config, ServeDeploySchema.model_validate(config)) == ["num_gpus"]


@pytest.mark.parametrize("name", examples())
def test_examples_fit_rays_schema_and_our_settings(name: str, tmp_path: Path) -> None:
    (tmp_path / "oscine.toml").touch()
    config = ServeDeploySchema.model_validate(examples()[name])
    assert not unknown_keys(examples()[name], config)
    (application,) = config.applications
    built = app({**application.args, "config": str(tmp_path / "oscine.toml")})
    (deployment,) = application.deployments
    assert deployment.name == built._bound_deployment.name == "Oscine"
    scaling = AutoscalingConfig(**deployment.autoscaling_config)
    assert not unknown_keys(deployment.autoscaling_config, scaling)
    assert scaling.policy.get_policy().__name__ == "LoadPolicy"
    LoadPolicy(**scaling.policy.policy_kwargs)
    assert deployment.graceful_shutdown_timeout_s > settings_of(built).server.drain_s
