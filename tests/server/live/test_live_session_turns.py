"""`input.turn`: a dialogue whose turns arrive one after the other, in one utterance."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oscine.config import ServerConfig
from tests.server.live.live_client import Client, server_of
from tests.server.scripted_engine import RATE_HZ, ScriptedEngine, spoken

FADE = RATE_HZ // 200  # samples at the end and at the start of a turn


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[Client]:
    with server_of(engine) as server, server.client() as client:
        client.configure(voice="wren", seed=3)
        yield client


def refusal(client: Client, **turn: Any) -> dict[str, Any]:
    client.send("input.turn", **turn)
    return client.until("error").events[-1]["error"]


def test_turns_are_spoken_in_one_file_each_with_its_voice(client: Client, engine: ScriptedEngine) -> None:
    client.send("input.turn", voice="finch")
    client.write("Hel", "lo.")
    client.send("input.turn", pause_s=0.25, instructions="Whisper.", text="Hi")
    received = client.say("!")
    parts = [spoken("Hello.", 3, "finch"), bytes(2 * RATE_HZ // 4), spoken("Hi!", 3, "wren")]
    expected, sound = (np.frombuffer(one, "<i2").copy() for one in (b"".join(parts), received.sound))
    for border in (len(parts[0]) // 2, (len(parts[0]) + len(parts[1])) // 2):
        expected[border - FADE : border + FADE] = sound[border - FADE : border + FADE] = 0
    assert (sound == expected).all() and received.one("session.done")["total_sentences"] == 1
    told = [(event["turn"], event["voice"], event["text"]) for event in received.all("audio.segment")]
    assert told == [(0, "finch", "Hello."), (1, "wren", "Hi!")]
    assert [one.instructions for one in engine.requests] == [None, "Whisper."]
    assert {one.seed for one in engine.requests} == {3}


def test_turns_share_a_random_seed_and_the_next_utterance_is_no_dialogue(
    client: Client, engine: ScriptedEngine
) -> None:
    client.configure(voice="wren")
    client.send("input.turn", voice="finch", text="One.")
    client.send("input.turn", text="Two.")
    seed = client.say().one("audio.start")["seed"]
    client.say("Three.")
    assert [one.voice for one in engine.requests] == ["finch", "wren", "wren"]
    assert [one.seed for one in engine.requests][:2] == [seed, seed] != [engine.requests[2].seed] * 2


def test_a_refused_turn_takes_its_text_along(client: Client, engine: ScriptedEngine) -> None:
    client.send("input.turn", text="One.")
    error = refusal(client, voice="nobody")
    assert error["param"] == "voice" and error["message"].startswith("unknown voice 'nobody'")
    client.write("lost")
    assert "dropped" in client.until("error").events[-1]["message"]
    client.send("input.turn", voice="finch")
    client.say("Two.")
    assert [(one.text, one.voice) for one in engine.requests] == [("One.", "wren"), ("Two.", "finch")]


def test_bad_turns_are_refused_with_their_field(client: Client) -> None:
    assert refusal(client, pause_s=11)["message"] == "pause_s must be a number of seconds from 0 to 10, got 11"
    assert refusal(client, language="klingon")["param"] == "language"
    assert refusal(client, text="a", input="b")["param"] == "input"


def test_a_turn_needs_settings_and_an_utterance_has_a_limit_of_them(engine: ScriptedEngine) -> None:
    with server_of(engine) as server, server.client() as client:
        assert refusal(client, voice="wren")["code"] == "not_configured"
        client.configure(seed=1)
        for _ in range(256):
            client.send("input.turn")
        assert "the utterance has 256 turns (the maximum)" in refusal(client)["message"]


def test_turns_keep_the_settings_with_which_their_utterance_began(client: Client, engine: ScriptedEngine) -> None:
    client.send("input.turn", text="One.")
    client.configure(voice="finch", temperature=0.3, instructions="Whisper.")
    client.send("input.turn", text="Two.")
    client.say()
    client.say("Three.")
    assert [(one.voice, one.temperature) for one in engine.requests] == [("wren", None)] * 2 + [("finch", 0.3)]


def test_an_utterance_that_began_without_settings_takes_no_turns(engine: ScriptedEngine) -> None:
    with server_of(engine) as server, server.client() as client:
        client.write(" ")
        client.configure(seed=1)
        assert refusal(client, text="Hello.")["code"] == "not_configured"
        client.send("input.done")
        client.until("session.done")
        client.send("input.turn", text="Hello.")
        assert client.say().one("session.done")["total_sentences"] == 1


def test_a_turn_whose_text_is_refused_has_not_begun(engine: ScriptedEngine) -> None:
    with server_of(engine, ServerConfig(max_text_chars=10)) as server, server.client() as client:
        client.configure(seed=1)
        assert "would exceed the limit of 10" in refusal(client, pause_s=1, text="Much too long.")["message"]
        client.send("input.turn", pause_s=1, text="Two.")
        assert [event["turn"] for event in client.say().all("audio.segment")] == [0]


def test_the_pauses_of_all_turns_have_one_limit(client: Client) -> None:
    for _ in range(2):
        client.send("input.turn", pause_s=10, text='Hi.<break time="10s"/>' + '<break time="10s"/>' * 30)
    client.send("input.done")
    error = client.until("error").events[-1]["error"]
    assert error["message"].startswith("the pauses of the text are longer than 600 s together")


def test_a_strict_server_refuses_unknown_fields_of_a_turn(engine: ScriptedEngine) -> None:
    with server_of(engine, ServerConfig(strict=True)) as server, server.client() as client:
        client.configure(seed=1)
        assert refusal(client, paus_s=1)["param"] == "paus_s"


def test_a_warning_about_the_voice_of_a_later_turn_is_told_with_its_segments(client: Client) -> None:
    client.send("input.turn", voice="finch", text="One.")
    client.send("input.turn", voice={"mix": {"wren": 1, "finch": 1}}, text="Two.")
    plain, mixed = client.say().all("audio.segment")
    assert "warning" not in plain
    assert mixed["voice"] == "wren(1)+finch(1)" and mixed["warning"].startswith("experimental: ")
