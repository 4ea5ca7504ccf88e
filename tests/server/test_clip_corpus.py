"""Hostile clips through the API: a refused clip is a 400 for its request, and other streams go on."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from oscine.audio.clips import check_reference, read_clip
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.types import ClipData
from oscine.voice import Voice
from tests.corpora.clips import CLIPS
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine, spoken
from tests.server.serving import client_of, eventually

REFUSED = [name for name, case in CLIPS.items() if case.refusal is not None]
VOICE = [0.5] * BASE_CARD.speaker_width


class DecodingEngine(ScriptedEngine):
    """Decodes the clip where the engine client does: in the front end."""

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        check_reference(read_clip(clip, REFERENCE_CLIP))
        return super().clone(clip, transcript)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    engine = DecodingEngine(max_frames=10)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine, BASE_CARD) as client:
        yield client


def test_refused_clips_are_answered_with_400_while_another_stream_is_spoken(
    engine: ScriptedEngine, client: httpx.Client
) -> None:
    text = "the listener of this stream hears every frame of it"
    body = {"input": text, "speaker_embedding": VOICE, "response_format": "pcm", "seed": 7}
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(client.post, "/v1/audio/speech", json=body)
        eventually(lambda: engine.status().frames == 10)  # it is in the middle of its text
        for name in REFUSED:
            clip = CLIPS[name].make()
            body = {"input": "x", "ref_audio": base64.b64encode(clip).decode()}
            check_refused(client.post("/v1/audio/speech", json=body), name, "ref_audio")
            form = {"name": "anna", "consent": "hers"}
            answer = client.post("/v1/audio/voices", data=form, files={"audio_sample": clip})
            check_refused(answer, name, "audio_sample")
        engine.max_frames = float("inf")
        answer = stream.result()
    assert answer.status_code == 200
    assert answer.content == spoken(text, 7, Voice.from_embedding(VOICE))


def check_refused(answer: httpx.Response, name: str, param: str) -> None:
    assert answer.status_code == 400, (name, answer.text)
    error = answer.json()["error"]
    assert error["param"] == param
    assert (CLIPS[name].refusal or "") in error["message"] or name == "nothing"


def test_a_good_clip_speaks(client: httpx.Client) -> None:
    body = {"input": "x", "ref_audio": base64.b64encode(CLIPS["m4a"].make()).decode()}
    assert client.post("/v1/audio/speech", json=body).status_code == 200
