"""ElevenLabs' API over HTTP. The SDK itself runs in tests/server/test_elevenlabs_clients.py."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oscine.align.word_split import TimedWord
from oscine.audio.clips import read_clip
from oscine.config import ServerConfig
from oscine.server.dialects.elevenlabs_http import CharacterTimes
from oscine.speech.events import SegmentEnded, Words
from tests.align.scripted_whisper import scripted_whisper
from tests.server.live.live_client import Server, server_of
from tests.server.reference_clip import CLIP
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine, spoken
from tests.server.serving import client_of, eventually

FINCH = "/v1/text-to-speech/finch"
KEY = {"xi-api-key": "sesame"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(segment_chars=60, max_text_chars=300, api_keys=("sesame",))) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def client(running: tuple[ScriptedEngine, Server]) -> Iterator[httpx.Client]:
    engine, server = running
    engine.requests.clear()
    with httpx.Client(base_url=server.url, headers=KEY, trust_env=False, timeout=600) as client:
        yield client
    eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


def ask(client: httpx.Client, path: str = FINCH, output_format: str = "pcm_24000", **fields: Any) -> httpx.Response:
    body = {"text": "Hello.", "model_id": "eleven_turbo_v2_5", "seed": 3, **fields}
    return client.post(path, params={"output_format": output_format}, json=body)


@pytest.mark.parametrize("form", ["", "/stream"])
def test_a_text_is_spoken_with_the_voice_in_the_path(client: httpx.Client, form: str) -> None:
    answer = ask(client, FINCH + form)
    assert answer.status_code == 200 and answer.headers["content-type"] == "audio/pcm"
    assert answer.content == spoken("Hello.", 3, "finch")


@pytest.mark.parametrize(
    ("output_format", "media_type", "rate_hz"),
    [
        *((f"pcm_{rate}", "audio/pcm", rate) for rate in (8000, 16000, 22050, 24000, 32000, 44100, 48000)),
        ("mp3_22050_32", "audio/mpeg", 22050),
        ("mp3_24000_48", "audio/mpeg", 24000),
        ("mp3_44100_192", "audio/mpeg", 44100),
        ("opus_48000_64", "audio/ogg", 48000),
        ("wav_16000", "audio/wav", 16000),
        ("ulaw_8000", "audio/PCMU", 8000),
        ("alaw_8000", "audio/PCMA", 8000),
        ("flac", "audio/flac", 24000),
    ],
)
def test_output_formats_have_their_codec_and_their_rate(
    client: httpx.Client, output_format: str, media_type: str, rate_hz: int
) -> None:
    answer = ask(client, text="Hello there, all of you.", output_format=output_format)
    assert (answer.headers["content-type"], int(answer.headers["x-sample-rate"])) == (media_type, rate_hz)
    if media_type in ("audio/mpeg", "audio/ogg", "audio/wav", "audio/flac"):
        assert read_clip(answer.content).rate_hz == rate_hz


def test_without_a_format_it_is_mp3_at_44100_hz(client: httpx.Client) -> None:
    answer = client.post(FINCH, json={"text": "Hello."})
    assert read_clip(answer.content).rate_hz == 44100


def test_settings_are_understood_or_named_as_ignored(client: httpx.Client, running: Any) -> None:
    settings = {"speed": 1.25, "stability": 0.5, "similarity_boost": 0.75, "style": None, "use_speaker_boost": True}
    answer = ask(
        client,
        voice_settings=settings,
        language_code="zh",
        apply_text_normalization="off",
        previous_text="Before.",
        next_text=None,
        pronunciation_dictionary_locators=[{"pronunciation_dictionary_id": "x", "version_id": "y"}],
    )
    assert answer.status_code == 200
    ignored = "previous_text, pronunciation_dictionary_locators, voice_settings.similarity_boost, "
    assert answer.headers["x-ignored-fields"] == f"{ignored}voice_settings.stability, voice_settings.use_speaker_boost"
    (request,) = running[0].requests
    assert (request.seed, request.voice, request.language) == (3, "finch", "chinese")
    assert len(answer.content) < 0.9 * len(spoken("Hello.", 3, "finch"))  # it is faster


@pytest.mark.parametrize(("value", "read"), [("on", "ten"), ("off", "10"), ("auto", "10"), (None, "10")])
def test_text_normalization_chooses_how_a_text_is_read(
    client: httpx.Client, running: Any, value: str | None, read: str
) -> None:
    assert ask(client, text="The 10.", apply_text_normalization=value, language_code="en").status_code == 200
    assert running[0].requests[-1].text == f"The {read}."


def test_any_model_id_stands_for_the_served_model(client: httpx.Client) -> None:
    for model in ("eleven_v3", "scripted", "anything", None):
        assert ask(client, model_id=model).content == spoken("Hello.", 3, "finch")


def test_a_long_text_is_streamed(client: httpx.Client) -> None:
    text = "One sentence of this text. " * 6
    with client.stream("POST", f"{FINCH}/stream?output_format=pcm_24000", json={"text": text}) as answer:
        assert "content-length" not in answer.headers and len(b"".join(answer.iter_bytes())) > 100_000


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"text": None}, ["body", "text"], "valid string"),
        ({"voice_settings": {"speed": 9}}, ["body", "speed"], "from 0.25 to 4"),
        ({"voice_settings": 9}, ["body", "voice_settings"], "dictionary"),
        ({"apply_text_normalization": "perhaps"}, ["body", "apply_text_normalization"], "'auto', 'on' or 'off'"),
        ({"output_format": "pcm_7"}, ["body", "sample_rate"], "8000"),
        ({"output_format": "zip_24000"}, ["body", "output_format"], "mp3_44100_128"),
    ],
)
def test_a_wrong_field_is_422_with_its_place(
    client: httpx.Client, fields: dict[str, Any], place: list[str], words: str
) -> None:
    answer = ask(client, **fields)
    (detail,) = answer.json()["detail"]
    assert (answer.status_code, detail["loc"]) == (422, place) and words in detail["msg"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "code", "words"),
    [
        ("/v1/text-to-speech/fynch", {}, 404, "voice_not_found", "did you mean 'finch'?"),
        (FINCH, {"text": "x" * 301}, 413, "too_large", "300"),
        (FINCH, {"text": "!refuse"}, 400, "bad_request", "refused"),
        (f"{FINCH}/with-timestamps", {}, 400, "bad_request", "--aligner FOLDER"),
        (f"{FINCH}/stream/with-timestamps", {}, 400, "bad_request", "--aligner FOLDER"),
        (f"{FINCH}/nothing", {}, 404, "not_found", "does not exist"),
    ],
)
def test_an_error_has_the_form_of_elevenlabs_and_ours(
    client: httpx.Client, path: str, fields: dict[str, Any], status: int, code: str, words: str
) -> None:
    answer = ask(client, path, **fields)
    detail = answer.json()["detail"]
    assert (answer.status_code, detail["status"], detail["code"]) == (status, code, code), answer.text
    assert words in detail["message"] == answer.json()["error"]["message"]
    assert detail["request_id"] == answer.headers["x-request-id"]


def test_without_a_key_nothing_is_answered(client: httpx.Client) -> None:
    for path in (FINCH, "/v1/voices", "/v2/voices", "/v1/voices/finch", "/v1/user", "/v1/user/subscription"):
        answer = client.request("POST" if path == FINCH else "GET", path, headers={"xi-api-key": "no"})
        assert (answer.status_code, answer.json()["detail"]["status"]) == (401, "invalid_api_key"), path


def test_a_full_server_says_when_to_retry(running: tuple[ScriptedEngine, Server], client: httpx.Client) -> None:
    running[0].ready = False
    try:
        answer = ask(client)
    finally:
        running[0].ready = True
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["detail"]["code"] == "not_ready"


# --- lists ------------------------------------------------------------------------------------------------------------


def test_models_are_listed_in_the_form_of_the_key(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()
    assert model["model_id"] == "scripted" and model["can_do_text_to_speech"]
    assert model["languages"][0] == {"language_id": "en", "name": "English"}
    openai = client.get("/v1/models", headers={"xi-api-key": "", "authorization": "Bearer sesame"})
    assert openai.json()[0]["model_id"] == "scripted"  # the header decides, whatever it holds
    del client.headers["xi-api-key"]
    assert client.get("/v1/models", headers={"authorization": "Bearer sesame"}).json()["object"] == "list"


def test_presets_and_uploaded_voices_are_listed(engine: ScriptedEngine) -> None:
    with client_of(engine, BASE_CARD, ServerConfig()) as client:
        for name in ("Anna", "Bert", "Carla"):
            form = {"name": name, "consent": "yes"}
            assert client.post("/v1/audio/voices", data=form, files={"audio_sample": CLIP}).status_code == 200
        voices = client.get("/v1/voices").json()["voices"]
        assert [(one["voice_id"], one["category"]) for one in voices] == [
            (name, "cloned") for name in ("anna", "bert", "carla")
        ]
        pages, token = [], None
        while not pages or pages[-1]["has_more"]:
            query = {"page_size": 2, **({"next_page_token": token} if token else {})}
            pages.append(client.get("/v2/voices", params=query).json())
            token = pages[-1]["next_page_token"]
        assert [[one["name"] for one in page["voices"]] for page in pages] == [["Anna", "Bert"], ["Carla"]]
        assert [page["total_count"] for page in pages] == [3, 3] and token is None
        (found,) = client.get("/v2/voices", params={"search": "BER"}).json()["voices"]
        assert found == client.get("/v1/voices/bert").json()
        spoken_by_id = client.post("/v1/text-to-speech/bert?output_format=pcm", json={"text": "Hi."})
        assert spoken_by_id.status_code == 200


def test_a_voice_that_does_not_exist_is_404(client: httpx.Client) -> None:
    assert client.get("/v1/voices/finch").json()["category"] == "premade"
    answer = client.get("/v1/voices/none")
    assert (answer.status_code, answer.json()["detail"]["status"]) == (404, "voice_not_found")


def test_the_subscription_counts_the_characters_of_the_key(client: httpx.Client) -> None:
    about = client.get("/v1/user").json()["subscription"]
    assert about == client.get("/v1/user/subscription").json() and about["character_limit"] == 2**31 - 1
    used = about["character_count"]
    assert client.post("/v1/text-to-speech/wren", json={"text": "Hello."}).status_code == 200
    assert client.get("/v1/user/subscription").json()["character_count"] == used + 6


# --- times ------------------------------------------------------------------------------------------------------------


def test_characters_share_the_time_of_their_word() -> None:
    times = CharacterTimes()
    assert times.add(SegmentEnded(0, "Hi, you. ", 0.0, 1.0)) is None
    found = times.add(Words(0, (TimedWord("Hi,", 0.25, 0.4), TimedWord("you.", 0.5, 0.9))))
    assert found and "".join(found.chars) == "Hi, you. "
    assert found.starts_s == [0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert found.ends_s == [0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9]


def test_words_without_times_give_none() -> None:
    times = CharacterTimes()
    times.add(SegmentEnded(0, "Hi.", 0.0, 1.0))
    assert times.add(Words(0, (TimedWord("Hi."),), "the aligner was not done in time")) is None


def test_characters_are_timed_where_there_is_an_aligner(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "library")
    config = ServerConfig(aligner=str(scripted_whisper(tmp_path)), aligner_wait_s=600)
    with client_of(engine, CARD, config) as client:
        whole = ask(client, f"{FINCH}/with-timestamps", text="Hello there.")
        lines = ask(client, f"{FINCH}/stream/with-timestamps", text="Hello there.")
    answer, made = whole.json(), spoken("Hello there.", 3, "finch")
    assert base64.b64decode(answer["audio_base64"]) == made
    alignment = answer["alignment"]
    assert "".join(alignment["characters"]) == "Hello there." and alignment == answer["normalized_alignment"]
    times = [*alignment["character_start_times_seconds"], alignment["character_end_times_seconds"][-1]]
    assert times == sorted(times) and 0 < times[-1] <= len(made) / 48_000
    pieces = [json.loads(line) for line in lines.text.splitlines()]
    assert b"".join(base64.b64decode(piece["audio_base64"]) for piece in pieces) == made
    assert [piece["alignment"] for piece in pieces if piece["alignment"]] == [alignment]
