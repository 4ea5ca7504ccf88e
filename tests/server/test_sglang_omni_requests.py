"""Requests of SGLang-Omni's speech contract and of its Qwen3-TTS guide, written anew from its documentation.

`server.default_format` is wav, as the migration page says for its clients. What differs on purpose is on that page.
"""

import base64
import contextlib
import io
import json
import wave
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection

from oscine.config import ServerConfig
from oscine.types import ModelCard
from oscine.voice import Voice
from tests.server.reference_clip import CLIP, CLIP_URL
from tests.server.scripted_engine import BASE_CARD, CARD, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of
from tests.websocket import connect

SPEECH, BATCH, STREAM, VOICES = (
    "/v1/audio/speech",
    "/v1/audio/speech/batch",
    "/v1/audio/speech/stream",
    "/v1/audio/voices",
)
BASE = replace(BASE_CARD, name="Qwen3-TTS-12Hz-0.6B-Base")
MODEL = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
REFERENCES = [{"audio_path": CLIP_URL, "text": "What the clip says."}]

Running = tuple[ScriptedEngine, httpx.Client]


@contextlib.contextmanager
def running(card: ModelCard, **settings: Any) -> Iterator[Running]:
    engine = ScriptedEngine()
    with client_of(engine, card, ServerConfig(default_format="wav", **settings)) as client:
        yield engine, client
    engine.stop()


