"""A dialogue over HTTP: each turn as it is spoken alone, in one stream; what is wrong with a turn is known before any
audio."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_models_app
from oscine.speech.models import LoadedModel
from tests.event_stream import read_events
from tests.server.scripted_engine import BASE_CARD, CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of, client_of_app, eventually

SPEECH = "/v1/audio/speech"
TURNS = [
    {"voice": "wren", "text": "Hi!"},
    {"voice": "finch", "text": "Hello. How are you?", "instructions": "Whisper.", "pause_s": 0.3},
    {"text": "Fine."},
]
PAUSE = bytes(2 * round(0.3 * RATE_HZ))
FADE = RATE_HZ // 200  # samples at the end and at the start of a turn


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine, CARD) as client:
        yield client


def ask(client: httpx.Client, turns: Any = TURNS, **fields: Any) -> httpx.Response:
    return client.post(SPEECH, json={"input": turns, "response_format": "pcm", "seed": 3, **fields})


def unfaded(audio: bytes, *borders: int) -> np.ndarray:
    """The samples but for those that are faded at these borders."""
    samples = np.frombuffer(audio, "<i2").copy()
    for border in borders:
        samples[max(0, border - FADE) : border + FADE] = 0
    return samples


@pytest.mark.parametrize("stream", [True, False])
def test_a_dialogue_is_its_turns_spoken_alone_and_their_pauses(client: httpx.Client, stream: bool) -> None:
    answer = ask(client, voice="wren", stream=stream)
    assert (answer.status_code, answer.headers["x-seed"]) == (200, "3")
    alone = [ask(client, turn["text"], voice=turn.get("voice", "wren")).content for turn in TURNS]
    assert alone[1] == spoken("Hello. How are you?", 3, "finch")
    expected = alone[0] + PAUSE + alone[1] + alone[2]
    ends = [len(expected) // 2 - len(alone[2]) // 2, len(alone[0]) // 2, (len(alone[0]) + len(PAUSE)) // 2]
    assert len(answer.content) == len(expected)
    assert (unfaded(answer.content, *ends) == unfaded(expected, *ends)).all()


def test_a_dialogue_of_one_turn_is_that_turn_to_the_byte(client: httpx.Client) -> None:
    assert ask(client, [{"voice": "finch", "text": "Hello."}]).content == spoken("Hello.", 3, "finch")


def test_turns_have_their_own_voice_and_instructions_and_the_requests_seed(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    assert ask(client, instructions="Calmly.", language="en", temperature=0.5).status_code == 200
    asked = [(one.text, one.voice, one.instructions, one.language) for one in engine.requests]
    assert asked == [
        ("Hi!", "wren", "Calmly.", "english"),
        ("Hello. How are you?", "finch", "Whisper.", "english"),
        ("Fine.", None, "Calmly.", "english"),
    ]
    assert {(one.seed, one.temperature) for one in engine.requests} == {(3, 0.5)}
    assert [one.continues_s is None for one in engine.requests] == [True, False, False]


def test_a_turn_may_have_no_instructions_and_another_language(client: httpx.Client, engine: ScriptedEngine) -> None:
    turns = [{"input": "Hi.", "instruct": "", "speaker": "finch"}, {"text": "你好。", "language": "zh"}]
    assert ask(client, turns, instructions="Calmly.", language="en").status_code == 200
    asked = [(one.voice, one.instructions or None, one.language) for one in engine.requests]
    assert asked == [("finch", None, "english"), (None, "Calmly.", "chinese")]


def test_a_later_turn_is_generated_while_the_first_is_played(engine: ScriptedEngine) -> None:
    engine.max_frames = 8  # the first turn and a part of the second
    with client_of(engine, CARD) as client:
        request = client.build_request("POST", SPEECH, json={"input": TURNS, "response_format": "pcm", "stream": True})
        response = client.send(request, stream=True)
        received = 0
        for piece in response.iter_raw():
            received += len(piece)
            if received >= 2 * 3 * FRAME_SAMPLES + len(PAUSE):
                break
        eventually(lambda: len(engine.requests) == 2)
        response.close()


def test_segments_and_their_text_name_the_turn_and_its_voice(client: httpx.Client) -> None:
    received = read_events(ask(client, stream_format="sse").text)
    segments = [event for event in received if event["type"] == "speech.audio.segment"]
    assert [(one["turn"], one["voice"], one["text"]) for one in segments] == [
        (0, "wren", "Hi!"),
        (1, "finch", "Hello. How are you?"),
        (2, "wren", "Fine."),  # the checkpoint's first one
    ]
    assert segments[1]["start_s"] == pytest.approx(segments[0]["end_s"] + 0.3)


def test_json_has_the_text_of_all_turns(client: httpx.Client) -> None:
    assert ask(client, stream_format="json").json()["text"] == "Hi!\nHello. How are you?\nFine."


def test_a_batch_takes_dialogues(client: httpx.Client) -> None:
    items = [{"input": TURNS}, {"input": "Hi."}, {"input": [{"text": "Hi.", "voice": "nobody"}]}]
    answer = client.post(f"{SPEECH}/batch", json={"items": items, "response_format": "pcm", "seed": 3}).json()
    first, second, third = answer["results"]
    assert (first["status"], second["status"]) == ("success", "success")
    assert third["error"]["param"] == "input[0].voice"


@pytest.mark.parametrize(
    ("turn", "param", "message"),
    [
        (
            {"text": "b", "voice": "wrem"},
            "input[1].voice",
            "input[1].voice: unknown voice 'wrem'; did you mean 'wren'?",
        ),
        ({"text": " "}, "input[1].text", "input[1].text: text is only white space"),
        ({"text": "<break/>"}, "input[1].text", "input[1].text: the text holds pauses only"),
        ({"text": "a\0"}, "input[1].text", "input[1].text: text has a NUL character at index 1"),
        ({"text": "b", "language": "klingon"}, "input[1].language", "input[1].language: unknown language 'klingon'"),
        ({"text": "b", "pause_s": 10.5}, "input[1].pause_s", "input[1].pause_s must be a number of seconds from 0"),
        ({"text": "b", "voice": 5}, "input[1].voice", "input[1].voice: input should be a valid string"),
        ({"voice": "wren"}, "input[1].text", "input[1]: a turn must have a text"),
        ({"text": "b", "input": "b"}, "input[1].input", "input[1]: input is an alias of text; give only one"),
        ("b", "input[1]", "input[1]: a turn must be an object with a text, got str"),
    ],
)
def test_what_is_wrong_with_a_turn_is_said_before_anything_is_spoken(
    client: httpx.Client, engine: ScriptedEngine, turn: Any, param: str, message: str
) -> None:
    answer = ask(client, [{"text": "a"}, turn])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert error["message"].startswith(message)
    assert not engine.requests


def test_instructions_that_a_checkpoint_does_not_follow_are_refused_with_their_turn(engine: ScriptedEngine) -> None:
    with client_of(engine, replace(CARD, takes_instructions=False)) as client:
        error = ask(client).json()["error"]
    assert error["param"] == "input[1].instructions" and not engine.requests


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/text-to-speech/wren", {"text": TURNS}),
        ("/api/v1/services/aigc/multimodal-generation/generation", {"input": {"text": TURNS}}),
    ],
)
def test_protocols_without_dialogues_refuse_a_list(
    client: httpx.Client, engine: ScriptedEngine, path: str, body: dict[str, Any]
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code in (400, 422) and "text" in answer.text and not engine.requests


@pytest.mark.parametrize(
    ("turns", "status", "message"),
    [
        ([], 400, "input: list should have at least 1 item"),
        ([{"text": "a"}] * 257, 400, "input: list should have at most 256 items"),
        ([{"text": "a" * 500}] * 3, 413, "the text has 1500 characters, the limit is 1000"),
        ([{"text": "a", "pause_s": 10}] * 61, 400, "input[60].text: the pauses of the text are longer than 600 s"),
    ],
)
def test_the_limits_of_a_text_hold_for_all_turns_together(turns: Any, status: int, message: str) -> None:
    engine = ScriptedEngine()
    with client_of(engine, CARD, ServerConfig(max_text_chars=1000)) as client:
        answer = ask(client, turns)
        assert answer.status_code == status and answer.json()["error"]["message"].startswith(message), answer.text
        assert not engine.requests
        assert ask(client, [{"text": "a" * 500}] * 2).status_code == 200
    engine.stop()


def test_a_frame_limit_counts_all_turns(client: httpx.Client) -> None:
    answer = ask(client, stream=False, max_new_tokens=6)
    assert (answer.headers["x-finish-reason"], answer.headers["x-output-tokens"]) == ("length", "5")


def test_an_unknown_field_of_a_turn_is_named_and_refused_by_a_strict_server(engine: ScriptedEngine) -> None:
    turns = [{"text": "a"}, {"text": "b", "paus_s": 1, "pause_s": "0.1"}]
    with client_of(engine, CARD) as client:
        answer = ask(client, turns)
        assert answer.headers["x-ignored-fields"] == "input[1].paus_s"
        assert "did you mean 'pause_s'?" in answer.headers["x-warning"]
    with client_of(engine, CARD, ServerConfig(strict=True)) as client:
        assert ask(client, turns).json()["error"]["param"] == "input[1].paus_s"
        del turns[1]["paus_s"]
        assert ask(client, turns).json()["error"]["param"] == "input[1].pause_s"


def test_a_dialogue_goes_to_the_model_that_can_speak_all_of_its_turns(engine: ScriptedEngine) -> None:
    two = [{"text": "a", "voice": "wren"}, {"text": "b", "voice": "ryan"}]
    others = replace(CARD, name="others", speakers=("finch", "wren", "ryan"))
    cards = [CARD, others, replace(BASE_CARD, name="base")]
    with client_of_app(build_models_app([LoadedModel.of(engine, card) for card in cards])) as client:
        assert (
            ask(client, [{"text": "a", "voice": "wren"}, {"text": "b", "voice": "ryan"}]).headers["x-model"] == "others"
        )
        assert ask(client, TURNS).headers["x-model"] == "scripted"
    cards = [CARD, replace(others, speakers=("ryan",))]
    with client_of_app(build_models_app([LoadedModel.of(engine, card) for card in cards])) as client:
        error = ask(client, two).json()["error"]
    assert error["message"] == (
        "input[1]: only 'others' can speak this turn, but not those before it; one model speaks a dialogue"
    )
