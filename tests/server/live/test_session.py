"""WS /v1/audio/speech/stream over real sockets: text in pieces is heard as if it had come whole, and can be stopped."""

import logging
import math
from collections.abc import Iterator

import numpy as np
import pytest
from tests.server.live.live_client import Client, Server, server_of
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually

from oscine.audio import read_clip

FRAME_S = FRAME_SAMPLES / RATE_HZ
LONG = (
    "The first sentence is here to be heard. The second one follows it at once, as it should. "
    "Then comes a third, which has nothing to say. A fourth one, too, is here, as there is time. "
    "And a last one ends it all."
)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    """One for all: whatever a test leaves behind, the next one would meet."""
    engine = ScriptedEngine()
    with server_of(engine) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def engine(running: tuple[ScriptedEngine, Server]) -> Iterator[ScriptedEngine]:
    engine, server = running
    engine.submitted.clear()
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


# --- text in pieces ---


def test_text_in_pieces_is_heard_as_the_whole_text_to_the_bit(client: Client) -> None:
    text = "Hello there, 你好! "
    for pieces in ([text], list(text), [text[:7], "", text[7:]]):
        told = client.say(*pieces)
        assert told.sound == spoken(text, 3)
        assert told.kinds == ["audio.start", "audio.segment", "audio.done", "session.done"]


def test_a_token_is_spoken_before_the_next_one_comes(client: Client, engine: ScriptedEngine) -> None:
    client.write("He")
    heard = client.hear(2)
    assert heard.one("audio.start")["sentence_text"] == "He"
    assert [request.text for request in engine.submitted] == ["He"]
    told = client.say("y", "!")
    assert heard.sound + told.sound == spoken("Hey!", 3)


def test_utterances_are_spoken_in_their_order_each_with_its_own_settings(client: Client) -> None:
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
    assert [told.events[-1]["utterance_index"] for told in (first, second, third)] == [0, 1, 2]


def test_without_a_seed_every_utterance_draws_its_own_and_tells_it(server: Server) -> None:
    with server.client() as client:
        told = [client.say("Hello.")]  # without any settings too
        client.configure()
        told += [client.say("Hello."), client.say("Hello.")]
        seeds = [one.one("audio.start")["seed"] for one in told]
        assert len(set(seeds)) == 3
        assert [one.sound for one in told] == [spoken("Hello.", seed) for seed in seeds]


@pytest.mark.parametrize("pieces", [[], [""], ["  ", "\n"]])
def test_an_utterance_without_a_word_is_over_at_once(client: Client, engine: ScriptedEngine, pieces: list[str]) -> None:
    told = client.say(*pieces)
    assert told.events == [{"type": "session.done", "utterance_index": 0, "total_sentences": 0}]
    assert not engine.submitted
    assert client.say("Word.").one("session.done") == {
        "type": "session.done",
        "utterance_index": 1,
        "total_sentences": 1,
    }


@pytest.mark.parametrize("whole", [False, True])
def test_a_long_live_text_is_spoken_in_parts_and_nothing_is_lost(
    client: Client, engine: ScriptedEngine, whole: bool
) -> None:
    client.configure(seed=3, non_streaming_mode=whole)
    told = client.say(*(LONG[at : at + 3] for at in range(0, len(LONG), 3)))
    segments = told.all("audio.segment")
    texts = [segment["text"] for segment in segments]
    assert len(segments) > 2 and "".join(texts) == LONG
    starts, ends = ([segment[name] for segment in segments] for name in ("start_s", "end_s"))
    assert starts == [0.0, *ends[:-1]] and ends[-1] == told.one("audio.done")["audio_seconds"]
    _check_joined(told.sound, texts)
    if whole:
        assert [request.text for request in engine.submitted] == texts
    first, *later = engine.submitted
    assert first.continues_s is None and first.trim_silence is None
    assert all(part.continues_s is not None and part.trim_silence is False and part.seed == 3 for part in later)


def _check_joined(sound: bytes, texts: list[str]) -> None:
    """Nothing but the fades at the joints differs from the parts alone."""
    heard, parts = np.frombuffer(sound, "<i2"), np.frombuffer(b"".join(spoken(text, 3) for text in texts), "<i2")
    assert len(heard) == len(parts)
    joints = np.cumsum([len(text) * FRAME_SAMPLES for text in texts])[:-1]
    different = np.flatnonzero(heard != parts)
    assert all(np.abs(joints - at).min() <= 120 for at in different)
    assert all(abs(int(heard[at])) < 500 for at in joints)


