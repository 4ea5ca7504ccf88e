"""benchmarks/server.py against a scripted server."""

import asyncio
import contextlib
import json
import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.server import SLOTS, Trial, cached_kernels, result_name, upload_voice
from oscine_bench.benchmark import Bench
from oscine_bench.load import OfferedLoad, RunLength
from oscine_bench.search import SearchLimits
from oscine_bench.targets import Target
from oscine_bench.workload import Workload
from tests.oscine_bench.scripted import END, HEAD, chunk, in_a_thread, speech

pytestmark = pytest.mark.slow

FRAMES = 5
uploads: list[bytes] = []


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The requested number of frames in two pieces; uploads are kept."""
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            body = await reader.readexactly(int(head.split("content-length: ")[1].split("\r")[0]))
            if head.startswith("post /v1/audio/voices"):
                uploads.append(head.encode() + body)
            if not head.startswith("post /v1/audio/speech"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n" + b'{"data": []}')
                continue
            request = json.loads(body)
            assert request["trim_silence"] is False
            pcm = speech((request["max_new_tokens"] - 1) * 0.08)
            writer.write(HEAD + chunk(pcm[:3840]))
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(chunk(pcm[3840:]) + END)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with in_a_thread(answers) as port:
        yield f"http://127.0.0.1:{port}"


def trial(url: str, **extra: int) -> tuple[Trial, list[dict], list[str]]:
    saved: list[dict] = []
    said: list[str] = []
    bench = Bench(Target(url=url, frames=FRAMES, extra=extra), Workload("test", ("hello",)), RunLength())
    return Trial(bench, 0.1, said.append, lambda figures: saved.append(json.loads(json.dumps(figures)))), saved, said


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.server.WARMUP_S", 0.0)
    monkeypatch.setattr("benchmarks.server.seconds_for_p95", lambda rate_per_s: 2 / rate_per_s)
    monkeypatch.setattr("benchmarks.server.MAX_SEARCH_PER_S", 100.0)


def test_every_load_is_saved_at_once(url: str) -> None:
    measured, saved, said = trial(url)
    for load in (OfferedLoad("closed", 2), OfferedLoad("open", 50)):
        measured.run(load)
    assert [[row["load"]["value"] for row in figures["loads"]] for figures in saved] == [[2], [2, 50]]
    assert all(row["exact_length"] and row["succeeded"] for row in saved[-1]["loads"])
    assert saved[-1]["frames"] == FRAMES and said[0].startswith("closed loop, 2, requests ")


def test_the_search_starts_at_the_highest_rate_that_held_and_keeps_all_tried_rates(url: str) -> None:
    measured, saved, _ = trial(url)
    measured.run(OfferedLoad("open", 60))
    assert measured.search(SearchLimits(p95_ms=1e6, underrun_ms=math.inf)) == 100
    assert [one["rate_per_s"] for one in saved[-1]["search"]["tried"]] == [60, 100]
    assert saved[1]["search"]["rate_per_s"] == 60, "saved after every rate"
    assert len(saved[-1]["loads"]) == 1


def test_responses_of_another_length_are_reported(url: str) -> None:
    measured, saved, said = trial(url, max_new_tokens=FRAMES)  # one frame less than expected
    measured.run(OfferedLoad("closed", 1))
    assert not saved[0]["loads"][0]["exact_length"]
    assert said[1].strip().startswith("closed loop, 1: expected 0.40 s each")


def test_a_voice_is_uploaded_as_a_form_with_a_file(url: str) -> None:
    upload_voice(url)
    (sent,) = uploads
    assert b'name="audio_sample"; filename="clip.wav"' in sent and b"RIFF" in sent
    assert sent.count(b"content-disposition: form-data; ") == 4 and sent.rstrip().endswith(b"--")


# --- names and caches ---


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "server-gpu-1b7-preset"),
        ({"search": True}, "server-gpu-1b7-preset"),
        ({"slots": 256}, "server-gpu-1b7-preset-256-slots"),
        ({"search": True, "closed": []}, "server-gpu-1b7-preset-search"),
    ],
)
def test_a_run_of_another_kind_does_not_replace_the_main_result(
    changed: dict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.server.gpu_used_mib", lambda: 1.0)
    options = {"slots": SLOTS, "search": False, "closed": [1, 8]} | changed
    assert result_name(Namespace(**options), "1b7", "preset") == name


def test_compiled_kernels_are_counted_in_both_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cached_kernels() == {"triton": 0, "cuda": 0}
    for file in ("triton/AB/add.cubin", "triton/AB/add.json", "triton/CD/mul.cubin", "oscine/kernels/sample-1.cubin"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert cached_kernels() == {"triton": 2, "cuda": 1}
