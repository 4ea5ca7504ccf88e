"""Every shell line and every Python block of the README runs as it is written, against one server on the demo voice."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oscine import __version__
from oscine.audio.clips import write_wav
from readme_figures import PAGES, RESULTS, blocks, filled, memory
from tests.conftest import CheckpointMaker, require_environment
from tests.docs.audio_files import seconds
from tests.docs.live_server import ROOT, demo_server, environment

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
# Lines that need another machine, and the reason.
SKIPPED = {
    "git clone": "needs a copy elsewhere",
    "make ": "installs",
    "docker ": "needs Docker",
    "Qwen/": "needs the hub",
    "--play": "needs a loudspeaker",
    "bench search": "takes minutes; tests/oscine_bench/test_command.py runs it",
}
SHELL = [
    line
    for language, block in BLOCKS
    if language == "sh"
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip() and not any(mark in line for mark in SKIPPED)
]
PYTHON = [block for language, block in BLOCKS if language == "python"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with demo_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def workplace(tmp_path: Path, small_checkpoints: CheckpointMaker) -> Path:
    """A folder with the files that the examples read, and a player that saves what it gets."""
    (tmp_path / "chapter.txt").write_text("One sentence. And another one.\n", encoding="utf-8")
    noise = np.random.default_rng(0).normal(0, 0.1, 48_000).astype(np.float32)
    write_wav(tmp_path / "me.wav", noise, 24_000)
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "Qwen3-TTS-12Hz-1.7B-Base").symlink_to(small_checkpoints("1b7", "base"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aplay").write_text(f"#!/bin/sh\ncat > {tmp_path}/played.wav\n", encoding="utf-8")
    (tmp_path / "bin" / "aplay").chmod(0o755)
    return tmp_path


def run(command: list[str], workplace: Path) -> None:
    path = os.pathsep.join([str(workplace / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=workplace, env={**environment(), "PATH": path}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]


def here(text: str, server: str) -> str:
    return text.replace("127.0.0.1:8000", server.removeprefix("http://"))


def test_the_readme_has_the_blocks_that_this_file_expects() -> None:
    assert len(SHELL) >= 4 and len(PYTHON) >= 4


@pytest.mark.parametrize("line", SHELL, ids=lambda line: " ".join(line.split()[:2]))
def test_a_shell_line_runs(line: str, server: str, workplace: Path) -> None:
    # A busy CPU refuses 32 callers; the line is right nevertheless.
    quick = here(line, server).replace("-c 1,8,32 -n 40", "-c 1 -n 2")
    run(["bash", "-o", "pipefail", "-c", quick], workplace)
    if "| aplay" in line:
        assert (workplace / "played.wav").read_bytes()[:4] == b"RIFF"
    for name in re.findall(r"-o ([\w.]+\.\w+)", line):
        assert 0.1 < seconds(workplace / name) < 10, name


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.split("\n")[0])
def test_a_python_block_runs(block: str, server: str, workplace: Path) -> None:
    python = sys.executable
    if "openai" in block:
        python = str(require_environment("clients", "the clients are") / "bin" / "python")
    run([python, "-c", here(block, server)], workplace)
    for name in re.findall(r'"([\w.]+\.(?:wav|mp3))"', block):
        assert 0.1 < seconds(workplace / name) < 30, name  # the clone has random weights, and no seed
    for name in re.findall(r'"([\w.]+\.safetensors)"', block):
        assert (workplace / name).stat().st_size > 500, name


def test_the_first_screen_installs_tests_and_streams() -> None:
    first = README.splitlines()[:30]
    for part in ("git clone", "make serve", "make test", "curl -N", '"stream": true', "http://127.0.0.1:8000>"):
        assert any(part in line for line in first), part


def test_the_version_and_its_state_are_those_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, state = re.findall(r"^## ([\d.]+) \((.+)\)$", changelog, re.MULTILINE)[0]
    assert version == __version__ and f"**Status:** {version}, {state}" in README


@pytest.mark.parametrize("target", ["CHANGELOG.md", "LICENSE", "CONTRIBUTING.md", "SECURITY.md", "docs/index.md"])
def test_a_newcomer_finds(target: str) -> None:
    assert f"]({target})" in README


# Clients that need nothing but a URL and a key: the name in a sentence, and that in the table of the integrations page.
UNCHANGED = {
    "OpenAI's Python SDK": "OpenAI SDK",
    "npm package": "OpenAI's npm package",
    "Vercel's AI SDK": "Vercel's AI SDK",
    "LiteLLM": "LiteLLM",
    "Pipecat": "Pipecat",
    "LiveKit's OpenAI plug-in": "LiveKit Agents, OpenAI plug-in",
    "ElevenLabs' SDK": "ElevenLabs' SDK",
}


def test_a_page_that_says_works_unchanged_names_the_tested_clients_that_need_only_a_url() -> None:
    claims = []
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")):
        text = " ".join(page.read_text(encoding="utf-8").split())
        claims += re.findall(r"[^.]*\bworks? unchanged\b", text.replace(f"{chr(96) * 3}", "."))
    assert len(claims) == 2  # README.md and docs/api.md
    for claim in claims:
        named = re.split(r", | and ", re.sub(r"^.*?(?=OpenAI's)| work unchanged$", "", claim))
        assert named == [*UNCHANGED]


def test_a_client_that_works_unchanged_was_run_and_needs_only_a_url() -> None:
    rows = (ROOT / "docs/guides/integrations.md").read_text(encoding="utf-8").split("## What is tested")[0].splitlines()
    for name in UNCHANGED.values():
        (row,) = (row for row in rows if row.startswith((f"| {name} |", f"| {name},")))
        _, _, how, run, _ = row.split("|")
        call = re.match(r" `([^`]+)`", how)
        assert run.strip() == "yes" and call and re.search(r"base_?url|api_base", call[1], re.IGNORECASE), row
        assert not re.search(r"--set|pip install|path of its own", how), row


def test_the_figures_are_those_of_the_results() -> None:
    pytest.importorskip("triton")
    result = memory()
    stored = json.loads((RESULTS / "memory.json").read_text(encoding="utf-8"))
    assert stored == result, "run `python tools/readme_figures.py`"
    made = blocks(result)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert filled(text, made) == text, "run `python tools/readme_figures.py`"
