"""A request's fields: their bounds, and what engines refuse. test_entrances.py sends them through every entrance."""

from typing import Any

import numpy as np
import pytest

from oscine.errors import RequestError
from oscine.request import DrawParams, SamplingParams, SpeechRequest, VoiceMix
from oscine.text.options import TextOptions

DEFAULTS = SamplingParams()


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("speed", 5, "a number from 0.25 to 4, got 5"),
        ("speed", float("nan"), "a number from 0.25 to 4, got nan"),
        ("sample_rate", 96_000, "one of 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, got 96000"),
        ("seed", -2, "a whole number from 0 to 2**64 - 1, or -1 (random), got -2"),
        ("temperature", 1e-7, "0 (no randomness) or a number from 1e-06 to 1e+06, got 1e-07"),
        ("top_k", True, "a whole number, 0 (off) or more, got True"),
        ("top_p", 0, "a number above 0 and at most 1 (off), got 0"),
        ("greedy", "yes", "true or false, got 'yes'"),
        ("text_level", "spokn", "one of raw, clean, spoken, got 'spokn'"),
        ("language", ["en"], "a string of at most 64 characters, got list"),
        ("instructions", "a" * 5000, "a string of at most 4096 characters, got 5000 characters"),
        ("pronunciations", [], 'an object such as {"Oscine": "OSS-een"}, got list'),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, value: Any, rule: str) -> None:
    with pytest.raises(RequestError) as caught:
        SpeechRequest("a", **{name: value}).check()
    assert (str(caught.value), caught.value.param) == (f"{name} must be {rule}", name)


def test_numbers_of_numpy_are_numbers() -> None:
    SpeechRequest("a", top_k=np.int64(5), top_p=np.float32(0.5), seed=np.uint64(7)).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "first", "rest"),
    [
        ({"greedy": True}, True, True),
        ({"temperature": 0}, True, True),
        ({"subtalker_temperature": 0.0}, False, True),
        ({"greedy": False}, False, False),
        ({}, False, False),
    ],
)
def test_no_randomness_is_greedy(fields: dict[str, Any], first: bool, rest: bool) -> None:
    sampling = SpeechRequest("a", **fields).sampling(DEFAULTS)
    assert (sampling.first.greedy, sampling.rest.greedy) == (first, rest)
    assert sampling.first.temperature == sampling.rest.temperature == DrawParams().temperature


def test_a_seed_of_minus_one_is_drawn() -> None:
    seeds = {SpeechRequest("a", seed=seed).sampling(DEFAULTS).seed for seed in (None, -1, -1)}
    assert len(seeds) == 3 and min(seeds) >= 0


@pytest.mark.parametrize("fields", [{"speed": 2.0}, {"sample_rate": 8000}, {"text_level": "raw"}, {"markup": False}])
def test_an_engine_refuses_what_is_done_outside_of_it(fields: dict[str, Any]) -> None:
    request = SpeechRequest("a", **fields)
    with pytest.raises(RequestError, match=r"use Oscine\.speak") as caught:
        request.check_for_engine()
    assert [caught.value.param] == list(fields)
    request.for_engine().check_for_engine()


@pytest.mark.parametrize("left_s", [-1, 3601, "1", True])
def test_a_continuation_says_how_much_audio_is_left(left_s: Any) -> None:
    with pytest.raises(RequestError, match="continues_s must be from 0 to 3600 seconds"):
        SpeechRequest("a", continues_s=left_s).check_for_engine()


def test_a_request_is_its_text_options_too() -> None:
    assert isinstance(SpeechRequest("a"), TextOptions)
    assert SpeechRequest("a", normalize=True).changes_words


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("af_bella+af_sky", {"af_bella": 1, "af_sky": 1}),
        ("af_bella(2)+af_sky(0.5)", {"af_bella": 2, "af_sky": 0.5}),
        ("Zoë Müller(3.)+a.b+a.b", {"Zoë Müller": 3, "a.b": 2}),
    ],
)
def test_a_name_with_a_plus_is_a_mix(name: str, parts: dict[str, float]) -> None:
    assert VoiceMix.named(name) == VoiceMix.of(parts)


@pytest.mark.parametrize(
    "name", ["af_bella", "af_bella(2)", "a+", "+a", "a++b", "a(-1)+b", "a(nan)+b", "a()+b", "(1)+b"]
)
def test_another_name_is_no_mix(name: str) -> None:
    assert VoiceMix.named(name) is None


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({}, "voice.mix must have 1 to 8 voices with their weights, got 0 voices"),
        (["a"], "got list"),
        ({str(number): 1 for number in range(9)}, "got 9 voices"),
        ({"a": 0}, "the weight of 'a' in voice.mix must be a number from 1e-06 to 1e+06, got 0"),
        ({"a": -1}, "got -1"),
        ({"a": float("nan")}, "got nan"),
        ({"a": float("inf")}, "got inf"),
        ({"a": True}, "got True"),
        ({"a": "1"}, "got '1'"),
        ({"x" * 10**6: None}, f"the weight of '{'x' * 80}' in"),
    ],
)
def test_a_mix_that_cannot_be_made_says_why(weights: Any, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        VoiceMix.of(weights)
    assert reason in str(caught.value) and caught.value.param == "voice"
    assert len(str(caught.value)) < 300
