"""Endpoints of /v1/audio/voice_consents, as OpenAI's SDK calls them, and what a voice's consent may be."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.speech.consent_store import is_consent_id
from tests.server.reference_clip import CLIP
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine
from tests.server.serving import client_of

CONSENTS = "/v1/audio/voice_consents"


@pytest.fixture
def client(engine: ScriptedEngine, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(engine, BASE_CARD, ServerConfig(voices_dir=str(tmp_path), max_clip_bytes=2**20)) as client:
        yield client


def upload(client: httpx.Client, recording: bytes = CLIP, **fields: str) -> httpx.Response:
    form = {"name": "John Doe", "language": "en-US", **fields}
    return client.post(CONSENTS, data=form, files={"recording": ("consent.wav", recording, "audio/x-wav")})


def test_a_consent_and_then_a_voice_with_its_id(client: httpx.Client, tmp_path: Path) -> None:
    consent = upload(client)
    assert consent.status_code == 200, consent.text
    about = consent.json()
    assert is_consent_id(about["id"]) and about["created_at"] > 1e9
    assert about == {**about, "object": "audio.voice_consent", "name": "John Doe", "language": "en-US"}
    assert (tmp_path / "consents" / f"{about['id']}.recording").read_bytes() == CLIP
    form = {"name": "john", "consent": about["id"]}
    voice = client.post("/v1/audio/voices", data=form, files={"audio_sample": ("john.wav", CLIP, "audio/wav")})
    assert voice.status_code == 200 and voice.json()["consent"] == about["id"]
    body = {"input": "Hello.", "voice": {"id": voice.json()["id"]}}
    assert client.post("/v1/audio/speech", json=body).status_code == 200


def test_consents_are_retrieved_renamed_listed_and_deleted(client: httpx.Client) -> None:
    ids = [upload(client, name=name).json()["id"] for name in ("a", "b", "c")]
    assert client.get(f"{CONSENTS}/{ids[0]}").json()["name"] == "a"
    assert client.post(f"{CONSENTS}/{ids[0]}", json={"name": "Änne"}).json()["name"] == "Änne"
    listed = client.get(CONSENTS).json()
    assert {one["id"] for one in listed["data"]} == set(ids) and listed["has_more"] is False
    assert (listed["first_id"], listed["last_id"]) == (listed["data"][0]["id"], listed["data"][-1]["id"])
    first = client.get(CONSENTS, params={"limit": 2}).json()
    rest = client.get(CONSENTS, params={"limit": 2, "after": first["last_id"]}).json()
    assert first["data"] + rest["data"] == listed["data"] and (first["has_more"], rest["has_more"]) == (True, False)
    assert client.delete(f"{CONSENTS}/{ids[0]}").json() == {
        "id": ids[0],
        "object": "audio.voice_consent",
        "deleted": True,
    }
    for answer in (client.get(f"{CONSENTS}/{ids[0]}"), client.delete(f"{CONSENTS}/{ids[0]}")):
        assert answer.status_code == 404 and answer.json()["error"]["param"] == "consent_id"


def test_an_id_that_no_consent_has_is_refused_and_other_texts_are_not(client: httpx.Client) -> None:
    embedding = str([0.5] * BASE_CARD.speaker_width)

    def voice(name: str, consent: str) -> httpx.Response:
        return client.post("/v1/audio/voices", data={"name": name, "consent": consent, "speaker_embedding": embedding})

    missing = voice("a", "cons_" + "0" * 24)
    assert missing.status_code == 404 and missing.json()["error"]["param"] == "consent"
    assert voice("b", "cons_1234").status_code == voice("c", "by letter").status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"language": "English please"}, "language", "pattern"),
        ({"language": ""}, "language", "required"),
        ({"name": "x" * 257}, "name", "at most 256"),
        ({"text": "hello"}, "text", "unknown"),
        ({"recording": b"no audio"}, "recording", "audio"),
        ({"recording": bytes(2**20 + 1)}, "recording", "the limit of 1 MiB"),
    ],
)
def test_an_upload_that_is_no_consent_is_refused(
    client: httpx.Client, tmp_path: Path, fields: dict[str, Any], param: str, said: str
) -> None:
    answer = upload(client, **fields)
    assert answer.status_code in (400, 413), answer.text
    error = answer.json()["error"]
    assert error["param"] == param and said in error["message"], error
    assert not (tmp_path / "consents").exists()


def test_a_name_that_is_not_unicode_is_refused(client: httpx.Client) -> None:
    consent_id = upload(client).json()["id"]
    headers = {"content-type": "application/json"}
    answer = client.post(f"{CONSENTS}/{consent_id}", content=rb'{"name": "\ud800"}', headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "name"


def test_consents_need_the_key(engine: ScriptedEngine) -> None:
    with client_of(engine, BASE_CARD, ServerConfig(api_keys=("sesame",))) as client:
        assert upload(client).status_code == client.get(CONSENTS).status_code == 401
