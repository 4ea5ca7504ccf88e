"""Runs a server for a long time under mixed load and checks that nothing wears out; or overloads it.

    python -m benchmarks.soak                                                  ten minutes on the demo voice, a CPU
    python -m benchmarks.soak --size 1b7 --slots 128 --seconds 900 --rate 100           a GPU
    python -m benchmarks.soak --overload --size 1b7 --slots 128 --burst 256             a minute at three times the load
    python -m benchmarks.soak --stress                               a CPU, idle otherwise; a small random checkpoint

soak      Clients listen over HTTP (audio, events, WAV) and WebSocket, leave, interrupt, upload voices, and send refused
          and broken requests; the engine is killed in the first half. At the end the same seeds give the same bytes as
          at the beginning, gauges are zero, and memory is flat: its slope over the second half is stated.
overload  Offers three times the capacity. Admitted streams have no gap, no first audio is later than queue_wait_s
          allows, and 429 has a true Retry-After: in bursts, refused clients that wait so long are admitted.
stress    The trials of stress.py: a minute at three times the capacity, 200 clients that disconnect, kill -9.

The results are docs/results/soak-<gpu or cpu>.json, short-soak-... for less than five minutes, overload-..., and
server-cpu.json of the stress. A soak writes its own every half minute, so that an interrupted run leaves one. This
process does not load torch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks import stress
from benchmarks.checkpoints import KINDS, WEIGHTS, checkpoint, random_weights
from benchmarks.results import read_arguments, save, stopwatch
from benchmarks.server import SETTINGS, START_S, gpu_used_mib, machine_kind
from benchmarks.server_process import (
    IMPORTS,
    Figures,
    Footprints,
    ServerProcess,
    Starvation,
    fetch,
    serving,
    wait_until,
)
from benchmarks.soak_clients import SEEDS, SoakClients, SoakOutcome
from oscine_bench.benchmark import run_async
from oscine_bench.load import OfferedLoad, RunLength
from oscine_bench.metrics import spread
from oscine_bench.workload import arrivals, builtin_texts

Row = dict[str, Any]
Say = Callable[[str], None]

# Kinds of clients and their shares.
_LISTENING = {"http": 40, "events": 10, "wav": 5, "websocket": 10}
MIX = {**_LISTENING, "leave": 12, "interrupt": 5, "refused": 10, "broken": 6, "upload": 2}
_SAMPLE_S, _SAVE_S = 5.0, 30.0
_LONG_S = 300.0  # a soak of less is a short one
_KILLS_AT = (0.15, 0.3)  # of the time; memory is compared after the second half has begun
_MAX_IN_FLIGHT = 4096
# Results of clients that meet a dead engine. "malformed": a WebSocket is closed before its first message.
_DISTURBED = ("cut", "reported", "http_503", "engine_failed", "not_ready", "malformed")
MAX_GROWTH_MIB = 24.0  # over half of a soak; allocators keep some pages
_MEMORY = ("front_end_mib", "engine_mib", "device_mib", "gpu_used_mib")
_TOO_SLOW = "this machine cannot sustain a single stream: it is busy or too slow"
_DEMO_SETTINGS = "[engine]\nslots = {slots}\n"


def running(options: argparse.Namespace) -> AbstractContextManager[tuple[ServerProcess, str]]:
    model = None if options.size is None else checkpoint(options, options.size, options.kind)
    settings = (_DEMO_SETTINGS if model is None else SETTINGS).format(slots=options.slots)
    environment = IMPORTS | (stress.ENVIRONMENT if options.devices == "cpu" else {})
    more = [word for setting in options.set for word in ("--set", setting)]
    folder = options.scratch / f"soak-{secrets.token_hex(4)}"
    how: dict[str, Any] = {"settings": settings, "environment": environment, "devices": options.devices}
    return serving(model, folder, *more, within_s=START_S, **how)


# --- soak ---


class Soak:
    def __init__(
        self, server: ServerProcess, url: str, options: argparse.Namespace, rate_per_s: float, say: Say
    ) -> None:
        self._server, self._url, self._options, self._say = server, url, options, say
        self._rate_per_s = rate_per_s
        self._texts = builtin_texts("english", ["short"])
        self._clients = SoakClients(url, self._texts, options.frames)
        self.outcomes: list[SoakOutcome] = []
        self.samples: list[Row] = []
        self.kills: list[Row] = []
        self.begun_s = 0.0
        self._starvation, self._starved_s = Starvation(server.engine_pid), 0.0

    async def run(self) -> Row:
        before = await self._alone()
        self.begun_s = time.monotonic()
        others = [asyncio.create_task(work) for work in (self._sample(), self._save())]
        killing = asyncio.create_task(self._kill())
        try:
            await self._offer()
            await killing  # and the last restart
        finally:
            for one in (killing, *others):
                one.cancel()
            await asyncio.gather(killing, *others, return_exceptions=True)
        await asyncio.to_thread(stress.settle, self._url)
        after = await self._alone()
        await self._clients.close()
        return {**self.figures(), "alone": {"before": before, "after": after}}

    async def _alone(self) -> dict[str, str]:
        """Digests of some speeches of an idle server."""
        outcomes = [await self._clients.listen("http", index) for index in range(min(8, len(self._texts) * SEEDS))]
        assert all(one.result == "ok" for one in outcomes), outcomes
        return {str(one.index): one.digest for one in outcomes}

    async def _offer(self) -> None:
        """An open loop: clients come whether or not earlier ones have ended."""
        rng, running = random.Random(0), set[asyncio.Task[None]]()
        for number, at_s in enumerate(arrivals(self._rate_per_s)):
            if at_s > self._options.seconds:
                break
            await asyncio.sleep(max(0.0, self.begun_s + at_s - time.monotonic()))
            kind = rng.choices(list(MIX), weights=list(MIX.values()))[0]
            if len(running) >= _MAX_IN_FLIGHT:
                now_s = time.monotonic()
                self.outcomes.append(SoakOutcome(kind, now_s, now_s, "not_sent"))
                continue
            task = asyncio.create_task(self._act(kind, number))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _act(self, kind: str, number: int) -> None:
        self.outcomes.append(await self._clients.act(kind, number))

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            if sample := await asyncio.to_thread(self._sampled):
                self.samples.append({"at_s": time.monotonic() - self.begun_s, **sample})

    def _sampled(self) -> Row | None:
        try:
            figures, held = Figures.of(self._url), Footprints.of(self._server)
        except (OSError, ValueError):  # the engine is being restarted
            return None
        return {
            "front_end_mib": held.front_end.memory_mib,
            "engine_mib": held.engine.memory_mib,
            "device_mib": figures["oscine_memory_bytes"] / 2**20,
            "gpu_used_mib": gpu_used_mib(),
            "descriptors": held.front_end.descriptors,
            "connections": figures["oscine_connections"],
            "streams": figures["oscine_slots_active"],
        }

    async def _kill(self) -> None:
        """kill -9 of the engine, and the wait until it is back."""
        for share in _KILLS_AT[: self._options.kills]:
            await asyncio.sleep(max(0.0, self.begun_s + share * self._options.seconds - time.monotonic()))
            killed_s = time.monotonic()
            self._starved_s = self.starved_s
            os.kill(self._server.engine_pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: fetch(self._url, "/ready")[0] == 503, 30.0)
            await asyncio.to_thread(wait_until, lambda: fetch(self._url, "/ready")[0] == 200, START_S)
            self._starvation = Starvation(self._server.engine_pid)
            self.kills.append({"killed_s": killed_s, "ready_s": time.monotonic()})
            self._say(f"the engine was killed and is back after {time.monotonic() - killed_s:.1f} s")

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            self._say(f"{len(self.outcomes)} requests, {dict(Counter(one.result for one in self.outcomes))}")
            figures = {**self.figures(), "complete": False}
            await asyncio.to_thread(_save, self._options, soak_name(self._options.seconds), figures)

    def figures(self) -> Row:
        outcomes = list(self.outcomes)
        listened = [one for one in outcomes if one.result == "ok" and one.first_audio_s is not None]
        by_kind: dict[str, Counter[str]] = {kind: Counter() for kind in MIX}
        for one in outcomes:
            by_kind[one.kind][one.result] += 1
        undisturbed = [one for one in listened if not self.disturbed(one)]
        return {
            "seconds": self._options.seconds,
            "rate_per_s": self._rate_per_s,
            "requests": len(outcomes),
            "results": {kind: dict(counts) for kind, counts in by_kind.items()},
            "first_audio_ms": spread([one.first_audio_s for one in undisturbed if one.first_audio_s], scale=1e3),
            "deficit_ms": spread([one.deficit_s for one in undisturbed if one.deficit_s is not None], scale=1e3),
            "kills": [{"back_after_s": one["ready_s"] - one["killed_s"]} for one in self.kills],
            "failures": dict(Counter(_described(one) for one in outcomes if not self.expected(one))),
            "engine_starved_s": self.starved_s,
            "samples": list(self.samples),
            "slopes": slopes(self.samples, self._options.seconds / 2),
        }

    @property
    def starved_s(self) -> float:
        """How long the engine waited for a core: gaps of that length are the machine's fault."""
        return self._starved_s + self._starvation.longest_s()

    def disturbed(self, one: SoakOutcome) -> bool:
        """The engine was down while it ran."""
        return any(one.begun_s < kill["ready_s"] and one.ended_s > kill["killed_s"] for kill in self.kills)

    def expected(self, one: SoakOutcome) -> bool:
        if one.result in ("ok", "http_429", "overloaded"):
            return one.result != "http_429" or one.retry_after is not None
        return self.disturbed(one) and one.result in _DISTURBED


