"""Texts that are prepared before they are spoken, over HTTP: pauses, pronunciations, numbers in words."""

import asyncio
import base64
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from oscine.config import ServerConfig
from oscine.errors import RequestError
from oscine.request import SpeechRequest
from oscine.speech.clips import ClipPolicy
from oscine.speech.plan import SpeechPlanner
from tests.event_stream import read_events
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of

SPEECH = "/v1/audio/speech"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, httpx.Client]]:
    engine = ScriptedEngine()
    with client_of(engine, CARD) as client:
        yield engine, client
    engine.stop()


@pytest.fixture
def engine(running: tuple[ScriptedEngine, httpx.Client]) -> ScriptedEngine:
    running[0].requests.clear()
    return running[0]


@pytest.fixture
def client(running: tuple[ScriptedEngine, httpx.Client], engine: ScriptedEngine) -> httpx.Client:
    return running[1]


def say(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    return client.post(SPEECH, json={"input": text, "response_format": "pcm", "seed": 3, **fields})


def texts(engine: ScriptedEngine) -> list[str]:
    return [request.text for request in engine.requests]


def test_a_break_is_silence_of_exactly_its_length(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = say(client, 'One. <break time="1250ms"/> Two.')
    assert texts(engine) == ["One.", "Two."]
    border, silence, fade = 4 * FRAME_SAMPLES * 2, 2 * RATE_HZ * 5 // 4, RATE_HZ // 100
    pcm = answer.content
    assert len(pcm) == 2 * border + silence
    assert pcm[: border - fade] == spoken("One.", 3)[:-fade]
    assert pcm[border : border + silence] == bytes(silence)
    assert pcm[border + silence + fade :] == spoken("Two.", 3)[fade:]


def test_a_raw_text_reaches_the_engine_as_it_is_and_by_default_it_is_clean(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    text = "It costs $5 < 6.\n\nOn 2026-11-16, <b>Oscine</b>."
    assert say(client, text, text_level="raw").content == spoken(text, 3)
    say(client, text)
    say(client, text, normalize=False)
    assert texts(engine) == [text, *2 * ["It costs $5 < 6.\n\nOn 2026-11-16, Oscine."]]


@pytest.mark.parametrize("text", ["…", " ?! ", "👍"])
def test_marks_alone_are_refused_as_an_empty_text_is(client: httpx.Client, engine: ScriptedEngine, text: str) -> None:
    answer = say(client, text)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input"
    assert not engine.requests


def test_every_option_works_over_http_and_events_carry_the_text_of_the_user(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    text = "Oscine costs $5.\n\nReally <break/> 3 km."
    options = {"normalize": True, "paragraph_pause_s": 0.25, "pronunciations": {"oscine": "OSS-een"}}
    answer = say(client, text, stream_format="sse", **options)
    assert texts(engine) == ["OSS-een costs five dollars.", "Really", "three kilometers."]
    segments = [event for event in read_events(answer.text) if event["type"] == "speech.audio.segment"]
    assert [segment["text"] for segment in segments] == ["Oscine costs $5.", "Really", "3 km."]
    gaps = [round(later["start_s"] - sooner["end_s"], 3) for sooner, later in pairwise(segments)]
    assert gaps == [0.25, 0.5]


def test_tags_of_ssml_are_read_and_those_without_effect_are_named(client: httpx.Client, engine: ScriptedEngine) -> None:
    text = "<speak>It <prosody pitch='low'>is</prosody> <sub alias='the Web'>WWW</sub> <foo>now</foo>.</speak>"
    warning = say(client, text, language="english").headers["x-warning"]
    assert warning == "without effect in <prosody>: pitch; unknown tags: <foo>"
    assert "x-warning" not in say(client, text, text_level="raw", markup=False).headers
    assert texts(engine) == ["It is the Web now.", text]


def test_markup_false_speaks_the_tags(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert say(client, "One <break/> two", markup=False).status_code == 200
    assert texts(engine) == ["One <break/> two"]


def test_every_item_of_a_batch_has_its_own_options(client: httpx.Client, engine: ScriptedEngine) -> None:
    items = [
        {"input": "1 <break time='1s'/> 2"},
        {"input": "3", "normalize": False},
        {"input": "4 <break"},
        {"input": "<break x/>"},
    ]
    body = {"items": items, "normalize": True, "response_format": "pcm", "language": "english", "seed": 3}
    results = client.post(f"{SPEECH}/batch", json=body).json()["results"]
    assert [result["status"] for result in results] == ["success", "success", "success", "error"]
    assert sorted(texts(engine)) == ["3", "four less than break", "one", "two"]
    frames = sum(map(len, ("one", "two")))
    assert len(base64.b64decode(results[0]["audio_data"])) == 2 * (frames * FRAME_SAMPLES + RATE_HZ)
    assert results[3]["error"]["param"] == "input"


@pytest.mark.parametrize(
    ("text", "fields", "param"),
    [
        ("a <break time='1h'/>", {}, "input"),
        ("a <break time='11s'/>", {}, "input"),
        ("<break/>", {}, "input"),
        ("a", {"paragraph_pause_s": 11}, "paragraph_pause_s"),
        ("a", {"paragraph_pause_s": "soon"}, "paragraph_pause_s"),
        ("a", {"pronunciations": {"": "b"}}, "pronunciations"),
        ("a", {"pronunciations": {"a": 1}}, "pronunciations.a"),
        ("a", {"normalize": "perhaps"}, "normalize"),
        ("a", {"markup": 7}, "markup"),
        ("a", {"text_level": "spokn"}, "text_level"),
    ],
)
def test_what_cannot_be_prepared_is_refused(
    client: httpx.Client, engine: ScriptedEngine, text: str, fields: dict[str, Any], param: str
) -> None:
    answer = say(client, text, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not engine.requests


def test_a_server_can_normalize_by_default_and_a_request_can_decline(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, ServerConfig(normalize=True, paragraph_pause_s=0.5)) as client:
        say(client, "It is 5.\n\nYes.")
        say(client, "It is 6.\n\nYes.", normalize=False, paragraph_pause_s=0)
    assert texts(engine) == ["It is five.", "Yes.", "It is 6.\n\nYes."]


def test_a_language_without_rules_is_refused_only_where_the_request_asks_for_them() -> None:
    def level(language: str, **fields: Any) -> str | None:
        model: Any = SimpleNamespace(card=CARD, voices=SimpleNamespace(is_preset=bool, resolve=str))
        request = SpeechRequest("5", voice="wren", language=language, **fields)
        return asyncio.run(planner.plan(model, request, "pcm")).request.text_level

    planner = SpeechPlanner(ServerConfig(normalize=True), ClipPolicy())
    assert (level("dutch"), level("german")) == ("clean", "spoken")
    with pytest.raises(RequestError, match="no rules for the language 'dutch'"):
        level("dutch", normalize=True)


def test_the_response_says_what_is_read_where_that_is_not_the_text(client: httpx.Client) -> None:
    answer = say(client, "“Hi” – it’s $5…", text_level="spoken", language="english")
    assert answer.headers["x-read-as"] == "%22Hi%22, it's five dollars..."
    assert "x-read-as" not in say(client, "Plain prose.", text_level="spoken", language="english").headers
    assert len(say(client, "It is 5. " * 200, text_level="spoken", language="english").headers["x-read-as"]) <= 1500
    events = say(client, "5 km", text_level="spoken", language="english", stream_format="sse").text
    assert '"text": "5 km", "spoken": "five kilometers"' in events


def test_prosody_changes_speed_and_volume_of_its_words_and_all_times_with_them(client: httpx.Client) -> None:
    """A character lasts 80 ms."""
    text = "Hello <prosody rate='2' volume='50%'>my friend</prosody> there."
    answer = client.post(SPEECH, json={"input": text, "response_format": "pcm", "seed": 1, "stream_format": "json"})
    assert answer.status_code == 200, answer.text
    plain, fast, last = (spoken(words, 1) for words in ("Hello", "my friend", "there."))
    samples = np.frombuffer(base64.b64decode(answer.json()["audio"]), "<i2")
    shaped = round(len(fast) / 4)
    assert len(samples) == pytest.approx(len(plain) / 2 + shaped + len(last) / 2, abs=2)
    begin = len(plain) // 2
    loud, quiet = (np.abs(part[2000:-2000].astype(int)).max() for part in (samples[:begin], samples[begin:][:shaped]))
    assert quiet / loud == pytest.approx(0.5, abs=0.1)
    events = client.post(SPEECH, json={"input": text, "response_format": "pcm", "seed": 1, "stream_format": "sse"})
    segments = [one for one in read_events(events.text) if one["type"] == "speech.audio.segment"]
    assert [one["text"] for one in segments] == ["Hello", "my friend", "there."]
    times = [(one["start_s"], one["end_s"]) for one in segments]
    expected = [(0.0, 0.4), (0.4, 0.4 + 0.72 / 2), (0.76, 0.76 + 0.48)]
    assert [time for pair in times for time in pair] == pytest.approx([t for pair in expected for t in pair], abs=1e-3)


def test_prosody_is_the_same_in_turns_of_a_dialogue_and_ends_with_each(client: httpx.Client) -> None:
    text = "<prosody rate='2'>my friend"
    alone = client.post(SPEECH, json={"input": text, "response_format": "pcm", "seed": 1}).content
    turns = [{"text": text}, {"text": "there."}]
    both = client.post(SPEECH, json={"input": turns, "response_format": "pcm", "seed": 1}).content
    fade = 2 * (RATE_HZ // 200)
    assert both[: len(alone) - fade] == alone[:-fade]
    assert both[len(alone) + fade :] == spoken("there.", 1)[fade:]
