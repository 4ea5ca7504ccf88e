"""The manifests as kustomize renders them: valid for old and new Kubernetes, hardened, and drained before they are
killed. No cluster is needed; docs/deploy/kubernetes.md says what was run."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.conftest import ROOT, require_environment
from tests.deploy.test_monitoring import RULES
from tests.server.scripted_engine import CARD, ScriptedEngine

pytestmark = pytest.mark.slow

MANIFESTS = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("base", "gpu", "autoscaled")
VERSIONS = ("1.28.0", "1.37.0")  # the oldest and the newest whose schemas kubernetes-validate has
CUSTOM_KINDS = {"PodMonitor"}


@cache
def rendered(overlay: str) -> str:
    program = shutil.which("kubectl")
    if program is None:  # no package of Debian has a recent one, so CI cannot require it
        pytest.skip("kubectl with kustomize 5 is not installed")
    command = [program, "kustomize", str(MANIFESTS / overlay)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def every_object(overlay: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(rendered(overlay)))


def objects(overlay: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in every_object(overlay)}


def pod(overlay: str) -> dict[str, Any]:
    spec: dict[str, Any] = objects(overlay)["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_follow_the_strict_schemas_of_old_and_new_kubernetes(version: str, tmp_path: Path) -> None:
    program = require_environment("linters", "the checkers of deploy/ are") / "bin" / "kubernetes-validate"
    known = [one for overlay in OVERLAYS for one in every_object(overlay) if one["kind"] not in CUSTOM_KINDS]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(known), encoding="utf-8")
    command = [program, "--kubernetes-version", version, "--strict", "--no-warn", tmp_path / "all.yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_meet_the_restricted_security_standard_with_a_read_only_root(overlay: str) -> None:
    spec = pod(overlay)
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"/tmp", "/var/lib/oscine", "/var/cache/oscine"}
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"] if "emptyDir" not in volume}
    made = {one["metadata"]["name"] for one in every_object(overlay) if one["kind"] == "PersistentVolumeClaim"}
    assert claims - made <= {"oscine-models"}  # the weights, which the operator brings


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_is_killed_only_after_it_had_time_to_drain(overlay: str) -> None:
    spec = pod(overlay)
    _, sleep_s = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert spec["terminationGracePeriodSeconds"] >= int(sleep_s) + ServerConfig().drain_s + 10


def test_probes_and_services_use_endpoints_that_exist() -> None:
    engine = ScriptedEngine()
    paths = build_app(engine, CARD).openapi()["paths"]
    engine.stop()
    (container,) = pod("base")["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert {"/health", "/ready", "/metrics"} <= paths.keys()
    service, deployment = objects("base")["Service"]["spec"], objects("base")["Deployment"]["spec"]
    assert service["selector"] == deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert objects("base")["PodDisruptionBudget"]["spec"]["selector"] == deployment["selector"]


def test_the_gpu_overlay_asks_for_one_gpu_and_mounts_the_weights_read_only() -> None:
    (container,) = pod("gpu")["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    assert container["image"].endswith(":cuda") and not container["env"]


def test_the_autoscaler_follows_a_metric_that_the_adapter_makes_from_a_recording_rule() -> None:
    scaler = objects("autoscaled")["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == objects("autoscaled")["Deployment"]["metadata"]["name"]
    assert "replicas" not in objects("autoscaled")["Deployment"]["spec"]
    adapter = yaml.safe_load((MANIFESTS / "autoscaled" / "prometheus_adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = adapter["rules"]["custom"]
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    recorded = {one["record"] for group in groups for one in group["rules"] if "record" in one}
    assert rule["seriesQuery"].split('"')[1] in recorded


def test_the_command_of_the_page_makes_a_prometheus_rule_of_our_rules() -> None:
    page = (ROOT / "docs" / "deploy" / "kubernetes.md").read_text(encoding="utf-8")
    command = page[page.index("{ printf") : page.index("; } | kubectl")] + "; }"
    made = yaml.safe_load(subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True).stdout)
    assert made["kind"] == "PrometheusRule" and made["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))


def test_the_pod_monitor_finds_the_pods_and_gives_them_the_job_of_the_alerts() -> None:
    monitor = objects("autoscaled")["PodMonitor"]["spec"]
    deployment = objects("autoscaled")["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == "oscine"
    ports = {port["name"] for port in deployment["template"]["spec"]["containers"][0]["ports"]}
    assert monitor["podMetricsEndpoints"][0]["port"] in ports
