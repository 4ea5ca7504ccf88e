"""Faults of the machine around a front end: no descriptors, a log that nobody reads, closed streams, kill -9."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.serving import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START_S = 600.0
EMBEDDING = {"name": (None, "anna"), "consent": (None, "yes"), "speaker_embedding": (None, json.dumps([0.5] * 8))}
Start = Callable[..., tuple[subprocess.Popen[bytes], str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(port: int | None = None, files: int = 0, redirect: str = "") -> tuple[subprocess.Popen[bytes], str]:
        port = port or free_port()
        command = f'exec "$0" -m tests.faults.scripted_server {port} "$1" {files} {redirect}'
        arguments = ["sh", "-c", command, sys.executable, str(tmp_path)]
        process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE)
        processes.append(process)
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: process.poll() is not None or answers(url))
        assert process.poll() is None, process.stderr and process.stderr.read()
        return process, url

    yield start_one
    for process in processes:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", trust_env=False, timeout=600).status_code == 200
    return False


def speaks(url: str) -> bool:
    body = {"input": "Hello.", "response_format": "pcm"}
    with contextlib.suppress(httpx.TransportError):
        # A Base checkpoint needs a voice.
        answer = httpx.post(f"{url}/v1/audio/speech", json={**body, "voice": "anna"}, trust_env=False, timeout=600)
        return answer.status_code == 200 and bool(answer.content)
    return False


def upload(url: str) -> int:
    return httpx.post(f"{url}/v1/audio/voices", files=EMBEDDING, trust_env=False, timeout=600).status_code


def test_without_free_descriptors_clients_wait_and_are_served_later(start: Start) -> None:
    """EMFILE in accept and in every file that is opened."""
    process, url = start(files=64)
    assert upload(url) == 200 and speaks(url)
    held = []
    with contextlib.suppress(OSError):
        for _ in range(100):
            held.append(socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), timeout=600))
    assert len(held) > 50 and process.poll() is None
    for one in held:
        one.close()
    eventually(lambda: speaks(url))
    process.terminate()
    assert process.wait(START_S) == 0


def test_a_log_that_nobody_reads_stops_no_speech(start: Start) -> None:
    process, url = start()  # nobody reads its standard error
    assert upload(url) == 200
    with httpx.Client(base_url=url, trust_env=False, timeout=600) as client:
        for _ in range(500):  # a pipe holds 64 KiB; a line has more than 150 bytes
            assert client.get("/v1/models").status_code == 200
        assert speaks(url)
    process.terminate()
    assert process.wait(START_S) == 0


def test_uploads_of_wrong_bytes_cannot_fill_the_log(start: Start) -> None:
    """The parser of forms warns of each; Python would write that to standard error at once, and wait for its reader."""
    process, url = start()
    broken = b"--x\r\ncontent-\x01: form-data\r\n\r\n"
    headers = {"content-type": "multipart/form-data; boundary=x", "connection": "close"}
    voices = f"{url}/v1/audio/voices"
    for _ in range(3):
        assert httpx.post(voices, content=broken, headers=headers, trust_env=False, timeout=600).status_code == 400
    process.terminate()
    assert process.wait(START_S) == 0
    assert process.stderr is not None and b"invalid character" not in process.stderr.read()


def test_a_server_without_standard_streams_serves_and_ends_cleanly(start: Start) -> None:
    """libuv ends a process that closes a socket with the number of one of them."""
    process, url = start(redirect="<&- >&- 2>&-")
    assert upload(url) == 200 and speaks(url)
    process.terminate()
    assert process.wait(START_S) == 0


def test_a_killed_server_starts_again_on_the_same_port_with_its_voices(start: Start, tmp_path: Path) -> None:
    process, url = start()
    assert upload(url) == 200
    body = {"input": "word " * 1000, "voice": "anna", "response_format": "pcm"}
    with (
        httpx.Client(trust_env=False, timeout=600) as client,
        client.stream("POST", f"{url}/v1/audio/speech", json=body) as running,
    ):
        pieces = running.iter_raw()
        next(pieces)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):  # the client sees that it is incomplete
            list(pieces)
    stale = tmp_path / "voices" / ".berta.0123abcd.part"  # of an upload that the kill interrupted
    stale.write_bytes(b"half")
    os.utime(stale, (0, 0))
    again, same = start(port=httpx.URL(url).port)
    assert same == url and speaks(url) and not stale.exists()
    assert again.poll() is None
