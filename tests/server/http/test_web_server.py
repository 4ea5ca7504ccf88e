"""The web server as a whole: how it ends."""

import signal
from collections.abc import Iterator

import pytest

from oscine.config import ServerConfig
from oscine.errors import EngineError
from oscine.server.app import build_app
from oscine.server.http.listener import bind
from oscine.server.http.web_server import WebServer
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
