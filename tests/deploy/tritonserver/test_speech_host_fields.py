from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from oscine.deploy.tritonserver.speech_host import speech_fields
from oscine.deploy.tritonserver.tensors import SPEECH_INPUTS
from oscine.errors import RequestError

ALL: dict[str, Any] = {
    "text": "Grüße.".encode(),
    "voice": b"wren",
    "language": b"english",
    "instructions": b"Calmly.",
    "ref_audio": b"aGVsbG8=",
    "ref_text": b"hello",
    "x_vector_only_mode": True,
    "speaker_embedding": [0.5, 1.0],
    "seed": 2**64 - 1,
    "temperature": 0.9,
    "top_k": 20,
    "top_p": 0.8,
    "repetition_penalty": 1.1,
    "subtalker_temperature": 0.7,
    "subtalker_top_k": 30,
    "subtalker_top_p": 0.6,
    "max_new_tokens": 100,
    "text_mode": "streaming",
    "greedy": True,
    "trim_echo": True,
    "non_streaming_mode": False,
    "trim_silence": False,
    "text_level": "spoken",
    "normalize": True,
    "pronunciations": b'{"Oscine": "OSS-een"}',
    "markup": False,
    "paragraph_pause_s": 0.5,
}


def test_every_input_becomes_the_field_of_the_http_api() -> None:
    assert ALL.keys() == {spec.name for spec in SPEECH_INPUTS}
    text, options = speech_fields(ALL)
    assert text == "Grüße."
    for name, value in ALL.items():
        if name == "text":
            continue
        field = value.decode() if isinstance(value, bytes) else value
        assert getattr(options, name) == (json.loads(field) if name == "pronunciations" else field), name


def test_a_clip_may_be_the_content_of_a_file() -> None:
    wav = b"RIFF\x24\x00\x00\x00WAVE" + bytes(range(256))
    _, options = speech_fields({"text": b"Hello.", "ref_audio": wav})
    assert base64.b64decode(str(options.ref_audio)) == wav
    _, named = speech_fields({"text": b"Hello.", "ref_audio": b"data:audio/wav;base64,AAAA"})
    assert named.ref_audio == "data:audio/wav;base64,AAAA"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "text is missing"),
        ({"text": b"\xff\xfe"}, "text is not UTF-8 text: invalid start byte at byte 0"),
        ({"text": b"Hello.", "top_p": 3.5}, "top_p must be a number above 0 and at most 1 (off)"),
        ({"text": b"Hello.", "subtalker_top_k": -1}, "subtalker_top_k"),
        ({"text": b"Hello.", "pronunciations": b"{"}, "the input pronunciations is not valid JSON"),
        (
            {"text": b"Hello.", "pronunciations": b"[]"},
            'pronunciations must be an object such as {"Oscine": "OSS-een"}',
        ),
    ],
)
def test_bad_input_is_refused_in_the_words_of_the_http_api(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        speech_fields(tensors)
