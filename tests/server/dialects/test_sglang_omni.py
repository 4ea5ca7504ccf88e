"""WS /v1/audio/speech/stream for clients of SGLang-Omni: the conversations that its tests hold, written anew."""

import io
import json
import wave
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.typing import Subprotocol

from oscine.config import ServerConfig
from tests.server.live.live_client import Client, Received, Server, server_of
from tests.server.scripted_engine import RATE_HZ, ScriptedEngine, spoken

STREAMED = {"response_format": "pcm", "stream_audio": True, "split_granularity": "sentence", "seed": 3}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(max_text_chars=200, live_pause_s=0.1)) as server:
        yield engine, server
    engine.stop()


@pytest.fixture(scope="module")
def set_server() -> Iterator[Server]:
    """Its operator says that clients speak SGLang-Omni's protocol."""
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(live_protocol="sglang-omni")) as server:
        yield server
    engine.stop()


@pytest.fixture
def client(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Iterator[Client]:
    with running[1].client() as client:
        yield client


def configure(client: Client, **session: Any) -> dict[str, Any]:
    """Returns the answer."""
    client.send("session.config", session=session)
    return client.until("session.configured", "error").events[-1]


def sentence(client: Client) -> tuple[dict[str, Any], bytes]:
    """The next messages are one sentence: its start and its audio."""
    received = client.until("audio.done")
    assert received.kinds == ["audio.start", "audio.done"]
    start, done = received.events
    assert (done["error"], done["total_bytes"]) == (False, len(received.sound))
    assert (done["id"], done["sentence_index"]) == (start["id"], start["sentence_index"])
    return start, received.sound


def test_settings_in_a_session_are_confirmed(client: Client) -> None:
    configured = configure(client, **STREAMED)
    assert configured.pop("session_id")
    expected = {"response_format": "pcm", "stream_audio": True, "split_granularity": "sentence"}
    assert configured == {"type": "session.configured", **expected}


def test_settings_have_the_defaults_of_sglang_omni(client: Client) -> None:
    configured = configure(client, voice="default", model=None)
    assert (configured["response_format"], configured["stream_audio"]) == ("pcm", False)
    assert configured["split_granularity"] == "sentence"


def test_the_operator_chooses_the_format_of_a_client_that_names_none() -> None:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(default_format="wav")) as server, server.client() as client:
        assert configure(client)["response_format"] == "wav"
        assert configure(client, response_format="pcm")["response_format"] == "pcm"
    engine.stop()


def test_settings_without_an_effect_are_named(client: Client) -> None:
    assert configure(client, initial_codec_chunk_frames=8, token_count=5)["ignored_fields"] == [
        "initial_codec_chunk_frames",
        "token_count",
    ]


def test_sentences_are_sent_while_the_text_arrives(client: Client, engine: ScriptedEngine) -> None:
    session_id = configure(client, **STREAMED)["session_id"]
    client.write("Hello. Second")
    start, audio = sentence(client)
    assert (start["sentence_text"], start["sentence_index"], start["id"]) == ("Hello.", 0, f"{session_id}-0")
    assert (start["format"], start["sample_rate"]) == ("pcm", RATE_HZ)
    assert audio == spoken(engine.requests[0].text, 3)
    client.send("input.done")
    start, audio = sentence(client)
    assert (start["sentence_text"], start["sentence_index"], start["id"]) == ("Second", 1, f"{session_id}-1")
    assert audio == spoken("Second", 3)
    code, rest = client.closed()
    done = {"type": "session.done", "session_id": session_id, "total_sentences": 2}
    assert (code, rest.messages) == (1000, [done])


@pytest.mark.parametrize(
    ("split", "text"),
    [("sentence", "Hello."), ("sentence", "你好。"), ("sentence", 'She said "yes!"'), ("clause", "Well,")],
)
def test_a_complete_sentence_waits_for_nothing(client: Client, engine: ScriptedEngine, split: str, text: str) -> None:
    configure(client, **{**STREAMED, "split_granularity": split})
    client.write(text)
    assert sentence(client)[0]["sentence_text"] == text
    client.write(" And another one.")
    assert sentence(client)[0]["sentence_text"] == "And another one."
    assert [request.text for request in engine.requests] == [text, "And another one."]


def test_a_sentence_that_may_go_on_is_spoken_when_the_text_pauses(client: Client) -> None:
    configure(client, **STREAMED)
    client.write("I have 3.")
    assert sentence(client)[0]["sentence_text"] == "I have 3."


def test_numbers_and_abbreviations_in_pieces_stay_whole(client: Client, engine: ScriptedEngine) -> None:
    configure(client, **STREAMED)
    client.write("Dr", ".", " Doe has 3", ".", "14", " cats.")
    assert sentence(client)[0]["sentence_text"] == "Dr. Doe has 3.14 cats."


