from dataclasses import replace

import pytest

from oscine.errors import RequestError
from oscine.text.levels import at_level, check_level, text_language
from oscine.types import TextLevel, TextOptions
from tests.server.scripted_engine import CARD


@pytest.mark.parametrize(
    ("options", "server", "checkpoint", "level"),
    [
        ({}, None, "clean", "clean"),
        ({}, None, "spoken", "spoken"),
        ({}, "raw", "spoken", "raw"),
        ({"normalize": True}, "raw", "clean", "spoken"),
        ({"normalize": False}, None, "spoken", "clean"),
        ({"normalize": False}, "raw", "spoken", "raw"),
        ({"text_level": "raw", "normalize": True}, "spoken", "spoken", "raw"),
        ({"text_level": "spoken"}, "raw", "raw", "spoken"),
    ],
)
def test_the_request_counts_before_the_server_and_the_server_before_the_checkpoint(
    options: dict[str, object], server: TextLevel | None, checkpoint: TextLevel, level: TextLevel
) -> None:
    given = at_level(TextOptions(**options), replace(CARD, text_level=checkpoint), "english", server)  # type: ignore[arg-type]
    assert given.text_level == level


def test_a_default_level_is_lowered_for_a_language_without_rules() -> None:
    card = replace(CARD, text_level="spoken")
    assert at_level(TextOptions(), card, "klingon").text_level == "clean"
    assert at_level(TextOptions(text_level="spoken"), card, "klingon").text_level == "spoken"  # and is refused


def test_auto_means_the_only_language_of_a_checkpoint() -> None:
    assert text_language("auto", ("english",)) == "english"
    assert text_language("auto", ("english", "german")) == "auto"
    assert text_language("german", ("english",)) == "german"


def test_an_unknown_level_is_refused_with_those_there_are() -> None:
    with pytest.raises(RequestError, match="spoken"):
        check_level(TextOptions(text_level="spokn"))  # type: ignore[arg-type]
