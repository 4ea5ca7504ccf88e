"""Every request on the pages that people paste, in curl, Python and JavaScript: streams where it says so, and leaves
files that state their length.

The engine is scripted: it stops in the middle of the speech until the program has received audio. A program that waits
for the whole file would wait for ever.
"""

import base64
import contextlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from oscine.audio.clips import write_wav
from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.types import ModelCard
from oscine.voice import Voice
from tests.conftest import ROOT, require_environment, require_program
from tests.docs.audio_files import seconds
from tests.docs.live_server import environment
from tests.server.reference_clip import CLIP
from tests.server.scripted_engine import BASE_CARD, CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually, serving

pytestmark = pytest.mark.slow

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What the scripted server lacks; tests of these features run them.
NEEDS = ('"normalize"', '"word_timestamps"')
CLONED = '"voice": "me"'  # the server gets it first
ENDPOINT = re.compile(r"127\.0\.0\.1:8000/v1(/audio/speech(/stream)?)?[\s\"]")
SAYS_IT_STREAMS = (
    "curl -N",
    "| aplay",
    "with_streaming_response",
    "connect(",
    '"stream": True',
    "stream: true",
    '"sse"',
)
SAYS_IT_STREAMS += (LIVE := ("connect(", "new WebSocket("))
TEXT = re.compile(r'(?<=input": ")[^"]+|(?<=input: ")[^"]+|(?<=input=")[^"]+|(?<=[(\[]")Hel(?=")')
LANGUAGES = {"sh": "curl", "python": "Python", "js": "JavaScript"}
OTHER_FENCES = {"", "json", "toml", "yaml", "ini", "text"}  # nothing to run
FENCED = re.compile(r'^```(sh|python|js)(?: title="[^"]+")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
LONG = "word " * 100
PAUSE_FRAMES = 300  # more than a file's buffer holds, less than the text has


@dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    code: str

    @property
    def speaks(self) -> bool:
        return bool(ENDPOINT.search(self.code) and TEXT.search(self.code))

    @property
    def streams(self) -> bool:
        return any(mark in self.code for mark in SAYS_IT_STREAMS)

    @property
    def name(self) -> str:
        return f"{self.page}-{LANGUAGES[self.language]}"


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        for language, block in FENCED.findall(page.read_text("utf-8")):
            commands = re.sub(r"\\\n\s*", "", block).splitlines() if language == "sh" else [block]
            found += [Snippet(page.name, language, one) for one in commands]
    return found


ALL = snippets()
SNIPPETS = [one for one in ALL if one.speaks and not any(mark in one.code for mark in NEEDS)]
UPLOADS = [one for one in ALL if "8000/v1/audio/voices" in one.code and "me.wav" in one.code]
BATCHES = [one for one in ALL if "8000/v1/audio/speech/batch" in one.code]
DIALOGUES = [one for one in ALL if one.page == "dialogue.md" and '"text": "' in one.code]


def start(snippet: Snippet, url: str, folder: Path) -> subprocess.Popen[str]:
    code = snippet.code.replace("127.0.0.1:8000", url.removeprefix("http://"))
    python = sys.executable
    if "openai" in code:
        python = str(require_environment("clients", "the clients are") / "bin" / "python")
    if snippet.language == "js":  # Node 20 has WebSocket behind this flag
        node = require_program("node", "nodejs")
        command = [node, "--experimental-websocket", "--input-type=module", "--eval", code]
    else:
        command = ["bash", "-c", code.replace("| aplay", "")] if snippet.language == "sh" else [python, "-c", code]
    with open(folder / "stdout", "wb") as out:
        return subprocess.Popen(command, cwd=folder, env=environment(), stdout=out, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]


@contextlib.contextmanager
def scripted(card: ModelCard, max_frames: float = math.inf) -> Iterator[tuple[ScriptedEngine, str]]:
    """The engine, and the URL of its server."""
    engine = ScriptedEngine(max_frames=max_frames)
    try:
        config = ServerConfig(segment_chars=10_000, live_pause_s=3600, phrase_cache_bytes=2**26)
        with serving(build_app(engine, card, config)) as url:
            yield engine, url
    finally:
        engine.stop()


def received(snippet: Snippet, folder: Path) -> int:
    """Bytes of audio: in the file that the snippet names, else on its standard output."""
    to_file = bool(re.search(r"\.(wav|mp3|ulaw)\b", snippet.code))
    return sum(path.stat().st_size for path in folder.iterdir() if (path.name != "stdout") == to_file)


def test_the_pages_have_the_snippets_that_this_file_expects() -> None:
    pages = [one.page for one in SNIPPETS]
    assert pages.count("README.md") == 3 and pages.count("first_sound.md") == 2
    assert {"api.md", "live_text.md", "docker.md", "systemd.md", "ray.md", "long_texts.md", "telephony.md"} <= set(
        pages
    )
    assert {"keys.md", "phrases.md", "cloning.md"} <= set(pages)
    api = [one.language for one in (*SNIPPETS, *UPLOADS, *BATCHES) if one.page == "api.md"]
    assert len(DIALOGUES) == 2
    assert {language: api.count(language) for language in LANGUAGES} == {"sh": 5, "python": 6, "js": 6}


def test_every_fence_says_what_it_holds() -> None:
    """A block of another language would not be run."""
    for page in PAGES:
        opened = re.findall(r"^```(.*)", page.read_text("utf-8"), re.MULTILINE)[::2]
        assert {one.split(" ")[0] for one in opened} <= {*LANGUAGES, *OTHER_FENCES}, page.name


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_a_snippet_streams_if_it_says_so_and_leaves_a_true_file(snippet: Snippet, tmp_path: Path) -> None:
    longer = replace(snippet, code=TEXT.sub(LONG, snippet.code))
    cloned = CLONED in snippet.code
    with contextlib.ExitStack() as stack:
        card = BASE_CARD if cloned else CARD
        engine, url = stack.enter_context(scripted(card, PAUSE_FRAMES if snippet.streams else math.inf))
        if cloned:
            fields = {"name": "me", "consent": "yes"}
            httpx.post(f"{url}/v1/audio/voices", data=fields, files={"audio_sample": CLIP}, trust_env=False)
        process = stack.enter_context(start(longer, url, tmp_path))
        try:
            if snippet.streams:
                eventually(lambda: received(snippet, tmp_path) > 100 or process.poll() is not None)
                assert engine.status().slots_active == 1, "the speech was complete"
        finally:
            engine.max_frames = math.inf
        finish(process)
    (request,) = engine.requests
    files = [path for path in tmp_path.iterdir() if path.suffix in {".wav", ".mp3", ".flac", ".ulaw"}]
    assert len(files) == 1 or (tmp_path / "stdout").stat().st_size > 0
    for path in files:
        text = f"{LONG}lo there." if any(mark in snippet.code for mark in LIVE) else request.text
        held_s = path.stat().st_size / 8000 if path.suffix == ".ulaw" else seconds(path)
        assert abs(held_s - len(text) * FRAME_SAMPLES / RATE_HZ) < 0.1


def test_a_phrase_that_is_said_again_comes_from_the_cache(tmp_path: Path) -> None:
    (snippet,) = (one for one in SNIPPETS if one.page == "phrases.md")
    with scripted(CARD) as (_, url):
        for state in ("miss", "hit"):
            finish(process := start(snippet, url, tmp_path))
            assert f"x-cache: {state}" in (tmp_path / "stdout").read_text("utf-8"), process.args


@pytest.mark.parametrize("snippet", DIALOGUES, ids=lambda one: one.name)
def test_a_dialogue_is_spoken_turn_by_turn(snippet: Snippet, tmp_path: Path) -> None:
    with scripted(CARD) as (engine, url), start(snippet, url, tmp_path) as process:
        finish(process)
    turns = re.findall(r'"voice": "(\w+)", "text": "([^"]+)"', snippet.code)
    assert [(one.voice, one.text) for one in engine.requests] == turns and len(turns) > 1
    (path,) = (path for path in tmp_path.iterdir() if path.name != "stdout")
    frames = sum(len(text) for _, text in turns)
    assert abs(seconds(path) - frames * FRAME_SAMPLES / RATE_HZ - 0.3) < 0.1


@pytest.mark.parametrize("snippet", BATCHES, ids=lambda one: one.name)
def test_a_batch_is_spoken(snippet: Snippet, tmp_path: Path) -> None:
    with scripted(CARD) as (_, url), start(snippet, url, tmp_path) as process:
        finish(process)
    if snippet.language == "sh":
        for result in json.loads((tmp_path / "batch.json").read_text("utf-8"))["results"]:
            (tmp_path / f"{result['index']}.mp3").write_bytes(base64.b64decode(result["audio_data"]))
    for index, text in enumerate(TEXT.findall(snippet.code)):
        assert abs(seconds(tmp_path / f"{index}.mp3") - len(text) * FRAME_SAMPLES / RATE_HZ) < 0.1


@pytest.mark.parametrize("snippet", UPLOADS, ids=lambda one: one.name)
def test_an_uploaded_voice_speaks(snippet: Snippet, tmp_path: Path) -> None:
    write_wav(tmp_path / "me.wav", np.random.default_rng(0).normal(0, 0.1, 48_000).astype(np.float32), 24_000)
    with scripted(BASE_CARD) as (engine, url):
        with start(snippet, url, tmp_path) as process:
            finish(process)
        fields = {"input": "Now in my voice.", "voice": "me", "response_format": "pcm"}
        answer = httpx.post(f"{url}/v1/audio/speech", json=fields, timeout=600, trust_env=False)
    (request,) = engine.requests
    assert isinstance(request.voice, Voice) and request.voice.transcript == "The words that I say in it."
    assert answer.content == spoken(request.text, request.seed or 0, request.voice)
