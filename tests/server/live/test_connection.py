"""Each protocol of the WebSocket keeps its defaults: the format, and whether a file is sent while it is generated."""

from typing import Any

import pytest
from websockets.typing import Subprotocol

from oscine.config import ServerConfig
from tests.file_length import assert_length
from tests.server.live.live_client import Received, server_of
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken

OWN = {"events": ["session.ready"]}
VLLM_OMNI = {"task_type": "CustomVoice"}  # its example clients always name one
WAV, FLAC = {"response_format": "wav"}, {"response_format": "flac"}
OPEN_WAV, MP3, DEFAULT = ServerConfig(stream_wav=True), ServerConfig(default_format="mp3"), ServerConfig()
OGG_WHOLE = {"response_format": "opus", "stream_audio": False}
TEXT = "Hello there."


def say(config: ServerConfig, fields: dict[str, Any] | None, **options: Any) -> tuple[str, Received]:
    engine = ScriptedEngine(frame_s=0.001)
    with server_of(engine, config) as server, server.client(**options) as client:
        if fields is not None:
            client.send("session.config", seed=3, **fields)
        received = client.say(TEXT)
    engine.stop()
    return received.one("audio.start")["format"], received


@pytest.mark.parametrize(
    ("fields", "config", "form", "whole"),
    [
        # The client may be anybody's.
        (None, DEFAULT, "pcm", False),
        ({}, DEFAULT, "pcm", False),
        (OWN, DEFAULT, "pcm", False),
        # A file whose header states its length is whole, unless a stream is asked for.
        (WAV, DEFAULT, "wav", True),
        (FLAC, DEFAULT, "flac", True),
        (WAV | OWN, DEFAULT, "wav", True),
        (WAV | {"stream_audio": True}, DEFAULT, "wav", False),
        (WAV, OPEN_WAV, "wav", False),
        (OGG_WHOLE, DEFAULT, "opus", True),
        # vLLM-Omni: WAV, and whole.
        (VLLM_OMNI, DEFAULT, "wav", True),
        ({"streaming_mode": "sentence"}, DEFAULT, "wav", True),
        (VLLM_OMNI | {"response_format": "pcm"}, DEFAULT, "pcm", True),
        (VLLM_OMNI | {"response_format": "pcm", "stream_audio": True}, DEFAULT, "pcm", False),
        (VLLM_OMNI | {"response_format": "pcm", "streaming_mode": "token_level"}, DEFAULT, "pcm", False),
        ({"streaming_mode": "sentence_commit", "response_format": "pcm"}, DEFAULT, "pcm", False),
        (VLLM_OMNI | OWN, DEFAULT, "pcm", False),  # asks for an event that only we have
        # The operator's choice.
        (None, MP3, "mp3", False),
        ({}, MP3, "mp3", False),
        (VLLM_OMNI, MP3, "mp3", True),
        (None, ServerConfig(default_format="wav"), "wav", True),
        (WAV, MP3, "wav", True),
    ],
    ids=lambda value: str(value)[:60],
)
def test_the_settings_their_protocol_and_the_operator_decide(
    fields: dict[str, Any] | None, config: ServerConfig, form: str, whole: bool
) -> None:
    given, received = say(config, fields)
    assert given == form
    assert (sum(isinstance(message, bytes) for message in received.messages) == 1) == whole
    if form == "pcm":
        assert len(received.sound) == 2 * 12 * FRAME_SAMPLES
    elif form == "opus" or whole:
        assert_length(received.sound, 12 * FRAME_SAMPLES, RATE_HZ)


def test_our_own_subprotocol_keeps_our_defaults() -> None:
    form, received = say(DEFAULT, VLLM_OMNI, subprotocols=[Subprotocol("oscine")])
    assert form == "pcm" and received.sound == spoken(TEXT, 3)


def test_a_large_file_comes_in_frames_that_clients_accept_by_default() -> None:
    engine = ScriptedEngine()
    with server_of(engine) as server, server.client() as client:
        client.configure(response_format="wav")
        received = client.say("word " * 60)
    engine.stop()
    frames = [message for message in received.messages if isinstance(message, bytes)]
    assert [len(frame) for frame in frames[:-1]] == [2**20] * (len(frames) - 1) and len(frames) == 2
    assert_length(received.sound, (len(received.sound) - 44) // 2, RATE_HZ)
    assert received.one("audio.done")["total_bytes"] == len(received.sound)
