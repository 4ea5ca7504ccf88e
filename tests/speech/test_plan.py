"""Model names, null values, and the engine's limits of sampling parameters."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from oscine.process.resources import WorkPool
from oscine.request import SamplingParams
from oscine.server.schemas import SpeechBody
from oscine.voice import Voice
from tests.server.reference_clip import CLIP_URL
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine, spoken
from tests.server.serving import client_of

SPEECH = "/v1/audio/speech"
SERVED = "Qwen3-TTS-12Hz-0.6B-CustomVoice"


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine, replace(CARD, name=SERVED)) as client:
        yield client


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post(SPEECH, json={"input": "Hi.", "response_format": "pcm", "seed": 1, **fields})


def test_the_served_model_answers_to_its_name_its_hub_id_and_openais_names(client: httpx.Client) -> None:
    openai = ("tts-1", "TTS-1-HD", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-03-20", "openai/tts-1")
    for name in (SERVED, f"Qwen/{SERVED}", *openai, "qwen3-tts", "", None):
        assert ask(client, model=name).status_code == 200, name
    for name in (f"{SERVED}/other", f"{SERVED}-2", "tts-1/other", "tts-1234", "gpt-4o-mini-tts-1", "qwen3"):
        assert ask(client, model=name).status_code == 404, name


def test_null_equals_leaving_the_field_out(client: httpx.Client) -> None:
    for name in set(SpeechBody.model_fields) - {"input", "response_format", "seed"}:
        answer = ask(client, **{name: None})
        assert answer.content == spoken("Hi.", 1), (name, answer.text)
    assert ask(client, seed=None).status_code == ask(client, response_format=None).status_code == 200


@pytest.mark.parametrize("name", ["vivian", "alloy", "default", {"id": "vivian"}])
def test_voice_design_takes_a_voice_and_says_that_it_was_ignored(engine: ScriptedEngine, name: Any) -> None:
    with client_of(engine, replace(CARD, kind="voice_design", speakers=())) as client:
        for field in ("voice", "speaker"):
            answer = ask(client, instructions="An old man.", **{field: name})
            assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, field)
    assert all(request.voice is None for request in engine.requests)


@pytest.mark.parametrize(
    ("fields", "transcript"),
    [
        ({"references": [{"audio_path": CLIP_URL}], "ref_text": "some words"}, "some words"),
        ({"references": [{"audio_path": CLIP_URL, "text": "some words"}]}, "some words"),
        ({"references": [{"audio_path": CLIP_URL, "text": "some words"}], "ref_text": "some words"}, "some words"),
        ({"references": [{"audio_path": CLIP_URL}]}, None),
        ({"references": [{"ref_audio": CLIP_URL, "text": "some words"}]}, "some words"),
        ({"references": [{"data": CLIP_URL.partition(",")[2], "media_type": "audio/wav"}]}, None),
        ({"ref_audio": CLIP_URL, "ref_text": "some words"}, "some words"),
    ],
)
def test_a_transcript_beside_references_is_used(
    engine: ScriptedEngine, fields: dict[str, Any], transcript: str | None
) -> None:
    with client_of(engine, BASE_CARD) as client:
        assert ask(client, **fields).status_code == 200
    (request,) = engine.requests
    assert isinstance(request.voice, Voice) and request.voice.transcript == transcript


def test_a_voice_beside_a_clip_is_named_as_ignored(engine: ScriptedEngine) -> None:
    with client_of(engine, BASE_CARD) as client:
        assert ask(client, ref_audio=CLIP_URL, voice="alloy").headers["x-ignored-fields"] == "voice"
        assert "x-ignored-fields" not in ask(client, ref_audio=CLIP_URL).headers


def test_two_different_transcripts_of_one_clip_are_refused(engine: ScriptedEngine) -> None:
    with client_of(engine, BASE_CARD) as client:
        answer = ask(client, references=[{"audio_path": CLIP_URL, "text": "some words"}], ref_text="other words")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "ref_text"
    assert "differ" in answer.json()["error"]["message"] and not engine.requests


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (0, 1e-6, 1e6)),
        ("top_k", (0, 2**31 - 1)),
        ("top_p", (1e-9, 1)),
        ("repetition_penalty", (1e-6, 1e6)),
        ("max_new_tokens", (2, 10**12)),
        ("seed", (0, 2**64 - 1)),
    ],
)
def test_accepted_values_are_within_the_engine_limits(
    client: httpx.Client, engine: ScriptedEngine, name: str, values: tuple[float, ...]
) -> None:
    for value in values:
        for fields in ({name: value}, {name: None, "extra_params": {name: value}}):
            assert ask(client, **fields).status_code == 200, fields
            engine.requests[-1].sampling(SamplingParams())


def test_a_clip_that_clones_badly_is_spoken_with_a_warning(engine: ScriptedEngine) -> None:
    with client_of(engine, BASE_CARD) as client:
        answer = ask(client, ref_audio=CLIP_URL, ref_text="ba")
        assert answer.status_code == 200
        assert "the transcript does not seem to fit the clip" in answer.headers["x-warning"]
        assert "x-warning" not in ask(client, ref_audio=CLIP_URL, ref_text="ba " * 24).headers
        refused = ask(client, ref_audio=CLIP_URL, ref_text="auto")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ref_text")


def test_plain_prose_is_prepared_without_a_thread(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under overload, threads for all requests starve the event loop."""

    def refuse(*_: object) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(WorkPool, "run", refuse)
    prose = "It was the best of times, it was the worst of times; was it?"
    assert ask(client, input=prose).content == spoken(prose, 1)
