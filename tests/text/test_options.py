import pytest

from oscine.text.options import TextLevel, TextOptions, at_level, text_language


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
    given = at_level(TextOptions(**options), server or checkpoint, "english")  # type: ignore[arg-type]
    assert given.text_level == level


def test_a_default_level_is_lowered_for_a_language_without_rules() -> None:
    assert at_level(TextOptions(), "spoken", "klingon").text_level == "clean"
    assert at_level(TextOptions(text_level="spoken"), "clean", "klingon").text_level == "spoken"  # and is refused


def test_auto_means_the_only_language_of_a_checkpoint() -> None:
    assert text_language("auto", ("english",)) == "english"
    assert text_language("auto", ("english", "german")) == "auto"
    assert text_language("german", ("english",)) == "german"
