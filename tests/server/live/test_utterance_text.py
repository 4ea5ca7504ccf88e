"""Streaming text that is prepared before it is spoken: tags and numbers may arrive in pieces."""

import asyncio
from collections.abc import Iterator

import pytest

from oscine.speech.script import Segment, StreamingScript
from oscine.text.options import TextOptions
from oscine.text.preparation import StreamingPreparation
from oscine.text.segmenter import SegmenterConfig
from tests.server.live.live_client import Client, Server, server_of
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    with server_of(engine) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def client(running: tuple[ScriptedEngine, Server]) -> Iterator[Client]:
    with running[1].client() as client:
        yield client


def test_a_tag_in_pieces_is_a_pause_of_exactly_its_length(client: Client) -> None:
    client.configure(seed=3)
    received = client.say("One. <br", "eak time=", '"500ms"', "/> ", "Two.")
    border, silence, fade = 5 * FRAME_SAMPLES * 2, RATE_HZ, RATE_HZ // 100
    pcm = received.sound
    assert len(pcm) == border + silence + 4 * FRAME_SAMPLES * 2
    assert pcm[: border - fade] == spoken("One. ", 3)[:-fade]
    assert pcm[border : border + silence] == bytes(silence)
    assert pcm[border + silence + fade :] == spoken("Two.", 3)[fade:]
    assert [segment["text"] for segment in received.all("audio.segment")] == ["One. ", "Two."]
    assert received.one("audio.done")["audio_seconds"] == round(len(pcm) / 2 / RATE_HZ, 3)


def test_pauses_at_the_ends_are_sent_too(client: Client) -> None:
    client.configure(seed=3)
    received = client.say("<break/>One.", "<break/>")
    assert len(received.sound) == 2 * (RATE_HZ + 4 * FRAME_SAMPLES)
    assert received.sound[:RATE_HZ] == bytes(RATE_HZ)
    assert received.one("audio.done")["finish_reason"] == "stop"


def test_a_text_of_pauses_is_no_utterance(client: Client) -> None:
    client.configure(seed=3)
    assert "audio.start" not in client.say("<break/>", " <break/>").kinds


@pytest.mark.parametrize("pieces", [["Pay $5.", "50 or 1", "2 k", "m, Os", "cine!"], ["Pay $5.50 or 12 km, Oscine!"]])
def test_numbers_and_words_in_pieces_are_spoken_alike(client: Client, pieces: list[str]) -> None:
    client.configure(seed=3, language="english", normalize=True, pronunciations={"Oscine": "OSS-een"})
    received = client.say(*pieces)
    assert received.sound == spoken("Pay five dollars fifty or twelve kilometers, OSS-een!", 3)
    assert received.one("audio.segment")["text"] == "Pay $5.50 or 12 km, Oscine!"


def test_barge_in_reports_the_words_of_the_user(client: Client) -> None:
    client.configure(seed=3, language="english", normalize=True)
    client.say("It is $5 <break time='2s'/>now. ")
    cancelled = client.cancel(played_s=10_000, utterance_index=0).one("input.cancelled")
    assert cancelled["spoken_text"] == "It is $5 now."
    client.say("It is $5 <break time='2s'/>now. ")
    words_s = len("It is five dollars ") * FRAME_SAMPLES / RATE_HZ
    cancelled = client.cancel(played_s=words_s + 1.9, utterance_index=1).one("input.cancelled")
    assert cancelled["spoken_text"] == "It is $5"


def test_a_bad_tag_ends_the_utterance_after_the_words_before_it(client: Client) -> None:
    client.configure(seed=3)
    received = client.say("One. <break time=soon/> Two.")
    assert received.one("audio.segment")["text"] == "One. "
    error = received.one("error")
    assert "<break time=soon/>" in error["message"] and error["utterance_index"] == 0
    assert received.one("audio.done")["finish_reason"] == "error"
    assert client.say("Three.").sound == spoken("Three.", 3)


def test_markup_false_speaks_tags_in_pieces(client: Client) -> None:
    client.configure(seed=3, markup=False)
    assert client.say("a <bre", "ak/> b").sound == spoken("a <break/> b", 3)


def test_words_that_were_held_back_are_spoken_when_the_slot_is_given_back() -> None:
    async def run() -> None:
        options = TextOptions(normalize=True)
        text = StreamingScript(lambda: StreamingPreparation(options, "english", SegmenterConfig()), whole=False)
        text.push("There are 5")
        segment = await text.next_item()
        assert isinstance(segment, Segment) and segment.text == "There are"
        text.give_slot_back()
        assert (segment.text, segment.content.written, segment.complete) == ("There are five", "There are 5", True)
        text.end_segment(segment)
        assert text.pending_chars == 0

    asyncio.run(run())


def test_clear_drops_words_that_were_held_back() -> None:
    async def run() -> None:
        options = TextOptions(normalize=True)
        text = StreamingScript(lambda: StreamingPreparation(options, "english", SegmenterConfig()), whole=False)
        text.push("There are 5")
        segment = await text.next_item()
        assert isinstance(segment, Segment)
        text.clear(segment)
        assert (segment.text, segment.complete) == ("There are", True)
        assert text.pending_chars == len(segment.text)
        text.end_segment(segment)
        text.push("Go on.")
        text.end()
        following = await text.next_item()
        assert isinstance(following, Segment) and following.text == "Go on."

    asyncio.run(run())
