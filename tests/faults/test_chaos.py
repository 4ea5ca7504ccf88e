"""A day on which everything around the servers fails: `make chaos`. Nothing is lost, and words say what happened."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.certificates import self_signed
from tests.deploy.proxies import nginx
from tests.faults.test_front_end import EMBEDDING, ROOT, answers, free_port
from tests.server.reference_clip import CLIP_URL
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine, spoken
from tests.server.serving import eventually, serving

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

TEXT = "word " * 40
SAID = {"input": TEXT, "response_format": "pcm", "seed": 3}
NOBODY = 65534
Start = Callable[..., tuple[subprocess.Popen[bytes], str]]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(slots=32, frame_s=0.005)
    yield engine
    engine.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server in a process of its own; its log is the file `log` of the folder."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(
        *arguments: str, prefix: tuple[str, ...] = (), environment: dict[str, str] | None = None, port: int = 0
    ) -> tuple[subprocess.Popen[bytes], str]:
        port = port or free_port()
        command = [*prefix, sys.executable, *(one.replace("PORT", str(port)) for one in arguments)]
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, stderr=log, env={**os.environ, **(environment or {})})
        processes.append(process)
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: process.poll() is not None or answers(url))
        assert process.poll() is None, (tmp_path / "log").read_text()
        return process, url

    yield start_one
    for process in processes:
        process.kill()
        process.wait()


def scripted(folder: Path) -> tuple[str, ...]:
    return ("-m", "tests.faults.scripted_server", "PORT", str(folder))


def speak(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/speech", json={**SAID, **fields}, trust_env=False, timeout=600)


def upload(url: str, name: str = "anna") -> httpx.Response:
    fields: Any = {**EMBEDDING, "name": (None, name)}
    return httpx.post(f"{url}/v1/audio/voices", files=fields, trust_env=False, timeout=600)


def message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


def test_a_slow_disk_delays_voices_and_no_speech(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.5)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    config = ServerConfig(voices_dir=str(tmp_path))
    with serving(build_app(engine, BASE_CARD, config)) as url, ThreadPoolExecutor(16) as threads:
        assert upload(url, "first").status_code == 200
        uploads = [threads.submit(upload, url, f"voice{number}") for number in range(16)]
        eventually(lambda: len(list(tmp_path.glob(".*.part"))) > 0)
        spoken_now = speak(url, voice="first")
        assert spoken_now.status_code == 200 and len(spoken_now.content) == len(spoken(TEXT, 3))
        assert not all(one.done() for one in uploads), "speech waited for all uploads"
        assert {one.result().status_code for one in uploads} == {200}
    assert len(list(tmp_path.glob("voice*.safetensors"))) == 16 and not list(tmp_path.glob(".*.part"))


def test_slow_name_servers_delay_nothing_but_their_clips(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, free = socket.getaddrinfo, threading.Event()

    def slow(host: str, *rest: Any, **more: Any) -> Any:
        if host == "slow.example":
            free.wait(600)
            raise socket.gaierror(socket.EAI_AGAIN, "the name server did not answer")
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with serving(build_app(engine, BASE_CARD, ServerConfig(ref_urls=True))) as url, ThreadPoolExecutor(40) as threads:
        waiting = [threads.submit(speak, url, ref_audio="http://slow.example/a.wav") for _ in range(40)]
        assert speak(url, ref_audio=CLIP_URL).status_code == 200
        assert httpx.get(f"{url}/health", trust_env=False, timeout=600).status_code == 200
        refused = [one.result() for one in waiting]  # by their time limit, not by the name server
        free.set()
        assert {one.status_code for one in refused} == {400}
        assert all("was not fetched within 10 s; send the clip itself" in message(one) for one in refused)


def needs(is_met: object, what: str) -> None:
    """Skips the test if it cannot run; with OSCINE_PROGRAMS=required set, it fails."""
    if not is_met:
        (pytest.fail if os.environ.get("OSCINE_PROGRAMS") == "required" else pytest.skip)(f"needs {what}")


def test_folders_without_rights_are_named_and_speech_goes_on(start: Start, tmp_path: Path) -> None:
    needs(os.getuid() == 0 and shutil.which("setpriv"), "root and setpriv, to start a server as nobody")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    (tmp_path / "voices").mkdir()
    os.chown(tmp_path / "voices", NOBODY, NOBODY)
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    process, url = start(*scripted(tmp_path), prefix=as_nobody, environment={"HOME": "/nonexistent"})
    assert upload(url).status_code == 200
    (tmp_path / "voices").chmod(0o555)
    refused = upload(url, "berta")
    assert refused.status_code == 500 and "cannot store voice 'berta' because of a disk error" in message(refused)
    eventually(lambda: "Permission denied" in (tmp_path / "log").read_text())  # a thread writes it
    assert speak(url, voice="anna").status_code == 200
    (tmp_path / "voices").chmod(0o755)
    assert upload(url, "berta").status_code == 200
    process.terminate()
    assert process.wait(600) == 0


def test_an_engine_starts_again_although_the_temporary_folder_is_full(start: Start, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)]
    needs(os.getuid() == 0 and not subprocess.run(mount).returncode, "the right to mount a small file system")
    try:
        options = ("serve", "--port", "PORT", "--model", "demo", "--slots", "2", "--set", "worker.backoff_s=0.1")
        process, url = start("-m", "oscine", *options, environment={"TMPDIR": str(full)})
        eventually(lambda: httpx.get(f"{url}/ready", trust_env=False, timeout=600).status_code == 200)
        said = speak(url, input="Hello.")
        assert said.status_code == 200
        with contextlib.suppress(OSError), (full / "filled").open("wb") as file:
            file.write(bytes(2**20))
        os.kill(_worker_of(process.pid), signal.SIGKILL)
        eventually(lambda: httpx.get(f"{url}/ready", trust_env=False, timeout=600).json().get("restarts") == 1)
        eventually(lambda: httpx.get(f"{url}/ready", trust_env=False, timeout=600).status_code == 200)
        assert speak(url, input="Hello.").content == said.content
        process.terminate()
        assert process.wait(600) == 0
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_two_servers_share_a_folder_of_voices(start: Start, tmp_path: Path) -> None:
    urls = [start(*scripted(tmp_path))[1] for _ in range(2)]
    with ThreadPoolExecutor(16) as threads:
        # The same names at both, at once: each name is one whole voice, and nobody is told of a bug.
        uploads = [threads.submit(upload, urls[number % 2], f"voice{number // 2}") for number in range(40)]
        assert {one.result().status_code for one in uploads} <= {200, 409}
    for url in urls:
        shown = httpx.get(f"{url}/v1/audio/voices", trust_env=False, timeout=600).json()["uploaded_voices"]
        assert sorted(voice["name"] for voice in shown) == sorted(f"voice{number}" for number in range(20))
        assert speak(url, voice="voice7").status_code == 200
    assert httpx.delete(f"{urls[0]}/v1/audio/voices/voice7", trust_env=False, timeout=600).status_code == 200
    gone = speak(urls[1], voice="voice7")
    assert gone.status_code in (400, 404) and "voice7" in message(gone)


def test_a_rolling_update_behind_nginx_loses_no_speech(tmp_path: Path, start: Start) -> None:
    servers = [start(*scripted(tmp_path)) for _ in range(2)]
    assert upload(servers[0][1]).status_code == 200
    body = {**SAID, "voice": "anna"}
    whole = len(spoken(TEXT, 3))
    heard: list[tuple[int, int]] = []
    stop = threading.Event()

    def listen(client: httpx.Client) -> None:
        while not stop.is_set():
            answer = client.post("/v1/audio/speech", json=body)
            heard.append((answer.status_code, len(answer.content)))

    (tmp_path / "nginx").mkdir()
    with (
        nginx([url for _, url in servers], self_signed(tmp_path), tmp_path / "nginx") as proxy,
        proxy.client() as client,
        ThreadPoolExecutor(4) as threads,
    ):
        listening = [threads.submit(listen, client) for _ in range(4)]
        for number in (0, 1):
            count = len(heard)
            eventually(lambda count=count: len(heard) >= count + 8)  # type: ignore[misc]
            process, url = servers[number]
            process.terminate()
            assert process.wait(600) == 0
            servers[number] = start(*scripted(tmp_path), port=httpx.URL(url).port)
        count = len(heard)
        eventually(lambda: len(heard) >= count + 8)
        stop.set()
        for one in listening:
            one.result()
    assert set(heard) == {(200, whole)}


def _worker_of(pid: int) -> int:
    """The child that is a worker: the one that has torch."""
    lists = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    pages = {int(child): int(Path(f"/proc/{child}/statm").read_text().split()[1]) for one in lists for child in one}
    return max(pages, key=lambda child: pages[child])
