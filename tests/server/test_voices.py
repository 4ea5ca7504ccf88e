"""Endpoints of /v1/audio/voices."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from oscine.errors import VoiceError
from oscine.server.errors import handle_errors
from oscine.server.metrics import Metrics
from oscine.server.model_registry import LoadedModel, ModelRegistry
from oscine.server.reference_clips import ClipPolicy
from oscine.server.schemas import invalid_field
from oscine.server.voice_aliases import reserved_names
from oscine.server.voice_store import VoiceStore
from oscine.server.voices import voice_routes
from oscine.types import ModelCard
from oscine.voice import Voice

WIDTH = 8
BASE = ModelCard(
    name="Qwen3-TTS-12Hz-0.6B-Base",
    kind="base",
    speakers=(),
    languages=("english",),
    dialects=(),
    takes_instructions=False,
    sample_rate_hz=24_000,
    samples_per_frame=1920,
    speaker_width=WIDTH,
)
PRESETS = dataclasses.replace(BASE, name="custom", kind="custom_voice", speakers=("ryan", "vivian", "echo"))
DESIGN = dataclasses.replace(BASE, name="design", kind="voice_design")


def timbre(number: float = 0.0) -> Voice:
    return Voice(np.full(WIDTH, number, np.float32))


class Cloner:
    """An engine whose voices depend on the clip."""

    def __init__(self) -> None:
        self.clones = 0

    def clone(self, clip: bytes, transcript: str | None = None) -> Voice:
        self.clones += 1
        if clip == b"silence":
            raise VoiceError("the reference clip is silent", "ref_audio")
        speaker = np.full(WIDTH, sum(clip), np.float32)
        return Voice(speaker) if transcript is None else Voice(speaker, np.ones((2, 16), np.int64), transcript)


class Api:
    """An app with only these routes, called in this thread."""

    def __init__(self, card: ModelCard, folder: Path | None, max_bytes: int = 1000) -> None:
        self.cloner: Any = Cloner()
        self.store = VoiceStore(folder, reserved_names(card.speakers))
        self._models = ModelRegistry([LoadedModel.of(self.cloner, card)], self.store, Metrics(tuple))
        service: Any = SimpleNamespace(
            models=self._models, voice_store=self.store, clip_policy=ClipPolicy(max_bytes=max_bytes)
        )
        errors = {status: {"description": ""} for status in (400, 401, 404, 409, 413, 429, 503)}
        self.app = FastAPI()
        handle_errors(self.app, invalid_field, lambda path, status: None)
        self.app.include_router(voice_routes(service, errors))

    def close(self) -> None:
        self._models.close()

    def __call__(self, method: str, path: str = "", **options: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, f"/v1/audio/voices{path}", **options)

        return asyncio.run(run())

    def upload(self, clip: bytes | None = b"clip", **fields: str) -> httpx.Response:
        values = {"name": "anna", "consent": "anna said yes"} | fields
        parts: dict[str, Any] = {name: (None, value) for name, value in values.items()}
        if clip is not None:
            parts["audio_sample"] = ("clip.wav", clip, "audio/wav")
        return self("POST", files=parts)

    def refused(self, status: int, param: str | None, message: str, answer: httpx.Response) -> None:
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["param"] == param and message in error["message"], error


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    api = Api(BASE, tmp_path / "voices")
    yield api
    api.close()


@pytest.fixture
def api_of() -> Iterator[Callable[..., Api]]:
    made: list[Api] = []

    def make(card: ModelCard, folder: Path | None = None) -> Api:
        made.append(Api(card, folder))
        return made[-1]

    yield make
    for api in made:
        api.close()


def test_a_clip_can_be_uploaded_as_a_voice(api: Api) -> None:
    answer = api.upload(b"clip", name="Anna", ref_text="hello you", speaker_description="calm")
    assert answer.status_code == 200, answer.text
    voice = answer.json()["voice"]
    assert answer.json()["success"] is True
    expected = {"name": "anna", "consent": "anna said yes", "mode": "in_context", "embedding_dim": WIDTH}
    assert voice | expected | {"ref_text": "hello you", "speaker_description": "calm"} == voice
    assert voice["created_at"] > 1e9 and voice["file_size"] > 0
    stored = api.store.get("anna")
    assert stored is not None and voice["content_hash"] == stored.voice.content_hash
    listed = api("GET").json()
    users = {"anna": [BASE.name]}
    assert listed == {"voices": ["anna"], "uploaded_voices": [voice], "aliases": {}, "models": users}


def test_a_clip_without_a_transcript_gives_only_the_timbre(api: Api) -> None:
    voice = api.upload(ref_text="").json()["voice"]  # web forms send empty fields
    assert (voice["mode"], voice["ref_text"], voice["speaker_description"]) == ("timbre", None, None)


def test_a_downloaded_embedding_gives_the_same_voice_when_uploaded(api: Api) -> None:
    api.upload(b"clip")
    embedding = api("GET", "/ANNA/embedding").json()
    assert embedding == {"name": "anna", "embedding": [float(sum(b"clip"))] * WIDTH}
    copied = api.upload(None, name="copy", speaker_embedding=json.dumps(embedding["embedding"]))
    assert copied.status_code == 200, copied.text
    assert len({voice["content_hash"] for voice in api("GET").json()["uploaded_voices"]}) == 1
    assert api.cloner.clones == 1


def test_repeating_an_upload_succeeds_and_another_is_a_conflict(api: Api, tmp_path: Path) -> None:
    first = api.upload(ref_text="hello").json()
    assert api.upload(ref_text="hello", consent="somebody else").json() == first
    assert api.cloner.clones == 1
    restarted = Api(BASE, tmp_path / "voices")
    assert restarted.upload(ref_text="hello").json() == first and restarted.cloner.clones == 0
    restarted.close()
    for other in (api.upload(b"other", ref_text="hello"), api.upload(ref_text="hello you"), api.upload()):
        api.refused(409, "name", "another voice is called 'anna'; delete it first", other)


def test_a_deleted_name_can_be_used_again(api: Api) -> None:
    api.upload()
    assert api("DELETE", "/Anna").json() == {"success": True, "name": "anna", "deleted": True}
    api.refused(404, "name", "no uploaded voice is called 'anna'; GET /v1/audio/voices", api("DELETE", "/anna"))
    api.refused(404, "name", "no uploaded voice is called 'anna'", api("GET", "/anna/embedding"))
    assert api("GET").json()["uploaded_voices"] == []
    assert api.upload(b"other").status_code == 200


@pytest.mark.parametrize("path", ["/alloy", "/default", "/..%5c..%5cetc", "/%00", "/" + "x" * 500])
def test_only_uploaded_voices_can_be_deleted(api: Api, path: str) -> None:
    assert api("DELETE", path).status_code == 404
    assert api("GET", f"{path}/embedding").status_code == 404


@pytest.mark.parametrize(
    ("status", "param", "message", "fields"),
    [
        (400, "name", "1 to 64 of", {"name": "../anna"}),
        (409, "name", "reserved", {"name": "alloy"}),
        (400, "name", "name is missing", {"name": ""}),
        (400, "consent", "consent is missing", {"consent": " "}),
        (400, "consent", "at most 1024", {"consent": "x" * 1025}),
        (400, "ref_txt", "unknown field 'ref_txt'; did you mean 'ref_text'?", {"ref_txt": "hello"}),
        (400, "audio_sample", "either audio_sample or speaker_embedding", {"speaker_embedding": "[1]"}),
        (400, "audio_sample", "either audio_sample or speaker_embedding", {"clip": None}),
        (400, "audio_sample", "must be a file", {"clip": None, "audio_sample": "UklGRg=="}),
        (400, "ref_text", "transcript of a clip", {"clip": None, "speaker_embedding": "[1]", "ref_text": "hello"}),
        (400, "audio_sample", "silent", {"clip": b"silence"}),
        (413, "audio_sample", "exceeds the limit", {"clip": b"x" * 1001}),
        (413, "audio_sample", "exceeds the limit", {"clip": b"x" * 2**21}),
        (400, None, "Part exceeded maximum size", {"clip": None, "speaker_embedding": "1" * 300_000}),
    ],
)
def test_an_invalid_upload_is_refused_with_a_reason(
    api: Api, status: int, param: str | None, message: str, fields: dict[str, Any]
) -> None:
    api.refused(status, param, message, api.upload(**fields))
    assert api.store.all() == []


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("[1, 2", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"a": 1}', "a list of numbers, got dict"),
        (json.dumps([1.0] * 7), "has 7 numbers, this checkpoint needs 8"),
        (json.dumps([[1.0] * 8]), "one row of float32"),
        ("[NaN" + ", 1" * 7 + "]", "NaN or infinite"),
        ("[1e999" + ", 1" * 7 + "]", "NaN or infinite"),
        ("[-3e38" + ", 1" * 7 + "]", "numbers up to 3e+38, the limit is 10000"),
        ("[true" + ", true" * 7 + "]", "a list of numbers"),
        ("[" + "9" * 400 + ", 1" * 7 + "]", "a list of numbers"),
    ],
)
def test_an_invalid_embedding_is_refused(api: Api, listed: str, message: str) -> None:
    api.refused(400, "speaker_embedding", message, api.upload(None, speaker_embedding=listed))


def test_an_invalid_form_is_refused(api: Api) -> None:
    api.refused(400, None, "multipart/form-data", api("POST", json={"name": "anna"}))
    api.refused(400, None, "multipart/form-data", api("POST"))
    form = {"content-type": "multipart/form-data; boundary=x"}
    api.refused(400, None, "cannot be parsed", api("POST", content=b"nonsense", headers=form))
    api.refused(400, None, "boundary", api("POST", content=b"", headers={"content-type": "multipart/form-data"}))
    twice = [("name", (None, "anna")), ("name", (None, "bob")), ("consent", (None, "yes"))]
    api.refused(400, None, "repeated", api("POST", files=twice))
    clips = [("audio_sample", ("a.wav", b"a")), ("audio_sample", ("b.wav", b"b"))]
    api.refused(400, None, "Too many files", api("POST", files=clips))


def test_an_endless_upload_is_cut_off_at_the_limit(api: Api) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="audio_sample"; filename="a"\r\n\r\n'
        while True:
            sent += 2**16
            yield bytes(2**16)

    form = {"content-type": "multipart/form-data; boundary=x"}
    api.refused(413, "audio_sample", "exceeds the limit", api("POST", content=endless(), headers=form))
    assert sent < 2**21


@pytest.mark.parametrize("card", [PRESETS, DESIGN], ids=["presets", "design"])
def test_uploads_need_a_checkpoint_that_clones(api_of: Callable[..., Api], card: ModelCard) -> None:
    api = api_of(card)
    answers = [api.upload(), api.upload(None, speaker_embedding=json.dumps([1.0] * WIDTH))]
    for answer in answers:
        api.refused(400, "audio_sample", "use a Base checkpoint", answer)
    assert api.cloner.clones == 0


def test_presets_and_aliases_are_listed(api_of: Callable[..., Api], tmp_path: Path) -> None:
    timbre().save(tmp_path / "anna.safetensors")
    listed = api_of(PRESETS, tmp_path)("GET").json()
    assert listed["voices"] == ["ryan", "vivian", "echo"]  # not anna: this checkpoint cannot use it
    assert [voice["name"] for voice in listed["uploaded_voices"]] == ["anna"]
    assert listed["uploaded_voices"][0]["consent"] is None
    assert listed["aliases"]["alloy"] == "ryan"


def test_the_openapi_document_describes_the_upload(api: Api) -> None:
    paths = api.app.openapi()["paths"]
    assert sorted(paths) == ["/v1/audio/voices", "/v1/audio/voices/{name}", "/v1/audio/voices/{name}/embedding"]
    form = paths["/v1/audio/voices"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["name", "consent"] and form["properties"]["audio_sample"]["format"] == "binary"
    for path in paths.values():
        for operation in path.values():
            assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
