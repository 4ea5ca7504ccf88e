"""Refusals of the live WebSocket: missing keys, bad messages, a failing engine. Each gets an error event, and the
session continues where it can."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.typing import Subprotocol

from oscine.config import ServerConfig
from oscine.voice import Voice
from tests.server.live.live_client import Client, Server, server_of
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine, spoken
from tests.server.serving import eventually

SMALL = ServerConfig(
    segment_chars=60, max_text_chars=100, live_idle_s=1.0, stalled_s=1.0, api_keys=("sesame",), strict=True
)
KEY = {"additional_headers": {"Authorization": "Bearer sesame"}}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine(slots=1, queue=0)
    with server_of(engine, SMALL) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def engine(running: tuple[ScriptedEngine, Server]) -> Iterator[ScriptedEngine]:
    engine, server = running
    yield engine
    engine.ready = True
    server.service.draining = False
    eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


@pytest.fixture
def server(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Server:
    return running[1]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client(**KEY) as client:
        client.configure(seed=3)
        yield client


# --- connecting ---


def test_a_key_is_accepted_as_header_or_subprotocol(server: Server) -> None:
    authorized = ({"Authorization": f"{scheme} sesame"} for scheme in ("Bearer", "Api-Key"))
    for headers in (*authorized, {"xi-api-key": "sesame"}, {"X-API-Key": "sesame"}):
        with server.client(additional_headers=headers) as client:
            assert client.say("Hello.").kinds[-1] == "session.done"
    with server.client(subprotocols=[Subprotocol("oscine"), Subprotocol("bearer.sesame")]) as client:
        assert client.subprotocol == "oscine"
        assert client.say("Hello.").kinds[-1] == "session.done"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"additional_headers": {"Authorization": "Bearer sesam"}},
        {"subprotocols": [Subprotocol("oscine"), Subprotocol("bearer.no")]},
    ],
)
def test_without_a_valid_key_the_session_is_closed_with_an_error(server: Server, options: dict[str, Any]) -> None:
    with server.client(**options) as client:
        code, received = client.closed()
        assert code == 1008
        assert received.one("error")["error"]["code"] == "invalid_api_key"


def test_a_server_that_is_not_ready_says_when_to_retry(server: Server, engine: ScriptedEngine) -> None:
    engine.ready = False
    with server.client(**KEY) as client:
        code, received = client.closed()
        assert code == 1013
        assert received.one("error")["retry_after_s"] > 0


# --- settings ---


@pytest.mark.parametrize(
    "config",
    [
        '{"type": "session.config", "voice": "nobody"}',
        '{"type": "session.config", "speed": 9}',
        '{"type": "session.config", ',
    ],
)
def test_nothing_is_spoken_after_a_refused_first_configuration(
    server: Server, engine: ScriptedEngine, config: str
) -> None:
    submitted = len(engine.requests)
    with server.client(**KEY) as client:
        client.send_raw(config)
        refusal = client.until("error").one("error")
        received = client.say("Hello.", " And more.")
        assert received.kinds == ["error", "session.done"] and not received.sound
        error = received.one("error")
        assert error["utterance_index"] == 0 and error["error"]["code"] == "not_configured"
        assert refusal["message"] in error["message"] and received.one("session.done")["total_sentences"] == 0
        assert len(engine.requests) == submitted
        client.configure(seed=3)
        assert client.say("Hello.").sound == spoken("Hello.", 3)


def test_other_refused_messages_do_not_keep_the_defaults_from_speaking(server: Server) -> None:
    with server.client(**KEY) as client:
        for message in ("{", '{"type": "input.text", "text": "\\"session.config\\"", "text": 1}'):
            client.send_raw(message)
            client.until("error")
        assert client.say("Hello.").kinds == ["audio.start", "audio.done", "session.done"]


def test_an_utterance_that_began_before_a_refused_configuration_is_spoken(server: Server) -> None:
    with server.client(**KEY) as client:
        client.write("He")
        client.send("session.config", voice="nobody")
        client.until("error")
        assert client.say("llo.").kinds[-2:] == ["audio.done", "session.done"]


# --- messages ---


@pytest.mark.parametrize(
    ("message", "param", "said"),
    [
        ("{", None, "the message is not valid JSON"),
        ("[" * 60_000, None, "nested too deeply"),
        ("[" * 100_000, None, "commas, brackets and strings, the limit is 70000"),
        ("1" * 5000, None, "digits"),
        ("[1]", None, "JSON object"),
        (b"\x00\x01", None, "binary"),
        ({"text": "hello"}, "type", "type is missing"),
        ({"type": None}, "type", "type is missing"),
        ({"type": ["input.text"]}, "type", "possible"),
        ('{"type": ' + "[" * 900 + "]" * 900 + "}", "type", "possible"),
        ({"type": "input.txt"}, "type", "did you mean 'input.text'"),
        ({"type": "x" * 100_000}, "type", "possible"),
        ({"type": "input.text"}, "text", "missing"),
        ({"type": "input.text", "text": 5}, "text", "string"),
        ({"type": "input.text", "text": "\ud800"}, "text", "surrogate"),
        ({"type": "input.text", "text": "a\0b"}, "text", "NUL"),
        ({"type": "input.text", "text": "a", "txet": 1}, "txet", "did you mean 'text'"),
        ({"type": "input.text", "text": "a", "y" * 100_000: 1}, "y" * 80, "possible"),
        ({"type": "input.done", "now": True}, "now", "unknown field"),
        ({"type": "input.cancel", "played_s": -1}, "played_s", "greater"),
        ('{"type": "input.cancel", "played_s": NaN}', "played_s", "finite"),
        ({"type": "session.config", "vioce": "wren"}, "vioce", "did you mean 'voice'"),
        ({"type": "session.config", "voice": "wrem"}, "voice", "did you mean 'wren'"),
        ({"type": "session.config", "speed": 9}, "speed", "from 0.25 to 4"),
        ({"type": "session.config", "word_timestamps": True}, "word_timestamps", "need an aligner"),
        ({"type": "session.config", "timestamp_type": "word"}, "timestamp_type", "need an aligner"),
        ({"type": "session.config", "response_format": "opus", "sample_rate": 44100}, "sample_rate", "opus"),
        ({"type": "session.config", "ref_audio": "data:audio/wav;base64,AAAA"}, "ref_audio", "cannot clone"),
        ({"type": "session.config", "language": "klingon"}, "language", "possible: auto, chinese, english"),
        ({"type": "session.config", "instructions": "\0"}, "instructions", "NUL"),
        ({"type": "session.config", "instructions": "\ud800"}, "instructions", "unicode"),
        ({"type": "session.config", "instructions": " "}, "instructions", "white space"),
        ({"type": "session.config", "max_new_tokens": 1}, "max_new_tokens", "2"),
        ({"type": "session.config", "temperature": 1e9}, "temperature", "1e+06"),
        ({"type": "session.config", "repetition_penalty": 1e9}, "repetition_penalty", "1e+06"),
    ],
)
def test_a_bad_message_is_refused_and_the_session_continues(
    client: Client, message: Any, param: str | None, said: str
) -> None:
    client.write("He")
    client.send_raw(message if isinstance(message, str | bytes) else json.dumps(message))
    received = client.until("error")
    error = received.events[-1]
    assert "utterance_index" not in error
    assert error["error"]["param"] == param
    assert said in error["message"] and len(error["message"]) < 1100
    assert received.sound + client.say("llo").sound == spoken("Hello", 3)
    assert client.say("Next.").sound == spoken("Next.", 3)


def test_refused_settings_leave_the_previous_ones_in_place(client: Client) -> None:
    client.configure(seed=7, voice="finch")
    for wrong in ({"language": "klingon"}, {"max_new_tokens": 1}, {"temperature": 1e9}, {"voice": "nobody"}):
        assert client.configure(seed=8, **wrong)["type"] == "error"
    assert client.say("Hello.").sound == spoken("Hello.", 7, "finch")


def test_many_unknown_fields_give_one_short_error() -> None:
    many = ",".join(f'"{number:x}":1' for number in range(30_000))
    engine = ScriptedEngine()
    with server_of(engine) as server, server.client() as client:
        client.send_raw('{"type":"session.config",' + many + "}")
        message = client.until("error").events[-1]["message"]
        assert message.startswith("there are 30000 unknown fields, such as '0'") and len(message) < 1000
    engine.stop()


def test_too_many_bad_messages_in_a_row_end_the_session(client: Client) -> None:
    for _ in range(150):
        client.send_raw("noise")
    code, received = client.closed()
    assert code == 1008
    assert len(received.events) == 101 and received.events[-1]["error"]["code"] == "too_many_errors"


@pytest.mark.parametrize("message", ['{"type": "input.text", "text": "' + "é" * 2**21 + '"}', bytes(2**22 + 1)])
def test_an_oversized_message_ends_the_session(client: Client, message: str | bytes) -> None:
    client.send_raw(message)
    code, received = client.closed()
    assert code == 1009
    assert received.events[-1]["error"]["code"] == "too_large"


def test_a_piece_of_text_beyond_the_limit_is_refused(client: Client, engine: ScriptedEngine) -> None:
    engine.max_frames = engine.status().frames + 3
    client.write("a" * 60, "b" * 50, "c" * 40)
    error = client.until("error").events[-1]
    assert error["error"]["code"] == "too_large" and "50" in error["message"]
    engine.max_frames = float("inf")
    client.send("input.done")
    received = client.until("session.done")
    assert "".join(segment["text"] for segment in received.all("audio.segment")) == "a" * 60 + "c" * 40
    assert client.say("d" * 100).kinds[-1] == "session.done"  # spoken text does not count


# --- engine failures ---


def test_the_rest_of_a_refused_utterance_is_dropped_and_the_next_one_is_spoken(client: Client) -> None:
    client.write("!refuse")
    error = client.until("error").events[-1]
    assert error["utterance_index"] == 0 and error["error"]["param"] == "input"
    received = client.say("the rest of it")
    assert received.kinds == ["session.done"] and not received.sound
    assert client.say("Next.").sound == spoken("Next.", 3)


def test_an_engine_failure_ends_the_utterance_but_not_the_session(client: Client) -> None:
    received = client.say("Hello!break")
    assert received.sound.startswith(spoken("Hell", 3))
    assert received.kinds == ["audio.start", "error", "audio.done", "session.done"]
    assert received.one("error")["error"]["code"] == "engine_failed"
    assert received.one("audio.done")["error"] is True and received.one("audio.done")["finish_reason"] == "error"
    assert client.say("Next.").sound == spoken("Next.", 3)


def test_an_overloaded_engine_says_when_to_retry(server: Server, client: Client) -> None:
    with server.client(**KEY) as other:
        other.write("Hello")
        other.receive_frames(3)
        received = client.say("Me too.")
        assert received.kinds == ["error", "session.done"]
        assert received.events[0]["error"]["code"] == "overloaded" and received.events[0]["retry_after_s"] == 2.5
        other.cancel()
    assert client.say("Me too.").sound == spoken("Me too.", 3)


def test_a_restarting_engine_refuses_utterances_but_keeps_sessions(client: Client, engine: ScriptedEngine) -> None:
    engine.ready = False
    assert client.say("Hello.").one("error")["error"]["code"] == "not_ready"
    engine.ready = True
    assert client.say("Hello.").sound == spoken("Hello.", 3)


def test_a_base_checkpoint_speaks_with_an_embedding() -> None:
    engine = ScriptedEngine()
    with server_of(engine, card=BASE_CARD) as server, server.client() as client:
        assert client.configure(speaker_embedding=[0.5] * 7)["error"]["param"] == "speaker_embedding"
        client.configure(speaker_embedding=[0.5] * 8, seed=3)
        assert client.say("Hello.").sound == spoken("Hello.", 3, Voice.from_embedding([0.5] * 8))
    engine.stop()


def test_an_internal_error_is_reported_logged_and_ends_the_session(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server.service.planner, "plan", lambda *_, **__: 1 / 0)
    client.send("session.config")
    code, received = client.closed()
    assert code == 1011 and received.one("error")["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


# --- limits and closing ---


def test_the_streams_of_a_key_are_limited() -> None:
    engine = ScriptedEngine()
    config = ServerConfig(streams_per_key=1)
    with server_of(engine, config) as server, server.client() as one, server.client() as other:
        one.write("Hello")
        one.receive_frames(3)
        assert other.say("Hello.").one("error")["error"]["code"] == "too_many_streams"
        one.say()
        assert other.say("Hello.").kinds[-1] == "session.done"
    engine.stop()


def test_an_idle_session_is_closed(client: Client, engine: ScriptedEngine) -> None:
    client.write("Hello")  # its text never ends
    code, received = client.closed()
    assert code == 4408
    assert received.events[-1]["error"]["code"] == "idle_timeout"
    assert len(received.sound) > 0
    eventually(lambda: engine.status().slots_active == 0)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    engine = ScriptedEngine()
    with (
        server_of(engine, ServerConfig(stalled_s=1.0)) as server,
        server.client(max_queue=1, close_timeout=0.1) as client,
    ):
        client.write("word " * 2000)  # 38 MB: more than the buffers on the way hold
        eventually(lambda: server.service.streams == 1)
        eventually(lambda: server.service.streams == 0)
        assert engine.status().frames < 10_000
    engine.stop()


def test_a_draining_server_finishes_the_utterance_and_closes(server: Server, client: Client) -> None:
    client.write("Hel")
    client.receive_frames(2)
    server.service.draining = True
    client.write("lo.")
    client.send("input.done")
    client.write("Not this.")
    code, received = client.closed()
    assert code == 1013
    assert received.one("audio.done")["finish_reason"] == "stop" and received.one("audio.done")["utterance_index"] == 0
    assert received.events[-1]["error"]["code"] == "not_ready" and received.events[-1]["retry_after_s"] > 0


def test_a_draining_server_closes_idle_sessions(server: Server, client: Client) -> None:
    server.service.draining = True
    assert client.closed()[0] == 1013
