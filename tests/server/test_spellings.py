"""Values in another type or spelling: every entrance reads what can mean only one thing; a strict server refuses it."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from oscine.config import ServerConfig
from oscine.errors import RequestError
from oscine.server.http.errors import invalid_field
from oscine.server.schemas import SpeechBody
from oscine.server.spellings import meant_boolean
from tests.server.entrances import ENTRANCES, SPEECH, Ask, over_http, post
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import ScriptedEngine


def read(**fields: Any) -> SpeechBody:
    """Raises RequestError."""
    try:
        return SpeechBody.model_validate({"input": "Hi.", **fields})
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        *(("speed", "1.0", 1.0), ("speed", " 2 ", 2.0), ("speed", ".5", 0.5), ("temperature", "7e-1", 0.7)),
        *(("max_new_tokens", "40", 40), ("top_k", "20.0", 20), ("sample_rate", "16000", 16000), ("seed", 1.0, 1)),
        *(("stream", "true", True), ("stream", "False", False), ("stream", 1, True), ("markup", "off", False)),
        ("seed", "18446744073709551615", 2**64 - 1),  # a float would round it
        *(("seed", -1, -1), ("seed", -1.0, -1), ("seed", "-1", -1)),  # random
        *(("seed", -5, 2**64 - 5), ("seed", "-5", 2**64 - 5), ("seed", -(2**63), 2**63)),
        *(("max_new_tokens", 1, 2), ("max_new_tokens", "1", 2)),
        ("response_format", "OGG", "opus"),
        ("response_format", "g711_ulaw", "mulaw"),
    ],
)
def test_a_value_that_can_mean_only_one_thing_is_read(name: str, given: Any, meant: Any) -> None:
    body = read(**{name: given})
    assert getattr(body, name) == meant and type(getattr(body, name)) is type(meant)
    if name in ("seed", "temperature", "top_k", "max_new_tokens"):
        nested = read(extra_params={name: given}).extra_params
        assert getattr(nested, name) == meant


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("speed", "fast", "speed must be a number from 0.25 to 4"),
        ("speed", True, "speed must be a number from 0.25 to 4"),
        ("speed", "9", "speed must be a number from 0.25 to 4"),
        ("speed", "nan", "speed must be a number from 0.25 to 4"),
        ("speed", "1_0", "speed must be a number from 0.25 to 4"),
        ("speed", "\u0661", "speed must be a number from 0.25 to 4"),  # a digit in Arabic
        ("speed", "1" * 1000, "speed must be a number from 0.25 to 4"),
        ("seed", 1.5, "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
        ("seed", "1.5", "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
        ("seed", True, "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
        ("seed", float("inf"), "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
        ("seed", -(2**63) - 1, "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
        ("seed", 2**64, "seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
        ("max_new_tokens", 0, "max_new_tokens must be a whole number of at least 2 (it gives one frame less)"),
        ("max_new_tokens", "-1", "max_new_tokens must be a whole number of at least 2 (it gives one frame less)"),
        (
            "sample_rate",
            "31999",
            "sample_rate must be one of 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000",
        ),
        ("stream", "perhaps", "stream: input should be a valid boolean"),
        ("stream", 2, "stream: input should be a valid boolean, got 2"),
        ("stream", 1.0, "stream: input should be a valid boolean, got 1.0"),
        (
            "response_format",
            "vorbis",
            "response_format: input should be 'mp3', 'wav', 'pcm', 'opus', 'aac', 'flac', 'mulaw', '",
        ),
        ("input", 5, "input: input should be a valid string, got 5"),
        ("extra_params", {"seed": "x"}, "extra_params.seed must be a whole number from 0 to 2**64 - 1, or -1 (random)"),
    ],
)
def test_what_stays_wrong_keeps_its_error(name: str, given: Any, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(**{name: given})
    assert str(refused.value).startswith(said)


def test_one_wrong_value_does_not_hide_behind_one_that_is_read() -> None:
    with pytest.raises(RequestError, match=r"top_k must be a whole number, 0 \(off\) or more"):
        read(speed="1.0", top_k="many", stream="true")


def test_words_of_a_form_are_read_as_those_of_json() -> None:
    assert [meant_boolean(word) for word in ("true", "ON", "1", "yes")] == [True] * 4
    assert [meant_boolean(word) for word in ("false", "Off", "0", "no")] == [False] * 4
    assert [meant_boolean(word) for word in ("", "2", None, "t" * 100, 1.0)] == [None] * 5


# --- every entrance ---

FIELDS: dict[str, Any] = {"seed": "7", "top_k": 20.0, "markup": "true", "sample_rate": "24000", "max_new_tokens": 1}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """A lenient and a strict one."""
    engine = ScriptedEngine()
    with server_of(engine) as lenient, server_of(engine, ServerConfig(strict=True)) as strict:
        yield lenient, strict
    engine.stop()


@pytest.mark.parametrize("ask", ENTRANCES)
def test_every_entrance_reads_the_same_values(servers: tuple[Server, Server], ask: Ask) -> None:
    assert ask(servers[0], FIELDS) is None


@pytest.mark.parametrize("ask", ENTRANCES)
@pytest.mark.parametrize("name", FIELDS)
def test_no_entrance_of_a_strict_server_reads_them(servers: tuple[Server, Server], ask: Ask, name: str) -> None:
    message = ask(servers[1], {name: FIELDS[name]})
    assert message is not None and message.startswith((f"{name}: input should be", f"{name} must be"))


def test_the_header_tells_the_seed_that_a_negative_one_stands_for(servers: tuple[Server, Server]) -> None:
    body = {"input": "Hi.", "response_format": "pcm"}
    negative = post(servers[0], SPEECH, {**body, "seed": -5})
    assert negative.headers["x-seed"] == str(2**64 - 5)
    assert post(servers[0], SPEECH, {**body, "seed": 2**64 - 5}).content == negative.content


def test_ogg_is_an_opus_file(servers: tuple[Server, Server]) -> None:
    ogg, opus = (
        post(servers[0], SPEECH, {"input": "Hi.", "seed": 1, "response_format": name}) for name in ("ogg", "opus")
    )
    assert ogg.content == opus.content and ogg.headers["content-type"] == "audio/ogg"
    assert over_http(servers[1], {"response_format": "ogg"}) == (
        "response_format must be spelled 'opus': this server is strict"
    )
