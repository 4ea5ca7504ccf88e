"""`oscine serve` with several models: real processes, small random checkpoints, models added and removed."""

import base64
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from benchmarks.server_process import ServerProcess
from oscine import Oscine
from oscine.audio.clips import pcm16, wav_header
from tests.conftest import CheckpointMaker
from tests.server.live.live_client import Client
from tests.server.serving import eventually
from tests.websocket import connect

pytestmark = pytest.mark.slow

Served = tuple[ServerProcess, httpx.Client]
SPEECH = "/v1/audio/speech"
TEXT = "Hello there, how are you?"
ADMIN = {"authorization": "Bearer admin-key"}
# Random weights: their speech has no end. No request is refused and no session ends because this machine is slow.
SETTINGS = """
[[models]]
path = "{preset}"
name = "preset"

[[models]]
path = "{clone}"
name = "clone"
slots = 3

[server]
admin_keys = ["admin-key"]
allowed_models = ["{allowed}"]
drain_s = 300.0
live_idle_s = 3600.0
live_pause_s = 600.0
[engine]
slots = 4
queue_wait_s = 600.0
text_wait_s = 600.0
runaway.enabled = false
memory.positions_per_slot = 1024
memory.prefix_cache_mib = 16
[worker]
backoff_s = 0.1
"""


@pytest.fixture(scope="module")
def folders(small_checkpoints: CheckpointMaker) -> dict[str, Path]:
    kinds = {"preset": "custom_voice", "clone": "base", "design": "voice_design"}
    return {
        name: small_checkpoints("0b6" if name != "design" else "1b7", kind, eos_gain=0.0)
        for name, kind in kinds.items()
    }