def _described(one: SoakOutcome) -> str:
    return f"{one.kind}: {one.result} {one.message}".strip()


def soak(options: argparse.Namespace, say: Say) -> list[str]:
    with running(options) as (server, url):
        stress.fill_pools(url, options.frames or 50)
        rate_per_s = options.rate or _capacity(url, options, say).requests_per_s
        say(f"{rate_per_s:.2f} requests/s for {options.seconds:g} s")
        descriptors = Footprints.of(server).front_end.descriptors
        trial = Soak(server, url, options, rate_per_s, say)
        row = run_async(trial.run())
        figures = Figures.of(url)
        row["left"] = {
            "slots_active": figures["oscine_slots_active"],
            "queued": figures["oscine_queue_depth"],
            "connections": figures["oscine_connections"] - 1,  # this request's own
            "bytes_in_flight": figures["oscine_held_bytes"],
            "descriptors": Footprints.of(server).front_end.descriptors - descriptors,
        }
        row["restarts_counted"] = figures["oscine_engine_restarts_total"]
        row["exit_status"] = server.terminate()
    row["complaints"] = complaints_of_soak(row)
    _save(options, soak_name(options.seconds), {**row, "complete": True})
    return list(row["complaints"])


# --- overload ---


def overloaded(options: argparse.Namespace, say: Say) -> list[str]:
    frames = options.frames or 50
    with running(options) as (server, url):
        stress.fill_pools(url, frames)
        rate_per_s = options.rate or _capacity(url, options, say).requests_per_s
        say(f"three times {rate_per_s:.2f} requests/s for {options.seconds:g} s")
        row = stress.overload(server, url, 3 * rate_per_s, options.seconds, frames)
        complaints = stress.complaints_of_overload(row)
        worst_ms, limit_ms = row["first_audio_ms"]["most"], 1e3 * (options.queue_wait_s + options.slack_s)
        if worst_ms > limit_ms:
            complaints.append(f"first audio after {worst_ms:.0f} ms, above {limit_ms:.0f}")
        bursts = []
        for count in options.burst:
            stress.settle(url)
            say(f"a burst of {count} at once on {options.slots} slots")
            bursts.append(run_async(_burst(url, count, frames)))
            complaints += complaints_of_burst(bursts[-1], limit_ms)
        exit_status = server.terminate()
    figures = {"capacity_per_s": rate_per_s, "queue_wait_s": options.queue_wait_s, "overload": row, "bursts": bursts}
    _save(options, "overload", {**figures, "exit_status": exit_status, "complaints": complaints})
    return complaints


