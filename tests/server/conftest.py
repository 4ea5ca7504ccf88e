import logging
from collections.abc import Iterator

import pytest

from tests.server.scripted_engine import ScriptedEngine


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.stop()


@pytest.fixture(autouse=True)
def _no_bugs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test whose server logged an unexpected exception."""
    yield
    records = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
    bugs = [record for record in records if record.levelno >= logging.ERROR]
    assert not bugs, [record.getMessage() for record in bugs]
