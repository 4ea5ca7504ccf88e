"""Each module says in `running` which server its clients talk to."""

from collections.abc import Iterator

import pytest

from oscine.config import ServerConfig
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import ScriptedEngine
from tests.server.serving import eventually


@pytest.fixture
def engine(running: tuple[ScriptedEngine, Server]) -> Iterator[ScriptedEngine]:
    engine, server = running
    engine.requests.clear()
    yield engine
    engine.max_frames = float("inf")
    eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


@pytest.fixture(scope="module")
def narrow() -> Iterator[tuple[ScriptedEngine, Server]]:
    """Small limits, which any messages reach soon."""
    engine = ScriptedEngine(slots=2, queue=2)
    with server_of(engine, ServerConfig(segment_chars=60, max_text_chars=300, live_pause_s=0.1)) as server:
        yield engine, server
    engine.stop()
