"""Requests of vLLM-Omni's example clients and end-to-end tests for Qwen3-TTS, written anew from its documentation.

A server stands for each of the three modes. `WAV_AND_EVENTS` are the settings that the migration page gives for its
defaults.
"""

import base64
import contextlib
import io
import json
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.types import ModelCard
from oscine.voice import Voice
from tests.event_stream import read_events
from tests.server.reference_clip import CLIP, CLIP_URL
from tests.server.scripted_engine import BASE_CARD, CARD, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of
from tests.websocket import connect

SPEECH, BATCH, STREAM = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/speech/stream"
NAMES = {mode: f"Qwen3-TTS-12Hz-1.7B-{mode}" for mode in ("CustomVoice", "VoiceDesign", "Base")}
MODELS = {mode: f"Qwen/{name}" for mode, name in NAMES.items()}
CUSTOM_VOICE = replace(CARD, name=NAMES["CustomVoice"], speakers=("vivian", "ryan"))
VOICE_DESIGN = replace(CARD, name=NAMES["VoiceDesign"], kind="voice_design", speakers=())
BASE = replace(BASE_CARD, name=NAMES["Base"])
WAV_AND_EVENTS = ServerConfig(default_format="wav", stream_events=True)
KEY = {"authorization": "Bearer EMPTY"}  # the example clients always send one
CLONE = {"task_type": "Base", "ref_audio": CLIP_URL, "ref_text": "What the clip says."}
TEXT = "Two short sentences come. They are spoken as one text."

Running = tuple[ScriptedEngine, httpx.Client]


@contextlib.contextmanager
def running(card: ModelCard, config: ServerConfig | None = None) -> Iterator[Running]:
    engine = ScriptedEngine()
    with client_of(engine, card, config) as client:
        client.headers.update(KEY)
        yield engine, client
    engine.stop()


@pytest.fixture(scope="module")
def custom_voice() -> Iterator[Running]:
    with running(CUSTOM_VOICE) as server:
        yield server


@pytest.fixture(scope="module")
def voice_design() -> Iterator[Running]:
    with running(VOICE_DESIGN) as server:
        yield server


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(BASE, ServerConfig(voices_dir=str(tmp_path_factory.mktemp("voices")))) as server:
        yield server


@pytest.fixture(scope="module")
def wav_and_events() -> Iterator[Running]:
    with running(CUSTOM_VOICE, WAV_AND_EVENTS) as server:
        yield server


def samples(file: bytes) -> bytes:
    """The samples of a WAV file with true sizes."""
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, RATE_HZ)
        return reader.readframes(reader.getnframes())


def said(engine: ScriptedEngine, text: str | None = None) -> bytes:
    """The last speech, or the one of this text."""
    request = next(one for one in reversed(engine.requests) if text in (None, one.text))
    return spoken(request.text, request.seed or 0, request.voice)


# --- the example client for single requests: it sends its default voice in every mode ---