def test_a_sentence_is_one_frame_by_default(client: Client) -> None:
    configure(client, voice="default", response_format="wav", seed=3)
    client.write("Hello.")
    received = client.until("audio.done")
    (file,) = [message for message in received.messages if isinstance(message, bytes)]
    with wave.open(io.BytesIO(file)) as reader:
        assert reader.readframes(reader.getnframes()) == spoken("Hello.", 3)


def test_commits_end_segments_and_keep_the_connection(client: Client, engine: ScriptedEngine) -> None:
    session_id = configure(client, **STREAMED)["session_id"]
    for index, text in enumerate(["First segment.", "Second segment"]):
        client.write(text)
        client.send("input.commit")
        start, _ = sentence(client)
        assert (start["sentence_text"], start["sentence_index"]) == (text, index)
        committed = client.until("input.committed").events
        counted = {"segment_index": index, "segment_sentences": 1, "total_sentences": index + 1}
        assert committed == [{"type": "input.committed", "session_id": session_id, **counted}]
    client.send("input.commit")
    empty = client.until("input.committed").events[-1]
    assert (empty["segment_index"], empty["segment_sentences"], empty["total_sentences"]) == (2, 0, 2)
    client.send("input.done")
    code, received = client.closed()
    assert code == 1000 and received.one("session.done")["total_sentences"] == 2
    assert [request.text for request in engine.requests] == ["First segment.", "Second segment"]


def test_a_session_without_text_is_done(client: Client) -> None:
    configure(client)
    client.send("input.done")
    code, received = client.closed()
    assert code == 1000 and received.one("session.done")["total_sentences"] == 0


@pytest.mark.parametrize(
    "message",
    [b"not text", "{", json.dumps({"type": "unexpected"}), json.dumps({"type": "input.text", "text": 5})],
    ids=["binary", "broken", "unknown type", "text that is none"],
)
def test_a_message_that_is_refused_does_not_end_the_session(client: Client, message: bytes | str) -> None:
    configure(client, **STREAMED)
    client.send_raw(message)
    error = client.until("error").events[-1]
    assert (error["error_type"], error["code"]) == ("BadRequestError", 400) and error["message"]
    if "unexpected" in str(message):
        assert error["param"] == "type"
    client.write("Hello.")
    assert sentence(client)[1] == spoken("Hello.", 3)


@pytest.mark.parametrize(
    "setting",
    [
        {"stream_audio": "perhaps"},
        {"speed": "fast"},
        {"max_new_tokens": "5.5"},
        {"voice": "missing"},
        {"model": "missing"},
    ],
    ids=str,
)
def test_settings_that_are_refused_end_the_connection(client: Client, setting: dict[str, Any]) -> None:
    error = configure(client, response_format="pcm", **setting)
    assert [error["param"]] == list(setting)
    assert error["code"] == ("model_not_found" if "model" in setting else 400)
    assert client.closed()[0] == 1008


@pytest.mark.parametrize("text", ["!refuse.", "Hello !break there."])
def test_a_sentence_that_fails_is_done_with_an_error(client: Client, text: str) -> None:
    configure(client, **STREAMED)
    client.write(text)
    failed = client.until("audio.done")
    assert failed.one("error")["message"]
    done = failed.one("audio.done")
    assert (done["error"], done["sentence_index"]) == (True, 0)
    client.send("input.commit")
    assert client.until("input.committed").events[-1]["segment_sentences"] == 1
    client.write("Hello.")
    assert sentence(client)[0]["sentence_index"] == 1


def test_too_much_text_is_refused(client: Client) -> None:
    configure(client, **STREAMED)
    client.write("x" * 201)
    error = client.until("error").events[-1]
    assert (error["param"], error["code"], error["error"]["code"]) == ("text", "too_large", "too_large")


# --- telling the protocols apart ---


def test_flat_settings_are_confirmed_where_the_operator_says_so(set_server: Server) -> None:
    with set_server.client() as client:
        client.send("session.config", model="scripted", voice="default", **STREAMED)
        assert client.until("session.configured").kinds == ["session.configured"]
        client.write("Hello.")
        assert sentence(client)[1] == spoken("Hello.", 3)


@pytest.mark.parametrize("kind", ["input.text", "input.done", "input.commit"])
def test_without_settings_there_is_nothing_to_say_where_the_operator_says_so(set_server: Server, kind: str) -> None:
    with set_server.client() as client:
        client.send(kind, text="Hello.")
        code, received = client.closed()
        assert code == 1008 and received.one("error")["param"] == "type"


def test_our_own_subprotocol_is_our_own_protocol_everywhere(set_server: Server) -> None:
    with set_server.client(subprotocols=[Subprotocol("oscine")]) as client:
        client.send("session.config", seed=3)
        assert client.until("session.ready").kinds == ["session.ready"]
        assert client.say("Hello. You.").sound == spoken("Hello. You.", 3)


def test_flat_settings_are_not_confirmed_otherwise(client: Client) -> None:
    client.send("session.config", **STREAMED)
    received: Received = client.say("Hello.")
    assert received.kinds == ["audio.start", "audio.done", "session.done"]
    assert received.one("session.done")["utterance_index"] == 0
