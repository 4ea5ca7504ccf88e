"""A port for the state of one process: /metrics, /health, /ready and /version. For deployments whose requests arrive
through a proxy that chooses among several processes, because a proxy cannot be asked for one process's metrics."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable

import uvicorn

from oscine.errors import ConfigError
from oscine.server.app import build_status_app
from oscine.server.http.listener import bind
from oscine.server.http.web_server import uvicorn_config
from oscine.server.service import Service


class StatusServer:
    """Made on the event loop of the service. Listens on the first free port of `ports`; raises ConfigError if none is
    free."""

    def __init__(self, service: Service, host: str, ports: Iterable[int]) -> None:
        listener = _bind_first_free(host, ports)
        self.port: int = listener.getsockname()[1]
        self._server = _Server(uvicorn_config(build_status_app(service), ws="none", lifespan="off"))
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))

    async def close(self) -> None:
        self._server.should_exit = True
        await self._serving


class _Server(uvicorn.Server):
    def capture_signals(self) -> contextlib.nullcontext[None]:  # type: ignore[override]
        """Signals belong to the host of this process."""
        return contextlib.nullcontext()


def _bind_first_free(host: str, ports: Iterable[int]) -> socket.socket:
    error = ConfigError("no port is given")
    for port in ports:
        try:
            return bind(host, port)
        except ConfigError as taken:
            error = taken
    raise error
