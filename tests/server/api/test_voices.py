"""Endpoints of /v1/audio/voices."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.process.resources import Owner
from oscine.server.api.voices import voice_routes
from oscine.server.http.errors import handle_errors
from oscine.server.service import Service
from oscine.speech.cloned_voices import clip_hash
from oscine.speech.models import LoadedModel
from oscine.types import ModelCard
from oscine.voice import Voice
from tests.corpora.clips import tone, with_soundfile
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine

WIDTH = BASE_CARD.speaker_width
BASE = dataclasses.replace(BASE_CARD, name="Qwen3-TTS-12Hz-0.6B-Base")
PRESETS = dataclasses.replace(BASE, name="custom", kind="custom_voice", speakers=("ryan", "vivian", "echo"))
DESIGN = dataclasses.replace(BASE, name="design", kind="voice_design")


def timbre(number: float = 0.0) -> Voice:
    return Voice(np.full(WIDTH, number, np.float32))


def wav(word: bytes) -> bytes:
    """A clip that depends on the word."""
    return with_soundfile(tone(hz=100.0 + sum(word), peak=0.0 if word == b"silence" else 0.5))


class Api:
    """An app with only these routes, called in this thread."""

    def __init__(self, card: ModelCard, folder: Path | None, max_bytes: int = 100_000) -> None:
        self.engine = ScriptedEngine()
        config = ServerConfig(voices_dir=str(folder) if folder else None, max_clip_bytes=max_bytes)
        self.service = Service([LoadedModel.of(self.engine, card)], config)
        self.store = self.service.voice_store
        self.app = FastAPI()
        handle_errors(self.app, lambda path, status: None)
        self.app.include_router(voice_routes(self.service))

    def close(self) -> None:
        self.service.close()
        self.engine.stop()

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
            parts["audio_sample"] = ("clip.wav", clip if len(clip) > 100 else wav(clip), "audio/wav")
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
    expected = {"name": "Anna", "consent": "anna said yes", "mode": "in_context", "embedding_dim": WIDTH}
    assert voice | expected | {"ref_text": "hello you", "speaker_description": "calm"} == voice
    openai = {"id": "anna", "object": "audio.voice", "type": "audio_sample", "name": "Anna"}
    assert voice | openai | {"mime_type": "audio/wav"} == voice
    warnings = ["the clip seems to hold no speech; record 3 to 20 s of one speaker"]
    # For OpenAI's clients, and for vLLM-Omni's.
    assert answer.json() == {**voice, "success": True, "voice": voice, "warnings": warnings}
    assert voice["created_at"] > 1e9 and voice["file_size"] > 0
    stored = api.store.get("anna")
    assert stored is not None and voice["content_hash"] == stored.voice.content_hash
    listed = api("GET").json()
    users = {"Anna": [BASE.name]}
    data = [{**openai, "created_at": voice["created_at"]}]
    assert (listed["object"], listed["data"], listed["has_more"]) == ("list", data, False)
    ours = {"voices": ["Anna"], "uploaded_voices": [voice], "aliases": {}, "models": users}
    assert {name: listed[name] for name in ours} == ours
    assert api("GET", "/ANNA").json() == voice


def test_a_clip_without_a_transcript_gives_only_the_timbre(api: Api) -> None:
    voice = api.upload(ref_text="").json()["voice"]  # web forms send empty fields
    assert (voice["mode"], voice["ref_text"], voice["speaker_description"]) == ("timbre", None, None)


def test_a_downloaded_embedding_gives_the_same_voice_when_uploaded(api: Api) -> None:
    api.upload(b"clip")
    embedding = api("GET", "/ANNA/embedding").json()
    stored = api.store.get("anna")
    assert stored is not None and embedding == {"name": "anna", "embedding": stored.voice.speaker.tolist()}
    copied = api.upload(None, name="copy", speaker_embedding=json.dumps(embedding["embedding"]))
    assert copied.status_code == 200, copied.text
    assert len({voice["content_hash"] for voice in api("GET").json()["uploaded_voices"]}) == 1
    assert api.engine.clones == 1


def test_repeating_an_upload_succeeds_and_another_is_a_conflict(api: Api, tmp_path: Path) -> None:
    first = api.upload(ref_text="hello").json()
    first["warnings"] = []  # those of a clip are given once
    assert api.upload(ref_text="hello", consent="somebody else").json() == first
    assert api.engine.clones == 1
    restarted = Api(BASE, tmp_path / "voices")
    assert restarted.upload(ref_text="hello").json() == first and restarted.engine.clones == 0
    restarted.close()
    for other in (api.upload(b"other", ref_text="hello"), api.upload(ref_text="hello you"), api.upload()):
        api.refused(409, "name", "the name 'anna' is taken by another voice; delete or overwrite it", other)
    assert api.upload(ref_text="hello", overwrite="false", consent="somebody else").json() == first


@pytest.mark.parametrize("overwrite", ["true", "True", "1"])
def test_an_upload_replaces_a_voice_where_asked(api: Api, overwrite: str) -> None:
    first = api.upload(b"one", ref_text="hello").json()
    second = api.upload(b"two", name="ANNA", overwrite=overwrite).json()
    assert (second["id"], second["name"], second["mode"]) == ("anna", "ANNA", "timbre")
    assert second["content_hash"] != first["content_hash"]
    assert api.upload(b"two", consent="in writing", overwrite=overwrite).json()["consent"] == "in writing"
    assert [voice["name"] for voice in api("GET").json()["uploaded_voices"]] == ["anna"]


def test_a_voice_with_any_name_is_reached_by_its_id(api: Api) -> None:
    voice = api.upload(name="AC/DC: 小明 ..").json()
    assert voice["name"] == "AC/DC: 小明 .." and voice["id"].startswith("voice.")
    for path in (f"/{voice['id']}", f"/{voice['id'].upper()}"):
        assert api("GET", path).json() == voice["voice"]
    assert api("GET").json()["voices"] == [voice["name"]]
    assert api("DELETE", f"/{voice['id']}").json()["name"] == voice["name"]
    spaced = api.upload(name="Anna B.").json()
    assert api("DELETE", "/anna%20b.").json()["id"] == spaced["id"]


def test_an_embedding_can_be_sent_as_a_form_without_files(api: Api) -> None:
    fields = {"name": "änna", "consent": "ja", "speaker_embedding": json.dumps([0.5] * WIDTH), "ref_text": ""}
    answer = api("POST", data=fields)
    assert answer.request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert answer.status_code == 200, answer.text
    assert (answer.json()["name"], answer.json()["mime_type"]) == ("änna", None)
    form = {"content-type": "application/x-www-form-urlencoded"}
    api.refused(400, None, "cannot be parsed", api("POST", content=b"name=%ff", headers=form))
    api.refused(400, None, "cannot be parsed", api("POST", content=b"a=1&" * 20, headers=form))
    api.refused(413, "audio_sample", "exceeds the limit", api("POST", content=b"name=" + b"x" * 2**21, headers=form))
    api.refused(400, None, "repeated", api("POST", content=b"name=a&name=b", headers=form))


@pytest.mark.parametrize("agent", ["Python/3.11 aiohttp/3.14.5", "python-httpx/0.28", "curl/8.5", ""])
def test_every_client_gets_the_same_list(api: Api, agent: str) -> None:
    api.upload(name="Anna B.")
    listed = api("GET", headers={"user-agent": agent})
    assert listed.json() == api("GET").json() and "user-agent" not in listed.headers.get("vary", "")


def test_presets_and_uploads_are_listed_as_openais_voices(api_of: Callable[..., Api], tmp_path: Path) -> None:
    timbre().save(tmp_path / "anna.safetensors")
    data = api_of(PRESETS, tmp_path)("GET").json()["data"]
    assert [(voice["id"], voice["name"], voice["type"]) for voice in data] == [
        *((name, name, "preset") for name in PRESETS.speakers),
        ("anna", "anna", "audio_sample"),
    ]
    assert all(voice["object"] == "audio.voice" and voice["created_at"] > 1e9 for voice in data)


def test_listed_objects_have_ids_that_can_be_spoken_with(api: Api) -> None:
    api.upload(name="Anna B.")
    ((voice),) = api("GET", "?format=objects").json()["voices"]
    stored = api.store.get(voice["id"])
    assert stored is not None and stored.name == voice["name"] == "Anna B."


# Export and import


def test_an_exported_voice_can_be_imported_by_another_server(api: Api, api_of: Callable[..., Api]) -> None:
    sent = api.upload(b"clip", name="Anna B.", ref_text="hello you", speaker_description="calm").json()
    exported = api("GET", f"/{sent['id']}/file")
    assert exported.headers["content-disposition"] == f'attachment; filename="{sent["id"]}.safetensors"'
    other = api_of(BASE)
    received = other("POST", "/import", content=exported.content)
    assert received.status_code == 200, received.text
    same = ("id", "name", "consent", "mode", "ref_text", "speaker_description", "content_hash", "mime_type")
    assert [received.json()[field] for field in same] == [sent[field] for field in same]
    assert other("POST", "/import", content=exported.content).json() == received.json()
    renamed = other("POST", "/import?name=Bea&consent=by+letter", content=exported.content).json()
    assert (renamed["name"], renamed["consent"], renamed["content_hash"]) == ("Bea", "by letter", sent["content_hash"])


def test_an_import_replaces_a_voice_only_where_asked(api: Api) -> None:
    api.upload(b"one")
    file = timbre(7).to_bytes({"name": "anna", "consent": "yes"})
    api.refused(409, "name", "the name 'anna' is taken by another voice", api("POST", "/import", content=file))
    assert api("POST", "/import?overwrite=true", content=file).json()["content_hash"] == timbre(7).content_hash


def test_an_imported_voice_cannot_pass_for_a_clip(api: Api) -> None:
    """A file may name the hash of somebody's clip; an upload of that clip still finds that the voices differ."""
    file = timbre(7).to_bytes({"name": "anna", "consent": "yes", "source_hash": clip_hash(wav(b"clip"), None)})
    assert api("POST", "/import", content=file).status_code == 200
    api.refused(409, "name", "the name 'anna' is taken by another voice", api.upload(b"clip"))


