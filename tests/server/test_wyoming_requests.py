"""The requests of wyoming-openai (0.8), through which Home Assistant speaks. The program itself needs Python 3.12."""

import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import httpx
import pytest

from tests.server.scripted_engine import CARD, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of

# What the OpenAI SDK sends for `with_streaming_response`.
STREAMED = {"accept": "application/octet-stream", "x-stainless-raw-response": "stream"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, httpx.Client]]:
    engine = ScriptedEngine()
    with client_of(engine, CARD) as client:
        yield engine, client
    engine.stop()


def test_the_server_is_taken_for_one_of_openais_kind(running: tuple[ScriptedEngine, httpx.Client]) -> None:
    """It asks for what only LocalAI, Kokoro-FastAPI and Speaches have."""
    _, client = running
    assert client.get("/v1/readyz").status_code == client.get("/v1/test").status_code == 404
    assert client.get("/health").text != "OK"


@pytest.mark.parametrize("voice", ["alloy", "wren"])
def test_sentences_are_spoken_at_the_same_time_as_streamed_wav(
    running: tuple[ScriptedEngine, httpx.Client], voice: str
) -> None:
    engine, client = running

    def synthesize(sentence: str) -> tuple[bytes, bytes]:
        fields = {"model": "tts-1", "voice": voice, "input": sentence, "response_format": "wav"}
        with client.stream("POST", "/v1/audio/speech", json=fields, headers=STREAMED) as answer:
            assert answer.status_code == 200
            file = b"".join(answer.iter_bytes())
        with wave.open(BytesIO(file)) as reader:
            assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (RATE_HZ, 1, 2)
        return file[:44], file[44:]

    sentences = [f"One sentence by {voice}.", f"Another one by {voice}."]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(synthesize, sentences))
    for sentence, (header, pcm) in zip(sentences, answers, strict=True):
        (request,) = [one for one in engine.submitted if one.text == sentence]
        assert header[40:44] == b"\xff\xff\xff\xff"  # "until the end"
        assert pcm == spoken(sentence, request.seed or 0, request.voice)
