"""`oscine serve --tls-cert --tls-key`: HTTPS and WSS with a self-signed certificate, over loopback."""

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.server_process import ServerProcess
from tests.certificates import Certificate, self_signed
from tests.conftest import ROOT, CheckpointMaker
from tests.websocket import connect

pytestmark = pytest.mark.slow

SETTINGS = "[engine]\nslots = 2\nqueue_wait_s = 600.0\nrunaway.enabled = false\nmemory.positions_per_slot = 1024\n"
FRAMES = {"response_format": "pcm", "seed": 5, "max_new_tokens": 9, "trim_silence": False}
FRAME_BYTES = 3840


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def url(
    small_checkpoints: CheckpointMaker, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    model: Path = small_checkpoints("0b6", "custom_voice", eos_gain=0.0)
    options = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key))
    server = ServerProcess(model, tmp_path_factory.mktemp("serve"), *options, settings=SETTINGS)
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture
def trust(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.cert))


def test_the_address_in_the_log_is_https(url: str) -> None:
    assert url.startswith("https://127.0.0.1:")


def test_speech_streams_over_https(url: str, trust: ssl.SSLContext) -> None:
    with httpx.Client(base_url=url, verify=trust, timeout=600, trust_env=False) as client:
        answer = client.post("/v1/audio/speech", json={"input": "Hello.", **FRAMES})
        assert answer.status_code == 200 and len(answer.content) == 8 * FRAME_BYTES
        assert client.get("/ready").json()["ready"]


def test_a_live_session_runs_over_wss(url: str, trust: ssl.SSLContext) -> None:
    address = url.replace("https", "wss", 1) + "/v1/audio/speech/stream"
    with connect(address, ssl=trust, proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", **FRAMES}))
        socket.send(json.dumps({"type": "input.text", "text": "Hello there."}))
        socket.send(json.dumps({"type": "session.close"}))
        audio = [message for message in socket if isinstance(message, bytes)]
    assert sum(map(len, audio)) == 8 * FRAME_BYTES


def test_the_containers_health_check_asks_over_https(url: str, certificate: Certificate) -> None:
    variables = {"PORT": url.rpartition(":")[2], "TLS_CERT": str(certificate.cert)}
    environment = {**os.environ, **{f"OSCINE_SERVE_SERVER__{name}": value for name, value in variables.items()}}
    subprocess.run([sys.executable, ROOT / "deploy" / "docker" / "healthcheck.py"], env=environment, check=True)


def test_clients_that_do_not_trust_it_or_speak_plain_http_get_nothing(url: str) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(url, trust_env=False, timeout=600)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(url.replace("https", "http", 1), trust_env=False, timeout=600)


def test_bad_files_end_the_start_with_one_clear_line(tmp_path: Path, certificate: Certificate) -> None:
    def told(*options: str) -> str:
        command = [sys.executable, "-c", "from oscine.commands.main import main; main()", "serve", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    other = self_signed(tmp_path, "other")
    refused = told("--tls-cert", str(certificate.cert), "--tls-key", str(other.key))
    assert refused.startswith("error: server.tls_cert: the key in") and "does not belong" in refused
    assert told("--tls-key", str(other.key)) == (
        "error: server.tls_key needs a certificate; name it with tls_cert (--tls-cert)"
    )
