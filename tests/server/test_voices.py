"""Names and endpoints of voices: every name leads to one voice, uploads are bounded, mistakes are told."""

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

from oscine.server.errors import handle_errors
from oscine.server.reference_clips import ClipPolicy, ClipVoices
from oscine.server.schemas import body_error
from oscine.server.voice_aliases import OPENAI_VOICES, Voices, reserved_names, voice_aliases
from oscine.server.voice_store import VoiceStore
from oscine.server.voices import voice_routes
from oscine.types import ModelCard, VoiceError
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


# Names


def test_openais_names_stand_for_the_same_speakers_every_time() -> None:
    assert voice_aliases(("ryan", "vivian", "serena")) == {
        name: ("ryan", "vivian", "serena")[index % 3] for index, name in enumerate(OPENAI_VOICES)
    }
    assert voice_aliases(()) == {}
    assert len(OPENAI_VOICES) == len(set(OPENAI_VOICES)) == 13


def test_a_speaker_who_is_called_like_an_alias_keeps_his_name() -> None:
    aliases = voice_aliases(PRESETS.speakers)
    assert "echo" not in aliases
    assert aliases["coral"] == "ryan" and aliases["fable"] == "echo"  # the others stand where they stood
    assert Voices(PRESETS, VoiceStore(None, ())).resolve("Echo") == "echo"


def voices_of(card: ModelCard, *uploaded: str) -> Voices:
    store = VoiceStore(None, reserved_names(card.speakers))
    for name in uploaded:
        store.add(name, timbre(len(name)), consent="yes")
    return Voices(card, store)


def test_every_kind_of_name_is_resolved_in_any_case() -> None:
    presets = voices_of(PRESETS)
    assert [presets.resolve(name) for name in (None, "", "default", "DEFAULT")] == [None] * 4
    assert [presets.resolve(name) for name in ("ryan", "VIVIAN", "alloy", "Ash")] == [
        "ryan",
        "vivian",
        "ryan",
        "vivian",
    ]
    assert voices_of(BASE, "anna").resolve("Anna") == timbre(4)


def test_openais_names_do_no_harm_where_the_voice_is_described() -> None:
    assert voices_of(DESIGN).resolve("alloy") is None


