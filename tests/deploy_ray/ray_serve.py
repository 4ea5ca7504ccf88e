"""Ray Serve with one application, on a Ray instance of its own: deploys, and looks at the replicas."""

import contextlib
import json
import os
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

METRICS_PORTS = range(19400, 19500)
_START_S = 600.0  # a safety net only
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray's own ports on the loopback interface
    "RAY_worker_niceness": "0",  # as docs/deploy/ray.md advises
    # How long Ray waits for its own processes.
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
}
_Value = TypeVar("_Value")


def eventually(condition: Callable[[], _Value], within_s: float = 300.0) -> _Value:
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


class RayServe:
    """`application` is written as in a Serve config file."""

    def __init__(self, python: Path, folder: Path, application: dict[str, Any], key: str) -> None:
        self._key = key
        self._http_options = {"host": "127.0.0.1", "port": _free_port()}
        self.url = f"http://127.0.0.1:{self._http_options['port']}"
        file, self._log = folder / "serve.yaml", folder / "serve.log"
        file.write_text(json.dumps(self._config(application)), encoding="utf-8")  # JSON is YAML
        with contextlib.ExitStack() as undo:
            # Ray's sockets lie in this folder, and a socket's path has at most 107 characters.
            temporary = undo.enter_context(
                tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)
            )
            environment = {"RAY_TMPDIR": temporary, "RAY_AUTH_TOKEN": secrets.token_hex(32), **_ENVIRONMENT}
            self._process = subprocess.Popen(
                [str(python), str(Path(__file__).with_name("ray_process.py")), str(file)],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=undo.enter_context(open(self._log, "wb")),
                text=True,
            )
            undo.enter_context(self._process)  # waits for its end
            undo.callback(self._process.terminate)  # ends everything that Ray has started, too
            self._ask({})
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def deploy(self, application: dict[str, Any]) -> None:
        """Deploys as `serve deploy` does."""
        self._ask({"deploy": self._config(application)})

    def replicas(self, *states: str) -> list[ReplicaDetails]:
        """Those in one of the states, or in any."""
        return [one for one in _replicas(self._ask({})) if not states or one.state in states]

    def wait_running(self, count: int) -> list[ReplicaDetails]:
        """Waits until the last deployment is complete, this many replicas run, and no other exists."""

        def all_running() -> list[ReplicaDetails]:
            application = self._ask({})
            replicas = _replicas(application)
            complete = application["status"] == "RUNNING" and {one.state for one in replicas} == {"RUNNING"}
            return replicas if complete and len(replicas) == count else []

        return eventually(all_running, _START_S)

    def figures(self, replica: ReplicaDetails) -> Figures:
        """Its metrics, from the port that only this replica listens on."""
        headers = {"authorization": f"Bearer {self._key}"}
        page = httpx.get(f"{status_url(replica)}/metrics", headers=headers, timeout=600, trust_env=False)
        return Figures(page.raise_for_status().text)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The application's details."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
        (application,) = json.loads(answer).values()
        return dict(application)

    def _config(self, application: dict[str, Any]) -> dict[str, Any]:
        return {"http_options": self._http_options, "applications": [application]}


def _replicas(application: dict[str, Any]) -> list[ReplicaDetails]:
    found = application["deployments"].get("Oscine", {}).get("replicas", [])
    return [ReplicaDetails(one["replica_id"], one["state"], one.get("pid")) for one in found]


def status_url(replica: ReplicaDetails) -> str:
    listening = [one.laddr for one in psutil.Process(replica.pid).net_connections("tcp") if one.status == "LISTEN"]
    (port,) = {address.port for address in listening if address.port in METRICS_PORTS}
    return f"http://127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
