"""Each server gets requests in its own form."""

import base64
import json
from pathlib import Path

import pytest

from oscine.errors import RequestError
from oscine_bench.target_options import TargetOptions
from oscine_bench.targets import PRESETS, Address, Target
from oscine_bench.websocket_client import pieces
from oscine_bench.workload import PlannedRequest

REQUEST = PlannedRequest('Say "hi", 你好.', 42, 0)


def body(preset: str, **options) -> dict:
    return json.loads(Target(url="http://x", preset_name=preset, **options).body(REQUEST))


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
        (
            "nari",
            {
                "seed": 42,
                "stream": True,
                "max_new_tokens": 56,
                "ignore_eos": True,
                "skip_fixed_bootstrap_audio": False,
                "language": "english",
            },
        ),
        ("sglang-omni", {"seed": 42, "stream": True, "max_new_tokens": 56, "language": "English", "model": "qwen"}),
    ],
)
def test_a_preset_has_the_fields_of_its_server(preset: str, fields: dict) -> None:
    common = {"input": REQUEST.text, "response_format": "pcm", "voice": "ryan"}
    got = body(preset, voice="ryan", language="english", frames=56, model=fields.get("model"))
    assert got == common | fields


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "needs a model and a voice; add -m and --voice$"), ({"model": "qwen"}, "needs a voice; add --voice$")],
)
def test_required_fields_must_be_given(given: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        body("sglang-omni", **given)
    assert body("sglang-omni", extra={"model": "qwen", "voice": "ryan"})["voice"] == "ryan"


def test_nari_keeps_its_default_for_the_first_frame_unless_the_length_is_fixed() -> None:
    assert "skip_fixed_bootstrap_audio" not in body("nari")


def test_openai_gets_a_model_and_no_seed() -> None:
    asked = {"input": REQUEST.text, "model": "gpt-4o-mini-tts", "voice": "alloy", "response_format": "pcm"}
    assert body("openai") == asked
    with pytest.raises(RequestError, match="does not support a fixed length"):
        body("openai", frames=10)


def test_extra_fields_override_all_others_and_null_removes() -> None:
    got = body("nari", extra={"seed": 1, "stream": None, "top_k": 20})
    assert got == {"input": REQUEST.text, "response_format": "pcm", "seed": 1, "top_k": 20}


@pytest.mark.parametrize("preset", ["oscine", "vllm-omni"])
def test_events_replace_the_byte_stream(preset: str) -> None:
    got = body(preset, sse=True, response_format="mp3")
    assert got == {"input": REQUEST.text, "seed": 42, "response_format": "mp3", "stream_format": "sse"}


@pytest.mark.parametrize("preset", ["nari", "sglang-omni", "oscine-ws"])
@pytest.mark.parametrize("options", [{"sse": True}, {"extra": {"stream_format": "sse"}}])
def test_events_are_refused_for_servers_without_them(preset: str, options: dict) -> None:
    with pytest.raises(RequestError, match=f"{preset} does not support events; remove --sse"):
        body(preset, model="qwen", voice="ryan", **options)


@pytest.mark.parametrize(
    ("preset", "given", "effective"),
    [
        ("oscine", {"extra": {"response_format": "mp3"}}, ("mp3", False)),
        ("oscine", {"extra": {"stream_format": "sse"}}, ("pcm", True)),
        ("oscine", {"extra": {"stream": True}}, ("pcm", False)),
        ("oscine", {"extra": {"stream": True, "stream_format": None}}, ("pcm", False)),
        ("vllm-omni", {"extra": {"stream": True, "stream_format": None}}, ("pcm", True)),
        ("oscine", {"extra": {"stream": False, "stream_format": None}}, ("pcm", False)),
        ("oscine", {"sse": True, "extra": {"stream_format": "audio"}}, ("pcm", False)),
        ("vllm-omni", {"extra": {"stream_format": None}}, ("pcm", True)),
        ("nari", {"response_format": "wav", "extra": {"response_format": "pcm"}}, ("pcm", False)),
        ("openai", {"sse": True, "extra": {"response_format": "opus"}}, ("opus", True)),
    ],
)
def test_a_response_is_decoded_as_the_body_requests(preset: str, given: dict, effective: tuple[str, bool]) -> None:
    target = Target(url="http://x", preset_name=preset, **given)
    assert (target.response_format, target.sse) == effective


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown format 'mp4'"):
        body("oscine", extra={"response_format": "mp4"})
    with pytest.raises(RequestError, match="use --format"):
        body("oscine", extra={"response_format": None})


def test_a_clip_is_sent_as_a_data_url_and_is_not_in_the_result(tmp_path: Path) -> None:
    clip = tmp_path / "me.mp3"
    clip.write_bytes(b"not really")
    target = Target(url="http://x", ref_audio=clip, ref_text="hello", api_key="secret")
    assert (
        json.loads(target.body(REQUEST))["ref_audio"]
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
        ("http://x:1/v1/audio/speech", Address("x", 1, False, ""), "x:1"),
        ("http://x:1/tts/v1/audio/speech/", Address("x", 1, False, "/tts"), "x:1"),
        ("ws://x:1/v1/audio/speech/stream", Address("x", 1, False, ""), "x:1"),
        ("http://bücher.de", Address("xn--bcher-kva.de", 80, False, ""), "xn--bcher-kva.de"),
    ],
)
def test_usual_forms_of_an_address_are_accepted(url: str, address: Address, authority: str) -> None:
    assert Address.parse(url) == address
    assert address.authority == authority


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:99999", "http://x:0", "", "http://a..b", "http://[::1", "http://x/a b"]
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="not a server address"):
        Address.parse(url)


