"""Any messages in any order, in Qwen's realtime protocol: the answers are well-formed, every response that was created
is done, and the engine ends up idle."""

import contextlib
import json
import logging
import random
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.dialects.realtime_client import PATH
from tests.server.live.live_client import Received, Server
from tests.server.live.test_live_session_fuzz import BROKEN, PIECES, VALUES
from tests.server.scripted_engine import ScriptedEngine
from tests.server.serving import eventually

pytestmark = pytest.mark.slow

SETTINGS: list[dict[str, Any]] = [
    {},
    {"mode": "commit"},
    {"mode": "server_commit", "voice": "Cherry"},
    {"response_format": "mp3", "speech_rate": 2.0},
    {"max_new_tokens": 4},
    {"voice": "nobody"},
    {"mode": "now"},
    {"language_type": "Klingon"},
    {"volume": 7, "sample_rate": 8000},
]
FIELDS = ["text", "session", "type", "event_id", "x"]
ENDS = {"completed", "incomplete", "cancelled", "failed"}


def any_message(rng: random.Random) -> str | bytes:
    roll = rng.random()
    if roll < 0.5:
        message: dict[str, Any] = {"type": "input_text_buffer.append", "text": rng.choice(PIECES)}
    elif roll < 0.85:
        kinds = ("input_text_buffer.commit", "input_text_buffer.clear", "response.cancel")
        message = {"type": rng.choice(kinds), "event_id": "event_1"}
    elif roll < 0.93:
        message = {"type": "session.update", "session": rng.choice(SETTINGS)}
    else:
        return rng.choice(BROKEN)
    if rng.random() < 0.1:
        message[rng.choice(FIELDS)] = rng.choice(VALUES)
    if rng.random() < 0.05:
        message = {
            "type": "session.update",
            "session": {rng.choice(["voice", "mode", "speech_rate"]): rng.choice(VALUES)},
        }
    return json.dumps(message)


@pytest.mark.parametrize("seed", range(20))
def test_any_session_is_well_formed_and_leaves_nothing_behind(
    narrow: tuple[ScriptedEngine, Server], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine, server = narrow
    rng = random.Random(seed)
    engine.frame_s = rng.choice([0.0, 0.0005])
    with server.client(PATH, max_queue=None) as client, contextlib.suppress(ConnectionClosed):
        for _ in range(rng.randint(1, 40)):
            client.send_raw(any_message(rng))
        if rng.random() < 0.75:
            client.send("session.finish")
            check(*client.closed())
    # Otherwise the client disconnected in the middle.
    eventually(lambda: server.service.streams == 0)
    eventually(lambda: engine.status().slots_active + engine.status().queued == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def check(code: int, received: Received) -> None:
    assert code in (1000, 1008), code
    assert received.kinds[0] == "session.created"
    assert (received.kinds[-1] == "session.finished") == (code == 1000)
    current: str | None = None  # the response between its creation and its end
    for event in received.events:
        match event["type"]:
            case "response.created":
                assert current is None
                current = event["response"]["id"]
            case "response.done":
                assert event["response"]["id"] == current and event["response"]["status"] in ENDS
                current = None
            case kind if kind.startswith("response."):
                assert event["response_id"] == current
    assert current is None or code != 1000
