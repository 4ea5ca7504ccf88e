"""WS /v1/audio/speech/stream over real sockets: streaming text gives the same audio as the whole text, and can be
interrupted."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from websockets.typing import Subprotocol

from oscine.audio.clips import read_clip
from oscine.config import ServerConfig
from tests.server.live.live_client import Client, Server, server_of
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually

FRAME_S = FRAME_SAMPLES / RATE_HZ
LONG = (
    "The first sentence is here to be first. The second one follows it at once, as it should. "
    "Then comes a third, which has nothing to say. A fourth one, too, is here, as there is time. "
    "And a last one ends it all."
)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    """Shared by all tests: leftovers of one test would break the next."""
    engine = ScriptedEngine()
    with server_of(engine) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def engine(running: tuple[ScriptedEngine, Server]) -> Iterator[ScriptedEngine]:
    engine, server = running
    engine.requests.clear()
    engine.cancelled = 0
    yield engine
    eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


@pytest.fixture
def server(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Server:
    return running[1]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        client.configure(seed=3)
        yield client


# --- events ---


def test_events_that_other_servers_do_not_have_are_sent_only_where_asked_for(server: Server) -> None:
    usual = ["audio.start", "audio.done", "session.done"]
    with server.client() as client:
        assert client.say("Hello.").kinds == usual
        client.send("session.config", seed=3)
        assert client.say("Hello.").kinds == usual
        assert client.configure(events=["session.ready"])["type"] == "session.ready"
        assert client.say("Hello.").kinds == usual
        client.send("session.config", events=["audio.segment"])
        assert client.say("Hello.").kinds == ["audio.start", "audio.segment", "audio.done", "session.done"]
        error = client.configure(events=["audio.start"])["error"]
        assert (error["param"], error["code"]) == ("events[0]", "invalid_field")
    with server.client(subprotocols=[Subprotocol("oscine")]) as client:
        client.send("session.config")
        assert client.say("Hello.").kinds == [
            "session.ready",
            "audio.start",
            "audio.segment",
            "audio.done",
            "session.done",
        ]


def test_each_frame_is_a_packet_of_a_phone_where_asked_for(client: Client) -> None:
    assert client.configure(seed=3, response_format="alaw", packet_ms=20)["sample_rate"] == 8000
    frames = [len(message) for message in client.say("Hello.").messages if isinstance(message, bytes)]
    assert set(frames[:-1]) == {160} and sum(frames) == 6 * FRAME_SAMPLES * 8000 // RATE_HZ
    assert client.configure(response_format="opus", packet_ms=20)["error"]["param"] == "packet_ms"


def test_a_sentence_that_was_said_before_comes_from_memory(engine: ScriptedEngine) -> None:
    with server_of(engine, ServerConfig(phrase_cache_bytes=2**20)) as server, server.client() as client:
        client.configure(seed=3, text_mode="whole")
        said = [client.say("Hello.") for _ in range(2)]
        assert [one.one("audio.start")["cache"] for one in said] == ["miss", "hit"]
        assert said[0].sound == said[1].sound and len(engine.requests) == 1


# --- text in pieces ---


def test_streaming_text_gives_the_audio_of_the_whole_text_to_the_bit(client: Client) -> None:
    text = "Hello there, 你好! "
    for pieces in ([text], list(text), [text[:7], "", text[7:]]):
        received = client.say(*pieces)
        assert received.sound == spoken(text, 3)
        assert received.kinds == ["audio.start", "audio.segment", "audio.done", "session.done"]


def test_a_token_is_spoken_before_the_next_one_arrives(client: Client, engine: ScriptedEngine) -> None:
    client.write("He")
    first = client.receive_frames(2)
    assert first.one("audio.start")["sentence_text"] == "He"
    assert [request.text for request in engine.requests] == ["He"]
    received = client.say("y", "!")
    assert first.sound + received.sound == spoken("Hey!", 3)


def test_utterances_are_spoken_in_order_each_with_its_own_settings(client: Client) -> None:
    client.write("One. ")
    client.send("session.config", seed=4, voice="finch")  # for the next one
    client.write("Still one.")
    client.send("input.done")
    client.write("Two.")
    client.send("input.done")
    client.write("Three.")
    client.send("input.done")
    first, second, third = (client.until("session.done") for _ in range(3))
    assert first.sound == spoken("One. Still one.", 3)
    assert second.sound == spoken("Two.", 4, "finch")
    assert third.sound == spoken("Three.", 4, "finch")
    assert [received.events[-1]["utterance_index"] for received in (first, second, third)] == [0, 1, 2]


def test_without_a_seed_every_utterance_draws_and_reports_its_own(server: Server) -> None:
    with server.client() as client:
        received = [client.say("Hello.")]  # without any settings too
        client.configure()
        received += [client.say("Hello."), client.say("Hello.")]
        seeds = [one.one("audio.start")["seed"] for one in received]
        assert len(set(seeds)) == 3
        assert [one.sound for one in received] == [spoken("Hello.", seed) for seed in seeds]


@pytest.mark.parametrize("pieces", [[], [""], ["  ", "\n"]])
def test_an_utterance_without_words_ends_at_once(client: Client, engine: ScriptedEngine, pieces: list[str]) -> None:
    received = client.say(*pieces)
    assert received.events == [{"type": "session.done", "utterance_index": 0, "total_sentences": 0}]
    assert not engine.requests
    assert client.say("Word.").one("session.done") == {
        "type": "session.done",
        "utterance_index": 1,
        "total_sentences": 1,
    }


@pytest.mark.parametrize("whole", [False, True])
def test_a_long_live_text_is_spoken_in_segments_without_loss(
    client: Client, engine: ScriptedEngine, whole: bool
) -> None:
    client.configure(seed=3, non_streaming_mode=whole)
    received = client.say(*(LONG[at : at + 3] for at in range(0, len(LONG), 3)))
    segments = received.all("audio.segment")
    texts = [segment["text"] for segment in segments]
    assert len(segments) > 2 and "".join(texts) == LONG
    starts, ends = ([segment[name] for segment in segments] for name in ("start_s", "end_s"))
    assert starts == [0.0, *ends[:-1]] and ends[-1] == received.one("audio.done")["audio_seconds"]
    _check_joined(received.sound, texts)
    if whole:
        assert [request.text for request in engine.requests] == texts
    first, *later = engine.requests
    assert first.continues_s is None and first.trim_silence is None
    assert all(one.continues_s is not None and one.trim_silence is False and one.seed == 3 for one in later)


def _check_joined(sound: bytes, texts: list[str]) -> None:
    """Differs from the segments alone in the fades at the joints only."""
    joined, segments = np.frombuffer(sound, "<i2"), np.frombuffer(b"".join(spoken(text, 3) for text in texts), "<i2")
    assert len(joined) == len(segments)
    joints = np.cumsum([len(text) * FRAME_SAMPLES for text in texts])[:-1]
    different = np.flatnonzero(joined != segments)
    assert all(np.abs(joints - at).min() <= 120 for at in different)
    assert all(abs(int(joined[at])) < 500 for at in joints)


def test_text_after_a_runaway_segment_is_spoken_too(client: Client) -> None:
    client.write("Hello!run")
    client.receive_frames(5)
    received = client.say(" and more.")
    assert received.one("audio.done")["finish_reason"] == "runaway"
    assert [segment["text"] for segment in received.all("audio.segment")] == ["Hello!run", " and more."]


def test_the_frame_limit_ends_the_audio_and_drops_the_rest_of_the_text(client: Client) -> None:
    client.configure(seed=3, max_new_tokens=5)
    client.write("Hello there.")
    received = client.until("audio.done")
    assert received.sound == spoken("Hell", 3) and received.events[-1]["finish_reason"] == "length"
    assert client.say(" And more").kinds == ["session.done"]
    assert client.say("Hey").sound == spoken("Hey", 3)


def test_an_encoded_utterance_is_one_file(client: Client) -> None:
    ready = client.configure(seed=3, response_format="flac", sample_rate=48000, speed=2.0, initial_codec_chunk_frames=1)
    assert (ready["response_format"], ready["sample_rate"]) == ("flac", 48000)
    assert ready["ignored_fields"] == ["initial_codec_chunk_frames"]
    for _ in range(2):
        received = client.say("Hello ", "there.")
        clip = read_clip(received.sound)
        assert abs(len(clip.samples) / clip.rate_hz - 6 * FRAME_S) < 0.05
        done = received.one("audio.done")
        assert done["total_bytes"] == len(received.sound) and abs(done["audio_seconds"] - 6 * FRAME_S) < 0.01


def test_a_client_of_vllm_omni_works(server: Server) -> None:
    with server.client() as client:
        client.send(
            "session.config",
            voice="Wren",
            task_type="CustomVoice",
            language="Auto",
            response_format="wav",
            speed=1.0,
            stream_audio=True,
            split_granularity="sentence",
            initial_codec_chunk_frames=1,
        )
        received = client.say("Hello there.")
        start, done, over = received.one("audio.start"), received.one("audio.done"), received.one("session.done")
        assert (start["sentence_index"], start["format"], start["sample_rate"], start["channels"]) == (
            0,
            "wav",
            RATE_HZ,
            1,
        )
        assert isinstance(start["sentence_text"], str)
        assert (done["sentence_index"], done["total_bytes"], done["error"]) == (0, len(received.sound), False)
        assert (over["utterance_index"], over["total_sentences"]) == (0, 1)
        assert received.sound[44:] == spoken("Hello there.", start["seed"], "wren")
        client.send("input.texte")
        error = client.until("error").events[-1]
        assert error["message"] == error["error"]["message"]


def test_committed_text_is_spoken_to_its_end_and_the_utterance_goes_on(client: Client) -> None:
    client.write("Hello the", "re")
    client.send("input.commit", commit_id="one")
    received = client.receive_frames(len("Hello there"))
    committed = {"utterance_index": 0, "commit_id": "one", "sentence_index": 0, "chars_committed": 11}
    assert received.one("input.committed") == {"type": "input.committed", **committed}
    client.send("input.commit", commit_id=2)
    assert "input.text first" in client.until("error").events[-1]["message"]
    client.write(" and you.")
    client.send("input.commit")
    second = client.until("input.committed").events[-1]
    assert (second["commit_id"], second["sentence_index"], second["chars_committed"]) == (None, 1, 9)
    rest = client.say()
    assert rest.one("session.done")["total_sentences"] == 1  # one file
    assert [segment["text"] for segment in rest.all("audio.segment")][-1] == " and you."
    client.send("input.commit")
    assert "there is no text to commit" in client.until("error").events[-1]["message"]


def test_a_segment_with_a_tag_without_effect_carries_a_warning(client: Client) -> None:
    client.configure()
    received = client.say("A <foo>b</foo>. <break/> Plain.").all("audio.segment")
    assert received[0]["warning"] == "unknown tags: <foo>" and "warning" not in received[1]


def test_a_segment_in_a_foreign_script_carries_a_warning() -> None:
    engine = ScriptedEngine()
    with server_of(engine, card=replace(CARD, languages=("english",))) as server, server.client() as client:
        client.configure()
        assert "Chinese characters" in client.say("你好").one("audio.segment")["warning"]
        assert "warning" not in client.say("Hello.").one("audio.segment")
    engine.stop()


# --- barge-in ---


def test_a_cancelled_utterance_stops_in_the_engine_and_is_reported(client: Client, engine: ScriptedEngine) -> None:
    text = "Hello there, this goes on"
    client.write(text)
    first = client.receive_frames(len(text))
    received = client.cancel(played_s=6 * FRAME_S)
    done = received.one("audio.done")
    assert engine.cancelled == 1
    assert done["finish_reason"] == "cancelled"
    assert done["total_bytes"] == len(first.sound + received.sound)
    assert done["audio_seconds"] == round(len(first.sound + received.sound) / 2 / RATE_HZ, 3)
    assert received.kinds == ["audio.done", "session.done", "input.cancelled"]
    assert received.events[-1] == {
        "type": "input.cancelled",
        "utterance_index": 0,
        "played_s": 6 * FRAME_S,
        "spoken_text": done["spoken_text"],
    }
    assert done["spoken_text"] == "Hello"


def test_a_cancel_leaves_nothing_for_the_next_utterance(client: Client) -> None:
    for text in ("Hello", "again", "and again"):
        client.write(text)
        client.receive_frames(2)
        client.cancel()
        assert client.say("Next.").sound == spoken("Next.", 3)


def test_a_cancel_drops_and_reports_queued_utterances(client: Client, engine: ScriptedEngine) -> None:
    engine.max_frames = engine.status().frames + 2
    for _ in range(3):
        client.write("A long story. ")
        client.send("input.done")
    client.write("And an open one")
    client.receive_frames(2)
    received = client.cancel()
    engine.max_frames = math.inf
    assert received.one("audio.done")["utterance_index"] == 0  # the others never began
    assert received.one("audio.done")["finish_reason"] == "cancelled"
    over = received.all("session.done")
    assert [(event["utterance_index"], event["total_sentences"]) for event in over] == [(0, 1), (1, 0), (2, 0), (3, 0)]
    assert len(engine.requests) == 1
    assert client.say("Next.").sound == spoken("Next.", 3)


def test_a_cancel_after_all_audio_was_sent_reports_the_playback_position(client: Client) -> None:
    client.say("The first one. ")
    client.say("The second one. ")
    received = client.cancel(utterance_index=1, played_s=10 * FRAME_S)
    assert received.kinds == ["input.cancelled"]
    assert received.events[0] == {
        "type": "input.cancelled",
        "utterance_index": 1,
        "played_s": 10 * FRAME_S,
        "spoken_text": "The second",
    }
    assert client.cancel().events[0]["utterance_index"] is None  # the player has nothing any more


def test_without_a_report_of_the_client_the_server_estimates_the_playback_position(client: Client) -> None:
    text = "word " * 60  # 24 s
    client.say(text)
    client.say(text)
    received = client.cancel().events[0]  # at once: the player is near the beginning of the first
    assert received["utterance_index"] == 0 and received["played_s"] < 24
    assert text.startswith(received["spoken_text"]) and len(received["spoken_text"]) < len(text) - 1


def test_a_cancel_with_only_an_utterance_index_uses_the_estimated_position(client: Client) -> None:
    text = "word " * 60  # 24 s
    client.say(text)
    client.say(text)
    received = client.cancel(utterance_index=0).events[0]
    assert received["utterance_index"] == 0 and received["played_s"] < 24
    assert len(received["spoken_text"]) < len(text) - 1
    client.say(text)
    client.say(text)
    received = client.cancel(utterance_index=3).events[0]  # the one before it is still being played
    assert (received["utterance_index"], received["played_s"], received["spoken_text"]) == (3, 0.0, "")


def test_a_cancel_of_an_unknown_utterance_is_refused_and_cancels_nothing(
    client: Client, engine: ScriptedEngine
) -> None:
    client.send("input.cancel", utterance_index=0)
    assert "none yet" in client.until("error").events[-1]["message"]
    client.write("Hello")
    first = client.receive_frames(3)
    client.send("input.cancel", utterance_index=1, played_s=0.1)
    refused = client.until("error")
    assert refused.events[-1]["error"]["param"] == "utterance_index"
    assert "utterances 0 to 0" in refused.events[-1]["message"]
    assert first.sound + refused.sound + client.say(" there.").sound == spoken("Hello there.", 3)
    assert engine.cancelled == 0


def test_a_cancel_of_an_old_utterance_stops_the_current_one(client: Client, engine: ScriptedEngine) -> None:
    client.say("Hello.")
    client.cancel()
    client.write("A second one")
    client.receive_frames(3)
    received = client.cancel(utterance_index=0, played_s=0.2)
    assert engine.cancelled == 1
    assert received.one("input.cancelled") == {
        "type": "input.cancelled",
        "utterance_index": None,
        "played_s": 0.0,
        "spoken_text": "",
    }


# --- closing ---


def test_session_close_speaks_the_remaining_text_and_closes(client: Client) -> None:
    client.write("One.")
    client.send("input.done")
    client.write("Two.")
    client.send("session.close")
    client.write("Three.")
    code, received = client.closed()
    assert code == 1000
    assert received.sound == spoken("One.", 3) + spoken("Two.", 3)
    assert received.one("error")["error"]["code"] == "bad_request"
    assert received.kinds[-1] == "session.done"


def test_a_disconnect_cancels_the_utterance(server: Server, engine: ScriptedEngine) -> None:
    with server.client() as client:
        client.write("Hello")
        client.receive_frames(3)
        assert server.service.streams == 1
        client.leave()
    eventually(lambda: engine.cancelled == 1)
    eventually(lambda: server.service.streams == 0)


def test_each_utterance_is_counted_and_logged_without_its_words(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "oscine"):
        client.say("Secret words.")
        client.write("More secrets")
        client.receive_frames(2)
        client.cancel()
        eventually(lambda: sum(record.message == "spoken" for record in caplog.records) == 2)
    assert "ecret" not in caplog.text + str([vars(record) for record in caplog.records])
    page = server.service.metrics.page().decode()
    assert 'oscine_requests_total{mode="websocket",model="scripted",status="200"}' in page
    assert 'oscine_finish_total{model="scripted",reason="cancelled"}' in page