async def _burst(url: str, count: int, frames: int) -> Row:
    """All at once. Refused clients come again when they were told to."""
    clients = SoakClients(url, builtin_texts("english", ["short"]), frames)
    begun_s = time.monotonic()

    async def call(number: int) -> tuple[int, list[float], SoakOutcome]:
        tries, waits_s = 0, list[float]()
        while True:
            tries += 1
            outcome = await clients.listen("http", number)
            if outcome.result != "http_429" or outcome.retry_after is None or tries > 20:
                return tries, waits_s, outcome
            waits_s.append(float(outcome.retry_after))
            await asyncio.sleep(waits_s[-1])

    called = await asyncio.gather(*(call(number) for number in range(count)))
    await clients.close()
    return {
        "clients": count,
        "results": dict(Counter(outcome.result for _, _, outcome in called)),
        "tries": dict(sorted(Counter(tries for tries, _, _ in called).items())),
        "retry_after_s": spread([wait_s for _, waits_s, _ in called for wait_s in waits_s]),
        "first_audio_ms": spread([one.first_audio_s for _, _, one in called if one.first_audio_s], scale=1e3),
        "deficit_ms": spread([one.deficit_s for _, _, one in called if one.deficit_s is not None], scale=1e3),
        "took_s": time.monotonic() - begun_s,
    }