@pytest.mark.parametrize(
    ("voices", "name", "said"),
    [
        (voices_of(PRESETS), "ryam", "unknown voice 'ryam'; did you mean 'ryan'? (possible: alloy, ash,"),
        (voices_of(PRESETS), "aloy", "did you mean 'alloy'?"),
        (voices_of(PRESETS, "anna"), "ana", "GET /v1/audio/voices lists them all"),
        (voices_of(DESIGN), "ryan", "leave `voice` out and describe one in `instructions`"),
        (voices_of(BASE), "alloy", "give a clip (ref_audio) or upload one (POST /v1/audio/voices)"),
        (voices_of(BASE, "anna", "bob"), "ana", "did you mean 'anna'? (possible: anna, bob)"),
        (voices_of(BASE, *(f"voice{n}" for n in range(99))), "voice-7", "did you mean 'voice7'?"),
        (voices_of(BASE, *(f"voice{n}" for n in range(99))), "x", "unknown voice 'x'; GET /v1/audio/voices lists all"),
        (voices_of(BASE), "y" * 9999, f"unknown voice {'y' * 80!r}"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_an_unknown_name_is_refused_with_what_is_possible(voices: Voices, name: str, said: str) -> None:
    with pytest.raises(VoiceError) as caught:
        voices.resolve(name)
    assert said in str(caught.value) and caught.value.param == "voice"
    assert len(str(caught.value)) < 500


# Endpoints


class Cloner:
    """A voice says which clip it was made of."""

    def __init__(self) -> None:
        self.clones = 0

    def clone(self, clip: bytes, transcript: str | None = None) -> Voice:
        self.clones += 1
        if clip == b"silence":
            raise VoiceError("the reference clip is silent", "ref_audio")
        speaker = np.full(WIDTH, sum(clip), np.float32)
        return Voice(speaker) if transcript is None else Voice(speaker, np.ones((2, 16), np.int64), transcript)


class Api:
    """Requests to an app of these routes alone, in this thread."""

    def __init__(self, card: ModelCard, folder: Path | None, max_bytes: int = 1000) -> None:
        self.cloner = Cloner()
        self.store = VoiceStore(folder, reserved_names(card.speakers))
        self._clip_voices = ClipVoices(self.cloner, threads=1)  # type: ignore[arg-type]
        service: Any = SimpleNamespace(
            card=card,
            voices=Voices(card, self.store),
            clip_voices=self._clip_voices,
            clip_policy=ClipPolicy(max_bytes=max_bytes),
        )
        errors = {status: {"description": ""} for status in (400, 401, 404, 409, 413, 422, 429, 503)}
        self.app = FastAPI()
        handle_errors(self.app, body_error)
        self.app.include_router(voice_routes(service, errors))

    def close(self) -> None:
        self._clip_voices.close()

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

    def refused(self, status: int, param: str | None, said: str, answer: httpx.Response) -> None:
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["param"] == param and said in error["message"], error


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


def test_an_uploaded_clip_is_a_voice(api: Api) -> None:
    answer = api.upload(b"clip", name="Anna", ref_text="hello you", speaker_description="calm")
    assert answer.status_code == 200, answer.text
    told = answer.json()["voice"]
    assert answer.json()["success"] is True
    expected = {"name": "anna", "consent": "anna said yes", "mode": "in_context", "embedding_dim": WIDTH}
    assert told | expected | {"ref_text": "hello you", "speaker_description": "calm"} == told
    assert told["created_at"] > 1e9 and told["file_size"] > 0
    stored = api.store.get("anna")
    assert stored is not None and told["content_hash"] == stored.voice.content_hash
    listed = api("GET").json()
    assert listed == {"voices": ["anna"], "uploaded_voices": [told], "aliases": {}}


def test_a_clip_without_its_words_gives_the_timbre_alone(api: Api) -> None:
    told = api.upload(ref_text="").json()["voice"]  # as a web form sends a field that was left empty
    assert (told["mode"], told["ref_text"], told["speaker_description"]) == ("timbre", None, None)


def test_an_embedding_that_was_downloaded_is_the_same_voice_when_uploaded(api: Api) -> None:
    api.upload(b"clip")
    embedding = api("GET", "/ANNA/embedding").json()
    assert embedding == {"name": "anna", "embedding": [float(sum(b"clip"))] * WIDTH}
    copied = api.upload(None, name="copy", speaker_embedding=json.dumps(embedding["embedding"]))
    assert copied.status_code == 200, copied.text
    assert len({voice["content_hash"] for voice in api("GET").json()["uploaded_voices"]}) == 1
    assert api.cloner.clones == 1


def test_the_same_upload_again_is_answered_as_before_and_another_is_a_conflict(api: Api, tmp_path: Path) -> None:
    first = api.upload(ref_text="hello").json()
    assert api.upload(ref_text="hello", consent="somebody else").json() == first
    assert api.cloner.clones == 1
    restarted = Api(BASE, tmp_path / "voices")
    assert restarted.upload(ref_text="hello").json() == first and restarted.cloner.clones == 0
    restarted.close()
    for other in (api.upload(b"other", ref_text="hello"), api.upload(ref_text="hello you"), api.upload()):
        api.refused(409, "name", "another voice called 'anna'; delete it first", other)


def test_a_deleted_voice_can_be_uploaded_anew(api: Api) -> None:
    api.upload()
    assert api("DELETE", "/Anna").json() == {"success": True, "name": "anna", "deleted": True}
    api.refused(404, "name", "no uploaded voice 'anna'; GET /v1/audio/voices", api("DELETE", "/anna"))
    api.refused(404, "name", "no uploaded voice 'anna'", api("GET", "/anna/embedding"))
    assert api("GET").json()["uploaded_voices"] == []
    assert api.upload(b"other").status_code == 200


@pytest.mark.parametrize("path", ["/alloy", "/default", "/..%5c..%5cetc", "/%00", "/" + "x" * 500])
def test_only_uploaded_voices_can_be_deleted(api: Api, path: str) -> None:
    assert api("DELETE", path).status_code == 404
    assert api("GET", f"{path}/embedding").status_code == 404


@pytest.mark.parametrize(
    ("status", "param", "said", "fields"),
    [
        (400, "name", "1 to 64 of", {"name": "../anna"}),
        (409, "name", "reserved", {"name": "alloy"}),
        (422, "name", "name is missing", {"name": ""}),
        (422, "consent", "consent is missing", {"consent": " "}),
        (422, "consent", "at most 1024", {"consent": "x" * 1025}),
        (422, "ref_txt", "unknown field 'ref_txt'; did you mean 'ref_text'?", {"ref_txt": "hello"}),
        (422, "audio_sample", "either audio_sample or speaker_embedding", {"speaker_embedding": "[1]"}),
        (422, "audio_sample", "either audio_sample or speaker_embedding", {"clip": None}),
        (422, "audio_sample", "must be a file", {"clip": None, "audio_sample": "UklGRg=="}),
        (422, "ref_text", "words of a clip", {"clip": None, "speaker_embedding": "[1]", "ref_text": "hello"}),
        (400, "ref_audio", "silent", {"clip": b"silence"}),
        (413, "audio_sample", "the limit here", {"clip": b"x" * 1001}),
        (413, "audio_sample", "the limit here", {"clip": b"x" * 2**21}),
        (400, None, "Part exceeded maximum size", {"clip": None, "speaker_embedding": "1" * 300_000}),
    ],
)
def test_an_upload_that_cannot_be_used_says_why(
    api: Api, status: int, param: str | None, said: str, fields: dict[str, Any]
) -> None:
    api.refused(status, param, said, api.upload(**fields))
    assert api.store.all() == []


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("[1, 2", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"a": 1}', "a list of numbers, got dict"),
        (json.dumps([1.0] * 7), "has 7 numbers, this checkpoint's have 8"),
        (json.dumps([[1.0] * 8]), "one row of float32"),
        ("[NaN" + ", 1" * 7 + "]", "NaN or infinite"),
        ("[1e999" + ", 1" * 7 + "]", "NaN or infinite"),
        ("[true" + ", true" * 7 + "]", "a list of numbers"),
        ("[" + "9" * 400 + ", 1" * 7 + "]", "a list of numbers"),
    ],
)
def test_an_embedding_that_is_none_is_refused(api: Api, listed: str, said: str) -> None:
    api.refused(400, "speaker_embedding", said, api.upload(None, speaker_embedding=listed))


def test_what_is_no_form_is_refused(api: Api) -> None:
    api.refused(400, None, "multipart/form-data", api("POST", json={"name": "anna"}))
    api.refused(400, None, "multipart/form-data", api("POST"))
    form = {"content-type": "multipart/form-data; boundary=x"}
    api.refused(400, None, "cannot be read", api("POST", content=b"nonsense", headers=form))
    api.refused(400, None, "boundary", api("POST", content=b"", headers={"content-type": "multipart/form-data"}))
    twice = [("name", (None, "anna")), ("name", (None, "bob")), ("consent", (None, "yes"))]
    api.refused(422, None, "given twice", api("POST", files=twice))
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
    api.refused(413, "audio_sample", "the limit here", api("POST", content=endless(), headers=form))
    assert sent < 2**21


@pytest.mark.parametrize("card", [PRESETS, DESIGN], ids=["presets", "design"])
def test_a_checkpoint_that_cannot_clone_names_one_that_can(api_of: Callable[..., Api], card: ModelCard) -> None:
    api = api_of(card)
    answers = [api.upload(), api.upload(None, speaker_embedding=json.dumps([1.0] * WIDTH))]
    for answer in answers:
        api.refused(400, "audio_sample", "serve a Base checkpoint, such as Qwen3-TTS-12Hz", answer)
    assert api.cloner.clones == 0


def test_presets_and_aliases_are_listed(api_of: Callable[..., Api], tmp_path: Path) -> None:
    timbre().save(tmp_path / "anna.safetensors")
    listed = api_of(PRESETS, tmp_path)("GET").json()
    assert listed["voices"] == ["ryan", "vivian", "echo"]  # not anna, with whom this checkpoint cannot speak
    assert [voice["name"] for voice in listed["uploaded_voices"]] == ["anna"]
    assert listed["uploaded_voices"][0]["consent"] is None
    assert listed["aliases"]["alloy"] == "ryan"


def test_the_document_shows_what_to_upload(api: Api) -> None:
    paths = api.app.openapi()["paths"]
    assert sorted(paths) == ["/v1/audio/voices", "/v1/audio/voices/{name}", "/v1/audio/voices/{name}/embedding"]
    form = paths["/v1/audio/voices"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["name", "consent"] and form["properties"]["audio_sample"]["format"] == "binary"
    for path in paths.values():
        for operation in path.values():
            assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
