"""WS /v1/text-to-speech/{voice_id}/stream-input and /multi-stream-input over real sockets: ElevenLabs' protocols."""

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from oscine.config import ServerConfig
from oscine.server.asyncapi import ELEVENLABS
from oscine.server.dialects.elevenlabs import MAX_CONTEXTS
from tests.align.scripted_whisper import scripted_whisper
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import FRAME_SAMPLES, ScriptedEngine, spoken
from tests.server.serving import eventually
from tests.websocket import connect

QUERY = "?output_format=pcm_24000&seed=3&model_id=eleven_turbo_v2_5"
DESCRIBED = [
    jsonschema_rs.validator_for({**event.schema(kind), "additionalProperties": False})
    for kind, event in ELEVENLABS.items()
]


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.told: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        self._socket.send(json.dumps(message))

    def send_raw(self, message: str | bytes) -> None:
        self._socket.send(message)

    def receive(self) -> dict[str, Any]:
        told = json.loads(self._socket.recv(timeout=600))
        assert any(validator.is_valid(told) for validator in DESCRIBED), told
        self.told.append(told)
        return self.told[-1]

    def until_final(self, context: str | None = None) -> None:
        while not (told := self.receive()).get("isFinal") or told.get("contextId") != context:
            pass

    def closed(self) -> int:
        """Returns the close code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.receive()
        assert self._socket.close_code is not None
        return self._socket.close_code

    def sound(self, context: str | None = None) -> bytes:
        told = [one for one in self.told if one.get("audio") and one.get("contextId") == context]
        return b"".join(base64.b64decode(one["audio"]) for one in told)


@contextlib.contextmanager
def client_at(server: Server, path: str, key: str = "sesame") -> Iterator[Client]:
    url = f"{server.url.replace('http', 'ws')}/v1/text-to-speech/{path}"
    headers = {"xi-api-key": key}
    with connect(url, proxy=None, max_size=None, ping_interval=None, additional_headers=headers) as socket:
        yield Client(socket)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    config = ServerConfig(segment_chars=60, max_text_chars=100, api_keys=("sesame",), live_pause_s=3600)
    with server_of(engine, config) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def client(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Iterator[Client]:
    with client_at(running[1], f"finch/stream-input{QUERY}") as client:
        yield client


@pytest.fixture
def contexts(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Iterator[Client]:
    with client_at(running[1], f"finch/multi-stream-input{QUERY}") as client:
        yield client


# --- one text ---------------------------------------------------------------------------------------------------------


def test_a_text_in_pieces_is_spoken_and_the_connection_closed(client: Client) -> None:
    client.send(text=" ", voice_settings=None, generation_config={"chunk_length_schedule": [50]})
    for piece in ("Hello ", "there."):
        client.send(text=piece, try_trigger_generation=True)
    client.send(text="")
    assert client.closed() == 1000 and client.sound() == spoken("Hello there.", 3, "finch")
    assert client.told[-1] == {"audio": None, "isFinal": True}
    assert client.told[0]["ignored_fields"] == ["generation_config"] and "--aligner FOLDER" in client.told[0]["warning"]


def test_text_is_spoken_before_its_end_and_a_flush_speaks_the_rest(client: Client) -> None:
    client.send(text="Hello there ")
    client.receive()
    client.send(text="you. ", flush=True)
    made = spoken("Hello there you.", 3, "finch")
    while len(client.sound()) < len(made) - 2 * FRAME_SAMPLES:
        client.receive()
    client.send(text="", flush=True)
    assert client.closed() == 1000 and client.sound()[: len(made)] == made


def test_the_query_and_the_first_message_have_the_settings(
    running: tuple[ScriptedEngine, Server], engine: ScriptedEngine
) -> None:
    query = f"{QUERY}&language_code=zh&apply_text_normalization=off&enable_logging=false&auto_mode=true"
    with client_at(running[1], f"wren/stream-input{query}") as client:
        client.send(text=" ", voice_settings={"speed": 0.5, "style": 0.1}, temperature=0.5)
        client.send(text="Hello.")
        client.send(text="")
        assert client.closed() == 1000
    (request,) = engine.requests
    assert (request.voice, request.language, request.seed, request.temperature) == ("wren", "chinese", 3, 0.5)
    assert client.told[0]["ignored_fields"] == ["enable_logging", "voice_settings.style"]
    assert len(client.sound()) > 1.8 * len(spoken("Hello.", 3, "wren"))


@pytest.mark.parametrize(
    ("path", "key", "messages", "code", "error", "words"),
    [
        ("finch/stream-input", "no", [], 1008, "invalid_api_key", "unknown"),
        ("fynch/stream-input", "sesame", ['{"text": " "}'], 1008, "voice_not_found", "did you mean 'finch'?"),
        ("finch/stream-input?output_format=x", "sesame", ['{"text": " "}'], 1008, "validation_error", "mp3_44100_128"),
        ("finch/stream-input", "sesame", ["{"], 1008, "bad_request", "not valid JSON"),
        ("finch/stream-input", "sesame", ["[]"], 1008, "validation_error", "must be a JSON object"),
        ("finch/stream-input", "sesame", [b"x"], 1008, "bad_request", "binary frames"),
        ("finch/stream-input", "sesame", ['{"text": 3}'], 1008, "validation_error", "text"),
        ("finch/stream-input", "sesame", [json.dumps({"text": "x" * 101})], 1008, "too_large", "100"),
        ("finch/stream-input", "sesame", ['{"text": "!break"}', '{"text": ""}'], 1011, "engine_failed", ""),
        ("finch/multi-stream-input", "no", [], 1008, "invalid_api_key", "unknown"),
        ("finch/multi-stream-input", "sesame", ["{"], 1008, "bad_request", "not valid JSON"),
    ],
)
def test_an_error_ends_the_connection_and_says_why(
    running: tuple[ScriptedEngine, Server],
    engine: ScriptedEngine,
    path: str,
    key: str,
    messages: list[str | bytes],
    code: int,
    error: str,
    words: str,
) -> None:
    with client_at(running[1], path, key) as client:
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                client.send_raw(message)
        assert client.closed() == code
    assert (client.told[-1]["error"], client.told[-1]["code"]) == (error, code), client.told[-1]
    assert words in client.told[-1]["message"]


# --- contexts ---------------------------------------------------------------------------------------------------------


def test_contexts_are_spoken_beside_each_other(contexts: Client) -> None:
    contexts.send(text="")  # keeps the connection alive
    for context in ("one", "two"):
        contexts.send(text=" ", context_id=context)
        contexts.send(text=f"Context {context}. ", context_id=context)
    contexts.send(context_id="two", flush=True)
    contexts.send(context_id="two", close_context=True)
    contexts.until_final("two")
    assert contexts.sound("two") == spoken("Context two. ", 3, "finch")
    contexts.send(text="", context_id="one", flush=True)
    contexts.send(context_id="one", close_context=True)
    contexts.until_final("one")
    assert contexts.sound("one") == spoken("Context one. ", 3, "finch")
    contexts.send(close_socket=True)
    assert contexts.closed() == 1000


def test_a_context_may_be_used_again_and_has_a_name_if_none_is_given(contexts: Client) -> None:
    for context in (None, "again", "again"):
        contexts.told.clear()
        named = {"context_id": context} if context else {}
        contexts.send(text="Hello.", flush=True, **named)
        contexts.send(close_context=True, **named)
        contexts.until_final(context or "default")
        assert contexts.sound(context or "default") == spoken("Hello.", 3, "finch")


def test_the_end_of_a_context_drops_text_that_was_not_flushed(contexts: Client, engine: ScriptedEngine) -> None:
    engine.max_frames = engine.status().frames + 3
    contexts.send(text="Spoken now.", context_id="a", flush=True)
    contexts.receive()
    contexts.send(text=" Never spoken. ", context_id="a")
    contexts.send(context_id="a", close_context=True)
    contexts.send(text="", context_id="a")
    engine.max_frames = float("inf")
    contexts.until_final("a")
    assert contexts.sound("a") == spoken("Spoken now.", 3, "finch")


def test_the_end_of_the_socket_waits_for_what_was_flushed(contexts: Client) -> None:
    contexts.send(text="Hello. ", context_id="a", flush=True)
    contexts.send(close_socket=True)
    assert contexts.closed() == 1000 and contexts.sound("a") == spoken("Hello. ", 3, "finch")
    assert contexts.told[-1]["isFinal"]


def test_an_error_ends_its_context_alone(contexts: Client) -> None:
    contexts.send(text="!break", context_id="bad", flush=True)
    contexts.until_final("bad")
    assert contexts.told[-2]["error"] == "engine_failed" and contexts.told[-2]["contextId"] == "bad"
    contexts.send(text="Hi. ", voice_settings={"speed": 9}, context_id="worse")
    contexts.until_final("worse")
    assert "from 0.25 to 4" in contexts.told[-2]["message"]
    contexts.send(text="Hello.", context_id="good", flush=True)
    contexts.send(context_id="good", close_context=True)
    contexts.until_final("good")
    assert contexts.sound("good") == spoken("Hello.", 3, "finch")


def test_a_client_that_leaves_stops_its_contexts(
    running: tuple[ScriptedEngine, Server], engine: ScriptedEngine
) -> None:
    engine.max_frames = engine.status().frames + 6
    cancelled = engine.cancelled
    with client_at(running[1], f"finch/multi-stream-input{QUERY}") as client:
        for context in ("a", "b"):
            client.send(text="A text that is never spoken to its end. ", context_id=context, flush=True)
            client.receive()
    eventually(lambda: engine.cancelled == cancelled + 2 and running[1].service.streams == 0)


def test_contexts_are_limited(contexts: Client) -> None:
    for number in range(MAX_CONTEXTS + 1):
        contexts.send(text=" ", context_id=str(number))
    contexts.until_final(str(MAX_CONTEXTS))
    assert contexts.told[-2]["error"] == "too_many_contexts"
    contexts.send(text="Hello.", context_id="0", flush=True)
    contexts.send(context_id="0", close_context=True)
    contexts.until_final("0")
    assert contexts.sound("0") == spoken("Hello.", 3, "finch")


def test_each_context_is_a_stream_of_the_key(engine: ScriptedEngine) -> None:
    config = ServerConfig(api_keys=("sesame",), streams_per_key=1)
    with server_of(engine, config) as server, client_at(server, f"finch/multi-stream-input{QUERY}") as client:
        engine.max_frames = engine.status().frames + 3
        client.send(text="Hello there. ", context_id="a", flush=True)
        client.receive()
        client.send(text="Hello. ", context_id="b", flush=True)
        client.until_final("b")
        assert client.told[-2]["error"] == "too_many_concurrent_requests"
        engine.max_frames = float("inf")
        client.send(context_id="a", close_context=True)
        client.until_final("a")
        assert client.sound("a") == spoken("Hello there. ", 3, "finch")


def test_a_server_that_shuts_down_finishes_contexts_and_closes(engine: ScriptedEngine) -> None:
    with server_of(engine) as server, client_at(server, f"finch/multi-stream-input{QUERY}") as client:
        engine.max_frames = engine.status().frames + 3
        client.send(text="Hello. ", context_id="a", flush=True)
        client.receive()
        server.service.draining = True
        client.send(context_id="a", close_context=True)
        engine.max_frames = float("inf")
        assert client.closed() == 1013 and client.sound("a") == spoken("Hello. ", 3, "finch")
    assert client.told[-1]["error"] == "not_ready"


def test_an_idle_context_ends_and_then_the_connection(engine: ScriptedEngine) -> None:
    with (
        server_of(engine, ServerConfig(live_idle_s=1)) as server,
        client_at(server, "finch/multi-stream-input") as client,
    ):
        client.send(text=" ", context_id="a")
        assert client.closed() == 4408
    assert [one.get("error") for one in client.told] == ["idle_timeout", None, "idle_timeout"]
    assert client.told[1] == {"audio": None, "isFinal": True, "contextId": "a"}


@pytest.mark.parametrize("of_all", [True, False])
def test_times_are_those_of_the_context_or_of_the_message(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_all: bool
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "library")
    query = f"{QUERY}&sync_alignment={str(of_all).lower()}"
    config = ServerConfig(aligner=str(scripted_whisper(tmp_path)), aligner_wait_s=600)
    with server_of(engine, config) as server, client_at(server, f"finch/stream-input{query}") as client:
        for text in ("One two. ", "Three four."):
            client.send(text=text, flush=True)
        client.send(text="")
        assert client.closed() == 1000
    timed = [one["alignment"] for one in client.told if one.get("alignment")]
    assert "".join(char for one in timed for char in one["chars"]).split() == ["One", "two.", "Three", "four."]
    assert "warning" not in client.told[0] and len(timed) == 2
    ends_ms = [one["charStartTimesMs"][-1] + one["charDurationsMs"][-1] for one in timed]
    end_ms = ends_ms[-1] if of_all else sum(ends_ms)
    assert ends_ms[0] < end_ms <= len(client.sound()) / 48 and (timed[1]["charStartTimesMs"][0] >= ends_ms[0]) == of_all
