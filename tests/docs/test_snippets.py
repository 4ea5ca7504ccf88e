"""Every request on the pages that people paste: streams where it says so, and leaves files that state their length.

The engine is scripted: it stops in the middle of the speech until the program has received audio. A program that waits
for the whole file would wait for ever.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.conftest import ROOT, require_environment
from tests.docs.audio_files import seconds
from tests.docs.live_server import environment
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine
from tests.server.serving import eventually, serving

pytestmark = pytest.mark.slow

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What the scripted server lacks; tests of these features run them.
NEEDS = ('"voice": "me"', '"normalize"', '"word_timestamps"')
ENDPOINT = re.compile(r"127\.0\.0\.1:8000/v1(/audio/speech(/stream)?)?[\s\"]")
SAYS_IT_STREAMS = ("curl -N", "| aplay", "with_streaming_response", "connect(")
TEXT = re.compile(r'(?<="input": ")[^"]+|(?<=input=")[^"]+|(?<=\(")Hel(?=")')
LONG = "word " * 100
PAUSE_FRAMES = 300  # more than a file's buffer holds, less than the text has


@dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    code: str

    @property
    def streams(self) -> bool:
        return any(mark in self.code for mark in SAYS_IT_STREAMS)


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            commands = re.sub(r"\\\n\s*", "", block).splitlines() if language == "sh" else [block]
            found += [
                Snippet(page.name, language, one) for one in commands if ENDPOINT.search(one) and TEXT.search(one)
            ]
    return [one for one in found if not any(mark in one.code for mark in NEEDS)]


SNIPPETS = snippets()


def start(snippet: Snippet, url: str, folder: Path) -> subprocess.Popen[str]:
    code = TEXT.sub(LONG, snippet.code).replace("127.0.0.1:8000", url.removeprefix("http://"))
    python = sys.executable
    if "openai" in code:
        python = str(require_environment("clients", "the clients are") / "bin" / "python")
    command = ["bash", "-c", code.replace("| aplay", "")] if snippet.language == "sh" else [python, "-c", code]
    with open(folder / "stdout", "wb") as out:
        return subprocess.Popen(command, cwd=folder, env=environment(), stdout=out, stderr=subprocess.PIPE, text=True)


def received(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_pages_have_the_snippets_that_this_file_expects() -> None:
    pages = [one.page for one in SNIPPETS]
    assert pages.count("README.md") == 3 and pages.count("first_sound.md") == 2
    assert {"api.md", "live_text.md", "docker.md", "systemd.md", "ray.md", "long_texts.md"} <= set(pages)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: f"{one.page}-{one.code.split()[0]}")
def test_a_snippet_streams_if_it_says_so_and_leaves_a_true_file(snippet: Snippet, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.max_frames = PAUSE_FRAMES if snippet.streams else engine.max_frames
    config = ServerConfig(segment_chars=10_000, live_pause_s=3600)
    try:
        with serving(build_app(engine, CARD, config)) as url, start(snippet, url, tmp_path) as process:
            try:
                if snippet.streams:
                    eventually(lambda: received(tmp_path) > 100 or process.poll() is not None)
                    assert engine.status().slots_active == 1, "the speech was complete"
            finally:
                engine.max_frames = float("inf")
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors[-3000:]
    finally:
        engine.stop()
    (request,) = engine.submitted
    files = [path for path in tmp_path.iterdir() if path.suffix in {".wav", ".mp3", ".flac"}]
    assert len(files) == 1 or (tmp_path / "stdout").stat().st_size > 0
    for path in files:
        spoken = f"{LONG}lo there." if "connect(" in snippet.code else request.text
        assert abs(seconds(path) - len(spoken) * FRAME_SAMPLES / RATE_HZ) < 0.1
