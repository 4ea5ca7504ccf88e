"""Prometheus' rules and Grafana's dashboard: valid, true to /metrics, tried on made-up series and by Prometheus."""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from oscine.server.app import build_app
from oscine.server.middleware import AllowedHosts
from oscine.types import EngineStatus, TickHistogram
from tests.conftest import ROOT, require_environment, require_program
from tests.deploy.proxies import free_port, replaced
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import eventually, serving

pytestmark = pytest.mark.slow

PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = PROMETHEUS / "rules.yml"
RULES_TEST = Path(__file__).with_name("rules_test.yml")
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = GRAFANA / "dashboards" / "oscine.json"
ADDED_BY_PROMETHEUS = {"instance", "job"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[str]:
    return [rule["alert"] for rule in rules() if "alert" in rule]


def dashboard_queries() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [query.replace("$__rate_interval", "1m").replace("$instance", ".*") for query in queries]


def linters_python() -> Path:
    return require_environment("linters", "the checkers of deploy/ are") / "bin" / "python"


class BusyEngine(ScriptedEngine):
    """Reports ticks of 10 ms, and figures of the prefix cache."""

    def status(self) -> EngineStatus:
        counts = [0] * len(TickHistogram().counts)
        ticks = int(100 * time.monotonic())
        counts[4] = ticks
        histogram = TickHistogram(tuple(counts), ticks * 0.01)
        return replace(super().status(), ticks=histogram, prefix_hits=ticks, prefix_misses=ticks, memory_bytes=2**30)


@pytest.fixture
def server() -> Iterator[httpx.Client]:
    """Has answered, and refused a request because it was full."""
    engine = BusyEngine()
    with (
        serving(build_app(engine, CARD)) as url,
        httpx.Client(base_url=url, timeout=600, trust_env=False) as client,
    ):
        engine.slots = engine.queue = 0
        assert speak(client) == 429
        engine.slots = engine.queue = 8
        assert speak(client) == 200
        yield client
    engine.stop()


def speak(client: httpx.Client) -> int:
    return client.post("/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"}).status_code


def test_prometheus_accepts_its_configuration_and_rules() -> None:
    for what, file in (("config", PROMETHEUS / "prometheus.yml"), ("rules", RULES)):
        command = [require_program("promtool", "prometheus"), "check", what, str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_on_a_series_made_for_it_and_a_healthy_server_fires_none() -> None:
    command = [require_program("promtool", "prometheus"), "test", "rules", str(RULES_TEST)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = yaml.safe_load(RULES_TEST.read_text(encoding="utf-8"))["tests"]
    fired = {one["alertname"] for case in cases for one in case.get("alert_rule_test", []) if one["exp_alerts"]}
    assert fired == set(alerts())


def test_the_page_of_alerts_has_a_section_for_each_and_no_other() -> None:
    page = (ROOT / "docs" / "deploy" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (Oscine\w+)$", page, re.MULTILINE) == alerts()


def test_queries_use_metrics_and_labels_that_the_server_exports(server: httpx.Client) -> None:
    exported: dict[str, set[str]] = {"up": set()}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            exported.setdefault(sample.name, set()).update(sample.labels)
    recorded = {rule["record"]: set[str]() for rule in rules() if "record" in rule}
    queries = [rule["expr"] for rule in rules()] + dashboard_queries()
    script = Path(__file__).with_name("promql.py")
    done = subprocess.run([linters_python(), script], input=json.dumps(queries), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for query, used in zip(queries, json.loads(done.stdout), strict=True):
        known = exported | recorded
        assert set(used["metrics"]) <= known.keys(), query
        labels = ADDED_BY_PROMETHEUS.union(*(known[name] for name in used["metrics"]))
        assert set(used["labels"]) <= labels, query


def test_the_dashboard_is_the_one_that_grafanas_own_builders_write() -> None:
    command = [linters_python(), ROOT / "tools" / "grafana_dashboard.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_server_answers_to_the_name_that_prometheus_uses() -> None:
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    assert target in AllowedHosts("0.0.0.0", (), has_keys=False)  # the image listens on all addresses


def test_grafana_finds_the_files_that_it_is_told_of() -> None:
    """Under the paths that deploy/compose.yaml mounts."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    mounts = dict(volume.split(":")[:2][::-1] for volume in compose["services"]["grafana"]["volumes"])
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "oscine.yml").read_text(encoding="utf-8"))
    folder = ROOT / "deploy" / mounts[provider["providers"][0]["options"]["path"]]
    assert [file.name for file in folder.iterdir()] == ["oscine.json"]
    assert (ROOT / "deploy" / mounts["/etc/grafana/provisioning"] / "datasources" / "prometheus.yml").exists()


@contextlib.contextmanager
def prometheus(target: str, folder: Path) -> Iterator[httpx.Client]:
    """Runs with the configuration in deploy/, but for the target and the interval."""
    program, port = require_program("prometheus", "prometheus"), free_port()
    text = replaced(
        (PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"),
        ("oscine:8000", target.removeprefix("http://")),
        ("scrape_interval: 5s", "scrape_interval: 1s"),
        ("evaluation_interval: 5s", "evaluation_interval: 1s"),
    )
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    (folder / "rules.yml").write_text(RULES.read_text(encoding="utf-8"), encoding="utf-8")
    command = [program, "--config.file", "prometheus.yml", "--storage.tsdb.path", "data"]
    with open(folder / "log", "w+b") as log:
        process = subprocess.Popen(
            [*command, "--web.listen-address", f"127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as client:
                eventually(lambda: process.poll() is not None or is_ready(client))
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
                yield client
        finally:
            process.terminate()
            process.wait(600)


def is_ready(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/-/ready").status_code == 200
    return False


def test_a_real_prometheus_answers_every_query_of_the_dashboard(server: httpx.Client, tmp_path: Path) -> None:
    with prometheus(str(server.base_url).rstrip("/"), tmp_path) as client:

        def without_data() -> list[str]:
            answers = {query: client.get("/api/v1/query", params={"query": query}) for query in dashboard_queries()}
            return [query for query, answer in answers.items() if not answer.json()["data"]["result"]]

        # Rates need two scrapes with speech between them.
        with contextlib.suppress(AssertionError):
            eventually(lambda: speak(server) == 200 and not without_data())
        assert without_data() == []
        groups = client.get("/api/v1/rules").json()["data"]["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        assert {rule["name"] for group in groups for rule in group["rules"] if rule["type"] == "alerting"} == {
            *alerts()
        }