@pytest.mark.parametrize("fields", [{}, {"language": "Chinese", "instructions": "Sound happy.", "max_new_tokens": 500}])
def test_the_example_client_speaks_with_a_preset(custom_voice: Running, fields: dict[str, Any]) -> None:
    engine, client = custom_voice
    body = {"model": MODELS["CustomVoice"], "input": TEXT, "voice": "Vivian", "response_format": "wav", **fields}
    answer = client.post(SPEECH, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/wav" and samples(answer.content) == said(engine)
    request = engine.requests[-1]
    assert (request.voice, request.instructions) == ("vivian", fields.get("instructions"))
    assert request.language == fields.get("language", "auto").lower()


def test_the_example_client_describes_a_voice(voice_design: Running) -> None:
    engine, client = voice_design
    design = {"task_type": "VoiceDesign", "instructions": "A warm, low voice."}
    body = {"model": MODELS["VoiceDesign"], "input": TEXT, "voice": "Vivian", "response_format": "wav", **design}
    answer = client.post(SPEECH, json=body)
    assert answer.status_code == 200 and samples(answer.content) == said(engine)
    assert engine.requests[-1].instructions == "A warm, low voice."
    assert answer.headers["x-ignored-fields"] == "voice"


@pytest.mark.parametrize("transcript", [True, False])
def test_the_example_client_clones(base: Running, transcript: bool) -> None:
    engine, client = base
    how = CLONE if transcript else {"task_type": "Base", "ref_audio": CLIP_URL, "x_vector_only_mode": True}
    body = {"model": MODELS["Base"], "input": TEXT, "voice": "Vivian", "response_format": "wav", **how}
    answer = client.post(SPEECH, json=body)
    assert answer.status_code == 200, answer.text
    assert samples(answer.content) == said(engine) and isinstance(engine.requests[-1].voice, Voice)


@pytest.mark.parametrize("name", ["wav", "mp3", "flac", "pcm", "aac", "opus"])
def test_every_format_of_the_example_client_is_served(custom_voice: Running, name: str) -> None:
    body = {"model": MODELS["CustomVoice"], "input": "Hello.", "voice": "Vivian", "response_format": name}
    answer = custom_voice[1].post(SPEECH, json=body)
    assert answer.status_code == 200 and answer.content


def test_a_request_without_a_format_gets_a_wav_with_the_setting_of_the_migration_page(wav_and_events: Running) -> None:
    engine, client = wav_and_events
    answer = client.post(SPEECH, json={"input": "Hello.", "voice": "vivian", "language": "English"})
    assert answer.headers["content-type"] == "audio/wav" and samples(answer.content) == said(engine)


# --- the end-to-end cases over HTTP ---


def test_the_served_model_is_listed_under_its_name(custom_voice: Running) -> None:
    client = custom_voice[1]
    assert client.get("/health").status_code == 200
    assert NAMES["CustomVoice"] in [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert set(client.get("/v1/audio/voices").json()["voices"]) == {"vivian", "ryan"}


def test_five_requests_at_once_each_get_their_own_audio(custom_voice: Running) -> None:
    engine, client = custom_voice
    fields = {"stream": False, "response_format": "wav", "task_type": "CustomVoice", "voice": "vivian"}
    texts = [f"Request number {number}." for number in range(5)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: client.post(SPEECH, json={"input": text, **fields}), texts))
    assert [samples(answer.content) for answer in answers] == [said(engine, text) for text in texts]


@pytest.mark.parametrize("mode", ["CustomVoice", "Base"])
def test_raw_audio_streams(custom_voice: Running, base: Running, mode: str) -> None:
    engine, client = custom_voice if mode == "CustomVoice" else base
    own = {"voice": "vivian", "task_type": mode} if mode == "CustomVoice" else {"voice": "clone", **CLONE}
    how = {"stream": True, "stream_format": "audio", "response_format": "wav"}
    answer = client.post(SPEECH, json={"model": MODELS[mode], "input": TEXT, **how, **own})
    assert answer.status_code == 200, answer.text
    assert answer.content.startswith(b"RIFF") and answer.content[44:] == said(engine)
    assert "content-length" not in answer.headers


@pytest.mark.parametrize("how", [{"stream": True}, {"stream_format": "sse"}])
def test_events_end_with_usage(wav_and_events: Running, how: dict[str, Any]) -> None:
    engine, client = wav_and_events
    answer = client.post(SPEECH, json={"input": TEXT, "voice": "vivian", "response_format": "pcm", **how})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read_events(answer.text)
    audio = [base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta"]
    assert b"".join(audio) == said(engine)
    assert {event["response_format"] for event in events if event["type"] == "speech.audio.delta"} == {"pcm"}
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done"
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"] > 0


def test_one_clip_is_cloned_by_its_timbre_and_with_its_transcript(base: Running) -> None:
    engine, client = base
    for timbre in (True, False, True):
        how = {**CLONE, "x_vector_only_mode": timbre, **({"ref_text": None} if timbre else {})}
        answer = client.post(SPEECH, json={"input": "Hello.", "stream": False, "response_format": "wav", **how})
        assert answer.status_code == 200 and samples(answer.content) == said(engine)


@pytest.mark.parametrize("stream", [{}, {"stream": True}])
def test_a_speaker_embedding_is_spoken_with(base: Running, stream: dict[str, Any]) -> None:
    engine, client = base
    voice = {"task_type": "Base", "speaker_embedding": [0.1] * 8, "x_vector_only_mode": True}
    how = {"response_format": "pcm", "max_new_tokens": 256, **stream}
    answer = client.post(SPEECH, json={"model": MODELS["Base"], "input": "Hello.", **voice, **how})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/pcm" and answer.content == said(engine)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"speaker_embedding": [0.1] * 8, "ref_audio": "https://example.com/a.wav"}, "mutually exclusive"),
        ({"speaker_embedding": []}, "speaker_embedding"),
        ({"speaker_embedding": [0.1] * 9}, "speaker_embedding"),
    ],
    ids=str,
)
def test_impossible_ways_to_clone_are_refused(base: Running, fields: dict[str, Any], words: str) -> None:
    answer = base[1].post(SPEECH, json={"input": "Hello.", "task_type": "Base", "response_format": "wav", **fields})
    assert answer.status_code == 400 and words in answer.text


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"input": ""}, 400),
        ({"task_type": "Base", "ref_audio": CLIP_URL}, 400),
        ({"voice": "nobody"}, 400),
        ({"response_format": "gif"}, 400),
        ({"speed": 5}, 400),
        ({"model": "another"}, 404),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else str(value),
)
def test_bad_requests_get_openais_errors(custom_voice: Running, fields: dict[str, Any], status: int) -> None:
    answer = custom_voice[1].post(SPEECH, json={"input": "Hello.", "voice": "vivian", **fields})
    assert answer.status_code == status
    assert answer.json()["error"]["message"] and answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_a_voice_is_uploaded_listed_spoken_with_and_deleted(base: Running) -> None:
    engine, client = base
    form = {"name": "custom_voice_1", "consent": "recording-1", "ref_text": "Words.", "speaker_description": "warm"}
    uploaded = client.post("/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", CLIP, "audio/wav")})
    assert uploaded.status_code == 200 and uploaded.json()["success"] is True
    listed = client.get("/v1/audio/voices").json()
    assert "custom_voice_1" in listed["voices"]
    (voice,) = listed["uploaded_voices"]
    assert {field: voice[field] for field in form} == form and voice["mime_type"] == "audio/wav" and voice["file_size"]
    answer = client.post(SPEECH, json={"input": "Hello.", "voice": "custom_voice_1", "response_format": "wav"})
    assert samples(answer.content) == said(engine)
    assert client.delete("/v1/audio/voices/custom_voice_1").json()["success"] is True
    assert client.delete("/v1/audio/voices/custom_voice_1").status_code == 404


