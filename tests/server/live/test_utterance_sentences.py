"""`split_granularity`: every sentence of an utterance is a file of its own, between its audio.start and audio.done."""

import io
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from oscine.text.segmenter import Segmenter, SegmenterConfig
from tests.server.live.live_client import Client, Received, Server, server_of
from tests.server.scripted_engine import FRAME_SAMPLES, ScriptedEngine, spoken
from tests.server.serving import eventually

TEXT = "Hello there. How are you, my friend? Fine!"
SENTENCES = ["Hello there.", "How are you, my friend?", "Fine!"]
CLAUSES = ["Hello there.", "How are you,", "my friend?", "Fine!"]


@dataclass
class File:
    start: dict[str, Any]
    audio: list[bytes] = field(default_factory=list)
    done: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine(slots=2, queue=0)
    with server_of(engine) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def engine(running: tuple[ScriptedEngine, Server]) -> Iterator[ScriptedEngine]:
    engine, server = running
    engine.requests.clear()
    yield engine
    eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


@pytest.fixture
def client(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Iterator[Client]:
    with running[1].client() as client:
        yield client


def files(received: Received) -> list[File]:
    """Fails if audio or an event is outside of a file."""
    found: list[File] = []
    for message in received.messages:
        if isinstance(message, bytes):
            found[-1].audio.append(message)
            assert not found[-1].done
        elif message["type"] == "audio.start":
            assert not found or found[-1].done
            found.append(File(message))
        elif message["type"] == "audio.done":
            found[-1].done = message
    return found


def said(engine: ScriptedEngine) -> list[str]:
    return [request.text.strip() for request in engine.requests]


@pytest.mark.parametrize(("split", "expected"), [("sentence", SENTENCES), ("clause", CLAUSES)])
@pytest.mark.parametrize("pieces", [[TEXT], list(TEXT)], ids=["whole", "letters"])
def test_every_sentence_is_a_file_of_its_own(
    client: Client, engine: ScriptedEngine, split: str, expected: list[str], pieces: list[str]
) -> None:
    client.configure(seed=3, split_granularity=split)
    for utterance_index in range(2):
        received = client.say(*pieces)
        found = files(received)
        assert [file.start["sentence_text"] for file in found] == expected
        for index, (file, request) in enumerate(zip(found, engine.requests[-len(expected) :], strict=True)):
            assert file.start["sentence_index"] == file.done["sentence_index"] == index
            assert file.start["utterance_index"] == file.done["utterance_index"] == utterance_index
            audio = b"".join(file.audio)
            assert audio == spoken(request.text, 3) and file.done["total_bytes"] == len(audio)
            assert file.done["audio_seconds"] == pytest.approx(len(audio) / 48000) and not file.done["error"]
        assert received.one("session.done")["total_sentences"] == len(expected)
        assert [segment["index"] for segment in received.all("audio.segment")] == list(range(len(expected)))
    assert said(engine) == expected * 2


def test_a_sentence_is_spoken_while_the_next_one_is_written(client: Client, engine: ScriptedEngine) -> None:
    client.configure(seed=3, split_granularity="sentence")
    client.write("Hello there. How")
    first = client.until("audio.done")
    assert first.one("audio.start")["sentence_text"] == "Hello there." and said(engine) == ["Hello there."]
    rest = client.say(" are you?")
    assert rest.one("audio.start")["sentence_text"] == "How are you?"
    assert rest.one("session.done")["total_sentences"] == 2


def test_later_sentences_are_continuations(client: Client, engine: ScriptedEngine) -> None:
    client.configure(split_granularity="sentence")
    client.say(TEXT)
    first, *others = engine.requests
    assert first.continues_s is None and first.trim_silence is None
    assert all(request.continues_s is not None and request.trim_silence is False for request in others)
    assert {request.seed for request in others} == {first.seed}


@pytest.mark.parametrize("split", [None, "none"])
def test_without_a_granularity_an_utterance_is_one_file(client: Client, split: str | None) -> None:
    client.configure(seed=3, split_granularity=split)
    (file,) = files(client.say(TEXT))
    assert b"".join(file.audio) == spoken(TEXT, 3)


def test_an_unknown_granularity_is_refused(client: Client) -> None:
    assert client.configure(split_granularity="word")["error"]["param"] == "split_granularity"


def test_whole_files_come_in_one_frame_with_their_true_size(client: Client) -> None:
    client.configure(seed=3, split_granularity="sentence", stream_audio=False, response_format="wav")
    found = files(client.say(TEXT))
    assert [len(file.audio) for file in found] == [1, 1, 1]
    for file, text in zip(found, SENTENCES, strict=True):
        with wave.open(io.BytesIO(file.audio[0])) as opened:
            assert abs(opened.getnframes() - len(text) * FRAME_SAMPLES) <= FRAME_SAMPLES  # a space after it


def test_a_commit_makes_a_file_of_what_has_come_of_a_sentence(client: Client) -> None:
    client.configure(seed=3, split_granularity="sentence")
    client.write("Hello there")
    client.send("input.commit")
    assert client.until("audio.done").one("audio.start")["sentence_text"] == "Hello there"
    assert client.say(" Fine!").one("audio.start")["sentence_text"] == "Fine!"


def test_a_failure_ends_the_sentence_and_the_utterance(client: Client) -> None:
    client.configure(seed=3, split_granularity="sentence")
    received = client.say("Hello there. How !break are you? Fine.")
    first, second = files(received)
    assert not first.done["error"] and second.done["error"] and second.done["sentence_index"] == 1
    assert received.one("error")["utterance_index"] == 0 and received.one("session.done")["total_sentences"] == 2
    assert len(files(client.say(TEXT))) == 3


def test_a_cancel_ends_the_sentence_that_is_being_sent(client: Client, engine: ScriptedEngine) -> None:
    engine.frame_s = 0.01
    try:
        client.configure(seed=3, split_granularity="sentence")
        client.write(TEXT)
        client.until("audio.done")
        client.until("audio.start")
        received = client.cancel()
    finally:
        engine.frame_s = 0.0
    done = received.one("audio.done")
    assert (done["sentence_index"], done["finish_reason"]) == (1, "cancelled")
    assert received.one("session.done")["total_sentences"] == 2


def test_white_space_is_no_sentence(client: Client) -> None:
    client.configure(split_granularity="sentence")
    assert client.say(" \n ").kinds == ["session.done"]


def test_clauses_end_segments_of_a_streaming_text_where_asked() -> None:
    for at_clauses, expected in ((False, 1), (True, 3)):
        segmenter = Segmenter(SegmenterConfig(1, 1, 800, ends_at_clauses=at_clauses))
        pieces = [*segmenter.push("One, two; three"), *segmenter.finish()]
        assert sum(piece.ends for piece in pieces) == expected