def _capacity(url: str, options: argparse.Namespace, say: Say) -> stress.Capacity:
    """Finds the capacity of a CPU step by step; a GPU runs all its slots."""
    frames = options.frames or 50
    if options.devices == "cpu":
        capacity, _ = stress.measure_capacity(url, frames, 6.0, say)
    else:
        row = stress.StressLoad(url, frames).run(OfferedLoad("closed", options.slots), RunLength(10.0, warmup_s=2.0))
        capacity = stress.Capacity(options.slots, row["requests_per_s"], row["x_real_time"])
    if not capacity.streams:
        sys.exit(f"{_TOO_SLOW}; name a --rate")
    return capacity


# --- stress ---


def stressed(options: argparse.Namespace, say: Say) -> list[str]:
    """Server, engine (on one core) and clients share the machine."""
    load_average, frames = os.getloadavg()[0], options.frames or 50
    model = random_weights(options.scratch, "0b6", small=True)
    how: dict[str, Any] = {"environment": stress.ENVIRONMENT}
    with serving(model, settings=stress.SETTINGS, **how) as (server, url):
        stress.fill_pools(url, frames)
        capacity, rows = stress.measure_capacity(url, frames, 6.0, say)
        if not capacity.streams:
            sys.exit(_TOO_SLOW)
        say(f"three times {capacity.requests_per_s:.2f} requests/s for {options.seconds:g} s")
        overload = stress.overload(server, url, 3 * capacity.requests_per_s, options.seconds, frames)
        say(f"{overload['accepted']} of {overload['requests']} accepted; {options.clients} clients that disconnect")
        vanishing = stress.vanishing(server, url, options.clients, within_s=15.0)
        end = {"exit_status": server.terminate(), "streams": (server.log_line("stopping") or {}).get("streams")}
    say("kill -9 of the engine during 8 streams")
    with serving(model, settings=stress.PATIENT, **how) as (server, url):
        killing = stress.killing(server, url)
    complaints = stress.complaints_of_overload(overload) + stress.complaints_of_vanishing(vanishing)
    complaints += [f"it did not stop cleanly: {end}"] if any(end.values()) else []
    complaints += stress.complaints_of_killing(killing)
    about = {"load_average_before": load_average, "gap_tolerance_ms": 1e3 * stress.GAP_S, **how}
    figures: Row = {
        "capacity": {**asdict(capacity), "rows": rows},
        "overload": overload,
        "vanishing": vanishing,
        "end": end,
    }
    figures |= {"killing": killing, "complaints": complaints}
    save(options.out, "server-cpu", {**about, **figures}, "torch", "uvicorn", "fastapi")
    return complaints


def soak_name(seconds: float) -> str:
    """So that a short soak does not replace the figures of a long one."""
    return "soak" if seconds >= _LONG_S else "short-soak"


def _save(options: argparse.Namespace, what: str, figures: Row) -> None:
    about = {"model": options.size or "demo", "slots": options.slots, "gap_tolerance_ms": 1e3 * stress.GAP_S}
    save(options.out, f"{what}-{machine_kind()}", {**about, **figures}, "torch", "uvicorn", "fastapi")


