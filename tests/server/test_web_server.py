"""The web server as a whole: how it ends, and the port for the state of one process."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.errors import ConfigError, EngineError
from oscine.server.app import build_app
from oscine.server.http.listener import bind
from oscine.server.service import Service
from oscine.server.web_server import StatusServer, WebServer
from oscine.types import EngineHealth
from tests.server.scripted_engine import CARD, ScriptedEngine


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """A server that ends ignores further interrupts."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_server_ends_with_its_engine_if_it_should(engine: ScriptedEngine) -> None:
    checks = 0

    def health() -> EngineHealth:
        nonlocal checks
        checks += 1
        return EngineHealth("ready") if checks < 3 else EngineHealth("failed", restarts=6, last_reason="no memory")

    server = WebServer(build_app(engine, CARD, ServerConfig(exit_on_failure=True), health))
    with pytest.raises(EngineError, match="the engine has failed: no memory"):
        server.run_until_stopped(bind("127.0.0.1", 0))


ANY = [0]


@contextlib.asynccontextmanager
async def status_server(service: Service, ports: list[int]) -> AsyncIterator[StatusServer]:
    server = StatusServer(service, "127.0.0.1", ports)
    yield server
    await server.close()


async def get(server: StatusServer, path: str, key: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=600) as client:
        return await client.get(f"http://127.0.0.1:{server.port}{path}")


def service_of(engine: ScriptedEngine) -> Service:
    return build_app(engine, CARD, ServerConfig(api_keys=("sesame",))).state.service  # type: ignore[no-any-return]


def test_it_shows_the_state_and_nothing_else(engine: ScriptedEngine) -> None:
    async def look() -> None:
        async with status_server(service_of(engine), ANY) as server:
            assert "oscine_slots_active" in (await get(server, "/metrics", "sesame")).text
            assert (await get(server, "/metrics")).json()["error"]["code"] == "invalid_api_key"
            assert (await get(server, "/ready")).json()["ready"]
            assert (await get(server, "/health")).status_code == (await get(server, "/version")).status_code == 200
            assert (await get(server, "/v1/audio/speech", "sesame")).json()["error"]["code"] == "not_found"
        with pytest.raises(httpx.ConnectError):
            await get(server, "/health")

    asyncio.run(look())


def test_the_next_port_is_taken_if_one_is_not_free(engine: ScriptedEngine) -> None:
    async def look() -> None:
        service = service_of(engine)
        async with status_server(service, ANY) as first:
            async with status_server(service, [first.port, 0]) as second:
                assert second.port != first.port
                assert (await get(second, "/health")).status_code == 200
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{first.port}"):
                StatusServer(service, "127.0.0.1", [first.port])

    asyncio.run(look())
