"""find_checkpoint finds the bundled demo, a folder, or a hub id in the local cache; anything else is a clear error."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oscine import Oscine
from oscine.errors import CheckpointError
from oscine.model import checkpoint
from oscine.model.checkpoint import find_checkpoint
from tests.conftest import ROOT, CheckpointMaker
from tests.variants import linked


def refusal(model: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_used_directly(
    small_checkpoints: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = linked(small_checkpoints("0b6", "custom_voice"), tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_checkpoint(folder) == find_checkpoint(str(folder)) == folder
    assert find_checkpoint("owner/name") == Path("owner/name")  # a local folder comes before a hub id
    assert find_checkpoint("~/owner/name") == folder
    assert Oscine("owner/name", device="cpu", slots=1).voices[0] == "aiden"


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    assert refusal(path) == f"{str(path)!r} is a file; name the folder that holds config.json"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"config.json is missing in {tmp_path}"):
        Oscine(tmp_path, device="cpu")


@pytest.mark.parametrize("name", ["qwen", "a/b/c", "/no/such/folder", "Qwen/Qwen3 TTS", "https://hf.co/a", "a\0b/c"])
def test_a_name_that_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    assert refusal(name) == f"{name!r} is neither a local folder nor a hub id of the form 'owner/name'"


@pytest.mark.parametrize("name", ["./missing", "-owner/name", "owner/name.", "owner/" + "x" * 97, "owner/a--b"])
def test_a_malformed_hub_id_is_refused_without_contacting_the_hub(name: str) -> None:
    message = refusal(name)
    assert message.startswith(f"{name!r} is not a local folder, and as a hub id: ")
    assert re.search("repo.id", message, re.IGNORECASE)  # the hub library's own explanation


@pytest.mark.parametrize("name", ["~no_such_user/model", "x" * 5000])
def test_a_name_that_cannot_be_a_folder_is_refused(name: str) -> None:
    assert refusal(name).startswith(f"{name!r} cannot be opened as a folder: ")


# The demo


def test_the_demo_comes_before_a_local_folder_of_that_name(
    small_checkpoints: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = linked(small_checkpoints("0b6", "custom_voice"), tmp_path / "package" / "demo")
    monkeypatch.setattr(checkpoint, "DEMO_FOLDER", packaged)
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("demo") == packaged
    assert find_checkpoint("./demo") == Path("demo")


# The hub

FIND = """
import json, sys
from oscine.model.checkpoint import find_checkpoint
from oscine.errors import CheckpointError

answers = {}
for name in sys.argv[1:]:
    try:
        answers[name] = str(find_checkpoint(name))
    except CheckpointError as error:
        answers[name] = f"refused: {error}"
print(json.dumps(answers))
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def query_hub(cache: Path, *names: str, **environment: str) -> dict[str, str]:
    """find_checkpoint's answers in a fresh process: the hub library reads its environment once, at import."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {"HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(ROOT / "src"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", FIND, *names],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        cwd=cache,
    )
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def hub_cache(small_checkpoints: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hub library's layout: blobs by hash, a snapshot of links to them, and the commit of `main`."""
    cache = tmp_path_factory.mktemp("hub")
    repository = cache / "models--oscine--tiny"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    source = small_checkpoints("0b6", "custom_voice")
    files = [path for path in source.rglob("*") if path.is_file()]
    for number, path in enumerate(files):
        blob = repository / "blobs" / f"{number:040x}"
        blob.symlink_to(path)
        link = repository / "snapshots" / COMMIT / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return cache


def test_a_hub_id_is_found_in_the_local_cache(hub_cache: Path) -> None:
    answers = query_hub(hub_cache, "oscine/tiny", "oscine/unknown", HF_HUB_OFFLINE="1")
    found = answers["oscine/tiny"]
    assert found == str(hub_cache / "models--oscine--tiny" / "snapshots" / COMMIT)
    assert Oscine(found, device="cpu", slots=1).speak("hello", seed=1, max_new_tokens=3).codes.shape == (2, 16)

    message = answers["oscine/unknown"]
    assert message.startswith("refused: 'oscine/unknown' is not a local folder, and as a hub id: the local cache lacks")
    assert message.endswith("download it first, or use a folder")


def test_an_unreachable_hub_is_a_clear_error(hub_cache: Path) -> None:
    closed_port = "http://127.0.0.1:9"
    answers = query_hub(hub_cache, "oscine/tiny", "oscine/unknown", HF_ENDPOINT=closed_port)
    assert answers["oscine/tiny"].endswith(COMMIT)
    assert "the hub cannot be reached: download it first" in answers["oscine/unknown"]


def test_an_error_of_the_hub_library_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class StrangeError(Exception):
        """Stands for those of an HTTP client whose errors are not OSErrors."""

    def fail(*_: Any, **__: Any) -> str:
        raise StrangeError("connection reset")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert refusal("owner/name").endswith("as a hub id: the download failed: connection reset")
