"""Requests of other servers' clients: each field is understood, or taken and named in the response."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.request import SamplingParams
from oscine.server.schemas import SpeechBody
from oscine.speech.voice_names import language_name
from tests.server.live.live_client import server_of
from tests.server.scripted_engine import CARD, ScriptedEngine, spoken
from tests.server.serving import client_of

SPEECH = "/v1/audio/speech"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, httpx.Client]]:
    engine = ScriptedEngine()
    with client_of(engine, CARD) as client:
        yield engine, client
    engine.stop()


@pytest.fixture
def engine(running: tuple[ScriptedEngine, httpx.Client]) -> ScriptedEngine:
    running[0].requests.clear()
    return running[0]


@pytest.fixture
def client(running: tuple[ScriptedEngine, httpx.Client]) -> httpx.Client:
    return running[1]


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post(SPEECH, json={"input": "Hi.", "response_format": "pcm", "seed": 1, **fields})


# --- unknown fields ---


@pytest.mark.parametrize(
    ("fields", "ignored", "warning"),
    [
        ({"cfg_scale": 3}, "cfg_scale", None),
        ({"voise": "wren"}, "voise", "the field 'voise' is unknown and was ignored; did you mean 'voice'?"),
        ({"format": "wav"}, "format", "the field 'format' is unknown and was ignored; did you mean 'response_format'?"),
        ({"extra_params": {"temprature": 1}}, "extra_params.temprature", "did you mean 'temperature'?"),
        ({"voice": {"id": "wren", "name": "Wren"}}, "voice.name", None),
        ({"b": 1, "a": 1, "user": "me"}, "a, b, user", None),
        ({"größe, neu\n": 1}, "gr??e??neu?", None),
        ({"x" * 1000: 1}, "x" * 80, None),
        (
            {"ignore_eos": True, "stage_params": {}, "token_count": 8},
            "ignore_eos, stage_params, token_count",
            None,
        ),
    ],
    ids=str,
)
def test_unknown_fields_are_ignored_and_named(
    client: httpx.Client, fields: dict[str, Any], ignored: str, warning: str | None
) -> None:
    answer = ask(client, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"].startswith(ignored)
    assert (warning or "") in answer.headers.get("x-warning", "") and ("x-warning" in answer.headers) == bool(warning)


def test_fields_that_ask_for_nothing_are_not_named(client: httpx.Client) -> None:
    answer = ask(client, ignore_eos=False, user=None, do_sample=True, skip_fixed_bootstrap_audio=True)
    assert answer.status_code == 200 and "x-ignored-fields" not in answer.headers


def test_the_header_is_short_however_many_fields_are_unknown(client: httpx.Client) -> None:
    answer = ask(client, **{f"{number}{'voice' * 20}": 1 for number in range(64)})
    assert answer.status_code == 200 and len(answer.headers["x-ignored-fields"].split(", ")) == 20
    assert len(answer.headers["x-ignored-fields"]) < 2000
    refused = ask(client, **{f"{number}": 1 for number in range(65)})
    assert refused.status_code == 400 and "there are 65 unknown fields" in refused.json()["error"]["message"]


def test_a_batch_names_unknown_fields_of_the_batch_and_of_each_item(client: httpx.Client) -> None:
    items = [{"input": "One.", "voise": "wren"}, {"input": "Two."}]
    answer = client.post(f"{SPEECH}/batch", json={"items": items, "response_format": "pcm", "sede": 1})
    assert answer.headers["x-ignored-fields"] == "sede" and answer.json()["succeeded"] == 2
    assert [result.get("ignored_fields") for result in answer.json()["results"]] == [["voise"], None]


def test_a_live_session_names_unknown_fields_in_session_ready() -> None:
    engine = ScriptedEngine()
    with server_of(engine) as server, server.client() as client:
        ready = client.configure(vioce="finch", chunk_length=3, seed=3)
        assert ready["ignored_fields"] == ["chunk_length", "vioce"] and "did you mean 'voice'" in ready["warning"]
        client.send("input.text", text="Hi.", language="en")
        client.send("input.done", final=True)
        assert client.until("session.done").sound == spoken("Hi.", 3)
    engine.stop()


def test_a_strict_server_refuses_unknown_fields(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, ServerConfig(strict=True)) as client:
        for fields, param in (({"voise": "wren"}, "voise"), ({"extra_params": {"x": 1}}, "extra_params.x")):
            answer = ask(client, **fields)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        items = [{"input": "One.", "voise": "wren"}, {"input": "Two."}]
        results = client.post(f"{SPEECH}/batch", json={"items": items}).json()["results"]
        assert [result["status"] for result in results] == ["error", "success"]
        assert client.post(f"{SPEECH}/batch", json={"items": items, "sede": 1}).status_code == 400
        assert ask(client, ignore_eos=True, user="me").headers["x-ignored-fields"] == "ignore_eos, user"


@pytest.mark.parametrize("fields", [{"response_format": "WAV"}, {"task_type": "custom-voice"}], ids=str)
def test_a_strict_server_refuses_other_spellings(engine: ScriptedEngine, fields: dict[str, Any]) -> None:
    with client_of(engine, CARD, ServerConfig(strict=True)) as client:
        answer = ask(client, **fields)
        assert (answer.status_code, [answer.json()["error"]["param"]]) == (400, list(fields))
        assert "must be spelled" in answer.json()["error"]["message"]
        batch = client.post(f"{SPEECH}/batch", json={"items": [{"input": "One."}], **fields})
        assert batch.status_code == 400
        assert ask(client, response_format="wav", task_type="CustomVoice").status_code == 200


# --- other names and values ---


@pytest.mark.parametrize("name", ["CustomVoice", "customvoice", "custom-voice", "custom_voice", "CUSTOM_VOICE"])
def test_a_task_type_may_be_spelled_as_in_sglang_omni(client: httpx.Client, name: str) -> None:
    assert ask(client, task_type=name).status_code == 200


@pytest.mark.parametrize("name", ["WAV", "Wav"])
def test_a_format_may_be_spelled_in_another_case(client: httpx.Client, name: str) -> None:
    answer = ask(client, response_format=name)
    assert answer.headers["content-type"] == "audio/wav" and "x-ignored-fields" not in answer.headers
    (result,) = client.post(f"{SPEECH}/batch", json={"items": [{"input": "Hi.", "response_format": name}]}).json()[
        "results"
    ]
    assert result["media_type"] == "audio/wav"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"task_type": "voice-design"}, "'VoiceDesign' is not available"),
        ({"task_type": "voice-clone"}, "'CustomVoice'"),
        ({"response_format": "wave"}, "'wav'"),
        ({"response_format": ["WAV"]}, "'wav'"),
    ],
    ids=str,
)
def test_other_values_are_still_refused(client: httpx.Client, fields: dict[str, Any], said: str) -> None:
    answer = ask(client, **fields)
    assert (answer.status_code, [answer.json()["error"]["param"]]) == (400, list(fields))
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"instruct": "slowly"}, "instructions", "slowly"),
        ({"instruct": "slowly", "instructions": "slowly"}, "instructions", "slowly"),
        ({"instruct": None, "instructions": "slowly"}, "instructions", "slowly"),
        ({"lang_code": "zh-CN"}, "language", "chinese"),
        ({"lang_code": "a"}, "language", "english"),
        ({"language": "en"}, "language", "english"),
        ({"language": "English"}, "language", "english"),
        ({"language": ""}, "language", "auto"),
        ({"suppress_bootstrap_silence": False}, "trim_silence", False),
        ({"skip_fixed_bootstrap_audio": False, "trim_silence": False}, "trim_silence", False),
        ({"subtalker_top_k": 7, "extra_params": {"subtalker_top_k": 9}}, "subtalker_top_k", 7),
        ({"extra_params": {"subtalker_temperature": 0.5}}, "subtalker_temperature", 0.5),
    ],
    ids=str,
)
def test_fields_of_others_reach_the_engine(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, Any], name: str, value: Any
) -> None:
    answer = ask(client, **fields)
    assert answer.status_code == 200, answer.text
    assert getattr(engine.requests[-1], name) == value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"instruct": "slowly", "instructions": "fast"}, "instruct"),
        ({"language": "en", "lang_code": "zh"}, "lang_code"),
        ({"skip_fixed_bootstrap_audio": True, "suppress_bootstrap_silence": False}, "skip_fixed_bootstrap_audio"),
        ({"voice": "wren", "speaker": "finch"}, "speaker"),
        ({"seed": -(2**64)}, "seed"),
    ],
    ids=str,
)
def test_contradictions_and_impossible_values_are_refused(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    answer = ask(client, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_item_of_a_batch_overrides_a_default_under_any_name(client: httpx.Client, engine: ScriptedEngine) -> None:
    items = [{"input": "One.", "instruct": "fast", "language": "zh"}, {"input": "Two.", "speaker": "finch"}]
    body = {"items": items, "instructions": "slowly", "lang_code": "en", "voice": "wren"}
    assert client.post(f"{SPEECH}/batch", json=body).json()["succeeded"] == 2
    asked = {request.text: (request.instructions, request.language, request.voice) for request in engine.requests}
    assert asked == {"One.": ("fast", "chinese", "wren"), "Two.": ("slowly", "english", "finch")}


@pytest.mark.parametrize("where", ["top", "extra_params"])
def test_a_seed_of_minus_one_is_random(client: httpx.Client, where: str) -> None:
    fields = {"seed": -1} if where == "top" else {"seed": None, "extra_params": {"seed": -1}}
    seeds = {ask(client, **fields).headers["x-seed"] for _ in range(3)}
    assert len(seeds) == 3 and "-1" not in seeds


def test_a_live_session_with_a_seed_of_minus_one_draws_one_for_each_utterance() -> None:
    engine = ScriptedEngine()
    with server_of(engine) as server, server.client() as client:
        client.configure(seed=-1)
        seeds = {client.say("Hi.").one("audio.start")["seed"] for _ in range(3)}
    assert len(seeds) == 3
    engine.stop()


@pytest.mark.parametrize(
    ("fields", "first", "rest"),
    [
        ({}, False, False),
        ({"temperature": 0}, True, True),
        ({"do_sample": False}, True, True),
        ({"do_sample": False, "temperature": 0.7, "top_k": 20}, True, True),
        ({"do_sample": True}, False, False),
        ({"do_sample": False, "subtalker_dosample": True}, True, False),
        ({"subtalker_dosample": False}, False, True),
        ({"subtalker_temperature": 0}, False, True),
        ({"extra_params": {"do_sample": False}}, True, True),
        ({"extra_params": {"subtalker_dosample": False}}, False, True),
    ],
    ids=str,
)
def test_sampling_can_be_turned_off_for_the_talker_and_the_predictor(
    fields: dict[str, Any], first: bool, rest: bool
) -> None:
    params = SpeechBody(input="a", **fields).request("a").sampling(SamplingParams())
    assert [draw.greedy or draw.top_k == 1 for draw in (params.first, params.rest)] == [first, rest]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *(("en", "english"), ("EN", "english"), ("en-US", "english"), ("en_GB", "english"), ("eng", "english")),
        *(("zh", "chinese"), ("zh-CN", "chinese"), ("zh-Hans-CN", "chinese"), ("cmn", "chinese"), ("ja", "japanese")),
        *(("Auto", "auto"), ("English", "english"), ("sichuan_dialect", "sichuan_dialect"), ("z", "chinese")),
        *(("xx", "xx"), ("it's", "it's"), (" de ", "german"), ("", "")),
    ],
)
def test_language_codes_stand_for_the_names_of_languages(given: str, name: str) -> None:
    assert language_name(given) == name


# --- defaults by setting ---


def test_the_default_format_is_a_setting(engine: ScriptedEngine) -> None:
    body = {"input": "Hello there.", "seed": 3}
    with client_of(engine, CARD, ServerConfig(default_format="wav")) as client:
        answer = client.post(SPEECH, json=body)
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.headers["content-length"] == str(len(answer.content))  # a whole file, as every WAV
        results = client.post(f"{SPEECH}/batch", json={"items": [body]}).json()["results"]
        assert results[0]["media_type"] == "audio/wav"


def test_model_aliases_are_a_setting(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, ServerConfig(model_aliases=("any-tts", "kokoro=scripted", "gone=nothing"))) as client:
        for model, status in (("any-tts", 200), ("kokoro", 200), ("", 200), ("none", 404), ("gone", 404)):
            assert ask(client, model=model).status_code == status, model
        listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
        assert listed[:3] == ["scripted", "any-tts", "kokoro"]
    with client_of(engine, CARD) as client:
        assert ask(client, model="qwen3-tts").status_code == 200
