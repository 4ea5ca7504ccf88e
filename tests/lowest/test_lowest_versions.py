"""The lowest versions of the requirements speak, stream and clone. All other tests run with the newest ones."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import ROOT, CheckpointMaker, require_environment
from tests.corpora.clips import CLIPS
from tests.server.serving import eventually
from tests.websocket import connect

pytestmark = pytest.mark.slow

SHORT = {"input": "hello", "voice": "wav", "max_new_tokens": 4}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OSCINE_"))}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def oscine() -> list[str]:
    return [str(require_environment("lowest", "the lowest versions are") / "bin" / "python"), "-m", "oscine"]


@pytest.fixture(scope="module")
def client(
    oscine: list[str], small_checkpoints: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    log = tmp_path_factory.mktemp("lowest") / "log"
    command = [*oscine, "serve", str(small_checkpoints("0b6", "base")), "--port", "0", "--log-format", "json"]
    with log.open("w") as output, subprocess.Popen(command, env=environment(), stdout=output, stderr=output) as server:
        try:
            port = served_port(server, log)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as client:
                eventually(lambda: client.get("/ready").status_code == 200)
                upload = {"data": {"name": "wav", "consent": "mine"}, "files": {"audio_sample": CLIPS["wav"].make()}}
                answer = client.post("/v1/audio/voices", **upload)
                assert answer.status_code == 200, answer.text + log.read_text()
                yield client
        finally:
            server.terminate()
        assert server.wait(600) == 0, log.read_text()


def served_port(server: subprocess.Popen[bytes], log: Path) -> int:
    """Reads the port from the sockets of the process: port 0 takes any free one."""

    def ports() -> list[int]:
        assert server.poll() is None, log.read_text()
        return [one.laddr.port for one in psutil.Process(server.pid).net_connections("tcp") if one.status == "LISTEN"]

    eventually(lambda: bool(ports()))
    return ports()[0]


def test_the_command_speaks(oscine: list[str], tmp_path: Path) -> None:
    command = [*oscine, "say", "Hello there.", "-o", str(tmp_path / "x.wav")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.wav").stat().st_size > 10_000


@pytest.mark.parametrize("clip", ["m4a", "webm", "7.1 m4a"])
def test_a_clip_is_uploaded_or_refused(client: httpx.Client, clip: str) -> None:
    form = {"name": clip.replace(" ", "-").replace(".", ""), "consent": "mine"}
    answer = client.post("/v1/audio/voices", data=form, files={"audio_sample": CLIPS[clip].make()})
    assert answer.status_code == (400 if CLIPS[clip].refusal else 200), answer.text


@pytest.mark.parametrize("form", ["mp3", "wav", "pcm", "opus", "aac", "flac"])
def test_every_format_is_streamed(client: httpx.Client, form: str) -> None:
    answer = client.post("/v1/audio/speech", json={**SHORT, "response_format": form})
    assert answer.status_code == 200 and len(answer.content) > 500, answer.text[:300]


@pytest.mark.parametrize("path", ["/openapi.json", "/metrics", "/v1/audio/voices", "/v1/models", "/docs", "/"])
def test_every_page_answers(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200


def test_a_wrong_field_is_named_or_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/audio/speech", json={**SHORT, "vioce": "x"})
    assert answer.status_code == 200 and "did you mean 'voice'" in answer.headers["x-warning"]
    answer = client.post("/v1/audio/speech", json={**SHORT, "speed": 9})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "speed"


def test_a_text_is_spoken_over_a_websocket(client: httpx.Client) -> None:
    url = f"ws://127.0.0.1:{client.base_url.port}/v1/audio/speech/stream"
    with connect(url, proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", "voice": "wav", "max_new_tokens": 4}))
        for message in ({"type": "input.text", "text": "hello"}, {"type": "input.done"}):
            socket.send(json.dumps(message))
        kinds = []
        while "session.done" not in kinds:
            received = socket.recv(timeout=600)
            kinds.append("sound" if isinstance(received, bytes) else json.loads(received)["type"])
    assert "sound" in kinds and "error" not in kinds, kinds
