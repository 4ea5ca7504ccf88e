"""`serve run FILE` on a Ray instance of its own: starts it, changes what is deployed, looks at the replicas."""

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from benchmarks.server_process import Figures

START_S = 300.0  # a safety net only
METRICS_PORTS = range(19400, 19500)
# How long Ray waits for its own parts.
_PATIENCE = {
    "RAY_raylet_start_wait_time_s": f"{START_S:.0f}",
    "RAY_agent_register_timeout_ms": f"{1000 * START_S:.0f}",
    "RAY_worker_register_timeout_seconds": f"{START_S:.0f}",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": f"{START_S:.0f}",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": f"{START_S:.0f}",
}
_STARTED = re.compile(r"View the dashboard at \S*?(http://[\d.]+:\d+).*Submitted deploy config", re.DOTALL)
_Value = TypeVar("_Value")


def eventually(condition: Callable[[], _Value], within_s: float = 120.0) -> _Value:
    """The first true value of the condition."""
    deadline_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "the condition never became true"
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class ReplicaDetails:
    replica_id: str
    state: str  # STARTING, RUNNING, STOPPING
    pid: int | None


class ServeRun:
    """One application, which is written as in a Serve config file."""

    def __init__(self, serve: Path, folder: Path, application: dict[str, Any], key: str) -> None:
        self._key, token = key, secrets.token_hex(32)
        self._http_options = {"host": "127.0.0.1", "port": _free_port()}
        self.url = f"http://127.0.0.1:{self._http_options['port']}"
        file, self._log = folder / "serve.yaml", folder / "serve.log"
        file.write_text(json.dumps(self._config(application)), encoding="utf-8")  # JSON is YAML
        with contextlib.ExitStack() as undo:
            # Ray's sockets lie in this folder, and a socket's path has at most 107 characters.
            temporary = undo.enter_context(tempfile.TemporaryDirectory(prefix="ray", dir="/tmp"))
            environment = {
                **os.environ,
                **_PATIENCE,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": token,
                "RAY_TMPDIR": temporary,
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray's own ports on the loopback interface
            }
            log = undo.enter_context(open(self._log, "wb"))
            self._process = subprocess.Popen(
                [str(serve), "run", str(file)], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            undo.callback(self._end)
            dashboard, headers = eventually(self._dashboard_url, START_S), {"authorization": f"Bearer {token}"}
            self._dashboard = undo.enter_context(
                httpx.Client(base_url=dashboard, headers=headers, timeout=60, trust_env=False)
            )
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def deploy(self, application: dict[str, Any]) -> None:
        """As `serve deploy` does."""
        self._dashboard.put("/api/serve/applications/", json=self._config(application)).raise_for_status()

    def replicas(self, *states: str) -> list[ReplicaDetails]:
        """Those in one of the states, or in any."""
        replicas = self._application()["deployments"].get("Oscine", {}).get("replicas", [])
        found = [ReplicaDetails(one["replica_id"], one["state"], one.get("pid")) for one in replicas]
        return [one for one in found if not states or one.state in states]

    def wait_running(self, count: int) -> list[ReplicaDetails]:
        """Waits until the last deployment is complete, this many replicas run, and no other exists."""

        def all_running() -> list[ReplicaDetails]:
            self._check_running()
            complete, replicas = self._application()["status"] == "RUNNING", self.replicas()
            return replicas if complete and [one.state for one in replicas] == ["RUNNING"] * count else []

        return eventually(all_running, START_S)

    def figures(self, replica: ReplicaDetails) -> Figures:
        """Its metrics, from the port that only this replica listens on."""
        headers = {"authorization": f"Bearer {self._key}"}
        page = httpx.get(f"{status_url(replica)}/metrics", headers=headers, timeout=60, trust_env=False)
        return Figures(page.raise_for_status().text)

    def _application(self) -> dict[str, Any]:
        found = self._dashboard.get("/api/serve/applications/").raise_for_status().json()["applications"]
        (application,) = found.values()
        return dict(application)

    def _config(self, application: dict[str, Any]) -> dict[str, Any]:
        return {"http_options": self._http_options, "applications": [application]}

    def _dashboard_url(self) -> str | None:
        self._check_running()
        found = _STARTED.search(self._log.read_text(encoding="utf-8", errors="replace"))
        return found and found[1]

    def _check_running(self) -> None:
        assert self._process.poll() is None, self._log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def _end(self) -> None:
        self._process.terminate()  # ends everything that Ray has started, too
        self._process.wait(60)


def status_url(replica: ReplicaDetails) -> str:
    listening = [one.laddr for one in psutil.Process(replica.pid).net_connections("tcp") if one.status == "LISTEN"]
    (port,) = {address.port for address in listening if address.port in METRICS_PORTS}
    return f"http://127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