def notes_of(**notes: str) -> dict[str, str]:
    return {"name": "anna", "consent": "yes", **notes}


LONG = Voice(np.zeros(WIDTH, np.float32), np.zeros((751, 16), np.int64), "hello")
SURROGATE = Voice(np.zeros(WIDTH, np.float32), np.zeros((9, 16), np.int64), "\ud800")
WORDY = Voice(np.zeros(WIDTH, np.float32), np.zeros((9, 16), np.int64), "x" * 5000)


@pytest.mark.parametrize(
    ("status", "param", "message", "file"),
    [
        (400, "voice", "not a voice file of Oscine", b""),
        (400, "voice", "not a voice file of Oscine", b"RIFF" + bytes(100)),
        (400, "voice", "not a readable voice file", timbre().to_bytes(notes_of())[:-1]),
        (400, "voice", "does not match its content hash", timbre().to_bytes(notes_of())[:-1] + b"?"),
        (400, "name", "the file has no name; give it as ?name=", timbre().to_bytes({"consent": "yes"})),
        (400, "consent", "the file has no consent", timbre().to_bytes({"name": "anna"})),
        (400, "consent", "more than 1024 characters", timbre().to_bytes(notes_of(consent="x" * 1025))),
        (400, "speaker_description", "more than 4096", timbre().to_bytes(notes_of(speaker_description="x" * 5000))),
        (400, "name", "printable", timbre().to_bytes(notes_of(name="an\0na"))),
        (409, "name", "reserved", timbre().to_bytes(notes_of(name="alloy"))),
        (400, "voice", "has 3 numbers, this checkpoint needs 8", Voice(np.ones(3, np.float32)).to_bytes(notes_of())),
        (400, "voice", "too long; the maximum is 750 reference frames", LONG.to_bytes(notes_of())),
        (400, "voice", "transcript of 4096 characters", WORDY.to_bytes(notes_of())),
        (400, "voice", "not Unicode", timbre().to_bytes(notes_of(consent="\ud800"))),
        (400, "voice", "not Unicode", timbre().to_bytes(notes_of(anything="\ud800"))),
        (400, "voice", "not Unicode", SURROGATE.to_bytes(notes_of())),
        (413, None, "exceeds the limit of 1 MiB", bytes(2**20 + 1)),
    ],
)
def test_an_invalid_file_is_not_imported(api: Api, status: int, param: str | None, message: str, file: bytes) -> None:
    api.refused(status, param, message, api("POST", "/import", content=file))
    assert api.store.all() == []


