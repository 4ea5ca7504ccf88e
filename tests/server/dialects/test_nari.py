"""WS /v1/audio/speech/ws over real sockets: the protocol `nari.speech.v1` of nari-qwen3-tts."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.typing import Subprotocol

from oscine.config import ServerConfig
from tests.server.live.live_client import Client, Server, server_of
from tests.server.scripted_engine import RATE_HZ, ScriptedEngine, spoken

PATH = "/v1/audio/speech/ws"
OFFER = {"subprotocols": [Subprotocol("nari.speech.v1")]}
AUDIO = {"encoding": "pcm_s16le", "sample_rate": RATE_HZ, "channels": 1}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(segment_chars=60, max_text_chars=100)) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def client(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Iterator[Client]:
    """Past session.created."""
    with running[1].client(PATH, **OFFER) as client:
        assert client.subprotocol == "nari.speech.v1"
        created = client.until("session.created").events[-1]
        assert created == {"type": "session.created", "protocol": "nari.speech.v1", "audio": AUDIO}
        yield client


def start(client: Client, **fields: Any) -> dict[str, Any]:
    """Returns the answer."""
    client.send("request.start", **fields)
    return client.until("request.configured", "error").events[-1]


def test_a_text_in_pieces_is_spoken_and_the_connection_closed(client: Client) -> None:
    assert start(client, voice="finch", language="english", seed=3) == {"type": "request.configured"}
    for number, piece in enumerate("Hello"):
        client.send("input_text.append", sequence=number, text=piece)
    client.send("input_text.end", sequence=5)
    code, received = client.closed()
    assert code == 1000 and received.sound == spoken("Hello", 3, "finch")
    acks = received.all("input_text.ack")
    assert [(ack["event"], ack["sequence"]) for ack in acks] == [
        *(("input_text.append", number) for number in range(5)),
        ("input_text.end", 5),
    ]
    started, done = received.one("response.started"), received.one("response.done")
    assert started["audio"] == AUDIO and started["request_id"] == done["request_id"] == acks[0]["request_id"]
    assert done["stop_reason"] == "stop" and received.kinds[-1] == "response.done"
    assert done["audio_chunks"] == sum(isinstance(message, bytes) for message in received.messages)


def test_text_is_spoken_before_its_end(client: Client, engine: ScriptedEngine) -> None:
    start(client, seed=3)
    client.send("input_text.append", sequence=0, text="Hel")
    client.receive_frames(2)
    assert [request.text for request in engine.requests] == ["Hel"]


@pytest.mark.parametrize("begun", [True, False])
def test_cancel_ends_the_response(client: Client, engine: ScriptedEngine, begun: bool) -> None:
    start(client)
    if begun:
        engine.max_frames = engine.status().frames + 3
        client.send("input_text.append", sequence=0, text="Never spoken to its end.")
        client.receive_frames(2)
    client.send("response.cancel")
    code, received = client.closed()
    assert code == 1000 and received.one("response.done")["stop_reason"] == "cancelled"


def test_a_misspelled_setting_gets_a_warning(client: Client) -> None:
    assert "did you mean 'voice'?" in start(client, voise="finch")["warning"]


def test_settings_of_nari_are_understood_or_named_as_ignored(client: Client, engine: ScriptedEngine) -> None:
    configured = start(
        client,
        model="scripted",
        instruct="slowly",
        do_sample=False,
        subtalker_top_k=7,
        skip_fixed_bootstrap_audio=True,
        stream_first_chunk_frames=4,
        response_format="pcm_s16le",
    )
    assert configured["ignored_fields"] == ["stream_first_chunk_frames"]
    client.send("input_text.append", sequence=0, text="Hello")
    client.send("input_text.end", sequence=1)
    client.closed()
    (request,) = engine.requests
    assert (request.instructions, request.greedy, request.subtalker_top_k) == ("slowly", True, 7)


APPEND = {"type": "input_text.append", "sequence": 0, "text": "Hello"}
END = {"type": "input_text.end", "sequence": 0}


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [
        ({**APPEND, "sequence": 1}, 1008, "sequence must be 0"),
        ({**APPEND, "text": ""}, 1008, "at least 1"),
        ({**APPEND, "text": "!refuse"}, 1008, "refuse"),
        ({**APPEND, "text": "Hello!break"}, 1013, "engine failed"),
        ({**APPEND, "text": "a" * 101}, 1009, "limit of 100"),
        (END, 1008, "no words"),
        ({"type": "input_text.flush"}, 1008, "did you mean 'input_text.end'"),
        ({"type": "request.start"}, 1008, "twice"),
    ],
)
def test_every_error_ends_the_connection(client: Client, message: dict[str, Any], code: int, said: str) -> None:
    start(client)
    client.send_raw(json.dumps(message))
    closed, received = client.closed()
    assert closed == code and received.kinds[-1] == "error"
    assert said in received.one("error")["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "wrem"}, "voice"),
        ({"response_format": "mp3"}, "response_format"),
        ({"instruct": "a", "instructions": "b"}, "instruct"),
        ({"instruction": "a", "instruct": "a"}, "instruction"),
        ({"top_k": "many"}, "top_k"),
    ],
)
def test_wrong_settings_end_the_connection(client: Client, fields: dict[str, Any], param: str) -> None:
    assert start(client, **fields)["error"]["param"] == param
    assert client.closed()[0] == 1008


def test_text_before_the_settings_is_refused(client: Client) -> None:
    client.send("input_text.append", sequence=0, text="Hello")
    code, received = client.closed()
    assert code == 1008 and "request.start" in received.one("error")["error"]["message"]


def test_the_subprotocol_is_required(running: tuple[ScriptedEngine, Server]) -> None:
    with running[1].client(PATH) as client:
        code, received = client.closed()
        assert code == 1002 and "nari.speech.v1" in received.one("error")["error"]["message"]
