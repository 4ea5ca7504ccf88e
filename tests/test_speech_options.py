"""The options of the Python API: the fields of a SpeechRequest give types, help, defaults and errors."""

import inspect
import pydoc

import pytest

from oscine import Oscine, SpeechRequest
from oscine.speech_options import options, speech_request


@pytest.mark.parametrize("name", ["speak", "stream", "aspeak", "astream"])
def test_help_prints_every_option_with_its_default_and_meaning(name: str) -> None:
    method = getattr(Oscine, name)
    shown = pydoc.render_doc(method, renderer=pydoc.plaintext)
    parameters = inspect.signature(method).parameters
    for option in options():
        assert f"{option.name}: " in shown and option.meaning.split()[0] in shown
        assert parameters[option.name].default == option.default
    assert "options" not in parameters and "voice: str | oscine.voice.Voice | " in shown


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


def test_options_become_the_fields_of_a_request() -> None:
    asked = {"voice": "ryan", "speed": 1.5, "sample_rate": 8000, "normalize": True}
    assert speech_request("hello", asked) == SpeechRequest("hello", **asked)
    assert speech_request("hello", {}) == SpeechRequest(text="hello")
