"""The options of the Python API: one declaration gives types, help, defaults and errors."""

import inspect
import pydoc
from dataclasses import fields

import pytest

from oscine import Oscine, SpeechOptions, SpeechRequest, TextOptions
from oscine.errors import RequestError
from oscine.server.api.schemas import VoiceOptions
from oscine.speech_options import options, speech_request

# Set by who continues a speech, or by the API itself.
_INTERNAL = {"text", "text_options", "return_codes", "stream_codes", "continues_s", "resumes"}
# HTTP has the names of the official package and of vLLM-Omni for these.
_OTHER_ON_HTTP = {"text_mode", "greedy"}


def test_every_field_of_a_request_is_an_option() -> None:
    declared = {field.name for cls in (SpeechRequest, TextOptions) for field in fields(cls)}
    assert declared - _INTERNAL == set(SpeechOptions.__annotations__)


def test_an_option_has_its_name_of_http() -> None:
    assert set(SpeechOptions.__annotations__) - _OTHER_ON_HTTP <= set(VoiceOptions.model_fields)


@pytest.mark.parametrize("name", ["speak", "stream", "aspeak", "astream"])
def test_help_prints_every_option_with_its_default_and_meaning(name: str) -> None:
    method = getattr(Oscine, name)
    shown = pydoc.render_doc(method, renderer=pydoc.plaintext)
    parameters = inspect.signature(method).parameters
    for option in options():
        assert f"{option.name}: " in shown and option.meaning.split()[0] in shown
        assert parameters[option.name].default == option.default
    assert "options" not in parameters and "voice: str | oscine.voice.Voice | None = None" in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"voise": "x"}, "unknown option 'voise'; did you mean 'voice'?"),
        ({"instruct": "x"}, "unknown option 'instruct'; did you mean 'instructions'?"),
        ({"speaker": "x"}, "unknown option 'speaker'; did you mean 'voice'?"),
        ({"do_sample": False}, "unknown option 'do_sample'; did you mean 'greedy'?"),
        ({"ref_audio": "x"}, "clone first: voice=tts.clone(clip, transcript)"),
        ({"return_codes": True}, "unknown option 'return_codes'"),
    ],
)
def test_an_unknown_option_is_named_with_the_one_that_was_meant(given: dict, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        speech_request("hello", given)
    assert message in str(caught.value)


def test_options_of_the_text_and_of_the_speech_arrive_in_their_places() -> None:
    asked = {"voice": "ryan", "speed": 1.5, "sample_rate": 8000, "normalize": True}
    request = speech_request("hello", asked)
    assert (request.voice, request.speed, request.sample_rate) == ("ryan", 1.5, 8000)
    assert request.text_options == TextOptions(normalize=True)
    assert speech_request("hello", {}) == SpeechRequest(text="hello")


@pytest.mark.parametrize(("name", "value"), [("speed", 2.0), ("sample_rate", 8000)])
def test_an_engine_refuses_what_is_done_to_its_audio(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=r"use Oscine\.speak") as caught:
        speech_request("hello", {name: value}).check_delivery()
    assert caught.value.param == name
