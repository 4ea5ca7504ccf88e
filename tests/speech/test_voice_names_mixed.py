"""Mixes of voices: over HTTP as the engine gets them, alone and in a batch, and what is wrong with one."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from oscine.config import ServerConfig
from oscine.errors import VoiceError
from oscine.request import VoiceMix
from oscine.speech.limits import ledger_of
from oscine.speech.voice_names import MixedVoices, VoiceResolver
from oscine.speech.voice_store import VoiceStore
from oscine.types import ModelCard
from oscine.voice import Voice, blended
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine, preset_vector, spoken
from tests.server.serving import client_of

SPEECH = "/v1/audio/speech"
ME = [3.0, 1, 4, 1, 5, 9, 2, 6]
WREN, FINCH, MINE = preset_vector("wren"), preset_vector("finch"), Voice.from_embedding(ME)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine, CARD, ServerConfig(voice_aliases={"both": "wren+finch"})) as client:
        for name in ("me", "a+b"):
            form = {"name": name, "consent": "yes", "speaker_embedding": str(ME)}
            assert client.post("/v1/audio/voices", data=form).status_code == 200
        yield client


def ask(client: httpx.Client, voice: Any, **fields: Any) -> httpx.Response:
    body = {"input": "Hi!", "response_format": "pcm", "seed": 3, "voice": voice, **fields}
    return client.post(SPEECH, json=body)


@pytest.mark.parametrize(
    ("voice", "parts"),
    [
        ({"mix": {"wren": 0.6, "me": 0.4}}, [(WREN, 0.6), (MINE, 0.4)]),
        ({"mix": {"me": 4, "WREN": 6}}, [(WREN, 0.6), (MINE, 0.4)]),
        ({"mix": {"wren": 1, "finch": 2, "me": 3}}, [(WREN, 1), (FINCH, 2), (MINE, 3)]),
        ({"mix": {"default": 1, "finch": 1}}, [(WREN, 1), (FINCH, 1)]),
        ({"mix": {"finch": 1}}, [(FINCH, 1)]),
        ("wren(0.6)+me(0.4)", [(WREN, 0.6), (MINE, 0.4)]),
        ("Wren+Finch", [(WREN, 1), (FINCH, 1)]),
        ("both", [(WREN, 1), (FINCH, 1)]),
        ("af_bella(2)+am_adam(1)", [(WREN, 2), (FINCH, 1)]),  # the nearest presets
        ("+".join(["wren", *["finch"] * 20]), [(WREN, 1), (FINCH, 20)]),  # longer than a voice's name
        ("a+b", [(MINE, 1)]),  # a voice that was uploaded under this name
    ],
)
def test_a_mix_is_spoken_with_the_voice_between_its_parts(
    client: httpx.Client, voice: Any, parts: list[tuple[Voice, float]]
) -> None:
    answer = ask(client, voice)
    assert answer.status_code == 200, answer.text
    assert answer.content == spoken("Hi!", 3, blended(parts))
    assert answer.headers["x-warning"].startswith("experimental: ")


def test_a_mix_is_the_same_in_a_batch_and_in_a_turn_of_a_dialogue(client: httpx.Client) -> None:
    voice = {"mix": {"wren": 0.6, "me": 0.4}}
    alone = ask(client, voice).content
    turns = [{"text": "Hi!", "voice": voice}]
    assert ask(client, None, input=turns).content == alone
    items = [{"input": "Hi!", "voice": voice}, {"input": "Hi!", "voice": "wren"}, {"input": turns}]
    body = {"items": items, "response_format": "pcm", "seed": 3}
    results = client.post(f"{SPEECH}/batch", json=body).json()["results"]
    assert results[0]["audio_data"] == results[2]["audio_data"] != results[1]["audio_data"]


def test_the_engine_is_asked_once_for_each_preset(client: httpx.Client, engine: ScriptedEngine) -> None:
    for weight in (1, 2, 3):
        assert ask(client, {"mix": {"wren": weight, "finch": 1}}).status_code == 200
    assert sorted(engine.presets) == ["finch", "wren"]


@pytest.mark.parametrize(
    ("voice", "reason"),
    [
        ({"mix": {"wren": 1, "finhc": 1}}, "unknown voice 'finhc'; did you mean 'finch'?"),
        ({"mix": {"wren": 0}}, "the weight of 'wren' in voice.mix must be a number from 1e-06 to 1e+06, got 0"),
        ({"mix": {"wren": "1"}}, "got '1'"),
        ({"mix": {}}, "voice.mix must have 1 to 8 voices with their weights, got 0 voices"),
        ({"mix": {f"v{number}": 1 for number in range(9)}}, "got 9 voices"),
        ({"mix": [["wren", 1]]}, "got list"),
        ({"mix": {"wren": 1}, "id": "wren"}, "either an id or a mix"),
        ({}, "either an id or a mix"),
        ("wren(0)+finch", "the weight of 'wren'"),
        ("wren+nobody", "unknown voice 'nobody'"),
        ("wren++finch", "unknown voice 'wren++finch'"),
    ],
)
def test_a_mix_that_cannot_be_made_is_refused(client: httpx.Client, voice: Any, reason: str) -> None:
    answer = ask(client, voice)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert reason in error["message"] and error["param"].startswith("voice")
    turn = ask(client, None, input=[{"text": "Hi!", "voice": voice}]).json()["error"]
    assert reason in turn["message"] and "input[0]" in turn["message"]


def mixed(card: ModelCard, parts: dict[Any, float], engine: ScriptedEngine) -> Voice:
    async def mix() -> Voice:
        ledger = ledger_of(ServerConfig())
        try:
            voices = MixedVoices(card, engine, VoiceResolver(card, VoiceStore(None, ())), ledger)
            first, again = await voices.get(VoiceMix.of(parts)), await voices.get(VoiceMix.of(parts))
            assert first is again
            return first
        finally:
            ledger.close()

    return asyncio.run(mix())


def test_a_base_checkpoint_mixes_voices_but_has_none_of_its_own(engine: ScriptedEngine) -> None:
    assert mixed(BASE_CARD, {WREN: 1, MINE: 1}, engine) == blended([(WREN, 1), (MINE, 1)])
    for name in ("default", "wren"):
        with pytest.raises(VoiceError, match="has no preset voices"):
            mixed(BASE_CARD, {name: 1}, engine)


def test_a_voice_of_another_checkpoint_is_refused(engine: ScriptedEngine) -> None:
    with pytest.raises(VoiceError, match="has 4 numbers, this checkpoint needs 8"):
        mixed(CARD, {"wren": 1, Voice(np.ones(4, np.float32)): 1}, engine)
