"""A real server on a loopback port, in a thread."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import uvicorn.server
from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.web_server import uvicorn_config
from oscine.types import EngineHealth, ModelCard, SpeechEngine

_WAIT_S = 600.0  # only a failing test waits this long


class _PromptAsyncio:
    """Uvicorn checks every 100 ms whether to stop, and sleeps as long when it stops. With hundreds of servers that is
    a minute of waiting."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(min(delay_s, 0.005))


uvicorn.server.asyncio = _PromptAsyncio()  # type: ignore[assignment]


@contextlib.contextmanager
def serving(app: FastAPI, **options: Any) -> Iterator[str]:
    """The base URL while it runs. `options` are uvicorn's. A client on a busy machine may answer pings late."""
    defaults = {"host": "127.0.0.1", "port": 0, "timeout_graceful_shutdown": 1, "ws_ping_timeout": _WAIT_S}
    server = uvicorn.Server(uvicorn_config(app, **{**defaults, **options}))
    thread = threading.Thread(target=server.run, name="test-server", daemon=True)
    thread.start()
    eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(600)


@contextlib.contextmanager
def client_of(
    engine: SpeechEngine,
    card: ModelCard,
    config: ServerConfig | None = None,
    health: Callable[[], EngineHealth] | None = None,
) -> Iterator[httpx.Client]:
    with client_of_app(build_app(engine, card, config, health)) as client:
        yield client


@contextlib.contextmanager
def client_of_app(app: FastAPI) -> Iterator[httpx.Client]:
    # Without `verify`, httpx loads all certificates of authorities, although there is no TLS.
    with serving(app) as url, httpx.Client(base_url=url, timeout=600, trust_env=False, verify=False) as client:
        yield client


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never became true"
        time.sleep(0.005)