# --- what must hold afterwards ---


def slopes(samples: Sequence[Row], from_s: float) -> Row:
    """Least squares over the samples from `from_s` on: MiB per minute, and the growth over their time."""
    late = [sample for sample in samples if sample["at_s"] >= from_s]
    found: Row = {}
    for name in _MEMORY:
        points = [(sample["at_s"], sample[name]) for sample in late if sample[name] is not None]
        if len(points) < 3:
            continue
        at_s, mib = np.array(points).T
        per_s = float(np.polyfit(at_s - at_s[0], mib, 1)[0])
        found[name] = {"mib_per_minute": 60 * per_s, "growth_mib": per_s * float(at_s[-1] - at_s[0])}
    return found


def complaints_of_soak(row: Row) -> list[str]:
    before, after = row["alone"]["before"], row["alone"]["after"]
    deficit_ms, kills = (row["deficit_ms"] or {}).get("most", 0.0), len(row["kills"])
    checks = {
        f"unexpected results: {row['failures']}": not row["failures"],
        f"other bytes for the same seed: {[key for key in before if before[key] != after[key]]}": before == after,
        f"still held: {row['left']}": not any(value > 0 for value in row["left"].values()),
        f"{row['restarts_counted']} restarts for {kills} kills": row["restarts_counted"] == kills,
        f"a playback deficit of {deficit_ms:.0f} ms": deficit_ms <= 1e3 * (stress.GAP_S + row["engine_starved_s"]),
        f"exit status {row['exit_status']}": row["exit_status"] == 0,
    }
    grown = [
        f"{name} grew by {slope['growth_mib']:.1f} MiB ({slope['mib_per_minute']:.2f} MiB a minute)"
        for name, slope in row["slopes"].items()
        if slope["growth_mib"] > MAX_GROWTH_MIB
    ]
    return [problem for problem, holds in checks.items() if not holds] + grown


def complaints_of_burst(row: Row, first_audio_limit_ms: float) -> list[str]:
    deficit_ms, first_ms = (row["deficit_ms"] or {}).get("most", 0.0), (row["first_audio_ms"] or {}).get("most", 0.0)
    most_tries = max(row["tries"])
    checks = {
        f"clients that were never heard: {row['results']}": set(row["results"]) == {"ok"},
        f"Retry-After was not true: a client needed {most_tries} tries": most_tries <= 3,
        f"first audio after {first_ms:.0f} ms": first_ms <= first_audio_limit_ms,
        f"a playback deficit of {deficit_ms:.0f} ms": deficit_ms <= 1e3 * stress.GAP_S,
    }
    return [problem for problem, holds in checks.items() if not holds]


def main() -> None:
    options = read_arguments(
        __doc__, **WEIGHTS, overload=(False, "three times the capacity, then bursts"),
        stress=(False, "the trials of stress.py"), clients=(200, "of the stress, that disconnect"),
        seconds=(float, "default: 600, of an overload 60"),
        rate=(float, "requests per second; default: the measured capacity"),
        kills={"type": int, "choices": range(len(_KILLS_AT) + 1), "default": len(_KILLS_AT)},
        burst=([256], "clients at once"), kind={"choices": KINDS, "default": "preset"},
        frames=(int, "of 80 ms, per speech; default: 56 for random weights"), slots=8,
        devices={"default": None, "help": "default: cpu for the demo voice, auto otherwise"},
        queue_wait_s=(3.0, "the server's engine.queue_wait_s"), slack_s=(1.0, "for first audio, beyond queue_wait_s"),
        set={"action": "append", "default": [], "help": "another setting of the server"},
    )  # fmt: skip
    options.seconds = options.seconds or (60.0 if options.overload or options.stress else 600.0)
    options.devices = options.devices or ("cpu" if options.size is None else "auto")
    options.frames = options.frames or (None if options.size is None else 56)
    options.set.append(f"engine.queue_wait_s={options.queue_wait_s}")
    say = stopwatch()
    trial = stressed if options.stress else overloaded if options.overload else soak
    complaints = trial(options, say)
    say("\n".join(["problems:", *complaints]) if complaints else "no problems")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
