"""Any messages in any order: the answers are well-formed and ordered, no bug is logged, and the engine ends up idle."""

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from oscine.config import ServerConfig
from tests.server.live.live_client import Received, Server, server_of
from tests.server.scripted_engine import ScriptedEngine
from tests.server.serving import eventually

pytestmark = pytest.mark.slow

PIECES = [
    "Hello",
    " ",
    "\n",
    "there. ",
    "你好。",
    "🙂",
    "!refuse",
    "!break",
    "!run",
    "\u0301",
    "a" * 90,
    "",
    "e.g. ",
    "…",
]
ODD_TEXTS = ["\0", "\ud83d", "\uffff", "\u202e", "x" * 3000]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    [],
    {},
    [[]],
    {"a": 1},
    *ODD_TEXTS,
]
FIELDS = ["text", "voice", "speed", "seed", "played_s", "utterance_index", "type", "response_format", "ref_audio", "x"]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"seed": 1, "voice": "finch"},
    {"response_format": "mp3", "speed": 2.0},
    {"response_format": "wav", "sample_rate": 8000},
    {"max_new_tokens": 4},
    {"max_new_tokens": 1},
    {"language": "klingon"},
    {"non_streaming_mode": True},
    {"split_granularity": "sentence", "events": ["session.ready", "audio.segment"]},
    {"split_granularity": "clause", "response_format": "flac", "stream_audio": False},
    {"task_type": "CustomVoice"},
    {"streaming_mode": "sentence_commit"},
    {"voice": "nobody"},
    {"extra_params": {"top_k": "x"}},
]
BROKEN: list[str | bytes] = ["", "{", "null", "[]", '"x"', "[" * 5000, "9" * 5000, "{}", b"", b"\xff\xfe", "\x00", "💥"]
EVENTS = {
    "session.ready": {"request_id", "response_format", "sample_rate"},
    "audio.start": {"utterance_index", "sentence_index", "sentence_text", "format", "sample_rate", "seed"},
    "audio.segment": {"utterance_index", "index", "text", "start_s", "end_s"},
    "audio.done": {"utterance_index", "sentence_index", "finish_reason", "total_bytes", "audio_seconds", "error"},
    "session.done": {"utterance_index", "total_sentences"},
    "input.committed": {"utterance_index", "commit_id", "sentence_index", "chars_committed"},
    "input.cancelled": {"utterance_index", "played_s", "spoken_text"},
    "error": {"message", "error"},
}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine(slots=2, queue=1)
    with server_of(engine, ServerConfig(segment_chars=50, max_text_chars=2000)) as server:
        yield engine, server
    engine.stop()


def any_message(rng: random.Random) -> str | bytes:
    def message(kind: str, **fields: Any) -> str:
        return json.dumps({"type": kind, **fields})

    match rng.choices(range(8), weights=[12, 5, 2, 2, 2, 2, 2, 0.2])[0]:
        case 0:
            return message("input.text", text="".join(rng.choices(PIECES, k=rng.randint(1, 4))))
        case 1:
            return message("input.done")
        case 2:
            return message(
                "input.cancel", **rng.choice([{}, {"played_s": rng.random()}, {"utterance_index": rng.randint(0, 9)}])
            )
        case 3:
            return message("session.config", **rng.choice(CONFIGS))
        case 4:
            return rng.choice(BROKEN)
        case 5:
            kind = rng.choice(["input.text", "input.cancel", "session.config", "input.done", "session.close", "x"])
            fields = {rng.choice(FIELDS): rng.choice(VALUES) for _ in range(rng.randint(1, 3))}
            return json.dumps({"type": kind, **fields})
        case 6:
            return message(
                "input.commit", **rng.choice([{}, {"commit_id": "one"}, {"commit_id": 2}, {"commit_id": []}])
            )
        case _:
            return rng.choice([message("session.close"), message("input.text", text="z" * 2**22), bytes(2**22 + 9)])


@pytest.mark.parametrize("seed", range(40))
def test_any_messages_in_any_order_get_well_formed_answers(running: tuple[ScriptedEngine, Server], seed: int) -> None:
    engine, server = running
    rng = random.Random(seed)
    engine.frame_s = rng.choice([0.0, 0.0005])
    with server.client(max_queue=None) as client, contextlib.suppress(ConnectionClosed):
        for _ in range(rng.randint(1, 40)):
            client.send_raw(any_message(rng))
        if rng.random() < 0.75:
            client.send("input.done")
            client.send("session.close")
            check(*client.closed())
    # Otherwise the client disconnected in the middle.
    eventually(lambda: server.service.streams == 0)
    eventually(lambda: engine.status().slots_active + engine.status().queued == 0)


def check(code: int, received: Received) -> None:
    assert code in (1000, 1008, 1009), code
    sounding: int | None = None  # the utterance between its start and its end
    files, over = Counter[int](), list[int]()  # files by utterance
    for message in received.messages:
        if isinstance(message, bytes):
            assert message and sounding is not None
            continue
        kind, index = message["type"], message.get("utterance_index")
        assert message.keys() >= EVENTS[kind], message
        match kind:
            case "audio.start":
                assert sounding is None and message["sentence_index"] == files[index]
                sounding = index
            case "audio.segment":
                assert index == sounding
            case "audio.done":
                assert sounding == index and message["sentence_index"] == files[index]
                files[index] += 1
                sounding = None
            case "session.done":
                assert sounding is None and message["total_sentences"] == files[index]
                over.append(index)
    assert over == list(range(len(over)))
    if code == 1000:
        assert set(files.elements()) <= set(over)
