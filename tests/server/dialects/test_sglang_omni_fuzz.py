"""Any messages in any order, in SGLang-Omni's protocol: every sentence is done and counted, every commit is answered,
and the engine ends up idle."""

import contextlib
import json
import logging
import random
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.live.live_client import Received, Server
from tests.server.live.test_live_session_fuzz import BROKEN, PIECES, VALUES
from tests.server.scripted_engine import ScriptedEngine
from tests.server.serving import eventually

pytestmark = pytest.mark.slow

SETTINGS: list[dict[str, Any]] = [
    {},
    {"stream_audio": True},
    {"split_granularity": "clause", "response_format": "WAV"},
    {"split_granularity": "none", "stream_audio": True},
    {"max_new_tokens": 4, "stream_audio": True},
    {"paragraph_pause_s": 0.5},
]
TEXTS = [*PIECES, "Hi.", "3.", "Dr.", "Yes, ", "。", "...", "\n\n", " and"]


def any_message(rng: random.Random) -> str | bytes:
    roll = rng.random()
    if roll < 0.75:
        message: dict[str, Any] = {"type": "input.text", "text": rng.choice(TEXTS)}
    elif roll < 0.9:
        message = {"type": "input.commit"}
    elif roll < 0.95:
        message = {"type": "session.config", "session": rng.choice([*SETTINGS, {"voice": "nobody"}])}
    else:
        return rng.choice(BROKEN)
    if rng.random() < 0.05:
        message[rng.choice(["text", "session", "type", "x"])] = rng.choice(VALUES)
    return json.dumps(message)


@pytest.mark.parametrize("seed", range(10))
def test_any_session_is_well_formed_and_leaves_nothing_behind(
    narrow: tuple[ScriptedEngine, Server], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine, server = narrow
    rng = random.Random(seed)
    engine.frame_s = rng.choice([0.0, 0.0005])
    with server.client(max_queue=None) as client, contextlib.suppress(ConnectionClosed):
        client.send("session.config", session=rng.choice(SETTINGS))
        for _ in range(rng.randint(1, 40)):
            client.send_raw(any_message(rng))
        if rng.random() < 0.75:
            client.send("input.done")
            check(*client.closed())
    # Otherwise the client disconnected in the middle.
    eventually(lambda: server.service.streams == 0)
    eventually(lambda: engine.status().slots_active + engine.status().queued == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def check(code: int, received: Received) -> None:
    assert code == 1000 and received.kinds[0] == "session.configured"
    sentences = commits = 0
    speaking = False
    for event in received.events:
        match event["type"]:
            case "audio.start":
                assert not speaking and event["sentence_index"] == sentences
                speaking = True
            case "audio.done":
                assert (speaking or event["error"]) and event["sentence_index"] == sentences
                speaking, sentences = False, sentences + 1
            case "input.committed":
                assert (event["segment_index"], event["total_sentences"]) == (commits, sentences)
                commits += 1
    assert received.kinds[-1] == "session.done" and received.events[-1]["total_sentences"] == sentences
    assert not speaking
