"""Compares admission's forecasts with what happens, on the CPU: idle, beside another program, and after that has ended.
Run it on a machine on which nothing else runs:

    python -m benchmarks.forecast [--rounds 8] [--requests 12]

A demo server gets a burst of requests, then a request every half second until a stream ends, and the next burst when
all have ended. With `engine.queue_wait_s` 0, each request for which there is no slot is refused at once, with the time
after which a slot should be free; that is compared with the time until the first stream ended. The other program is a
busy loop on each core, in the middle third of the rounds.

Before that, a server with the default `engine.queue_wait_s` gets bursts of requests of 98 characters. Each phase begins
when the load average is below half the number of cores, or after five minutes; one above it is marked in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import numpy as np

from benchmarks.results import read_arguments, save
from benchmarks.server_process import serving
from oscine_bench.workload import builtin_texts

PROBE_S = 0.5
MIN_S = 1.0  # after a shorter wait, the forecast is about the last few frames of a speech, whose end is chance
_WAIT = re.compile(r"a slot is free in ([\d.]+)")
PHASES = ("idle", "beside another program", "idle again")
SETTLE_S = 300.0  # at most, for the load average of the last minute
TEXT = "The road goes on along the river, past the old mill and the bridge, and ends at a small red house."


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a refused request. `at_s` is counted from the burst."""

    at_s: float
    forecast_s: float
    wait_s: float


def told_wait_s(refusal: str) -> float | None:
    found = _WAIT.search(refusal)
    return float(found[1]) if found else None


class Round:
    """One burst and the requests after it."""

    def __init__(self, client: httpx.AsyncClient, texts: Iterator[str]) -> None:
        self._client, self._texts = client, texts
        self._refused: list[tuple[float, float]] = []  # when it was sent, and the forecast
        self._ended_s: list[float] = []

    @property
    def admitted(self) -> int:
        return len(self._ended_s)

    async def run(self, requests: int) -> list[Forecast]:
        begun_s = time.perf_counter()
        asked = [asyncio.create_task(self._ask()) for _ in range(requests)]
        while not self._ended_s:
            await asyncio.sleep(PROBE_S)
            asked.append(asyncio.create_task(self._ask()))
        await asyncio.gather(*asked)
        free_s = min(self._ended_s)
        forecasts = [Forecast(at_s - begun_s, forecast_s, free_s - at_s) for at_s, forecast_s in self._refused]
        return [one for one in forecasts if one.wait_s >= MIN_S]

    async def _ask(self) -> None:
        sent_s = time.perf_counter()
        body = {"input": next(self._texts), "response_format": "pcm"}
        answer = await self._client.post("/v1/audio/speech", json=body)
        if answer.status_code == 200:
            self._ended_s.append(time.perf_counter())
        elif (wait_s := told_wait_s(answer.text)) is not None:
            self._refused.append((sent_s, wait_s))


def spin() -> None:
    while True:
        pass


@contextmanager
def another_program(runs: bool) -> Iterator[None]:
    spinning = [multiprocessing.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)] if runs else []
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def settled() -> float:
    """Waits until the machine is idle, but not for ever. Returns its load average."""
    end_s = time.monotonic() + SETTLE_S
    while (load := os.getloadavg()[0]) > (os.cpu_count() or 1) / 2 and time.monotonic() < end_s:
        time.sleep(5)
    return load


async def measure_default(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Bursts at the default wait: how many of each are spoken, and when the last one is done."""
    rows = []
    load = settled()
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        for number in range(options.rounds):
            begun_s = time.perf_counter()
            body = {"input": TEXT, "response_format": "pcm"}
            asked = [client.post("/v1/audio/speech", json=body) for _ in range(options.requests)]
            spoken = sum(answer.status_code == 200 for answer in await asyncio.gather(*asked))
            rows.append({"spoken": spoken, "done_s": time.perf_counter() - begun_s})
            print(f"default wait, round {number}: {spoken} of {options.requests} spoken", flush=True)
    return {"load_before": load, "characters": len(TEXT), "rounds": rows}


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    texts = itertools.cycle(builtin_texts("english", ["medium"]))
    rows = []
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        for phase in PHASES:
            before = settled()
            with another_program(phase == PHASES[1]):
                for number in range(options.rounds):
                    one = Round(client, texts)
                    load = os.getloadavg()[0]
                    forecasts = await one.run(options.requests)
                    row = {"phase": phase, "round": number, "load_before": before, "load_average": load}
                    rows.append(
                        {**row, "admitted": one.admitted, "forecasts": [asdict(forecast) for forecast in forecasts]}
                    )
                    first = forecasts[0] if forecasts else None
                    words = (
                        f"{first.forecast_s:.1f} s forecast, {first.wait_s:.1f} s waited" if first else "no forecast"
                    )
                    print(f"{phase}, round {number}: {one.admitted} admitted, {words}", flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Forecast divided by wait: of each phase, in the burst and later. The first round of a phase is told apart: what
    the engine knows is from before the change."""
    figures: dict[str, Any] = {}
    for phase in PHASES:
        of_phase = [row for row in rows if row["phase"] == phase]
        groups = {
            "first_burst": [row["forecasts"][:1] for row in of_phase[:1]],
            "bursts": [row["forecasts"][:1] for row in of_phase[1:]],
            "later": [[one for one in row["forecasts"] if one["at_s"] >= PROBE_S] for row in of_phase],
        }
        figures[phase] = {
            "rounds": len(of_phase),
            "load_before": of_phase[0]["load_before"],
            "load_average": float(np.mean([row["load_average"] for row in of_phase])),
            "admitted": [row["admitted"] for row in of_phase],
            **{name: _ratios([one for forecasts in group for one in forecasts]) for name, group in groups.items()},
        }
    return figures


def _ratios(forecasts: list[dict[str, float]]) -> dict[str, Any] | None:
    if not forecasts:
        return None
    ratios = [one["forecast_s"] / one["wait_s"] for one in forecasts]
    low, middle, high = np.percentile(ratios, (10, 50, 90)).tolist()
    waits_s = [one["wait_s"] for one in forecasts]
    return {"count": len(ratios), "p10": low, "p50": middle, "p90": high, "wait_s": float(np.median(waits_s))}


def main() -> None:
    options = read_arguments(__doc__, rounds=(8, "of each of the three phases"), requests=(12, "of a burst"))
    with serving(None, None) as (_, url):
        default = asyncio.run(measure_default(url, options))
    with serving(None, None, settings="[engine]\nqueue_wait_s = 0.0\n") as (_, url):
        rows = asyncio.run(measure(url, options))
    figures = {"requests": options.requests, "default_wait": default, "phases": summary(rows), "rounds": rows}
    print(save(options.out, "forecast", figures))


if __name__ == "__main__":
    main()
