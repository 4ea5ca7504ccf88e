"""Each server is asked as it wants to be asked."""

import base64
import json
from pathlib import Path

import pytest

from oscine.bench.live import pieces
from oscine.bench.targets import PRESETS, Address, Target
from oscine.bench.workload import Utterance
from oscine.types import RequestError

ASKED = Utterance('Say "hi", 你好.', 42, 0)


def body(preset: str, **options) -> dict:
    return json.loads(Target(url="http://x", preset_name=preset, **options).body(ASKED))


@pytest.mark.parametrize(
    ("preset", "fields"),
    [
        (
            "oscine",
            {
                "seed": 42,
                "stream_format": "audio",
                "max_new_tokens": 57,
                "trim_silence": False,
                "language": "english",
            },
        ),
        (
            "vllm-omni",
            {"seed": 42, "stream": True, "stream_format": "audio", "max_new_tokens": 56, "language": "English"},
        ),
        ("nari", {"seed": 42, "stream": True, "max_new_tokens": 56, "ignore_eos": True, "language": "english"}),
        ("sglang-omni", {"seed": 42, "stream": True, "max_new_tokens": 56, "language": "English"}),
    ],
)
def test_a_preset_knows_the_quirks(preset: str, fields: dict) -> None:
    common = {"input": ASKED.text, "response_format": "pcm", "voice": "ryan"}
    assert body(preset, voice="ryan", language="english", frames=56) == common | fields


def test_openai_wants_a_model_and_takes_no_seed() -> None:
    asked = {"input": ASKED.text, "model": "gpt-4o-mini-tts", "voice": "alloy", "response_format": "pcm"}
    assert body("openai") == asked
    with pytest.raises(RequestError, match="cannot be told how long"):
        body("openai", frames=10)


def test_extra_fields_go_over_everything_and_null_removes() -> None:
    got = body("nari", extra={"seed": 1, "stream": None, "top_k": 20})
    assert got == {"input": ASKED.text, "response_format": "pcm", "seed": 1, "top_k": 20}


@pytest.mark.parametrize("preset", ["oscine", "vllm-omni"])
def test_events_replace_the_byte_stream(preset: str) -> None:
    got = body(preset, sse=True, response_format="mp3")
    assert got == {"input": ASKED.text, "seed": 42, "response_format": "mp3", "stream_format": "sse"}


def test_a_clip_travels_as_a_data_url_and_is_not_in_the_result(tmp_path: Path) -> None:
    clip = tmp_path / "me.mp3"
    clip.write_bytes(b"not really")
    target = Target(url="http://x", ref_audio=clip, ref_text="hello", api_key="secret")
    assert (
        json.loads(target.body(ASKED))["ref_audio"]
        == "data:audio/mpeg;base64," + base64.b64encode(b"not really").decode()
    )
    described = json.dumps(target.described())
    assert '"ref_audio": "me.mp3"' in described and "base64" not in described
    assert "secret" not in described and "secret" not in repr(target)


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://localhost:8000", Address("localhost", 8000, False, ""), "localhost:8000"),
        ("localhost:8000/", Address("localhost", 8000, False, ""), "localhost:8000"),
        ("https://api.openai.com/v1", Address("api.openai.com", 443, True, ""), "api.openai.com"),
        ("http://[::1]:80/tts/", Address("::1", 80, False, "/tts"), "[::1]"),
        ("wss://example.org", Address("example.org", 443, True, ""), "example.org"),
    ],
)
def test_an_address_is_read_as_people_write_it(url: str, address: Address, authority: str) -> None:
    assert Address.parse(url) == address
    assert address.authority == authority


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="no address"):
        Address.parse(url)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean 'vllm-omni'"):
        Target(url="http://x", preset_name="vllm")
    with pytest.raises(RequestError, match="unknown format"):
        Target(url="http://x", response_format="mp4")
    with pytest.raises(RequestError, match="at least 1"):
        Target(url="http://x", frames=0)
    with pytest.raises(RequestError, match="cannot be read"):
        Target(url="http://x", ref_audio=Path("/does/not/exist.wav"))


def test_every_preset_makes_a_body() -> None:
    assert all(body(preset)["input"] == ASKED.text for preset in PRESETS)


@pytest.mark.parametrize("text", ["Hello there,  you.", " leading", "你好 world，再见", "", "日本語 and more\n"])
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_pieces_are_words_or_single_characters() -> None:
    assert pieces("Hello there, 你好 you") == ["Hello ", "there, ", "你", "好 ", "you"]