@pytest.fixture(scope="module")
def preset() -> Iterator[Running]:
    with running(CARD) as server:
        yield server


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose files requests may name."""
    folder = tmp_path_factory.mktemp("clips")
    (folder / "reference.wav").write_bytes(CLIP)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Iterator[Running]:
    voices = str(tmp_path_factory.mktemp("voices"))
    with running(BASE, voices_dir=voices, ref_files_below=str(clips)) as server:
        yield server


def samples(file: bytes) -> bytes:
    with wave.open(io.BytesIO(file)) as reader:
        return reader.readframes(reader.getnframes())


def said(engine: ScriptedEngine) -> bytes:
    request = engine.requests[-1]
    return spoken(request.text, request.seed or 0, request.voice)


# --- requests of the guide ---


@pytest.mark.parametrize(
    "fields",
    [
        {"references": REFERENCES},
        {"references": [{"audio_path": CLIP_URL}], "language": "Chinese"},
        {"ref_audio": CLIP_URL, "ref_text": "What the clip says."},
        {"references": REFERENCES, "temperature": 0.9, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.05},
        {"references": REFERENCES, "max_new_tokens": 2048, "initial_codec_chunk_frames": 8, "seed": None},
    ],
    ids=lambda fields: ", ".join(fields),
)
def test_a_clip_is_cloned(base: Running, fields: dict[str, Any]) -> None:
    engine, client = base
    answer = client.post(SPEECH, json={"model": MODEL, "voice": "default", "input": "Hello there.", **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/wav" and answer.headers["x-finish-reason"] == "stop"
    assert samples(answer.content) == said(engine) and isinstance(engine.requests[-1].voice, Voice)


def test_streamed_pcm_is_raw_audio_with_its_rate_in_a_header(base: Running) -> None:
    engine, client = base
    how = {"voice": "default", "references": REFERENCES, "stream": True, "response_format": "pcm"}
    answer = client.post(SPEECH, json={"model": MODEL, "input": "Hello there.", **how})
    assert answer.headers["content-type"] == "audio/pcm" and answer.headers["x-sample-rate"] == str(RATE_HZ)
    assert answer.content == said(engine)


def test_a_text_that_reaches_max_new_tokens_says_so(preset: Running) -> None:
    answer = preset[1].post(SPEECH, json={"input": "Hello there.", "max_new_tokens": 5})
    assert answer.status_code == 200 and answer.headers["x-finish-reason"] == "length"


@pytest.mark.parametrize("fields", [{}, {"voice": "default"}, {"voice": None}, {"model": "scripted"}], ids=str)
def test_the_model_and_the_voice_have_defaults(preset: Running, fields: dict[str, Any]) -> None:
    engine, client = preset
    answer = client.post(SPEECH, json={"input": "Hello.", **fields})
    assert answer.status_code == 200 and samples(answer.content) == said(engine)


# --- values that the contract refuses ---


@pytest.mark.parametrize(
    "fields",
    [
        {"input": 123},
        {"response_format": "gif"},
        {"seed": True},
        {"speed": 0.24},
        {"speed": 4.01},
        {"task_type": "Narration"},
        {"max_new_tokens": 0},
        {"voice": "missing"},
        {"speed": "fast"},
        {"max_new_tokens": "5.5"},
        {"x_vector_only_mode": "perhaps"},
    ],
    ids=str,
)
def test_a_bad_value_is_400_with_the_field(preset: Running, fields: dict[str, Any]) -> None:
    engine, client = preset
    engine.requests.clear()
    answer = client.post(SPEECH, json={"input": "Hello.", **fields})
    assert (answer.status_code, [answer.json()["error"]["param"]]) == (400, list(fields))
    assert not engine.requests


def test_an_unknown_model_is_404(preset: Running) -> None:
    error = preset[1].post(SPEECH, json={"input": "Hello.", "model": "unknown/model"})
    assert error.status_code == 404
    body = error.json()["error"]
    assert (body["param"], body["code"]) == ("model", "model_not_found")


# --- clips ---


@pytest.mark.parametrize(
    "source",
    [
        "relative/reference.wav",
        "ftp://example.com/reference.wav",
        "https://example.com/reference.wav",
        "data:audio/wav;base64",
        "data:audio/wav,AAAA",
        "data:audio/wav;base64,not@@base64",
        "file:///etc/hostname",
        "missing.wav",
        "",
    ],
)
@pytest.mark.parametrize("where", ["ref_audio", "references"])
def test_a_clip_that_cannot_be_read_is_refused(base: Running, source: str, where: str) -> None:
    fields = {"ref_audio": source} if where == "ref_audio" else {"references": [{"audio_path": source}]}
    answer = base[1].post(SPEECH, json={"input": "Hello.", **fields})
    refused = 403 if source.startswith(("https:", "file:")) else 400  # 403: the operator could allow it
    assert (answer.status_code, answer.json()["error"]["param"]) == (refused, "ref_audio")


def test_a_file_below_the_allowed_folder_is_cloned(base: Running, clips: Path) -> None:
    engine, client = base
    for source in ((clips / "reference.wav").as_uri(), str(clips / "reference.wav")):
        answer = client.post(SPEECH, json={"input": "Hello.", "ref_audio": source})
        assert answer.status_code == 200 and isinstance(engine.requests[-1].voice, Voice)


def test_files_beside_the_allowed_folder_are_refused(base: Running, clips: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.wav").write_bytes(CLIP)
    link = clips / "escape.wav"
    link.symlink_to(tmp_path / "outside.wav")
    for source in (link, clips, tmp_path / "outside.wav", clips / "missing.wav"):
        answer = base[1].post(SPEECH, json={"input": "Hello.", "ref_audio": source.as_uri()})
        assert answer.status_code in (400, 403) and answer.json()["error"]["param"] == "ref_audio", source


# --- uploaded voices ---


def test_a_voice_is_uploaded_listed_spoken_with_and_deleted(base: Running) -> None:
    engine, client = base
    form = {"name": "Narrator_01", "consent": "consent-1", "ref_text": "Words.", "speaker_description": "clear"}
    uploaded = client.post(VOICES, data=form, files={"audio_sample": ("reference.wav", CLIP, "audio/wav")})
    assert uploaded.status_code == 200 and uploaded.json()["name"] == "Narrator_01"
    listed = client.get(VOICES).json()
    assert "Narrator_01" in listed["voices"] and listed["uploaded_voices"][0]["ref_text"] == "Words."
    for name in ("Narrator_01", "narrator_01", "NARRATOR_01"):
        answer = client.post(SPEECH, json={"model": MODEL, "input": "Hello.", "voice": name, "task_type": "Base"})
        assert answer.status_code == 200 and samples(answer.content) == said(engine)
    assert client.delete(f"{VOICES}/Narrator_01").json()["success"] is True
    assert client.delete(f"{VOICES}/Narrator_01").status_code == 404


@pytest.mark.parametrize(
    ("name", "file"),
    [("default", CLIP), ("Default", CLIP), ("empty", b""), ("broken", b"not an audio file")],
    ids=["reserved", "reserved in another case", "empty", "not audio"],
)
def test_a_bad_upload_is_refused(base: Running, name: str, file: bytes) -> None:
    form = {"name": name, "consent": "consent-1"}
    answer = base[1].post(VOICES, data=form, files={"audio_sample": ("a.wav", file, "audio/wav")})
    expected = (409, "name") if name.lower() == "default" else (400, "audio_sample")
    assert (answer.status_code, answer.json()["error"]["param"]) == expected


# --- batches ---


def test_a_batch_keeps_its_order_and_every_bad_item_fails_alone(preset: Running) -> None:
    engine, client = preset
    engine.requests.clear()
    items = [{"input": "first"}, {"input": "   "}, {"input": "third", "response_format": "pcm"}, {"input": 123}, {}]
    answer = client.post(
        BATCH, json={"model": "scripted", "voice": "default", "response_format": "wav", "items": items}
    )
    assert answer.status_code == 200, answer.text
    batch = answer.json()
    assert (batch["total"], batch["succeeded"], batch["failed"]) == (5, 2, 3)
    assert [result["index"] for result in batch["results"]] == [0, 1, 2, 3, 4]
    first, *bad, last = (batch["results"][index] for index in (0, 1, 3, 4, 2))
    assert (first["status"], first["finish_reason"], first["media_type"]) == ("success", "stop", "audio/wav")
    assert last["media_type"] == "audio/pcm"
    assert {(result["status"], result["error"]["param"]) for result in bad} == {("error", "input")}
    assert sorted(request.text for request in engine.requests) == ["first", "third"]


def test_items_inherit_and_override_the_defaults_of_their_batch(preset: Running) -> None:
    engine, client = preset
    items = [{"input": "a", "voice": None}, {"input": "b", "sample_rate": 24000, "voice": "finch"}]
    batch = client.post(
        BATCH, json={"sample_rate": 8000, "response_format": "wav", "voice": "wren", "items": items}
    ).json()
    rates = []
    for result in batch["results"]:
        with wave.open(io.BytesIO(base64.b64decode(result["audio_data"]))) as reader:
            rates.append(reader.getframerate())
    assert rates == [8000, 24000]
    assert {request.text: request.voice for request in engine.requests[-2:]} == {"a": "wren", "b": "finch"}


@pytest.mark.parametrize(
    "fields", [{"speed": "fast"}, {"max_new_tokens": "5.5"}, {"x_vector_only_mode": "perhaps"}], ids=str
)
def test_bad_defaults_fail_the_whole_batch(preset: Running, fields: dict[str, Any]) -> None:
    answer = preset[1].post(BATCH, json={"items": [{"input": "one"}], **fields})
    assert (answer.status_code, [answer.json()["error"]["param"]]) == (400, list(fields))


def test_an_item_of_a_batch_that_asks_for_a_stream_is_told_that_it_was_ignored(preset: Running) -> None:
    (result,) = preset[1].post(BATCH, json={"items": [{"input": "one", "stream": True}]}).json()["results"]
    assert (result["status"], result["ignored_fields"]) == ("success", ["stream"])


# --- the WebSocket ---


@contextlib.contextmanager
def session(client: httpx.Client, **config: Any) -> Iterator[ClientConnection]:
    with connect(str(client.base_url.copy_with(scheme="ws", path=STREAM)), proxy=None, max_size=None) as socket:
        send(socket, "session.config", **config)
        yield socket


def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def event(socket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(socket.recv(timeout=600))
    return message


def file(socket: ClientConnection) -> tuple[dict[str, Any], bytes]:
    start, audio = event(socket), b""
    assert start["type"] == "audio.start", start
    while isinstance(message := socket.recv(timeout=600), bytes):
        audio += message
    done = json.loads(message)
    assert (done["type"], done["error"], done["total_bytes"]) == ("audio.done", False, len(audio))
    return start, audio


def test_a_sentence_is_sent_before_the_text_is_complete(preset: Running) -> None:
    how = {"response_format": "pcm", "stream_audio": True, "split_granularity": "sentence", "seed": 3}
    engine, client = preset
    with session(client, **how) as socket:
        send(socket, "input.text", text="Hello. Second")
        start, audio = file(socket)
        assert start["sentence_text"] == "Hello." and audio == said(engine)
        send(socket, "input.done")
        start, audio = file(socket)
        assert start["sentence_text"] == "Second" and audio == said(engine)
        done = event(socket)
        assert (done["type"], done["total_sentences"]) == ("session.done", 2)


def test_a_whole_file_comes_in_one_frame(preset: Running) -> None:
    with session(preset[1], voice="default", response_format="wav", stream_audio=False, seed=3) as socket:
        send(socket, "input.text", text="Hello.")
        send(socket, "input.done")
        assert event(socket)["sample_rate"] == RATE_HZ
        frame = socket.recv(timeout=600)
        assert isinstance(frame, bytes) and samples(frame) == spoken("Hello.", 3)
        assert [event(socket)["type"] for _ in range(2)] == ["audio.done", "session.done"]


@pytest.mark.parametrize("message", [b"not text", json.dumps({"type": "unexpected"})], ids=["binary", "unknown type"])
def test_a_session_survives_a_message_that_it_does_not_know(preset: Running, message: bytes | str) -> None:
    with session(preset[1], response_format="pcm") as socket:
        socket.send(message)
        assert event(socket)["type"] == "error"
        send(socket, "input.text", text="Hello.")
        send(socket, "input.done")
        assert file(socket)[1] and event(socket)["type"] == "session.done"


@pytest.mark.parametrize(
    "fields", [{"stream_audio": "perhaps"}, {"speed": "fast"}, {"max_new_tokens": "5.5"}, {"voice": "missing"}], ids=str
)
def test_bad_settings_are_refused_at_once(preset: Running, fields: dict[str, Any]) -> None:
    with session(preset[1], **{"response_format": "pcm", **fields}) as socket:
        refusal = event(socket)
    assert (refusal["type"], [refusal["error"]["param"]]) == ("error", list(fields))
