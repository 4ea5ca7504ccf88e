"""Word timestamps over the WebSocket, in the forms of vLLM-Omni, LiveKit and our own."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from oscine.config import ServerConfig
from tests.align.scripted_whisper import scripted_whisper
from tests.server.live.live_client import Client, Received, Server, server_of
from tests.server.scripted_engine import ScriptedEngine, spoken

pytestmark = pytest.mark.slow

TEXT = "Hello there - you."


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("aligner")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "library")
        yield scripted_whisper(folder)


@pytest.fixture(scope="module")
def server(whisper: Path) -> Iterator[Server]:
    engine = ScriptedEngine()
    with server_of(engine, config=ServerConfig(aligner=str(whisper), aligner_wait_s=600)) as server:
        yield server
    engine.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


def configured(client: Client, **fields: object) -> Client:
    client.send("session.config", response_format="pcm", seed=3, **fields)
    return client


def duration_s(received: Received) -> float:
    seconds: float = received.one("audio.done")["audio_seconds"]
    return seconds


def test_vllm_omnis_form_sends_audio_as_json_and_the_times_at_the_end(client: Client) -> None:
    received = configured(client, word_timestamps=True, stream_audio=True).say(TEXT)
    assert received.kinds == [
        "audio.start",
        *["audio.chunk"] * len(received.all("audio.chunk")),
        "audio.done",
        "session.done",
    ]
    assert received.one("audio.start")["word_timestamps"] is True
    *chunks, last = received.all("audio.chunk")
    assert not received.sound
    assert b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in chunks) == spoken(TEXT, 3)
    assert [chunk["chunk_id"] for chunk in chunks] == list(range(len(chunks)))
    assert {chunk["timestamps"] for chunk in chunks} == {None}
    assert chunks[0]["chunk_start_ms"] == 0 and last["audio_b64"] == ""
    assert chunks[-1]["chunk_end_ms"] == last["chunk_end_ms"] == round(1000 * duration_s(received))
    assert [word["word"] for word in last["timestamps"]] == TEXT.split()
    times = [word[name] for word in last["timestamps"] for name in ("start_ms", "end_ms")]
    assert times == sorted(times) and times[-1] <= last["chunk_end_ms"]


def test_livekits_form_sends_the_times_with_audio_done(client: Client) -> None:
    received = configured(client, timestamp_type="word", timestamp_transport_strategy="sync").say(TEXT)
    assert received.kinds == ["audio.start", "audio.done", "session.done"]
    assert received.sound == spoken(TEXT, 3)
    alignment = received.one("audio.done")["timestamp_info"]["word_alignment"]
    assert alignment["words"] == TEXT.split()
    starts, ends = alignment["word_start_times_seconds"], alignment["word_end_times_seconds"]
    assert all(start <= end <= duration_s(received) for start, end in zip(starts, ends, strict=True))


def test_our_own_form_sends_audio_as_bytes_and_an_event_per_segment(client: Client) -> None:
    received = configured(client, word_timestamps=True, events=["audio.words"]).say(TEXT)
    assert received.kinds == ["audio.start", "audio.words", "audio.done", "session.done"]
    assert received.sound == spoken(TEXT, 3)
    event = received.one("audio.words")
    assert (event["utterance_index"], event["index"]) == (0, 0)
    assert [word["word"] for word in event["words"]] == TEXT.split()


def test_times_of_each_utterance_begin_at_zero(client: Client) -> None:
    configured(client, word_timestamps=True, events=["audio.words"])
    first, second = client.say(TEXT), client.say(TEXT)
    assert first.one("audio.words")["words"] == second.one("audio.words")["words"]


def test_without_the_field_nothing_changes(client: Client) -> None:
    assert configured(client).say(TEXT).kinds == ["audio.start", "audio.done", "session.done"]


def test_times_of_each_sentence_begin_at_zero(client: Client) -> None:
    configured(client, timestamp_type="word", split_granularity="sentence")
    received = client.say("Hello there. Hello again.")
    starts = [
        done["timestamp_info"]["word_alignment"]["word_start_times_seconds"][0] for done in received.all("audio.done")
    ]
    assert len(starts) == 2 and max(starts) < 0.5


@pytest.mark.parametrize(
    "fields", [{"word_timestamps": True}, {"timestamp_type": "word"}], ids=["vLLM-Omni", "LiveKit"]
)
def test_an_aligner_that_fails_costs_only_the_times(client: Client, whisper: Path, fields: dict[str, object]) -> None:
    (whisper / "behavior").write_text("fail")
    try:
        received = configured(client, **fields).say(TEXT)
    finally:
        (whisper / "behavior").write_text("")
    assert received.one("audio.done")["finish_reason"] == "stop"
    if "timestamp_type" in fields:
        assert received.one("audio.done")["timestamp_info"]["word_alignment"]["words"] == []
    else:
        last = received.all("audio.chunk")[-1]
        assert last["timestamps"] is None and "no memory" in last["warning"]


@pytest.fixture
def hanging(whisper: Path) -> Iterator[None]:
    (whisper / "behavior").write_text("hang")
    yield
    (whisper / "behavior").write_text("")


def test_the_next_utterance_does_not_wait_for_the_aligner(server: Server, hanging: None) -> None:
    with server.client() as client:
        configured(client, word_timestamps=True, events=["audio.words"])
        client.write(TEXT)
        client.send("input.done")
        client.write(TEXT)
        received = client.until("session.done")
        assert "the aligner was not done in time" in received.one("audio.words")["warning"]


def test_the_next_sentence_does_not_wait_for_the_aligner(server: Server, hanging: None) -> None:
    with server.client() as client:
        configured(client, word_timestamps=True, split_granularity="sentence", events=["audio.words"])
        client.write("Hello there. Hello again.")
        client.send("input.done")
        received = client.until("audio.done")
        assert "the aligner was not done in time" in received.one("audio.words")["warning"]
        client.until("audio.start")
