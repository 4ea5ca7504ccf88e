"""Every request on the page about moving from other servers is spoken, and what it says about refusals is true."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.voice import blended
from tests.server.scripted_engine import CARD, ScriptedEngine, preset_vector
from tests.server.serving import serving

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "migration.md").read_text("utf-8")
REQUESTS = {
    section.splitlines()[0]: json.loads(body)
    for section in PAGE.split("\n## ")[1:]
    for body in re.findall(r"```json\n(.*?)```", section, re.DOTALL)
}
SPEAKERS = ("vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee")
SERVED = replace(CARD, name="Qwen3-TTS-12Hz-1.7B-CustomVoice", speakers=SPEAKERS)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with (
        serving(build_app(engine, SERVED)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=600) as client,
    ):
        yield client


def speak(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/audio/speech", json={"input": "Hello there.", **fields})


@pytest.mark.parametrize(("section", "request_fields"), REQUESTS.items())
def test_a_request_of_the_page_is_spoken(
    client: httpx.Client, engine: ScriptedEngine, section: str, request_fields: dict[str, Any]
) -> None:
    answer = speak(client, **request_fields)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("audio/")
    assert engine.requests[-1].text == "Hello there."


def test_each_server_of_the_page_has_a_request_unless_its_paths_differ() -> None:
    sections = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert [section for section in sections if section not in REQUESTS] == ["From DashScope", "From ElevenLabs"]


def test_fields_without_an_effect_are_named(client: httpx.Client) -> None:
    ignored = {"normalization_options": {"normalize": True}, "download_format": "wav"}
    answer = speak(client, **ignored, return_download_link=True)
    assert answer.status_code == 200
    assert set(answer.headers["x-ignored-fields"].split(", ")) == {*ignored, "return_download_link"}


def test_kokoros_voices_stand_for_presets_and_its_model_for_any(engine: ScriptedEngine, client: httpx.Client) -> None:
    assert speak(client, voice="af_heart", model="kokoro").status_code == 200
    assert engine.requests[-1].voice == "serena"
    answer = speak(client, voice="af_bella(2)+am_adam(1)")
    assert answer.status_code == 200, answer.text
    assert engine.requests[-1].voice == blended([(preset_vector("serena"), 2), (preset_vector("ryan"), 1)])
    config = ServerConfig(voice_aliases={"af_heart": "sohee"}, default_format="wav")
    with (
        serving(build_app(engine, SERVED, config)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=600) as other,
    ):
        answer = speak(other, model="kokoro", voice="af_heart")
        assert engine.requests[-1].voice == "sohee"
        assert answer.status_code == 200 and answer.headers["content-type"] == "audio/wav"
        assert answer.headers["x-finish-reason"] == "stop"


def test_cherry_is_spoken_by_vivian(engine: ScriptedEngine, client: httpx.Client) -> None:
    assert speak(client, voice="Cherry").status_code == 200
    assert engine.requests[-1].voice == "vivian"