def test_a_password_is_refused_and_not_repeated() -> None:
    for url in ("http://me:secret@host:8000", "https://secret@host", "http://me:secret@a..b"):
        with pytest.raises(RequestError) as refused:
            Address.parse(url)
        assert "secret" not in str(refused.value)
    with pytest.raises(RequestError, match="--api-key"):
        Address.parse("http://me:secret@host:8000")


@pytest.mark.parametrize(("url", "mark"), [("http://x/v1?a=1", "?"), ("http://x#top", "#")])
def test_a_query_or_fragment_is_refused(url: str, mark: str) -> None:
    with pytest.raises(RequestError, match=f"from '[{mark}]' on"):
        Address.parse(url)


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(RequestError, match="did you mean 'vllm-omni'"):
        Target(url="http://x", preset_name="vllm")
    with pytest.raises(RequestError, match="unknown format"):
        Target(url="http://x", response_format="mp4")
    with pytest.raises(RequestError, match="at least 1"):
        Target(url="http://x", frames=0)
    with pytest.raises(RequestError, match="cannot read the clip"):
        Target(url="http://x", ref_audio=Path("/does/not/exist.wav"))


def test_every_preset_makes_a_body() -> None:
    over_http = [name for name, preset in PRESETS.items() if preset.transport != "triton"]
    assert all(body(preset, model="a", voice="b")["input"] == REQUEST.text for preset in over_http)


def test_the_scheme_triton_and_the_preset_go_together() -> None:
    target = TargetOptions(model="oscine_speech").make_target("triton://gpu1")
    assert (target.preset_name, target.served_model, target.address.authority) == (
        "triton",
        "oscine_speech",
        "gpu1:8001",
    )
    assert TargetOptions().make_target("triton://[::1]:9001").address.authority == "[::1]:9001"
    for options, url in ((TargetOptions(target="triton"), "http://x"), (TargetOptions(target="nari"), "triton://x")):
        with pytest.raises(RequestError, match=r"triton://host:8001 and --target triton go together"):
            options.make_target(url)
    with pytest.raises(RequestError, match="Triton sends samples, not mp3"):
        TargetOptions(response_format="mp3").make_target("triton://x")


@pytest.mark.parametrize("text", ["Hello there,  you.", " leading", "你好 world，再见", "", "日本語 and more\n"])
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_pieces_are_words_or_single_characters() -> None:
    assert pieces("Hello there, 你好 you") == ["Hello ", "there, ", "你", "好 ", "you"]
