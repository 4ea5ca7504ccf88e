"""Settings of a WebSocket that no text could be spoken with are found when they come, not with every text."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.server.scripted_engine import BASE_CARD, CARD

from oscine.server.errors import ApiError, api_error
from oscine.server.live.speech import check_speakable
from oscine.types import ModelCard, RequestError, SpeechRequest
from oscine.voice import Voice

DESIGN_CARD = replace(CARD, kind="voice_design", speakers=())
SMALL_CARD = replace(CARD, takes_instructions=False)
VOICE, OTHER_VOICE = Voice(np.ones(8, np.float32)), Voice(np.ones(16, np.float32))


@pytest.mark.parametrize(
    ("card", "asked"),
    [
        (CARD, {}),
        (CARD, {"voice": "wren", "language": "chinese", "instruct": "Slowly."}),
        (SMALL_CARD, {"voice": "finch"}),
        (DESIGN_CARD, {"instruct": "An old man."}),
        (BASE_CARD, {"voice": VOICE}),
    ],
)
def test_what_can_be_spoken_passes(card: ModelCard, asked: dict[str, Any]) -> None:
    check_speakable(SpeechRequest(text="", **asked), card)


@pytest.mark.parametrize(
    ("card", "asked", "param", "said"),
    [
        (CARD, {"language": "klingon"}, "language", "possible: auto, chinese, english"),
        (CARD, {"instruct": "a\0b"}, "instructions", "NUL"),
        (CARD, {"instruct": " \n"}, "instructions", "white space"),
        (CARD, {"voice": VOICE}, "voice", "serve a Base one"),
        (SMALL_CARD, {"instruct": "Slowly."}, "instructions", "leave them out"),
        (DESIGN_CARD, {}, "instructions", "description"),
        (DESIGN_CARD, {"instruct": "A man.", "voice": VOICE}, "voice", "serve a Base one"),
        (BASE_CARD, {}, "voice", "ref_audio"),
        (BASE_CARD, {"voice": OTHER_VOICE}, "voice", "16 numbers"),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_the_fields_name(
    card: ModelCard, asked: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises((ApiError, RequestError)) as caught:
        check_speakable(SpeechRequest(text="", **asked), card)
    told = api_error(caught.value)
    assert (told.status, told.param) == (400, param)
    assert said in told.message