def test_text_that_comes_after_the_speech_was_ended_early_is_spoken_too(client: Client) -> None:
    client.write("Hello!run")
    client.hear(5)
    told = client.say(" and more.")
    assert told.one("audio.done")["finish_reason"] == "runaway"
    assert [segment["text"] for segment in told.all("audio.segment")] == ["Hello!run", " and more."]


def test_the_frame_limit_ends_the_utterance_but_not_its_text(client: Client) -> None:
    client.configure(seed=3, max_new_tokens=5)
    client.write("Hello there.")
    told = client.until("audio.done")
    assert told.sound == spoken("Hell", 3) and told.events[-1]["finish_reason"] == "length"
    assert client.say(" And more").kinds == ["session.done"]
    assert client.say("Hey").sound == spoken("Hey", 3)


def test_an_encoded_utterance_is_one_file(client: Client) -> None:
    ready = client.configure(seed=3, response_format="flac", sample_rate=48000, speed=2.0, split_granularity="none")
    assert (ready["response_format"], ready["sample_rate"]) == ("flac", 48000)
    assert ready["ignored_fields"] == ["split_granularity"]
    for _ in range(2):
        told = client.say("Hello ", "there.")
        clip = read_clip(told.sound)
        assert abs(len(clip.samples) / clip.rate_hz - 6 * FRAME_S) < 0.05
        done = told.one("audio.done")
        assert done["total_bytes"] == len(told.sound) and abs(done["audio_seconds"] - 6 * FRAME_S) < 0.01


def test_a_client_of_vllm_omni_finds_what_it_looks_for(server: Server) -> None:
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
        told = client.say("Hello there.")
        start, done, over = told.one("audio.start"), told.one("audio.done"), told.one("session.done")
        assert (start["sentence_index"], start["format"], start["sample_rate"], start["channels"]) == (
            0,
            "wav",
            RATE_HZ,
            1,
        )
        assert isinstance(start["sentence_text"], str)
        assert (done["sentence_index"], done["total_bytes"], done["error"]) == (0, len(told.sound), False)
        assert (over["utterance_index"], over["total_sentences"]) == (0, 1)
        assert told.sound[44:] == spoken("Hello there.", start["seed"], "wren")
        client.send("input.texte")
        error = client.until("error").events[-1]
        assert error["message"] == error["error"]["message"]


# --- barge-in ---


def test_a_cancelled_utterance_stops_in_the_engine_and_the_client_is_told(
    client: Client, engine: ScriptedEngine
) -> None:
    text = "Hello there, this goes on"
    client.write(text)
    heard = client.hear(len(text))
    told = client.cancel(played_s=6 * FRAME_S)
    done = told.one("audio.done")
    assert engine.cancelled == 1
    assert done["finish_reason"] == "cancelled"
    assert done["total_bytes"] == len(heard.sound + told.sound)
    assert done["audio_seconds"] == round(len(heard.sound + told.sound) / 2 / RATE_HZ, 3)
    assert told.kinds == ["audio.done", "session.done", "input.cancelled"]
    assert told.events[-1] == {
        "type": "input.cancelled",
        "utterance_index": 0,
        "played_s": 6 * FRAME_S,
        "spoken_text": done["spoken_text"],
    }
    assert done["spoken_text"] == "Hello"


def test_the_utterance_after_a_cancel_is_clean(client: Client) -> None:
    for text in ("Hello", "again", "and again"):
        client.write(text)
        client.hear(2)
        client.cancel()
        assert client.say("Next.").sound == spoken("Next.", 3)


def test_queued_utterances_are_dropped_by_a_cancel_and_told(client: Client, engine: ScriptedEngine) -> None:
    engine.max_frames = engine.status().frames + 2
    for _ in range(3):
        client.write("A long story. ")
        client.send("input.done")
    client.write("And an open one")
    client.hear(2)
    told = client.cancel()
    engine.max_frames = math.inf
    assert told.one("audio.done")["utterance_index"] == 0  # the others never began
    assert told.one("audio.done")["finish_reason"] == "cancelled"
    over = told.all("session.done")
    assert [(event["utterance_index"], event["total_sentences"]) for event in over] == [(0, 1), (1, 0), (2, 0), (3, 0)]
    assert len(engine.submitted) == 1
    assert client.say("Next.").sound == spoken("Next.", 3)