# --- the batch client ---


def test_the_batch_client_gets_every_text_in_order(custom_voice: Running) -> None:
    engine, client = custom_voice
    items = [{"input": "First."}, {"input": "Second.", "voice": "ryan"}, {"input": "第三。", "language": "Chinese"}]
    body = {"items": items, "response_format": "wav", "voice": "vivian", "language": "English"}
    answer = client.post(BATCH, json=body)
    assert answer.status_code == 200, answer.text
    batch = answer.json()
    assert batch["id"].startswith("speech-batch-")
    assert (batch["total"], batch["succeeded"], batch["failed"]) == (3, 3, 0)
    for index, (result, item) in enumerate(zip(batch["results"], items, strict=True)):
        assert (result["index"], result["status"], result["error"]) == (index, "success", None)
        assert samples(base64.b64decode(result["audio_data"])) == said(engine, item["input"])
        assert result["media_type"] == "audio/wav" and result["usage"]["total_tokens"] > 0
    spoken_by = {request.text: (request.voice, request.language) for request in engine.requests[-3:]}
    assert spoken_by == {
        "First.": ("vivian", "english"),
        "Second.": ("ryan", "english"),
        "第三。": ("vivian", "chinese"),
    }


def test_a_batch_shares_one_clip(base: Running) -> None:
    engine, client = base
    clones = engine.clones
    items = [{"input": f"Number {number}."} for number in range(3)]
    body = {"items": items, "response_format": "wav", "voice": "vivian", **CLONE, "ref_text": "Only of this batch."}
    batch = client.post(BATCH, json=body).json()
    assert batch["succeeded"] == 3 and engine.clones == clones + 1


def test_an_empty_item_fails_alone(custom_voice: Running) -> None:
    batch = custom_voice[1].post(BATCH, json={"items": [{"input": ""}, {"input": "Two."}], "voice": "vivian"}).json()
    assert [result["status"] for result in batch["results"]] == ["error", "success"] and batch["results"][0]["error"]


