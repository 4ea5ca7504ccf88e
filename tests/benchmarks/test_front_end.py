"""benchmarks/front_end.py: its engine, its stamps, and a short run."""

import queue
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.front_end import (
    MIN_TIMES_IDLE,
    PARTS,
    Stamps,
    Used,
    arguments,
    cpu_us_per_request,
    joined_failures,
    machine_load,
    measure_all,
)
from benchmarks.instant_engine import FRAME_BYTES, FRAME_SAMPLES, STAMPS, InstantEngine, frames_after_chunks
from benchmarks.report import Report
from benchmarks.report_sections import front_end_table
from oscine.request import SpeechRequest
from oscine.types import AudioChunk
from oscine_bench.exchange import Exchange
from oscine_bench.record import script_result, write_result
from oscine_bench.workload import PlannedRequest


def test_chunks_grow_to_the_size_of_the_engine_s_and_carry_every_frame_once() -> None:
    assert [*frames_after_chunks(1)] == [1]
    assert [*frames_after_chunks(30)] == [1, 2, 4, 8, 16, 24, 30]


def test_the_instant_engine_delivers_the_asked_number_of_stamped_frames() -> None:
    chunks: queue.SimpleQueue[AudioChunk] = queue.SimpleQueue()
    InstantEngine(x_real_time=100).enqueue("1", SpeechRequest(text="x", max_new_tokens=6), chunks.put)
    got = [chunks.get(timeout=600) for _ in range(5)]
    assert [chunk.first_sample for chunk in got] == [FRAME_SAMPLES * frame for frame in (0, 1, 2, 4, 5)]
    assert [chunk.finish_reason for chunk in got] == [None] * 4 + ["stop"]
    stamps = [STAMPS.unpack_from(chunk.pcm) for chunk in got[:-1]]
    assert len({(arrived_s, built_s) for arrived_s, built_s, _ in stamps}) == 1
    assert all(one[2] < later[2] for one, later in pairwise(stamps))


def test_the_stamps_of_the_first_chunk_divide_the_first_byte_s_time() -> None:
    exchange = Exchange(PlannedRequest("x", 0, 0), due_s=0.0, sent_s=1.0)
    exchange.add(5.5, STAMPS.pack(2.0, 2.5, 4.5) + bytes(FRAME_BYTES - STAMPS.size))
    exchange.add(8.0, STAMPS.pack(2.0, 2.5, 6.0) + bytes(100))
    exchange.add(9.0, bytes(FRAME_BYTES - STAMPS.size - 100))  # the read that completes the second chunk
    stamps = Stamps()
    stamps(exchange)
    assert stamps.parts_s == {"to_engine": [1.0], "prompt": [0.5], "engine": [2.0], "back": [1.0]}
    assert stamps.chunks_s == [1.0, 3.0]


def test_failures_of_all_clients_are_added() -> None:
    clients = [{}, {"http_429": {"count": 2, "first": "full"}}, {"http_429": {"count": 3, "first": "later"}}]
    assert joined_failures(clients) == {"http_429": {"count": 5, "first": "full"}}


def test_the_cpu_time_of_a_request_is_told_only_if_it_is_far_above_that_of_an_idle_process() -> None:
    used = Used(took_s=10.0, front_end_s=1.0, engine_s=0.0, lags_s=[])
    assert cpu_us_per_request(used, 0.02, sent=100) == pytest.approx(8000)
    assert cpu_us_per_request(used, 0.11 / MIN_TIMES_IDLE, sent=100) is None
    assert cpu_us_per_request(used, 0.2, sent=100) is None and cpu_us_per_request(used, 0.0, sent=0) is None


def test_a_busy_machine_is_told_and_an_idle_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    for average in (3.0, 70.0):
        monkeypatch.setattr("os.getloadavg", lambda average=average: (average, 0.0, 0.0))
        assert machine_load(said.append) == {"cores": 16, "load_average_before": average}
    assert said == ["warning: the machine is busy (load average 70.0 on 16 cores); times may be too long"]


@pytest.mark.slow
def test_a_short_run_measures_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    for name in ("WARMUP_S", "IDLE_S"):
        monkeypatch.setattr(f"benchmarks.front_end.{name}", 0.0)
    monkeypatch.setattr("benchmarks.front_end.seconds_for_p95", lambda rate_per_s: 3 / rate_per_s)
    words = "--rates 30 --streams 4 --frames 2 --stream-frames 4 --seconds 0.2 --clients 1"
    said: list[str] = []
    kept: list[list[bool]] = []
    figures = measure_all(
        arguments(words.split()),
        said.append,
        lambda figures: kept.append(["front_end_ms" in row for row in figures["loads"].values()]),
    )
    loads, bare = figures["loads"], figures["bare"]
    assert figures["load_average_before"] == 0.0
    assert kept == [[False], [True], [True, False], [True, True]]  # before and after each load
    assert said == [f"{name}: {row['requests']} of {row['requests']}, failures none" for name, row in loads.items()]
    assert [*loads] == ["30 requests/s", "4 streams"]
    for row in loads.values():
        assert row["requests"] >= 1 and set(row["parts_ms"]) == set(PARTS)
        assert 0 < row["front_end_ms"]["p50"] <= row["first_byte_ms"]["p50"]
        assert row["loop_lag_ms"]["p50"] >= 0 and row["front_end_cpu_share"] > 0
    assert [*bare] == ["30 requests/s"] and bare["30 requests/s"]["succeeded"] == bare["30 requests/s"]["requests"] >= 1
    assert front_end_table(loads, bare).count("\n") == 3


def test_a_result_has_a_table(tmp_path: Path) -> None:
    times, least = {"p50": 1.0, "p95": 2.0, "p99": 3.0}, {"p50": 0.5, "p95": 0.6, "p99": 0.7}
    row = dict.fromkeys(("first_byte_ms", "front_end_ms", "chunk_ms", "loop_lag_ms"), times)
    row |= {"front_end_cpu_share": 0.5, "front_end_cpu_us_per_request": 900.0, "client": {"cpu_share": 0.25}}
    late = {**row, "first_byte_ms": None, "unfinished": 7, "took_s": 31.2}
    light = {**row, "unfinished": 0, "front_end_cpu_us_per_request": None}
    busy = {**row, "unfinished": 0}
    figures: dict[str, Any] = {
        "cores": 16,
        "load_average_before": 12.4,
        "bare": {"300 requests/s": {"front_end_ms": least}},
        "loads": {"1 requests/s": light, "300 requests/s": busy, "200 streams": late, "1000 streams": {"clients": 4}},
    }
    write_result(tmp_path / "front-end.json", script_result("front-end", ["-m", "benchmarks.front_end"], figures))
    page = Report(tmp_path).benchmarks()
    measured = "1.00 / 2.00 / 3.00"
    assert f"| 300 requests/s | {measured} | {measured} | 0.50 / 0.60 / 0.70 | {measured} |" in page
    assert "## The front end alone" in page and f"| 1 requests/s | {measured} | {measured} | - | {measured} |" in page
    assert "| 200 streams (7 requests cut off after 31 s) | - | 1.00" in page and "| 50 % | 25 % | 900 us |" in page
    assert "| 1000 streams (did not end) | - |" in page and "| 50 % | 25 % | - |" in page
    assert "The machine was busy just before: load average 12.4 on 16 cores.\n" in page
