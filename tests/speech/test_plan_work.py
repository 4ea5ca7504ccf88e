"""Planning a request costs little, counted in calls: seconds would depend on the machine."""

import asyncio
import json

import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.schemas import SpeechBody
from tests.manual_engine import ManualEngine
from tests.server.scripted_engine import CARD
from tests.text.test_work import calls

MAX_CALLS = 380  # of Python and C functions: 355, which take 115 us; benchmarks/planning.py measures them


@pytest.mark.parametrize("text", ["Hello there.", "I never said that it would be easy. Take a deep breath. " * 4])
def test_planning_a_plain_request_takes_few_calls_however_long_its_text(text: str) -> None:
    service = build_app(ManualEngine(), CARD, ServerConfig()).state.service
    data = json.dumps({"input": text, "voice": "wren", "stream": True})

    async def plan() -> None:
        body = SpeechBody.model_validate(json.loads(data))
        await service.plan(service.route(body, body.input), body, body.input)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.run_until_complete(plan())  # what is made once
        assert (made := calls(lambda: loop.run_until_complete(plan()))) < MAX_CALLS, made
