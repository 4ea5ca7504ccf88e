"""Clients of several servers get the form that they expect: bytes as they are generated, events, or the whole file."""

import base64
import io
import subprocess
import wave
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
from starlette.datastructures import Headers

from oscine.config import ServerConfig
from oscine.server.api.renderers import response_form
from oscine.server.schemas import SpeechBody
from tests.conftest import require_program
from tests.file_length import assert_length
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of, eventually

SPEECH = "/v1/audio/speech"
DEFAULT, EVENTS, OPEN_WAV = ServerConfig(), ServerConfig(stream_events=True), ServerConfig(stream_wav=True)
STREAM, WAV, FLAC = {"stream": True}, {"response_format": "wav"}, {"response_format": "flac"}
READS_A_STREAM = {"x-stainless-raw-response": "stream"}
SSE, OCTETS = {"accept": "text/event-stream"}, {"accept": "application/octet-stream"}


@pytest.mark.parametrize(
    ("fields", "headers", "config", "form"),
    [
        # SGLang-Omni, nari and older vLLM-Omni: raw audio. Newer vLLM-Omni: events.
        (STREAM, {}, DEFAULT, "bytes"),
        (STREAM, {}, EVENTS, "events"),
        (STREAM, {"accept": "*/*"}, DEFAULT, "bytes"),
        (STREAM, {"accept": "*/*"}, EVENTS, "events"),
        (STREAM, SSE, DEFAULT, "events"),
        (STREAM, OCTETS, EVENTS, "bytes"),
        (STREAM, {"accept": "audio/*"}, EVENTS, "bytes"),
        (STREAM, {"accept": "audio/wav, */*;q=0.1"}, EVENTS, "bytes"),
        (STREAM, {"accept": "text/event-stream;q=0.5, audio/pcm"}, EVENTS, "bytes"),
        (STREAM, {"accept": "Text/Event-Stream; q=0.9, audio/pcm; q=0.8"}, DEFAULT, "events"),
        (STREAM, {"accept": "text/event-stream, audio/*"}, DEFAULT, "bytes"),
        (STREAM, {"accept": "text/event-stream;q=0, */*"}, EVENTS, "events"),
        (STREAM, {"accept": "application/json"}, DEFAULT, "bytes"),
        (STREAM | WAV, {}, DEFAULT, "bytes"),
        # stream_format is explicit; OpenAI's SDK accepts only octets whatever it asks for.
        ({"stream_format": "sse"}, OCTETS, DEFAULT, "events"),
        ({"stream_format": "audio"}, SSE, EVENTS, "bytes"),
        ({"stream_format": "audio"} | WAV, {}, DEFAULT, "bytes"),
        (STREAM | {"stream_format": "audio"}, {}, EVENTS, "bytes"),
        ({"stream": False}, SSE, EVENTS, "whole"),
        ({"stream": False}, {}, OPEN_WAV, "whole"),
        # Nothing is said about streaming.
        ({}, {}, DEFAULT, "bytes"),
        ({}, SSE, DEFAULT, "events"),
        (WAV, {}, DEFAULT, "whole"),
        (WAV, OCTETS, DEFAULT, "whole"),
        (WAV, {"accept": "audio/*"}, DEFAULT, "whole"),
        (WAV, OCTETS | READS_A_STREAM, DEFAULT, "bytes"),
        (WAV, {"x-stainless-raw-response": "raw"}, DEFAULT, "whole"),
        (WAV, {}, OPEN_WAV, "bytes"),
        (WAV | {"input": "a" * 20_000}, {}, DEFAULT, "whole"),
        (WAV | {"input": "a" * 20_001}, {}, DEFAULT, "bytes"),
        (WAV | {"input": "a" * 20_001, "stream": False}, {}, DEFAULT, "whole"),
        (FLAC, {}, DEFAULT, "whole"),
        (FLAC, OCTETS, DEFAULT, "whole"),
        (FLAC | STREAM, {}, DEFAULT, "bytes"),
        (FLAC, OCTETS | READS_A_STREAM, DEFAULT, "bytes"),
        (FLAC, {}, OPEN_WAV, "bytes"),
        ({}, {}, ServerConfig(default_format="flac"), "whole"),
        ({"response_format": "mp3"}, {}, DEFAULT, "bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_request_its_headers_and_the_settings_decide(
    fields: dict[str, Any], headers: dict[str, str], config: ServerConfig, form: str
) -> None:
    assert response_form(SpeechBody(**{"input": "Hi.", **fields}), Headers(headers), config) == form


def say(client: httpx.Client, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return client.post(SPEECH, json={"input": "Hello there.", "seed": 3, **fields}, headers=headers)


def test_a_wav_is_a_whole_file_that_strict_parsers_can_measure(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        answer = say(client, **WAV)
    assert answer.headers["content-length"] == str(len(answer.content)) and "transfer-encoding" not in answer.headers
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.getnframes() == 12 * FRAME_SAMPLES
        assert file.readframes(file.getnframes()) == spoken("Hello there.", 3)
    info = soundfile.info(io.BytesIO(answer.content))
    assert info.frames == 12 * FRAME_SAMPLES


def in_a_batch(client: httpx.Client, form: str) -> bytes:
    items = {"items": [{"input": "Hello there."}], "seed": 3, "response_format": form}
    return base64.b64decode(client.post(f"{SPEECH}/batch", json=items).json()["results"][0]["audio_data"])


def encoded(client: httpx.Client, form: str) -> bytes:
    query = {"response_format": form}
    return client.post("/v1/audio/encode", params=query, content=spoken("Hello there.", 3)).content


def in_json(client: httpx.Client, form: str) -> bytes:
    return base64.b64decode(say(client, stream_format="json", response_format=form).json()["audio"])


# Every way to a whole file over HTTP, but for WAV and FLAC without a word about streaming.
WHOLE = {
    "stream: false": lambda client, form: say(client, stream=False, response_format=form).content,
    "json": in_json,
    "batch": in_a_batch,
    "encode": encoded,
}


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "opus"])
@pytest.mark.parametrize("way", WHOLE)
def test_every_whole_file_states_its_true_length(engine: ScriptedEngine, way: str, form: str, tmp_path: Path) -> None:
    with client_of(engine, CARD) as client:
        file = WHOLE[way](client, form)
    assert_length(file, 12 * FRAME_SAMPLES, RATE_HZ)
    if form != "opus":  # soxi is often built without it
        program = require_program("soxi", "sox libsox-fmt-mp3")
        path = tmp_path / f"speech.{form}"
        path.write_bytes(file)
        samples = int(subprocess.run([program, "-s", path], capture_output=True, text=True, check=True).stdout)
        # Of an MP3 it counts whole frames, with those that players skip.
        assert 0 <= samples - 12 * FRAME_SAMPLES <= (3 * 1152 if form == "mp3" else 0)


@pytest.mark.parametrize("form", ["wav", "flac"])
def test_a_file_that_needs_its_length_is_whole_without_a_word_about_streaming(
    engine: ScriptedEngine, form: str
) -> None:
    with client_of(engine, CARD) as client:
        assert_length(say(client, response_format=form).content, 12 * FRAME_SAMPLES, RATE_HZ)


def test_a_client_that_streams_a_wav_gets_its_first_byte_before_the_speech_is_complete() -> None:
    engine = ScriptedEngine(max_frames=5)  # then it pauses
    with client_of(engine, CARD) as client:
        for headers, fields in ((READS_A_STREAM, {}), ({}, STREAM), ({}, {"stream_format": "audio"})):
            body = {"input": "Hello there.", **WAV, **fields}
            with client.stream("POST", SPEECH, json=body, headers=headers) as response:
                pieces = response.iter_raw()  # keep it: httpx closes the response when its iterator is collected
                assert next(pieces)[:4] == b"RIFF" and engine.status().slots_active == 1
            eventually(lambda: engine.status().slots_active == 0)  # or this stream would take the next one's frames
            engine.max_frames += 5
    engine.stop()


def test_stream_true_is_sound_and_events_where_they_are_accepted(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        audio = say(client, stream=True, response_format="pcm")
        assert audio.content == spoken("Hello there.", 3) and audio.headers["content-type"] == "audio/pcm"
        events = say(client, SSE, stream=True, response_format="pcm")
        assert events.headers["content-type"].startswith("text/event-stream") and "speech.audio.done" in events.text
