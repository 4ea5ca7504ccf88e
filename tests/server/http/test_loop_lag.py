import asyncio
import re
import time

import pytest

from oscine.server.http.metrics import INTERVAL_S, watch_loop_lag
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import client_of, eventually


def test_a_callback_that_holds_the_loop_is_observed() -> None:
    lags: list[float] = []

    async def hold() -> None:
        watching = asyncio.create_task(watch_loop_lag(lags.append))
        await asyncio.sleep(0)
        time.sleep(0.2)
        while not lags:
            await asyncio.sleep(0.001)
        watching.cancel()

    asyncio.run(hold())
    assert lags[0] >= 0.2 - INTERVAL_S


def test_the_lag_is_a_metric(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:

        def count() -> float:
            found = re.search(r"^oscine_loop_lag_seconds_count (\S+)", client.get("/metrics").text, re.MULTILINE)
            return float(found[1]) if found else pytest.fail("no such metric")

        eventually(lambda: count() > 2)
