"""The image and the Compose files: linted, schema-checked, and consistent with the server's settings. No Docker engine
is needed; docs/deploy/docker.md says what was built and run."""

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.serving.environment import variable_of
from oscine.serving.settings import Settings, setting_fields
from tests.conftest import ROOT, require_environment
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import serving

pytestmark = pytest.mark.slow

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
HEALTHCHECK = DEPLOY / "docker" / "healthcheck.py"
COMPOSE = [DEPLOY / "compose.yaml", DEPLOY / "compose.gpu.yaml"]
OURS = ("oscine", "prometheus", "grafana")


def linter(name: str) -> Path:
    return require_environment("linters", "the checkers of deploy/ are") / "bin" / name


def instructions(name: str) -> list[str]:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.partition(" ")[2].strip() for line in text.splitlines() if line.startswith(f"{name} ")]


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE[0].read_text(encoding="utf-8"))["services"]
    return found


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([linter("hadolint"), DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_compose_files_follow_the_schema() -> None:
    command = [linter("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", *COMPOSE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_file_that_the_image_copies_exists_and_is_sent_to_the_builder() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    for copied in instructions("COPY"):
        if copied.startswith("--from"):
            continue
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, rule) for rule in allowed), f".dockerignore holds back {source}"


def test_the_image_runs_without_root_and_names_only_settings_that_exist() -> None:
    assert instructions("USER") == ["10001:10001"]
    known = {variable_of(path) for path, _, _ in setting_fields(Settings)}
    for file in (DOCKERFILE, HEALTHCHECK, *COMPOSE):
        used = set(re.findall(r"OSCINE_SERVE_\w+", file.read_text(encoding="utf-8")))
        assert used <= known, file


def test_services_have_the_least_privileges_and_read_only_roots() -> None:
    assert set(services()) == set(OURS)
    for name, service in services().items():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        if name != "grafana":  # it writes its plugins' files
            assert service["read_only"], name
    assert f"{services()['oscine']['volumes'][0]}".endswith(":/models:ro")


def test_the_container_may_drain_before_it_is_killed() -> None:
    grace_s = int(services()["oscine"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= ServerConfig().drain_s + 10


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.mark.parametrize("ready", [True, False])
def test_the_health_check_follows_readiness(engine: ScriptedEngine, ready: bool) -> None:
    engine.ready = ready
    with serving(build_app(engine, CARD)) as url:
        environment = {**os.environ, "OSCINE_SERVE_SERVER__PORT": url.rpartition(":")[2]}
        done = subprocess.run([sys.executable, HEALTHCHECK], env=environment, capture_output=True)
    engine.stop()
    assert (done.returncode == 0) == ready
