"""Models are added and removed while others speak."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from oscine.config import CheckpointConfig, ServerConfig
from oscine.errors import CheckpointError, ConfigError, ConflictError, EngineError, RequestError
from oscine.server.app import build_models_app
from oscine.server.http.errors import api_error
from oscine.server.http.metrics import Metrics
from oscine.server.model_admin import ModelAdmin, allowed_path
from oscine.speech.limits import ledger_of
from oscine.speech.models import LoadedModel, ModelRegistry
from oscine.speech.voice_store import VoiceStore
from oscine.types import EngineHealth, ModelCard
from tests.server.live.live_client import Server
from tests.server.reference_clip import CLIP
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine, spoken
from tests.server.serving import client_of_app, eventually

SPEECH = "/v1/audio/speech"
MODELS = "/v1/models"
ADMIN = {"authorization": "Bearer admin-key"}
TEXT = "word " * 20
DESIGN = replace(CARD, kind="voice_design", speakers=())
CONFIG = ServerConfig(admin_keys=("admin-key",), allowed_models=("/models", "Qwen/*", "demo"), drain_s=20)


@dataclass
class Loader:
    """Opens models with scripted engines. The fields are about the next one."""

    engines: dict[str, ScriptedEngine] = field(default_factory=dict)
    opened: list[CheckpointConfig] = field(default_factory=list)
    open_error: Exception | None = None
    start_error: Exception | None = None
    started: threading.Event = field(default_factory=threading.Event)  # until then it is starting
    card: ModelCard = DESIGN

    def __post_init__(self) -> None:
        self.started.set()

    def open(self, config: CheckpointConfig) -> LoadedModel:
        self.opened.append(config)
        if self.open_error:
            raise self.open_error
        engine = self.engines[config.served_name] = ScriptedEngine(ready=self.started.is_set())

        def wait_ready() -> None:
            self.started.wait(600)
            if self.start_error:
                raise self.start_error
            engine.ready = True

        card = replace(self.card, name=config.served_name)
        return LoadedModel(card, engine, lambda: EngineHealth("ready" if engine.ready else "starting"), wait_ready)


@dataclass
class Served:
    app: FastAPI
    client: httpx.Client
    loader: Loader
    preset: ScriptedEngine

    def add(self, path: str = "/models/design", **fields: Any) -> httpx.Response:
        return self.client.post(MODELS, json={"path": path, **fields}, headers=ADMIN)

    def remove(self, name: str = "design", **query: Any) -> httpx.Response:
        return self.client.delete(f"{MODELS}/{name}", params=query, headers=ADMIN)

    def names(self) -> list[str]:
        listed = self.client.get(MODELS).json()["data"]
        return [one["id"] for one in listed if one["root"] == one["id"]]

    def ask(self, **fields: Any) -> httpx.Response:
        return self.client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm", "seed": 3, **fields})

    def described(self, **fields: Any) -> Any:
        """A stream of the model that follows descriptions."""
        body = {"input": TEXT, "response_format": "pcm", "seed": 3, "instructions": "An old man.", **fields}
        return self.client.stream("POST", SPEECH, json=body)


@pytest.fixture
def served_with() -> Iterator[Callable[[ServerConfig], Served]]:
    engine, loader = ScriptedEngine(), Loader()
    stack: list[Any] = []

    def serve(config: ServerConfig) -> Served:
        app = build_models_app([LoadedModel.of(engine, replace(CARD, name="preset"))], config, loader.open)
        stack.append(client_of_app(app))
        return Served(app, stack[-1].__enter__(), loader, engine)

    yield serve
    for entered in stack:
        entered.__exit__(None, None, None)
    for one in (engine, *loader.engines.values()):
        one.stop()


@pytest.fixture
def served(served_with: Callable[[ServerConfig], Served]) -> Served:
    return served_with(CONFIG)


def in_background(work: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    return thread, answers


def test_a_model_is_added_while_another_speaks(served: Served) -> None:
    served.preset.max_frames = 10
    served.loader.started.clear()
    with served.client.stream("POST", SPEECH, json={"input": TEXT, "response_format": "pcm", "seed": 3}) as running:
        pieces = running.iter_raw()
        heard = next(pieces)
        adding, answers = in_background(lambda: served.add(name="design", slots=2, devices=["cpu"]))
        eventually(lambda: served.names() == ["preset", "design"])
        assert served.client.get(f"{MODELS}/design").json()["state"] == "starting"
        assert served.client.get("/ready").status_code == 200
        refused = served.ask(model="design", instructions="An old man.")
        assert refused.status_code == 503 and "starting" in refused.json()["error"]["message"]
        served.preset.max_frames = 10**6
        # Until the new one has started, requests that both can do go to the old one.
        assert served.ask(instructions="An old man.").headers["x-model"] == "preset"
        served.loader.started.set()
        adding.join(600)
        heard += b"".join(pieces)
    assert heard == spoken(TEXT, 3)
    assert answers[0].status_code == 201 and answers[0].json()["kind"] == "voice_design"
    assert served.loader.opened == [CheckpointConfig(path="/models/design", name="design", slots=2, devices=("cpu",))]
    assert served.ask(instructions="An old man.").headers["x-model"] == "design"
    assert 'oscine_slots{model="design"} 8.0' in served.client.get("/metrics").text


def test_a_model_is_removed_when_its_streams_have_ended(served: Served) -> None:
    assert served.add().status_code == 201
    engine = served.loader.engines["design"]
    engine.max_frames = 10
    with served.described() as running:
        pieces = running.iter_raw()
        heard = next(pieces)
        removing, answers = in_background(served.remove)
        eventually(lambda: served.client.get(f"{MODELS}/design").json()["state"] == "removing")
        refused = served.ask(model="design", instructions="An old man.")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert served.ask(instructions="An old man.").status_code == 200  # the other one can
        assert served.remove().status_code == 404
        engine.max_frames = 10**6
        heard += b"".join(pieces)
    assert heard == spoken(TEXT, 3)
    removing.join(600)
    assert answers[0].json() == {"id": "design", "object": "model", "deleted": True, "streams_cut_off": 0}
    assert served.names() == ["preset"]
    assert served.client.get(f"{MODELS}/design").status_code == 404
    assert 'oscine_slots{model="design"}' not in served.client.get("/metrics").text
    assert served.add().status_code == 201  # the name is free again


def test_a_stream_that_does_not_end_in_time_is_cut_off_and_does_not_look_whole(served: Served) -> None:
    assert served.add().status_code == 201
    served.loader.engines["design"].max_frames = 10
    with served.described() as running:
        pieces = running.iter_raw()
        next(pieces)
        assert served.remove(drain_s=0).json()["streams_cut_off"] == 1
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    assert served.ask().content == spoken("Hello.", 3)


def test_a_live_session_whose_model_was_removed_hears_why_and_can_go_on(served: Served) -> None:
    assert served.add().status_code == 201
    with Server(str(served.client.base_url).rstrip("/"), served.app.state.service).client() as client:
        assert client.configure(instructions="An old man.")["model"] == "design"
        client.say("Hi.")
        assert served.remove().status_code == 200
        failed = client.say("Hi.").one("error")
        assert failed["error"]["code"] == "model_not_found" and "'design'" in failed["message"]
        client.configure(voice="finch", seed=1)
        assert client.say("Hi.").sound == spoken("Hi.", 1, "finch")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (CheckpointError("no such folder"), 400, "bad_request"),
        (ConfigError("the models do not fit"), 409, "conflict"),
        (EngineError("the worker was killed"), 503, "engine_failed"),
    ],
)
@pytest.mark.parametrize("stage", ["open_error", "start_error"])
def test_a_model_that_cannot_be_added_leaves_nothing_behind(
    served: Served, error: Exception, status: int, code: str, stage: str
) -> None:
    setattr(served.loader, stage, error)
    answer = served.add()
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert str(error) in answer.json()["error"]["message"]
    assert served.names() == ["preset"]
    setattr(served.loader, stage, None)
    assert served.add().status_code == 201


def test_names_are_unique(served: Served) -> None:
    for name in ("preset", "tts-1"):
        answer = served.add(name=name)
        assert (answer.status_code, answer.json()["error"]["param"]) == (409, "name")
    assert served.loader.opened == []


def test_the_last_model_cannot_be_removed(served: Served) -> None:
    answer = served.remove("preset")
    assert answer.status_code == 409 and "the only model" in answer.json()["error"]["message"]
    for name in ("tts-1", "nothing"):
        assert served.remove(name).status_code == 404
    served.add()
    assert served.remove("preset").status_code == 200
    assert served.names() == ["design"] and served.remove("design").status_code == 409


def test_two_removals_at_once_leave_one_model(engine: ScriptedEngine) -> None:
    async def remove_both() -> list[int | BaseException]:
        other = ScriptedEngine()
        loaded = [LoadedModel.of(engine, CARD), LoadedModel.of(other, replace(CARD, name="other"))]
        store = VoiceStore(None, ())
        ledger = ledger_of(ServerConfig())
        registry = ModelRegistry(loaded, store, Metrics(tuple).of_model, ledger)
        admin = ModelAdmin(registry, store, ledger.pool("model_change"), None, ())
        results = await asyncio.gather(admin.remove(CARD.name, 0), admin.remove("other", 0), return_exceptions=True)
        ledger.close()
        other.stop()
        return results

    removed, refused = asyncio.run(remove_both())
    assert removed == 0 and isinstance(refused, ConflictError)


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "right\u202eleft", "a\u200fb"])
def test_names_that_cannot_be_printed_are_refused(served: Served, name: str) -> None:
    answer = served.add(name=name)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")
    assert answer.json()["error"]["message"].isprintable() and served.loader.opened == []


def test_uploaded_voices_do_not_disappear_behind_presets(served_with: Callable[[ServerConfig], Served]) -> None:
    served = served_with(CONFIG)
    store = served.app.state.service.voice_store
    store.add("anna", served.preset.clone(b"clip"), consent="yes")
    served.loader.card = replace(CARD, speakers=("anna", "bert"))
    answer = served.add()
    assert answer.status_code == 409 and "anna; delete those" in answer.json()["error"]["message"]
    store.delete("anna")
    assert served.add().status_code == 201
    with pytest.raises(RequestError, match="reserved"):
        store.check_name("bert")
    served.remove()
    assert store.check_name("bert") == "bert"


def test_only_admins_add_and_remove_models(served_with: Callable[[ServerConfig], Served]) -> None:
    served = served_with(replace(CONFIG, api_keys=("user-key",)))
    user = {"authorization": "Bearer user-key"}
    for headers, status in (({}, 401), (user, 403), ({"authorization": "Bearer other"}, 401)):
        assert served.client.post(MODELS, json={"path": "demo"}, headers=headers).status_code == status
        assert served.client.delete(f"{MODELS}/preset", headers=headers).status_code == status
    assert served.client.get(MODELS, headers=user).status_code == 200
    assert served.client.get(MODELS, headers=ADMIN).status_code == 200
    assert served.add().status_code == 201


def test_without_admin_keys_nobody_adds_models(served_with: Callable[[ServerConfig], Served]) -> None:
    served = served_with(ServerConfig(allowed_models=("/models",)))
    for answer in (served.add(), served.remove("preset")):
        assert answer.status_code == 403 and "--admin-key" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"slots": 0}, "slots"),
        ({"devices": ["cpu", "cpu"]}, None),
        ({"memory_share": 1.5}, "memory_share"),
        ({"device": "cpu"}, "device"),
        ({"dtype": "float16"}, "dtype"),
    ],
)
def test_wrong_settings_are_refused(served: Served, fields: dict[str, Any], param: str | None) -> None:
    answer = served.add(**fields)
    assert answer.status_code == 400, answer.text
    assert param is None or answer.json()["error"]["param"] == param


def test_a_draining_server_adds_no_models(served: Served) -> None:
    served.app.state.service.draining = True
    assert served.add().status_code == 503


def test_only_allowed_checkpoints_are_opened(tmp_path: Path) -> None:
    inside, outside = tmp_path / "models", tmp_path / "secret"
    for folder in (inside / "a", outside):
        folder.mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (tmp_path / "alias").symlink_to(inside)
    allowed = (str(inside), "Qwen/*", "demo")
    assert allowed_path(str(inside / "a"), allowed) == str(inside / "a")
    assert allowed_path(str(tmp_path / "alias" / "a"), allowed) == str(inside / "a")
    assert allowed_path("demo", allowed) == "demo"
    assert allowed_path("Qwen/Qwen3-TTS-12Hz-0.6B-Base", allowed) == "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
    for path in (
        *(str(outside), str(inside / "link"), f"{inside}/../secret", "/", "secret", "models/a", "../secret"),
        *("Other/model", "Qwen/../secret", "Qwen/..", "Qwen/a/b", "~/models", f"{inside}/\0", "", f"{inside}x"),
    ):
        with pytest.raises(RequestError, match=r"server\.allowed_models has .*Qwen/\*") as caught:
            allowed_path(path, allowed)
        assert api_error(caught.value).status == 403, path
    with pytest.raises(RequestError, match="has none"):
        allowed_path("demo", ())


def test_a_path_that_is_not_allowed_is_not_opened(served: Served) -> None:
    answer = served.add("/etc")
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "path")
    assert served.loader.opened == []


def test_a_base_model_can_be_added_to_presets(served: Served) -> None:
    def upload() -> httpx.Response:
        form = {"name": "anna", "consent": "yes"}
        return served.client.post("/v1/audio/voices", data=form, files={"audio_sample": CLIP})

    assert "use a Base checkpoint" in upload().json()["error"]["message"]
    served.loader.card = replace(BASE_CARD, name="clone")
    assert served.add(name="clone").status_code == 201
    assert upload().status_code == 200
    assert served.ask(voice="anna").headers["x-model"] == "clone"