@pytest.mark.parametrize("count", [0, 33])
def test_a_batch_of_none_or_too_many_items_is_refused(custom_voice: Running, count: int) -> None:
    items = [{"input": f"Item {number}"} for number in range(count)]
    answer = custom_voice[1].post(BATCH, json={"items": items, "voice": "vivian"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items")


# --- the WebSocket clients, which refuse events that they do not know ---


def session(client: httpx.Client, pieces: list[str], **config: Any) -> tuple[list[dict[str, Any]], list[list[bytes]]]:
    """All events of one utterance, and the binary frames of each file."""
    url = str(client.base_url.copy_with(scheme="ws", path=STREAM))
    events: list[dict[str, Any]] = []
    files: list[list[bytes]] = []
    with connect(url, proxy=None, max_size=None, additional_headers=KEY) as socket:
        socket.send(json.dumps({"type": "session.config", **config}))
        for piece in pieces:
            socket.send(json.dumps({"type": "input.text", "text": piece}))
        socket.send(json.dumps({"type": "input.done"}))
        while not events or events[-1]["type"] != "session.done":
            message = socket.recv(timeout=600)
            if isinstance(message, bytes):
                files[-1].append(message)
                continue
            events.append(json.loads(message))
            assert events[-1]["type"] in ("audio.start", "audio.done", "session.done"), events[-1]
            if events[-1]["type"] == "audio.start":
                files.append([])
    return events, files


@pytest.mark.parametrize("mode", ["CustomVoice", "VoiceDesign", "Base"])
def test_the_streaming_client_saves_a_file_per_sentence_in_every_mode(
    custom_voice: Running, voice_design: Running, base: Running, mode: str
) -> None:
    engine, client = {"CustomVoice": custom_voice, "VoiceDesign": voice_design, "Base": base}[mode]
    own = {"CustomVoice": {}, "VoiceDesign": {"instructions": "A cheerful voice."}, "Base": CLONE}[mode]
    sent = {"voice": "Vivian", "task_type": mode, "language": "Auto", "response_format": "wav", "speed": 1.0, **own}
    (*told, end), files = session(client, ["Hello ", "world. ", "How ", "are ", "you?"], **sent)
    assert [event["type"] for event in told] == ["audio.start", "audio.done"] * 2 and end["total_sentences"] == 2
    for index, (start, done, (frame,), request) in enumerate(
        zip(told[::2], told[1::2], files, engine.requests[-2:], strict=True)
    ):
        assert (start["sentence_index"], start["format"], start["sample_rate"]) == (index, "wav", RATE_HZ)
        assert start["sentence_text"] == request.text.strip() == ("Hello world.", "How are you?")[index]
        assert (done["sentence_index"], done["error"], done["total_bytes"]) == (index, False, len(frame))
        assert samples(frame) == spoken(request.text, start["seed"], request.voice)  # with true sizes


def test_a_client_that_asks_for_one_file_gets_one(custom_voice: Running) -> None:
    how = {"voice": "vivian", "task_type": "CustomVoice", "split_granularity": "none"}
    (start, _, end), ((frame,),) = session(custom_voice[1], ["Hello world. ", "How are you?"], **how)
    assert end["total_sentences"] == 1
    assert samples(frame) == spoken("Hello world. How are you?", start["seed"], "vivian")


def test_a_session_without_a_format_gets_a_wav_with_true_sizes(custom_voice: Running) -> None:
    (start, _, _), ((frame,),) = session(custom_voice[1], ["Hello."], voice="vivian", task_type="CustomVoice")
    assert start["format"] == "wav" and samples(frame) == spoken("Hello.", start["seed"], "vivian")


def test_the_sentence_commit_client_gets_one_stream_and_an_answer_to_each_commit(custom_voice: Running) -> None:
    sentences = ["Hello there, this comes first.", " Then the second one.", " And a last one without a commit."]
    url = str(custom_voice[1].base_url.copy_with(scheme="ws", path=STREAM))
    config = {"voice": "vivian", "streaming_mode": "sentence_commit", "response_format": "pcm", "seed": 3}
    events: list[dict[str, Any]] = []
    audio = b""
    with connect(url, proxy=None, additional_headers=KEY) as socket:
        socket.send(json.dumps({"type": "session.config", **config}))
        for index, sentence in enumerate(sentences):
            socket.send(json.dumps({"type": "input.text", "text": sentence}))
            end = {"type": "input.commit", "commit_id": f"sentence-{index}"} if index < 2 else {"type": "input.done"}
            socket.send(json.dumps(end))
        while not events or events[-1]["type"] != "session.done":
            message = socket.recv(timeout=600)
            if isinstance(message, bytes):
                audio += message
            else:
                events.append(json.loads(message))
    answers = [event for event in events if event["type"] == "input.committed"]
    assert [answer["commit_id"] for answer in answers] == ["sentence-0", "sentence-1"]
    assert [(answer["sentence_index"], answer["chars_committed"]) for answer in answers] == [(0, 30), (1, 21)]
    assert [event["type"] for event in events if event not in answers] == ["audio.start", "audio.done", "session.done"]
    assert len(audio) == len(spoken("".join(sentences), 3, "vivian"))


def test_without_stream_audio_a_file_is_one_frame_with_true_sizes(custom_voice: Running) -> None:
    how = {"voice": "Vivian", "response_format": "wav", "stream_audio": False}
    (start, _, _), ((frame,),) = session(custom_voice[1], ["Hello."], **how)
    assert samples(frame) == spoken("Hello.", start["seed"], "vivian")


def test_sentences_are_files_of_their_own_where_asked_for(custom_voice: Running) -> None:
    """The end-to-end case: two sentences, PCM in pieces."""
    how = {"model": MODELS["CustomVoice"], "voice": "vivian", "language": "English", "response_format": "pcm"}
    engine, client = custom_voice
    events, files = session(client, [TEXT], **how, stream_audio=True, split_granularity="sentence")
    starts, dones = ([one for one in events if one["type"] == kind] for kind in ("audio.start", "audio.done"))
    assert [start["sentence_index"] for start in starts] == [0, 1] and events[-1]["total_sentences"] == 2
    for start, done, frames, request in zip(starts, dones, files, engine.requests[-2:], strict=True):
        assert (start["format"], start["sample_rate"], done["error"]) == ("pcm", RATE_HZ, False)
        assert start["sentence_text"] == request.text.strip()
        assert b"".join(frames) == spoken(request.text, start["seed"], "vivian")
        assert done["total_bytes"] == sum(map(len, frames)) > 0


def test_the_token_level_client_gets_the_whole_text(custom_voice: Running) -> None:
    pieces = ["Hello there, ", "these are ", "tokens. ", "A model made ", "them."]
    how = {"voice": "vivian", "streaming_mode": "token_level", "response_format": "pcm"}
    (start, _, _), (frames,) = session(custom_voice[1], pieces, **how)
    assert b"".join(frames) == spoken("".join(pieces), start["seed"], "vivian")


def test_a_connection_speaks_several_utterances_and_closes_when_asked(custom_voice: Running) -> None:
    """input.done ends an utterance, not the connection; the settings stay until others are sent."""
    client, files = custom_voice[1], []
    with connect(
        str(client.base_url.copy_with(scheme="ws", path=STREAM)), proxy=None, additional_headers=KEY
    ) as socket:
        for text, settings in (("One.", {"voice": "vivian"}), ("Two.", None), ("Three.", {"voice": "ryan"})):
            if settings is not None:
                socket.send(json.dumps({"type": "session.config", "response_format": "pcm", "seed": 3, **settings}))
            socket.send(json.dumps({"type": "input.text", "text": text}))
            socket.send(json.dumps({"type": "input.done"}))
            audio, event = b"", dict[str, Any](type="")
            while event["type"] != "session.done":
                message = socket.recv(timeout=600)
                audio, event = (audio + message, event) if isinstance(message, bytes) else (audio, json.loads(message))
            files.append((event["utterance_index"], audio))
        socket.send(json.dumps({"type": "session.close"}))
        assert not list(socket) and socket.close_code == 1000
    said_by = (("One.", "vivian"), ("Two.", "vivian"), ("Three.", "ryan"))
    assert files == [(index, spoken(text, 3, voice)) for index, (text, voice) in enumerate(said_by)]
