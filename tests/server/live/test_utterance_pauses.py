"""A text that pauses keeps no slot from others."""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from oscine.config import ServerConfig
from tests.server.live.live_client import HELD_SAMPLES, Client, Server, server_of
from tests.server.scripted_engine import FRAME_SAMPLES, ScriptedEngine, spoken

SLOTS = 3
SECOND_WORDS = "and then the rest."


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(slots=SLOTS)
    yield engine
    engine.stop()


@pytest.fixture
def server(engine: ScriptedEngine) -> Iterator[Server]:
    with server_of(engine, ServerConfig(live_pause_s=0.1)) as server:
        yield server


def pausing(server: Server, stack: ExitStack) -> Client:
    """A client whose first word is spoken, and whose second one does not come."""
    client = stack.enter_context(server.client())
    client.configure(seed=3)
    client.write("Hello ")
    client.receive_frames(5)  # the space waits for what follows it
    return client


def test_paused_texts_give_their_slots_to_others(server: Server, engine: ScriptedEngine) -> None:
    with ExitStack() as stack:
        clients = [pausing(server, stack) for _ in range(SLOTS)]
        body = {"input": "A word for me.", "response_format": "pcm", "seed": 5}
        answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, trust_env=False, timeout=600)
        assert answer.status_code == 200 and answer.content == spoken("A word for me.", 5)
        all_segments = []
        for client in clients:  # they continue where they paused
            received = client.say(SECOND_WORDS)
            space = 2 * FRAME_SAMPLES  # after "Hello"
            assert len(received.sound) == space + len(spoken(SECOND_WORDS, 3)) + 2 * HELD_SAMPLES
            all_segments.append([event["text"] for event in received.all("audio.segment")])
            assert received.one("audio.done")["finish_reason"] == "stop"
    assert ["Hello ", SECOND_WORDS] in all_segments  # one slot was enough: the others may have kept theirs
    assert all("".join(segments) == "Hello " + SECOND_WORDS for segments in all_segments)
    later = [request for request in engine.requests if request.text == SECOND_WORDS]
    assert later and all(request.continues_s is not None and request.resumes for request in later)


def test_a_text_that_pauses_on_a_server_with_room_keeps_its_slot(server: Server, engine: ScriptedEngine) -> None:
    with ExitStack() as stack:
        client, other = pausing(server, stack), pausing(server, stack)
        # The watch looks every half second; the third stream comes and goes several times.
        for _ in range(3):
            assert other.say("One more.").kinds[-1] == "session.done"
        assert engine.status().slots_active < SLOTS
        received = client.say(SECOND_WORDS)
        assert received.one("audio.segment")["text"] == "Hello " + SECOND_WORDS


def test_streaming_text_is_spoken_faster_within_prosody(server: Server) -> None:
    """However it is cut: a character lasts 80 ms, half of it within the tag."""
    text = "Hello <prosody rate='2'>my friend</prosody> there."
    sounds = []
    for cut in (1, 5, len(text)):
        with server.client() as client:
            client.configure(seed=3)
            received = client.say(*(text[start : start + cut] for start in range(0, len(text), cut)))
            sounds.append(received.sound)
            times = [(event["text"].strip(), event["end_s"]) for event in received.all("audio.segment")]
        names, ends_s = zip(*times, strict=True)
        assert names == ("Hello", "my friend", "there.")
        assert ends_s == pytest.approx((0.48, 0.84, 1.32), abs=1e-3)  # the space after "Hello" is spoken
    assert sounds[0] == sounds[1] == sounds[2]
