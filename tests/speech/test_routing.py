"""The model that a request goes to, and the errors that name those that could do it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oscine.errors import RequestError
from oscine.request import SpeechRequest
from oscine.server.http.errors import api_error
from oscine.server.schemas import VoiceOptions
from oscine.speech.routing import AskedModel, choose_models, find_name, needs_of
from oscine.types import ModelCard
from oscine.voice import Voice
from tests.server.entrances import ENTRANCES, Ask
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import CARD, ScriptedEngine

PRESET = replace(CARD, name="preset", speakers=("ryan", "vivian"))
SMALL = replace(CARD, name="small", speakers=("ryan", "sohee"), takes_instructions=False, speaker_width=4)
DESIGN = replace(CARD, name="design", kind="voice_design", speakers=(), languages=("english", "german"))
BASE = replace(CARD, name="base", kind="base", speakers=(), takes_instructions=False)
SMALL_BASE = replace(BASE, name="small-base", speaker_width=4)
ALL = (SMALL, PRESET, BASE, SMALL_BASE, DESIGN)

UPLOADED = {"anna": Voice(np.ones(8, np.float32)), "bert": Voice(np.ones(4, np.float32))}
CLIP = "data:audio/wav;base64,AAAA"


def routed(cards: Sequence[ModelCard], **fields: Any) -> list[str]:
    """The names of the models that can do it, best first."""
    options = VoiceOptions.model_validate(fields)
    named = find_name(options.model, [card.name for card in cards]) if options.model else None
    needs = needs_of(options.request(), options.asked_model, cards, UPLOADED.get)
    return [card.name for card in choose_models([needs], cards, named, lambda: UPLOADED)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["small", "preset"]),
        ({"voice": "default"}, ["small", "preset"]),
        ({"voice": "alloy"}, ["small", "preset"]),
        ({"voice": "Ryan"}, ["small", "preset"]),
        ({"speaker": "vivian"}, ["preset"]),
        ({"voice": {"id": "sohee"}}, ["small"]),
        ({"voice": "ryan", "instructions": "Whisper."}, ["preset"]),
        ({"instructions": "An old man."}, ["design", "preset"]),
        ({"voice": "alloy", "instructions": "Cheerful."}, ["preset", "design"]),
        ({"instructions": ""}, ["small", "preset"]),
        ({"ref_audio": CLIP}, ["base", "small-base"]),
        ({"ref_audio": CLIP, "voice": "ryan"}, ["base", "small-base"]),  # clients must send some voice
        ({"references": [{"audio_path": CLIP, "text": "words"}]}, ["base", "small-base"]),
        ({"speaker_embedding": [0.5] * 8}, ["base"]),
        ({"speaker_embedding": [0.5] * 4}, ["small-base"]),
        ({"voice": "anna"}, ["base"]),
        ({"voice": "Bert"}, ["small-base"]),
        ({"voice": "anna", "instructions": "Whisper."}, ["preset"]),
        ({"ref_audio": CLIP, "instructions": "Whisper."}, ["preset"]),
        ({"voice": {"mix": {"anna": 1}}}, ["base"]),
        ({"voice": {"mix": {"anna": 1, "vivian": 2}}}, ["preset"]),
        ({"voice": "bert+ryan"}, ["small"]),
        ({"voice": "alloy+bert"}, ["small"]),
        ({"voice": "ryan+default"}, ["small", "preset"]),
        ({"speaker_embedding": [0.5] * 8, "instructions": "Whisper."}, ["preset"]),
        ({"model": "preset", "voice": "anna"}, ["preset"]),
        ({"language": "German", "instructions": "An old man."}, ["design"]),
        ({"language": "auto"}, ["small", "preset"]),
        ({"task_type": "CustomVoice", "instructions": "An old man."}, ["preset"]),
        ({"task_type": "VoiceDesign", "voice": "alloy", "instructions": "Cheerful."}, ["design"]),
        ({"task_type": "VoiceDesign", "voice": "ryan", "instructions": "Cheerful."}, ["design"]),
        ({"model": "design", "voice": "vivian", "instructions": "Cheerful."}, ["design"]),
        ({"model": "design", "voice": "nobody", "instructions": "Cheerful."}, ["design"]),
        ({"model": "tts-1", "ref_audio": CLIP}, ["base", "small-base"]),
        ({"model": "gpt-4o-mini-tts-2025-03-20", "voice": "vivian"}, ["preset"]),
        ({"model": "qwen3-tts-flash"}, ["small", "preset"]),
        ({"model": "kokoro", "voice": "af_heart"}, ["small", "preset"]),
        ({"model": "Qwen/Qwen3-TTS-12Hz-1.7B-Base", "ref_audio": CLIP}, ["base", "small-base"]),
        ({"model": "qwen3-tts-12hz-0.6b-customvoice", "instructions": "Whisper."}, ["preset"]),
        ({"model": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign", "voice": "nova", "instructions": "Old."}, ["design"]),
        ({"model": "Qwen/Qwen3-TTS-12Hz-1.7B-Base", "task_type": "CustomVoice"}, ["small", "preset"]),
        ({"model": "preset"}, ["preset"]),
        ({"model": "Qwen/preset", "voice": "ryan"}, ["preset"]),
        ({"model": "preset", "instructions": "An old man."}, ["preset"]),
        ({"model": "small-base", "ref_audio": CLIP}, ["small-base"]),
    ],
)
def test_a_request_goes_to_the_model_that_it_names_or_that_can_do_it(
    fields: dict[str, Any], expected: list[str]
) -> None:
    assert routed(ALL, **fields) == expected


@pytest.mark.parametrize(
    "model",
    [
        *(
            "",
            "tts-1",
            "TTS-1-HD",
            "openai/tts-1",
            "gpt-4o-mini-tts-2025-03-20",
            "tts-1-hd-1106",
            "tts-1-1106",
            "kokoro",
            "hexgrad/Kokoro-82M",
        ),
        *("qwen3-tts-flash", "qwen3-tts-flash-realtime-2025-11-27", "qwen3-tts-instruct-flash-realtime"),
        *("qwen3-tts-vc-realtime-2026-01-15", "qwen-tts-latest", "qwen-tts-realtime", "canopylabs/orpheus-3b-0.1-ft"),
        *("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "Qwen3-TTS-12Hz-0.6B-Base", "mirror/qwen3-tts-12hz-1.7b-voicedesign"),
    ],
)
def test_well_known_names_stand_for_any_served_model(model: str) -> None:
    assert find_name(model, ["preset"]) is None
    if model:
        assert find_name(model, [model]) == model  # unless one is served under that name


@pytest.mark.parametrize("model", ["qwen3-tts-12hz", "qwen-max", "Qwen/Qwen3-TTS-Tokenizer-12Hz", "tts-1234", "kokor"])
def test_other_names_are_not_found(model: str) -> None:
    with pytest.raises(RequestError) as refused:
        find_name(model, ["preset"])
    assert (api_error(refused.value).status, refused.value.code) == (404, "model_not_found")


def test_a_hub_id_of_a_kind_that_is_not_served_stands_for_any_model() -> None:
    assert routed((PRESET, DESIGN), model="Qwen/Qwen3-TTS-12Hz-1.7B-Base", voice="ryan") == ["preset"]


def test_the_operators_aliases_are_voices_when_a_model_is_chosen() -> None:
    aliases = {"boss": "vivian", "tara": "anna", "nova": "sohee"}
    for voice, expected in (("Boss", "preset"), ("tara", "base"), ("nova", "small")):
        needs = needs_of(SpeechRequest("a", voice=voice), AskedModel(), ALL, UPLOADED.get, aliases)
        assert choose_models([needs], ALL)[0].name == expected


def test_other_voices_go_to_a_custom_voice_model_only_where_no_base_can() -> None:
    assert routed((PRESET, DESIGN), voice="anna") == ["preset"]
    with pytest.raises(RequestError, match="CustomVoice checkpoint cannot clone"):
        routed((PRESET, DESIGN), ref_audio=CLIP)


def test_a_mix_of_voices_of_different_sizes_is_refused() -> None:
    with pytest.raises(RequestError, match="vectors have 4 or 8 numbers"):
        routed(ALL, voice="anna+bert")
    with pytest.raises(RequestError, match="'sohee'"):
        routed(ALL, voice="anna+sohee")  # of the small model


def test_of_equals_the_first_one_configured_is_chosen() -> None:
    assert routed((PRESET, SMALL)) == ["preset", "small"]
    assert routed((SMALL_BASE, BASE), ref_audio=CLIP) == ["small-base", "base"]


@pytest.mark.parametrize(
    ("fields", "param", "parts"),
    [
        (
            {"model": "base", "instructions": "An old man."},
            "voice",
            ["model 'base' cannot do this: this Base checkpoint needs a voice", "'preset' or 'design' can: name it"],
        ),
        ({"model": "design", "voice": "anna"}, "voice", ["this VoiceDesign checkpoint cannot clone", "'base' can"]),
        ({"model": "small", "voice": "vivian"}, "voice", ["unknown voice 'vivian'", "'preset' can"]),
        ({"model": "preset", "ref_audio": CLIP}, "ref_audio", ["cannot clone", "'base' or 'small-base' can"]),
        ({"model": "preset", "task_type": "Base"}, "task_type", ["this checkpoint is CustomVoice, not Base"]),
        ({"model": "small-base", "voice": "anna"}, "voice", ["has 8 numbers, this checkpoint needs 4", "'base' can"]),
        ({"model": "small", "language": "german", "instructions": "x"}, "instructions", ["0.6B", "'design' can"]),
    ],
)
def test_an_error_names_the_models_that_could_do_it(fields: dict[str, Any], param: str, parts: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        routed(ALL, **fields)
    assert caught.value.param == param
    for part in parts:
        assert part in str(caught.value)


def test_an_error_says_of_each_model_why_it_cannot() -> None:
    with pytest.raises(RequestError) as caught:
        routed((PRESET, BASE), language="german")
    assert str(caught.value).startswith("no served model can do this. 'preset' (CustomVoice): unknown language")
    assert "'base' (Base): this Base checkpoint needs a voice to clone" in str(caught.value)
    with pytest.raises(RequestError, match=r"^unknown language 'german'") as caught:
        routed((PRESET, SMALL), language="german")
    assert caught.value.param == "language"


def test_an_unknown_voice_is_compared_with_the_voices_of_all_models() -> None:
    for name, meant in (("ryam", "ryan"), ("sohe", "sohee"), ("ana", "anna")):
        with pytest.raises(RequestError, match=f"did you mean '{meant}'"):
            routed(ALL, voice=name)


def test_where_all_models_design_voices_any_name_is_accepted() -> None:
    assert routed((DESIGN,), voice="vivian", instructions="Cheerful.") == ["design"]


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(RequestError, match="did you mean 'preset'") as caught:
        routed(ALL, model="presets")
    assert (api_error(caught.value).status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = ScriptedEngine()
    with server_of(engine) as server:
        yield server
    engine.stop()


@pytest.mark.parametrize("ask", ENTRANCES)
def test_every_entrance_knows_the_same_names(server: Server, ask: Ask) -> None:
    for model, voice in (
        ("qwen3-tts-flash", "Cherry"),
        ("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "onyx"),
        ("kokoro", "af_heart"),
    ):
        assert ask(server, {"model": model, "voice": voice}) is None
    message = ask(server, {"model": "kokor"})
    assert message is not None and message.startswith("unknown model 'kokor'")
