"""Settings of Qwen's hosted speech models as fields of ours."""

from typing import Any

import pytest

from oscine.server.dialects.dashscope import cloud_name, own_fields


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"language_type": "Chinese", "speech_rate": 1.5}, {"language": "Chinese", "speed": 1.5}),
        ({"enable_tn": True}, {"normalize": True}),
        ({"response_format": "mp3"}, {"response_format": "mp3"}),
        ({"volume": 50, "pitch_rate": 1.0, "optimize_instructions": False}, {}),
        ({"volume": 80, "new": []}, {"volume": 80, "new": []}),
    ],
)
def test_a_setting_gets_our_name_unless_it_asks_for_nothing(settings: dict[str, Any], fields: dict[str, Any]) -> None:
    assert own_fields(settings) == fields
    assert {cloud_name(name) for name in fields} <= settings.keys()


def test_the_http_calls_format_is_the_response_format() -> None:
    assert own_fields({"format": "mp3"}) == {"response_format": "mp3"}
    assert own_fields({"format": "mp3", "response_format": "wav"}) == {"response_format": "wav"}
