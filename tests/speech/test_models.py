"""Several models in one application: over HTTP, events, batch and the WebSocket; what the status endpoints show."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from oscine.audio.clips import read_clip
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.server.app import build_models_app
from oscine.speech.models import LoadedModel
from oscine.types import EngineHealth
from tests.event_stream import read_events
from tests.server.live.live_client import Server
from tests.server.reference_clip import CLIP, CLIP_URL
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine, spoken
from tests.server.serving import client_of_app, eventually

SPEECH = "/v1/audio/speech"
CARDS = (
    replace(CARD, name="preset"),
    replace(BASE_CARD, name="clone", takes_instructions=False),
    replace(CARD, name="design", kind="voice_design", speakers=()),
)


@dataclass
class Served:
    app: FastAPI
    client: httpx.Client
    preset: ScriptedEngine
    clone: ScriptedEngine
    design: ScriptedEngine
    states: dict[str, EngineHealth]

    def ask(self, **fields: Any) -> httpx.Response:
        return self.client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm", "seed": 3, **fields})

    def live(self) -> Any:
        return Server(str(self.client.base_url).rstrip("/"), self.app.state.service).client()


DECODED = (read_clip(CLIP, REFERENCE_CLIP).samples, 24_000)


@pytest.fixture
def served() -> Iterator[Served]:
    engines = {card.name: ScriptedEngine() for card in CARDS}
    states: dict[str, EngineHealth] = {}

    def health(name: str) -> EngineHealth:
        return states.get(name) or EngineHealth("ready")

    loaded = [LoadedModel(card, engines[card.name], lambda name=card.name: health(name)) for card in CARDS]
    app = build_models_app(loaded)
    with client_of_app(app) as client:
        yield Served(app, client, **engines, states=states)
    for engine in engines.values():
        engine.stop()


def test_each_request_is_spoken_by_the_model_that_can_do_it(served: Served) -> None:
    cases = (
        ({}, served.preset, "preset", None),
        ({"voice": "finch"}, served.preset, "preset", "finch"),
        ({"instructions": "An old man."}, served.design, "design", None),
        ({"ref_audio": CLIP_URL}, served.clone, "clone", served.clone.clone(DECODED)),
        ({"model": "design", "instructions": "An old man."}, served.design, "design", None),
    )
    for fields, engine, name, voice in cases:
        for form in ({}, {"stream": False}, {"stream_format": "sse"}):
            answer = served.ask(**fields, **form)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-model"] == name
            audio = answer.content if "stream_format" not in form else audio_of(answer.text)
            assert audio == spoken("Hello.", 3, voice)
            assert len(engine.requests) == 1 and engine.requests.pop().text == "Hello."


def test_a_clip_with_instructions_is_cloned_by_one_model_and_spoken_by_another(served: Served) -> None:
    asked = {"ref_audio": CLIP_URL, "ref_text": "some words", "instructions": "Whisper."}
    cloned = served.clone.clone(DECODED)
    for form in ({}, {"input": [{"text": "Hello."}]}):
        answer = served.ask(**asked, **form)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-model"] == "preset" and "experimental: " in answer.headers["x-warning"]
        assert answer.content == spoken("Hello.", 3, cloned)
        request = served.preset.requests.pop()
        assert (request.voice, request.instructions) == (cloned, "Whisper.")
    with served.live() as client:
        assert client.configure(**asked, seed=3)["model"] == "preset"
        assert client.say("Hello.").sound == spoken("Hello.", 3, cloned)
    refused = served.ask(**asked, model="clone")
    assert refused.status_code == 400 and "'preset' can" in refused.json()["error"]["message"]
    assert served.clone.clones == 2 and not served.clone.requests  # this test's own, and one for all requests


def audio_of(events: str) -> bytes:
    return b"".join(base64.b64decode(event.get("audio", "")) for event in read_events(events))


def test_items_of_a_batch_go_to_different_models(served: Served) -> None:
    items: list[dict[str, Any]] = [
        {"input": "One."},
        {"input": "Two.", "ref_audio": CLIP_URL},
        {"input": "Three.", "instructions": "An old man."},
        {"input": "Four.", "model": "clone"},
    ]
    answer = served.client.post(f"{SPEECH}/batch", json={"items": items, "response_format": "pcm"}).json()
    assert [result["status"] for result in answer["results"]] == ["success"] * 3 + ["error"]
    assert "'preset' can" in answer["results"][3]["error"]["message"]
    engines = (served.preset, served.clone, served.design)
    assert [[request.text for request in engine.requests] for engine in engines] == [["One."], ["Two."], ["Three."]]


def test_a_live_session_changes_its_model(served: Served) -> None:
    with served.live() as client:
        assert client.say("Hi.").sound == spoken("Hi.", served.preset.requests[-1].seed or 0)
        assert client.configure(instructions="An old man.", seed=1)["model"] == "design"
        assert client.say("Hi.").sound == spoken("Hi.", 1)
        assert client.configure(ref_audio=CLIP_URL, seed=2)["model"] == "clone"
        assert client.say("Hi.").sound == spoken("Hi.", 2, served.clone.clone(DECODED))
        refused = client.configure(model="clone", voice="finch")
        assert "'preset' can" in refused["message"]
        assert client.say("Ho.").sound == spoken("Ho.", 2, served.clone.clone(DECODED))
    assert [len(one.requests) for one in (served.preset, served.design, served.clone)] == [1, 1, 2]


def test_errors_name_the_models_that_could_do_it(served: Served) -> None:
    answer = served.ask(model="clone", instructions="An old man.")
    error = answer.json()["error"]
    assert answer.status_code == 400 and "'preset' or 'design' can" in error["message"]
    assert served.ask(model="cloned").json()["error"]["code"] == "model_not_found"


def test_a_failing_engine_does_not_affect_the_others(served: Served) -> None:
    served.design.ready = False
    served.states["design"] = EngineHealth("restarting", restarts=1, last_reason="killed")
    assert served.ask().status_code == 200
    refused = served.ask(model="design", instructions="An old man.")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert "the engine of model 'design' is restarting" in refused.json()["error"]["message"]
    assert served.ask(instructions="Whisper.").headers["x-model"] == "preset"  # the other one that can
    ready = served.client.get("/ready")
    assert ready.status_code == 200 and ready.json()["state"] == "ready" and ready.json()["restarts"] == 1
    assert ready.json()["models"]["design"] == {
        "ready": False,
        "state": "restarting",
        "restarts": 1,
        "last_failure": "killed",
    }
    page = served.client.get("/metrics").text
    assert 'oscine_engine_ready{model="design"} 0.0' in page and 'oscine_engine_ready{model="preset"} 1.0' in page
    for engine in (served.preset, served.clone):
        engine.ready = False
    assert served.ask().status_code == 503 and served.client.get("/ready").status_code == 503


def test_the_server_is_ready_when_every_model_has_started(served: Served) -> None:
    served.design.ready = False
    served.states["design"] = EngineHealth("starting")
    ready = served.client.get("/ready")
    assert (ready.status_code, ready.json()["state"]) == (503, "starting")
    served.states["design"] = EngineHealth("failed", last_reason="no memory")
    ready = served.client.get("/ready")
    assert (ready.status_code, ready.json()["last_failure"]) == (200, "no memory")
    assert ready.json()["failed"] == ["design"]


def test_models_are_listed_and_described(served: Served) -> None:
    listed = served.client.get("/v1/models").json()["data"]
    names = ["preset", "clone", "design", "qwen3-tts", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert [one["id"] for one in listed] == names
    assert [(one["root"], one["kind"]) for one in listed[1:4]] == [
        ("clone", "base"),
        ("design", "voice_design"),
        (None, "any"),
    ]
    for one in listed:
        assert served.client.get(f"/v1/models/{one['id']}").json() == one
    assert served.client.get("/v1/models/Qwen/clone").json()["root"] == "clone"
    missing = served.client.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"] == {
        "message": missing.json()["error"]["message"],
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert served.client.get("/version").json()["models"] == {
        "preset": "custom_voice",
        "clone": "base",
        "design": "voice_design",
    }


def test_a_model_reports_how_many_streams_stay_in_real_time(served: Served) -> None:
    served.clone.slots, served.design.ready = 3, False
    listed = {one["id"]: one["real_time_streams"] for one in served.client.get("/v1/models").json()["data"]}
    assert [listed[name] for name in ("preset", "clone", "design")] == [8, 3, 0]


def test_voices_are_listed_with_their_models(served: Served) -> None:
    form = {"name": "anna", "consent": "yes"}
    uploaded = served.client.post("/v1/audio/voices", data=form, files={"audio_sample": CLIP})
    assert uploaded.status_code == 200, uploaded.text
    assert served.clone.clones == 1
    listed = served.client.get("/v1/audio/voices").json()
    assert listed["voices"] == ["wren", "finch", "anna"]
    assert listed["models"] == {"wren": ["preset"], "finch": ["preset"], "anna": ["preset", "clone"]}
    assert listed["aliases"]["alloy"] == "wren"
    assert served.ask(voice="anna").headers["x-model"] == "clone"
    both = served.ask(voice="anna", instructions="Whisper.")
    assert both.headers["x-model"] == "preset" and both.headers["x-warning"].startswith("experimental: ")
    refused = served.client.post(
        "/v1/audio/voices", data={**form, "name": "bert", "model": "preset"}, files={"audio_sample": CLIP}
    )
    assert refused.status_code == 400 and "'clone' can" in refused.json()["error"]["message"]


def test_metrics_have_the_model_as_a_label(served: Served) -> None:
    served.ask()
    served.ask(ref_audio=CLIP_URL)
    served.ask(model="nothing")
    page = served.client.get("/metrics").text
    for line in (
        'oscine_requests_total{mode="http",model="preset",status="200"} 1.0',
        'oscine_requests_total{mode="http",model="clone",status="200"} 1.0',
        'oscine_requests_total{mode="http",model="",status="404"} 1.0',
        'oscine_ttfa_seconds_count{model="design"} 0.0',
        'oscine_frames_total{model="clone"} 6.0',
        'oscine_slots{model="design"} 8.0',
    ):
        assert line in page, line


def test_a_broken_stream_breaks_no_stream_of_another_model(served: Served) -> None:
    served.preset.max_frames = 20
    body = {"input": "word " * 20, "response_format": "pcm", "seed": 3}
    with served.client.stream("POST", SPEECH, json=body) as running:
        pieces = running.iter_raw()
        heard = next(pieces)
        with pytest.raises(httpx.RemoteProtocolError):
            served.ask(ref_audio=CLIP_URL, input="Hello !break")
        served.clone.stop()
        served.preset.max_frames = 10**6
        heard += b"".join(pieces)
    assert heard == spoken("word " * 20, 3)
    eventually(lambda: served.app.state.service.streams == 0)