@pytest.fixture(scope="module")
def served(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = SETTINGS.format(**folders, allowed=folders["design"].parent)
    server = ServerProcess(None, tmp_path_factory.mktemp("serve"), settings=settings)
    try:
        with httpx.Client(base_url=server.wait_ready(), timeout=600, trust_env=False) as client:
            yield server, client
    finally:
        server.close()


def clip() -> bytes:
    tone = np.rint(8000 * np.sin(np.arange(24_000) / 20)).astype("<i2").tobytes()
    return wav_header(24_000, len(tone) // 2) + tone


def asked(name: str, frames: int) -> dict[str, Any]:
    """A request that only this model can do."""
    own = {
        "preset": {},
        "clone": {"ref_audio": base64.b64encode(clip()).decode()},
        "design": {"instructions": "An old man."},
    }
    options = {"response_format": "pcm", "seed": 5, "max_new_tokens": frames + 1, "trim_silence": False}
    return {"input": TEXT, **options, **own[name]}


@contextlib.contextmanager
def live_session(client: httpx.Client, name: str, frames: int) -> Iterator[Client]:
    url = f"ws://{client.base_url.host}:{client.base_url.port}{SPEECH}/stream"
    # No pings and no limit of the queue: a client that does not read answers no pings, and a model may start slowly.
    with connect(url, max_size=None, max_queue=None, proxy=None, ping_interval=None) as socket:
        live = Client(socket)
        fields = {key: value for key, value in asked(name, frames).items() if key != "input"}
        assert live.configure(**fields)["model"] == name
        yield live


def alone(folder: Path, name: str, frames: int, **options: Any) -> np.ndarray:
    """The same speech by this model alone, in this process."""
    with Oscine(folder, device="cpu", slots=1) as tts:
        if name == "design":
            options["instructions"] = "An old man."
        if name == "clone":
            options["voice"] = tts.clone(clip())
        return pcm16(tts.speak(TEXT, seed=5, max_new_tokens=frames + 1, **options).audio).astype(int)


def assert_equal(heard: bytes, expected: np.ndarray) -> None:
    samples = np.frombuffer(heard, "<i2").astype(int)
    assert len(samples) == len(expected)
    assert np.abs(samples - expected).max() <= 1  # of 16 bits: beside others, sums may be rounded differently


def test_two_models_speak_at_once_over_http_and_websocket(served: Served, folders: dict[str, Path]) -> None:
    _, client = served
    heard: dict[str, bytes] = {}

    def listen(name: str) -> None:
        answer = client.post(SPEECH, json=asked(name, 12))
        assert answer.headers["x-model"] == name, answer.text
        heard[name] = answer.content

    def talk(name: str) -> None:
        with live_session(client, name, 12) as live:
            heard[f"live {name}"] = live.say(TEXT).sound

    threads = [threading.Thread(target=one, args=(name,)) for one in (listen, talk) for name in ("preset", "clone")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    for name in ("preset", "clone"):
        assert_equal(heard[name], alone(folders[name], name, 12))
        assert_equal(heard[f"live {name}"], alone(folders[name], name, 12, text_mode="streaming"))


def test_the_plan_and_the_models_are_shown(served: Served) -> None:
    server, client = served
    ready = {line["model"]: line["slots"] for line in server.lines if line["message"] == "ready"}
    assert ready == {"preset": 4, "clone": 3}
    (plan,) = [line["message"] for line in server.lines if line["message"].startswith("memory plan: cpu: ")]
    assert "preset " in plan and ", 4 slots; clone " in plan and ", 3 slots)" in plan
    page = client.get("/metrics").text
    assert 'oscine_slots{model="preset"} 4.0' in page and 'oscine_slots{model="clone"} 3.0' in page
    assert {one["id"]: one["kind"] for one in client.get("/v1/models").json()["data"][:2]} == {
        "preset": "custom_voice",
        "clone": "base",
    }


def test_a_model_is_added_and_removed_while_others_speak(served: Served, folders: dict[str, Path]) -> None:
    _, client = served
    refused = client.post("/v1/models", json={"path": "/etc"}, headers=ADMIN)
    assert refused.status_code == 403
    wrong = client.post("/v1/models", json={"path": str(folders["design"].parent / "nothing")}, headers=ADMIN)
    assert wrong.status_code == 400, wrong.text
    first, rest = TEXT[:12], TEXT[12:]  # a stream whose text is open runs on
    with live_session(client, "preset", 40) as preset:
        preset.write(first)
        spoken = preset.receive_frames(1)
        body = {"path": str(folders["design"]), "name": "design", "slots": 2}
        added = client.post("/v1/models", json=body, headers=ADMIN)
        assert added.status_code == 201 and added.json()["state"] == "ready", added.text
        with live_session(client, "design", 40) as design:
            design.write(first)
            designed = design.receive_frames(1)
            removed: list[httpx.Response] = []
            removing = threading.Thread(
                target=lambda: removed.append(client.delete("/v1/models/design", headers=ADMIN)), daemon=True
            )
            removing.start()
            eventually(lambda: client.get("/v1/models/design").json()["state"] == "removing")
            design_sound = designed.sound + design.say(rest).sound
        removing.join(600)
        preset_sound = spoken.sound + preset.say(rest).sound
    assert removed[0].json()["streams_cut_off"] == 0
    assert_equal(preset_sound, alone(folders["preset"], "preset", 40, text_mode="streaming"))
    assert_equal(design_sound, alone(folders["design"], "design", 40, text_mode="streaming"))
    assert client.get("/v1/models/design").status_code == 404


def test_a_killed_worker_breaks_the_streams_of_its_model_alone(served: Served) -> None:
    server, client = served
    heard: dict[str, int | None] = {"preset": 0, "clone": 0}
    begun = {name: threading.Event() for name in heard}

    def listen(name: str) -> None:
        try:
            with client.stream("POST", SPEECH, json=asked(name, 150)) as response:
                for piece in response.iter_bytes():
                    heard[name] = (heard[name] or 0) + len(piece)
                    begun[name].set()
        except httpx.RemoteProtocolError:
            heard[name] = None

    threads = [threading.Thread(target=listen, args=(name,), daemon=True) for name in heard]
    for thread in threads:
        thread.start()
    assert all(event.wait(600) for event in begun.values())
    children = psutil.Process(server.process.pid).children()
    workers = [child for child in children if any("oscine.engine.remote.worker" in part for part in child.cmdline())]
    assert len(workers) == 2
    os.kill(workers[0].pid, signal.SIGKILL)
    for thread in threads:
        thread.join(600)
    (broken,) = [name for name, received in heard.items() if received is None]
    (whole,) = set(heard) - {broken}
    assert heard[whole] == 150 * 3840
    eventually(lambda: client.get("/ready").json()["models"][broken]["state"] == "ready")
    states = client.get("/ready").json()["models"]
    assert (states[broken]["restarts"], states[whole]["restarts"]) == (1, 0)
    assert len(client.post(SPEECH, json=asked(broken, 4)).content) == 4 * 3840


def test_models_that_do_not_fit_are_refused_before_any_starts(folders: dict[str, Path], tmp_path: Path) -> None:
    settings = SETTINGS.format(**folders, allowed="/models").replace(
        "prefix_cache_mib = 16", "prefix_cache_mib = 1000000000"
    )
    server = ServerProcess(None, tmp_path, settings=settings)
    try:
        assert server.process.wait(600) == 1
        (error,) = [line["message"] for line in server.lines if line["message"].startswith("error: ")]
        assert "the models do not fit into the memory of cpu: 'preset' " in error and "'clone' " in error
    finally:
        server.close()


def test_all_engines_end_with_the_server(served: Served) -> None:
    """The last one: it ends the server of this file."""
    server, _ = served
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert server.terminate(60) == 0
    for child in children:
        eventually(lambda child=child: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    errors = [line["message"] for line in server.lines if line.get("level") == "error"]
    assert all("killed by SIGKILL" in error for error in errors), errors  # of the test above
