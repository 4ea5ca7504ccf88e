"""`oscine serve` in real processes with a small random checkpoint: speech, signals, failures, and no leftovers."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from benchmarks.server_process import START_S, Figures, ServerProcess
from oscine import Oscine
from oscine.audio.clips import pcm16
from tests.conftest import CheckpointMaker
from tests.event_stream import read_events
from tests.server.serving import eventually

pytestmark = pytest.mark.slow

Served = tuple[ServerProcess, httpx.Client]
SPEECH = "/v1/audio/speech"
TEXT = "Hello there, how are you?"
# The speech of random weights has no end. The long queue wait keeps a slow machine from refusing requests.
SETTINGS = """
[engine]
slots = 8
queue_wait_s = 600.0
runaway.enabled = false
memory.positions_per_slot = 1024
[worker]
backoff_s = 0.1
"""

# Imported by every Python at startup: reports the number of frozen objects at the first collection that skips any.
WATCHED_COLLECTIONS = """
import gc, os
def watch(phase, info):
    if frozen := gc.get_freeze_count():
        gc.callbacks.remove(watch)
        os.write(2, f"process {os.getpid()} froze {frozen}\\n".encode())
gc.callbacks.append(watch)
"""


@pytest.fixture(scope="module")
def model(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("0b6", "custom_voice", eos_gain=0.0)


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "sitecustomize.py").write_text(WATCHED_COLLECTIONS)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    server = ServerProcess(model, folder, settings=SETTINGS, environment={"PYTHONPATH": path})
    try:
        with httpx.Client(base_url=server.wait_ready(), timeout=600, trust_env=False) as client:
            yield server, client
    finally:
        server.close()


def frames(count: int) -> dict[str, Any]:
    return {"input": TEXT, "response_format": "pcm", "seed": 5, "max_new_tokens": count + 1, "trim_silence": False}


def test_speech_over_http_equals_the_python_api(served: Served, model: Path) -> None:
    answer = served[1].post(SPEECH, json=frames(12))
    assert answer.status_code == 200, answer.text
    received = np.frombuffer(answer.content, "<i2").astype(int)
    reference = Oscine(model, device="cpu", slots=1).speak(TEXT, seed=5, max_new_tokens=13)
    expected = pcm16(reference.audio).astype(int)
    assert len(received) == len(expected) == 12 * 1920
    assert np.abs(received - expected).max() <= 1
    assert answer.headers["x-seed"] == "5"


def test_all_response_forms_carry_the_same_audio(served: Served) -> None:
    _, client = served
    plain = client.post(SPEECH, json=frames(8)).content
    whole = client.post(SPEECH, json={**frames(8), "stream": False})
    assert whole.content == plain and whole.headers["x-finish-reason"] == "length"
    events = client.post(SPEECH, json={**frames(8), "stream_format": "sse"}).text
    sent = read_events(events)
    assert b"".join(base64.b64decode(event.get("audio", "")) for event in sent) == plain
    assert sent[-1]["usage"]["output_tokens"] == 8


def test_the_server_reports_its_state_and_its_model(served: Served, model: Path) -> None:
    server, client = served
    ready = server.log_line("ready")
    assert ready is not None and ready["model"] == model.name and ready["slots"] == 8
    assert any(line["message"].startswith("memory: ") for line in server.lines)
    state = {"ready": True, "state": "ready", "restarts": 0, "last_failure": None, "failed": []}
    assert client.get("/ready").json() == state
    assert client.get("/v1/models").json()["data"][0]["kind"] == "custom_voice"
    page = client.get("/metrics").text
    assert f'oscine_slots{{model="{model.name}"}} 8.0' in page and "oscine_memory_bytes" in page


def test_both_processes_freeze_their_heaps_after_startup(served: Served) -> None:
    """Otherwise a full collection would delay all streams by the time of a frame."""
    server, client = served

    def frozen_objects(pid: int) -> int:
        prefix = f"process {pid} froze "
        messages = [line["message"] for line in server.lines]
        return next((int(one[len(prefix) :]) for one in messages if one.startswith(prefix)), 0)

    def both_have_collected() -> bool:
        client.post(SPEECH, json=frames(2)).raise_for_status()
        return all(frozen_objects(pid) for pid in (server.process.pid, server.engine_pid))

    eventually(both_have_collected)
    assert frozen_objects(server.process.pid) > 50_000  # of 90,000
    assert frozen_objects(server.engine_pid) > 100_000  # of 190,000


def test_a_killed_engine_ends_its_streams_with_errors_and_restarts(served: Served) -> None:
    """Eight at once: how many run and how many wait depends on the speed of the machine."""
    server, client = served
    outcomes: list[str] = []
    running: set[int] = set()

    def listen(seed: int) -> None:
        form = {"stream_format": "sse"} if seed % 2 else {}
        with client.stream("POST", SPEECH, json={**frames(900), **form, "seed": seed}) as response:
            received = b""
            try:
                for piece in response.iter_bytes():
                    running.add(seed)
                    received += piece
            except httpx.RemoteProtocolError:
                outcomes.append("cut")
                return
            if response.status_code == 503:
                outcomes.append("refused: " + json.loads(received)["error"]["code"])
            else:
                outcomes.append("error event" if b"speech.audio.error" in received else "looks whole")

    listeners = [threading.Thread(target=listen, args=(seed,), daemon=True) for seed in range(8)]
    for listener in listeners:
        listener.start()
    eventually(lambda: running and engine_load(client) == 8)
    os.kill(server.engine_pid, signal.SIGKILL)
    eventually(lambda: client.get("/ready").status_code == 503)
    for listener in listeners:
        listener.join(600)
    assert len(outcomes) == 8 and set(outcomes) <= {"cut", "error event", "refused: engine_failed"}, outcomes
    assert {"cut", "error event"} & set(outcomes)
    eventually(lambda: client.get("/ready").status_code == 200)
    about = client.get("/ready").json()
    assert about["restarts"] == 1 and "SIGKILL" in about["last_failure"]
    assert Figures(client.get("/metrics").text)["oscine_engine_restarts_total"] == 1
    assert len(client.post(SPEECH, json=frames(4)).content) == 4 * 3840


def engine_load(client: httpx.Client) -> float:
    figures = Figures(client.get("/metrics").text)
    return figures["oscine_slots_active"] + figures["oscine_queue_depth"]


def test_a_term_signal_lets_streams_finish_and_leaves_no_process(served: Served) -> None:
    """Must run last: it stops the server of this module."""
    server, client = served
    with client.stream("POST", SPEECH, json=frames(40)) as response:
        pieces = response.iter_bytes()
        received = len(next(pieces))
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.log_line("stopping") is not None)
        with httpx.Client(base_url=client.base_url, trust_env=False, timeout=600) as another:
            refused = another.post(SPEECH, json=frames(4))
            assert refused.status_code == 503 and "shutting down" in refused.json()["error"]["message"]
        received += sum(map(len, pieces))
    assert received == 40 * 3840
    assert server.process.wait(600) == 0
    for child in children:
        eventually(lambda child=child: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_second_interrupt_ends_streams_at_once_without_a_traceback(tmp_path: Path, model: Path) -> None:
    server = ServerProcess(model, tmp_path, settings=SETTINGS)
    try:
        with httpx.stream(
            "POST", server.wait_ready() + SPEECH, json=frames(900), timeout=600, trust_env=False
        ) as response:
            pieces = response.iter_bytes()
            next(pieces)
            server.process.send_signal(signal.SIGINT)
            eventually(lambda: server.log_line("stopping") is not None)
            while server.process.poll() is None:
                server.process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            with pytest.raises(httpx.RemoteProtocolError):
                list(pieces)
        assert server.process.returncode == 0
    finally:
        server.close()
    assert not [line for line in server.lines if line.get("level") not in ("info", "warning") or "exception" in line]


def test_a_server_that_cannot_start_prints_one_clear_error(tmp_path: Path, model: Path) -> None:
    def run(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-c", "from oscine.commands.main import main; main()", "serve", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, " ".join(done.stderr.split())

    code, error = run("--model", str(tmp_path / "nothing"))
    assert code == 1 and error.startswith("error:") and "Traceback" not in error
    code, error = run("--set", "engine.slot=3")
    assert code == 1 and "did you mean 'engine.slots'?" in error
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, error = run("--model", str(model), "--port", str(taken.getsockname()[1]))
    assert code == 1 and "cannot listen on" in error


def test_settings_that_cannot_work_are_refused_before_weights_are_loaded(tmp_path: Path, model: Path) -> None:
    server = ServerProcess(model, tmp_path, "--set", "engine.memory.positions_per_slot=16", settings=SETTINGS)
    assert server.process.wait(START_S) == 1
    server.close()
    assert any("positions is needed, got 8 of 16" in line["message"] for line in server.lines), server.lines