def test_a_cancel_after_the_last_sound_was_sent_still_tells_what_was_heard(client: Client) -> None:
    client.say("The first one. ")
    client.say("The second one. ")
    told = client.cancel(utterance_index=1, played_s=10 * FRAME_S)
    assert told.kinds == ["input.cancelled"]
    assert told.events[0] == {
        "type": "input.cancelled",
        "utterance_index": 1,
        "played_s": 10 * FRAME_S,
        "spoken_text": "The second",
    }
    assert client.cancel().events[0]["utterance_index"] is None  # the player has nothing any more


def test_without_the_clients_word_the_server_reckons_what_was_played(client: Client) -> None:
    text = "word " * 60  # 24 s
    client.say(text)
    client.say(text)
    told = client.cancel().events[0]  # at once: the player is near the beginning of the first
    assert told["utterance_index"] == 0 and told["played_s"] < 24
    assert text.startswith(told["spoken_text"]) and len(told["spoken_text"]) < len(text) - 1


def test_a_cancel_that_names_what_is_heard_but_not_how_far_goes_by_the_clock(client: Client) -> None:
    text = "word " * 60  # 24 s
    client.say(text)
    client.say(text)
    told = client.cancel(utterance_index=0).events[0]
    assert told["utterance_index"] == 0 and told["played_s"] < 24
    assert len(told["spoken_text"]) < len(text) - 1
    client.say(text)
    client.say(text)
    told = client.cancel(utterance_index=3).events[0]  # the one before it is still being played
    assert (told["utterance_index"], told["played_s"], told["spoken_text"]) == (3, 0.0, "")


def test_a_cancel_of_an_utterance_that_never_was_is_refused_and_cancels_nothing(
    client: Client, engine: ScriptedEngine
) -> None:
    client.send("input.cancel", utterance_index=0)
    assert "none was begun" in client.until("error").events[-1]["message"]
    client.write("Hello")
    heard = client.hear(3)
    client.send("input.cancel", utterance_index=1, played_s=0.1)
    refused = client.until("error")
    assert refused.events[-1]["error"]["param"] == "utterance_index"
    assert "0 to 0 were begun" in refused.events[-1]["message"]
    assert heard.sound + refused.sound + client.say(" there.").sound == spoken("Hello there.", 3)
    assert engine.cancelled == 0


def test_a_cancel_of_an_utterance_that_is_long_gone_still_stops_what_is_spoken(
    client: Client, engine: ScriptedEngine
) -> None:
    client.say("Hello.")
    client.cancel()
    client.write("A second one")
    client.hear(3)
    told = client.cancel(utterance_index=0, played_s=0.2)
    assert engine.cancelled == 1
    assert told.one("input.cancelled") == {
        "type": "input.cancelled",
        "utterance_index": None,
        "played_s": 0.0,
        "spoken_text": "",
    }


# --- the end ---


def test_session_close_speaks_what_there_is_and_closes(client: Client) -> None:
    client.write("One.")
    client.send("input.done")
    client.write("Two.")
    client.send("session.close")
    client.write("Three.")
    code, told = client.closed()
    assert code == 1000
    assert told.sound == spoken("One.", 3) + spoken("Two.", 3)
    assert told.one("error")["error"]["code"] == "bad_request"
    assert told.kinds[-1] == "session.done"


def test_a_client_that_leaves_cancels_its_utterance(server: Server, engine: ScriptedEngine) -> None:
    with server.client() as client:
        client.write("Hello")
        client.hear(3)
        assert server.service.streams == 1
        client.leave()
    eventually(lambda: engine.cancelled == 1)
    eventually(lambda: server.service.streams == 0)


def test_metrics_and_log_have_a_line_per_utterance_and_no_words(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "oscine"):
        client.say("Secret words.")
        client.write("More secrets")
        client.hear(2)
        client.cancel()
        eventually(lambda: sum(record.message == "spoken" for record in caplog.records) == 2)
    assert "ecret" not in caplog.text + str([vars(record) for record in caplog.records])
    page = server.service.metrics.page().decode()
    assert 'oscine_requests_total{mode="websocket",status="200"}' in page
    assert 'oscine_finish_total{reason="cancelled"}' in page