def test_a_deleted_name_can_be_used_again(api: Api) -> None:
    api.upload()
    deleted = {"id": "anna", "object": "audio.voice.deleted", "deleted": True, "success": True, "name": "anna"}
    assert api("DELETE", "/Anna").json() == deleted
    api.refused(404, "name", "uploaded voice 'anna' does not exist; GET /v1/audio/voices", api("DELETE", "/anna"))
    api.refused(404, "name", "uploaded voice 'anna' does not exist", api("GET", "/anna/embedding"))
    assert api("GET").json()["uploaded_voices"] == []
    assert api.upload(b"other").status_code == 200


@pytest.mark.parametrize("path", ["/alloy", "/default", "/..%5c..%5cetc", "/%00", "/" + "x" * 500])
def test_only_uploaded_voices_can_be_deleted(api: Api, path: str) -> None:
    assert api("DELETE", path).status_code == 404
    assert api("GET", f"{path}/embedding").status_code == 404


@pytest.mark.parametrize(
    ("status", "param", "message", "fields"),
    [
        (400, "name", "1 to 64 printable", {"name": "an\u202ena"}),
        (400, "overwrite", "must be true or false, got 'maybe'", {"overwrite": "maybe"}),
        (400, "type", "a VoiceDesign model takes the description", {"type": "prompt", "prompt": "a bird"}),
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
        (413, "audio_sample", "exceeds the limit", {"clip": b"x" * 100_001}),
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


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"name=" + b"%zz" * 40_000, "more than 32768 percent-encoded bytes"),
        (b"name=" + b"x" * 300_000, "exceeds the limit"),
    ],
)
def test_an_urlencoded_form_that_is_slow_to_decode_is_refused(api: Api, body: bytes, message: str) -> None:
    answer = api("POST", content=body, headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code in (400, 413) and message in answer.json()["error"]["message"]


@pytest.mark.parametrize("piece", [b"1.5,", b"[],", b" "])
def test_an_import_whose_header_is_slow_to_parse_is_refused(api: Api, piece: bytes) -> None:
    header = b"[" + piece * (900_000 // len(piece)) + b"0]"
    content = len(header).to_bytes(8, "little") + header
    api.refused(400, "voice", "its header is too large", api("POST", "/import", content=content))


def test_an_import_may_have_the_longest_notes(api: Api) -> None:
    text = "\N{MICROPHONE}" * 2048 + "," * 2048
    notes = {"name": "anna", "consent": text[:1024], "speaker_description": text}
    voice = Voice(np.zeros(WIDTH, np.float32), np.zeros((2, 16), np.int64), text)
    assert api("POST", "/import", content=voice.to_bytes(notes)).status_code == 200


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
def test_uploads_need_a_checkpoint_that_can_speak_with_them(api_of: Callable[..., Api], card: ModelCard) -> None:
    api = api_of(card)
    api.refused(400, "audio_sample", "use a Base checkpoint", api.upload())
    embedded = api.upload(None, speaker_embedding=json.dumps([1.0] * WIDTH))
    imported = api("POST", "/import", content=timbre().to_bytes({"name": "bert", "consent": "yes"}))
    if card is DESIGN:
        api.refused(400, "speaker_embedding", "use a Base checkpoint", embedded)
        api.refused(400, "voice", "use a Base checkpoint", imported)
    else:
        assert embedded.status_code == imported.status_code == 200
    assert api.engine.clones == 0


def test_voices_are_listed_in_pages(api: Api) -> None:
    for number in range(5):
        api.store.add(f"voice {number}", timbre(number), consent="yes")
    whole = api("GET").json()
    ids = [one["id"] for one in whole["data"]]
    assert whole["has_more"] is False and len(ids) == 5
    first = api("GET", params={"limit": 3}).json()
    rest = api("GET", params={"limit": 3, "after": first["data"][-1]["id"]}).json()
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert [one["id"] for one in first["data"] + rest["data"]] == ids
    assert [*first["voices"], *rest["voices"]] == whole["voices"] and first["models"] | rest["models"] == whole[
        "models"
    ]
    api.store.delete(ids[2])  # the next page does not depend on it
    assert api("GET", params={"after": ids[2]}).json()["data"] == whole["data"][3:]
    for limit in ("0", "1001", "x"):
        assert api("GET", params={"limit": limit}).status_code == 400


def test_the_list_has_short_texts_however_long_those_of_the_voices_are(api: Api) -> None:
    text = "x" * 1024
    voice = Voice(np.zeros(WIDTH, np.float32), np.zeros((2, 16), np.int64), 4 * text)
    for number in range(20):
        api.store.add(f"v{number}", voice, consent=text, speaker_description=4 * text)
    answer = api("GET")
    assert len(answer.content) < 20 * 2000
    assert {one["ref_text"] for one in answer.json()["uploaded_voices"]} == {"x" * 100 + "..."}
    assert api("GET", "/v0").json()["ref_text"] == 4 * text


def test_lists_that_nobody_reads_have_a_limit_together(api: Api) -> None:
    for number in range(200):
        api.store.add(f"v{number}", timbre(), consent="x" * 1024)
    unread = api.service.ledger["response"]
    unread.change(Owner(), ServerConfig().max_bytes_in_flight)
    refused = api("GET")
    assert refused.status_code == 429 and "large responses of all clients have 128 MiB" in refused.text
    unread.change(Owner(), -ServerConfig().max_bytes_in_flight)
    assert api("GET").status_code == 200 and len(unread) == 0


def test_presets_and_aliases_are_listed(api_of: Callable[..., Api], tmp_path: Path) -> None:
    timbre().save(tmp_path / "anna.safetensors")
    listed = api_of(PRESETS, tmp_path)("GET").json()
    assert listed["voices"] == ["ryan", "vivian", "echo", "anna"]
    assert [voice["name"] for voice in listed["uploaded_voices"]] == ["anna"]
    assert listed["uploaded_voices"][0]["consent"] is None
    assert listed["aliases"]["alloy"] == "vivian" and listed["aliases"]["onyx"] == "ryan"


def test_the_openapi_document_describes_the_upload(api: Api) -> None:
    paths = api.app.openapi()["paths"]
    below = ["", "/import", "/{name}", "/{name}/embedding", "/{name}/file"]
    assert sorted(paths) == [f"/v1/audio/voices{path}" for path in below]
    form = paths["/v1/audio/voices"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["name", "consent"] and form["properties"]["audio_sample"]["format"] == "binary"
    file = paths.pop("/v1/audio/voices/{name}/file")["get"]["responses"]["200"]["content"]
    assert file["application/octet-stream"]["schema"]["format"] == "binary"
    for path in paths.values():
        for operation in path.values():
            assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
