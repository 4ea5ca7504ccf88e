"""First starts of engines that fail, seen through the server: supervisors, readiness, requests."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from oscine.config import WorkerConfig
from oscine.engine.remote.client import EngineClient
from oscine.server.app import build_models_app
from oscine.speech.models import LoadedModel
from tests.engine.recorder import WAIT_S
from tests.engine.remote.fake_engine import FakeConfig, build_fake
from tests.server.reference_clip import CLIP
from tests.server.scripted_engine import BASE_CARD
from tests.server.serving import client_of_app, eventually

pytestmark = pytest.mark.slow

CONFIG = WorkerConfig(
    start_s=WAIT_S, submit_s=WAIT_S, terminate_s=2.0, backoff_s=0.01, max_backoff_s=0.05, max_restarts=2
)
Open = Callable[..., httpx.Client]


@pytest.fixture
def open_models() -> Iterator[Open]:
    """A client of a server whose models have these builds, by name."""
    undo: list[Callable[[], Any]] = []

    def start(**fakes: FakeConfig) -> httpx.Client:
        loaded = []
        for name, fake in fakes.items():
            engine = EngineClient(functools.partial(build_fake, fake), CONFIG)
            undo.append(engine.stop)
            loaded.append(
                LoadedModel(replace(BASE_CARD, name=name), engine, functools.partial(getattr, engine, "health"))
            )
        serving = client_of_app(build_models_app(loaded))
        undo.append(lambda: serving.__exit__(None, None, None))
        return serving.__enter__()

    yield start
    for step in reversed(undo):
        step()


def ready(client: httpx.Client) -> tuple[int, dict[str, Any]]:
    answer = client.get("/ready")
    assert ("retry-after" in answer.headers) == (answer.status_code == 503)
    return answer.status_code, answer.json()


def upload(client: httpx.Client, name: str = "anna") -> httpx.Response:
    return client.post("/v1/audio/voices", data={"name": name, "consent": "yes"}, files={"audio_sample": CLIP})


def test_a_model_that_was_overloaded_while_it_started_becomes_ready(open_models: Open, tmp_path: Path) -> None:
    client = open_models(only=FakeConfig(fail_build="OverloadedError", log=str(tmp_path / "builds"), failures=2))
    eventually(lambda: ready(client)[0] == 200)
    assert ready(client)[1]["restarts"] == 2
    assert upload(client).status_code == 200


def test_a_server_is_ready_without_a_model_that_failed_and_names_it(open_models: Open, tmp_path: Path) -> None:
    passing = FakeConfig(fail_build="OverloadedError", log=str(tmp_path / "builds"), failures=2)
    client = open_models(good=FakeConfig(), late=passing, bad=FakeConfig(fail_build="ConfigError"))
    eventually(lambda: ready(client)[0] == 200)
    about = ready(client)[1]
    assert about["failed"] == ["bad"] and "no ConfigError" in about["models"]["bad"]["last_failure"]
    assert {name: one["state"] for name, one in about["models"].items()} == {
        "good": "ready",
        "late": "ready",
        "bad": "failed",
    }


def test_a_server_none_of_whose_models_can_speak_is_not_ready(open_models: Open) -> None:
    broken = (FakeConfig(fail_build="ConfigError"), FakeConfig(fail_build="CheckpointError"))
    client = open_models(first=broken[0], second=broken[1])
    eventually(lambda: ready(client)[1]["failed"] == ["first", "second"])
    status, about = ready(client)
    assert (status, about["ready"], about["state"]) == (503, False, "failed")
    assert client.get("/health").status_code == 503
    refused = upload(client)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")


def test_while_an_engine_starts_speech_and_voices_are_refused_alike(open_models: Open, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    client = open_models(only=FakeConfig(wait_for=str(go_on)))
    try:
        clip = {"input": "Hi.", "ref_audio": "data:audio/wav;base64,", "stream": False}
        batch = client.post("/v1/audio/speech/batch", json={"items": [clip]})
        for refused in (client.post("/v1/audio/speech", json=clip), batch, upload(client)):
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready"), refused.text
            assert int(refused.headers["retry-after"]) >= 1
            assert "the engine is starting" in refused.json()["error"]["message"]
    finally:
        go_on.touch()
    eventually(lambda: ready(client)[0] == 200)
    assert upload(client).status_code == 200
