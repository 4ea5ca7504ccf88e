"""A port for the state of one process: /metrics, /health, /ready and /version. For deployments whose requests arrive
through a proxy that chooses among several processes, because a proxy cannot be asked for one process's metrics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable

import uvicorn

from oscine.errors import ConfigError
from oscine.server.app import build_status_app
from oscine.server.http_protocol import BoundedHttpProtocol
from oscine.server.service import Service
from oscine.server.web_server import bind


class StatusServer:
    """Listens on the first free port of `ports`, on a thread of its own. Raises ConfigError if none is free."""

    def __init__(self, service: Service, host: str, ports: Iterable[int]) -> None:
        listener = _bind_first_free(host, ports)
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            build_status_app(service),
            http=BoundedHttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
        )
        self._server = uvicorn.Server(config)
        run = {"sockets": [listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=run, name="oscine-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


def _bind_first_free(host: str, ports: Iterable[int]) -> socket.socket:
    error = ConfigError("no port is given")
    for port in ports:
        try:
            return bind(host, port)
        except ConfigError as taken:
            error = taken
    raise error
