"""Every example runs as it is, against one server on the demo voice."""

import contextlib
import functools
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_environment
from tests.docs.audio_files import seconds
from tests.docs.live_server import ROOT, demo_server, environment
from tests.server.browsing import chromium

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
# Stands for a loudspeaker: keeps the samples, in real time if PACED is set.
SOUNDDEVICE = """
import os, time

class RawOutputStream:
    def __init__(self, samplerate, channels, dtype):
        assert (samplerate, channels, dtype) == (24000, 1, "int16")
        self._file = open("loudspeaker.pcm", "ab")
    def write(self, pcm):
        self._file.write(pcm)
        self._file.flush()
        time.sleep(len(pcm) / 48000 if "PACED" in os.environ else 0)
    def __enter__(self): return self
    def __exit__(self, *_): self._file.close()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with demo_server(tmp_path_factory.mktemp("server"), "--set", "server.cors_origins=*") as url:
        yield url


def run(name: str, *arguments: str, folder: Path, clients: bool = False, **variables: str) -> str:
    """Returns standard output. `clients`: runs in the environment of third-party clients."""
    done = ended(name, *arguments, folder=folder, clients=clients, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def ended(
    name: str, *arguments: str, folder: Path, clients: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    python = str(require_environment("clients", "the clients are") / "bin" / "python") if clients else sys.executable
    return subprocess.run(
        [python, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_openai_sdk(server: str, tmp_path: Path) -> None:
    printed = run("openai_sdk.py", server, folder=tmp_path, clients=True)
    assert seconds(tmp_path / "hello.mp3") > 0.5 and seconds(tmp_path / "stream.mp3") > 1
    assert "seed 7" in printed and "BadRequestError" in printed and "did you mean 'wren'?" in printed


def test_the_elevenlabs_sdk(server: str, tmp_path: Path) -> None:
    printed = run("elevenlabs_sdk.py", server, folder=tmp_path, clients=True)
    assert seconds(tmp_path / "hello.mp3") > 0.5 and seconds(tmp_path / "stream.mp3") > 1
    assert "voices: wren, finch" in printed and "did you mean 'wren'?" in printed


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("pipecat_agent.py", "pipecat.wav"),
        ("livekit_agent.py", "livekit.wav"),
        ("livekit_baseten.py", "livekit.wav"),
        ("langchain_voice.py", "langchain.wav"),
    ],
)
def test_an_agent_speaks(server: str, tmp_path: Path, name: str, file: str) -> None:
    printed = run(name, server, folder=tmp_path, clients=True)
    assert seconds(tmp_path / file) > 0.8
    if name == "langchain_voice.py":
        assert "first audio after" in printed and f"langchain.wav: {seconds(tmp_path / file):.1f} s" in printed


def with_loudspeaker(folder: Path) -> dict[str, str]:
    (folder / "sounddevice.py").write_text(SOUNDDEVICE, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def test_the_loudspeaker(server: str, tmp_path: Path) -> None:
    run("loudspeaker.py", "Hello there.", server, folder=tmp_path, **with_loudspeaker(tmp_path))
    assert (tmp_path / "loudspeaker.pcm").stat().st_size > 0.5 * 48_000


def test_live_text_to_the_end(server: str, tmp_path: Path) -> None:
    # An interruption that never comes: the sleep outlasts the speech.
    run("live_text.py", server, "1000", folder=tmp_path, **with_loudspeaker(tmp_path))
    assert (tmp_path / "loudspeaker.pcm").stat().st_size > 3 * 48_000


def test_live_text_with_an_interruption(server: str, tmp_path: Path) -> None:
    printed = run("live_text.py", server, "0.5", folder=tmp_path, PACED="1", **with_loudspeaker(tmp_path))
    _, interrupted, played = printed.partition("interrupted; played were:")
    assert interrupted and "tired" not in played.splitlines()[0]  # the rest of the text may be printed after it
    assert (tmp_path / "loudspeaker.pcm").stat().st_size < 3 * 48_000


def without_loudspeaker(folder: Path) -> dict[str, str]:
    (folder / "sounddevice.py").write_text("raise OSError('PortAudio library not found')\n", encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def test_live_text_without_a_loudspeaker_plays_into_a_file_and_says_so(server: str, tmp_path: Path) -> None:
    printed = run("live_text.py", server, folder=tmp_path, **without_loudspeaker(tmp_path))
    assert "no loudspeaker (PortAudio library not found): the audio goes to live.wav" in printed
    assert "Once upon a time there was a bird. It sang all day and never tired." in printed
    said = re.search(r"played to the end: ([\d.]+) s", printed)
    assert said and float(said[1]) == pytest.approx(seconds(tmp_path / "live.wav"), abs=0.1) and float(said[1]) > 3


def test_live_text_without_a_loudspeaker_can_be_interrupted(server: str, tmp_path: Path) -> None:
    printed = run("live_text.py", server, "0.5", folder=tmp_path, **without_loudspeaker(tmp_path))
    assert "interrupted; played were:" in printed and "played to the end" not in printed
    assert seconds(tmp_path / "live.wav") < 3


@pytest.mark.parametrize("name", ["live_text.py", "langchain_voice.py"])
@pytest.mark.parametrize("path", [":9", "/nothing"])
def test_a_wrong_address_is_one_line(server: str, tmp_path: Path, name: str, path: str) -> None:
    url = f"http://127.0.0.1{path}" if path == ":9" else server + path
    done = ended(name, url, folder=tmp_path, clients=name == "langchain_voice.py")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"no speech from {url}: ") and "Is a server running there?" in done.stderr


def test_the_notebook(server: str, tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text(code, encoding="utf-8")
    printed = run(str(tmp_path / "notebook.py"), folder=tmp_path, OSCINE_URL=server)
    assert "seed 7" in printed and " ms, " in printed


@contextlib.contextmanager
def web_page() -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Quiet, directory=EXAMPLES)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{files.server_port}/browser.html"
        files.shutdown()


def test_the_browser_page(server: str) -> None:
    with chromium() as browser, web_page() as page_url:
        page = browser.new_page()
        page.goto(f"{page_url}?server={server}")
        # So many words that some of their frames are certainly no silence, which is trimmed.
        page.locator("#text").press_sequentially("Once upon a time there was a little ", delay=20)
        page.locator("#text").press_sequentially("bird.")
        page.wait_for_function("document.body.dataset.seconds > 0", timeout=600_000)
        page.locator("#end").click()
        page.wait_for_function("document.querySelector('#state').value === 'done'", timeout=600_000)
        assert page.evaluate("Number(document.body.dataset.seconds)") > 0.5


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.[ph][yt]*")), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    limit = 160 if path.name == "twilio_bridge.py" else 90  # it speaks two protocols
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit
