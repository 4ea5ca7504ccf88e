"""Repeats the attacks that once held a server up, or filled its memory, and states what they cost now.

    python -m tests.faults.attack [--at-once 100] [--attacks NAME ...]

Each attack gets a fresh front end over a scripted engine, on loopback. Meanwhile others ask for /health, listen to a
stream whose engine makes a frame every 20 ms, ask for 3 s of speech as a whole mp3, list the voices, and upload one.
The result is docs/results/attacks.json; benchmarks/report.py makes the table of docs/reliability.md from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.results import read_arguments, save
from oscine.voice import Voice

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"
_LIMIT_S = 45.0  # for an answer to an attacker
_PATIENCE_S = 20.0  # of a bystander
_PAUSE_S = 0.1  # between two requests of a bystander
_OTHERS = 1000  # stored voices
_SAID = {"voice": "v0", "response_format": "wav", "stream": False}
_CLIP_BYTES = 10 * 2**20 - 1024
Row = dict[str, Any]
Send = Callable[[httpx.AsyncClient, int, str], Awaitable[httpx.Response]]  # the number of the request, an URL of clips


def _slow_text(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    text = ("$1,234.56 on 3/4/2025 at 10:30, *no* 5 1/2 https://a.bc/d " * 3500)[: 199_990 - number]
    return http.post(SPEECH, json={**_SAID, "input": text, "text_level": "spoken", "max_new_tokens": 2})


def _list(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    return http.get(VOICES)


def _pauses(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    text = "One. " + '<break time="10s"/>' * 60 + " Two."
    return http.post(f"{SPEECH}/batch", json={**_SAID, "items": [{"input": text}] * 32})


def _fetched_clip(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    return http.post(SPEECH, json={**_SAID, "input": "Hi.", "ref_audio": f"{clips}/{number}.wav"})


def _percents(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return http.post(VOICES, content=b"name=" + b"%zz" * (2**18 // 3 - 10), headers=headers)


def _digits(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    numbers = ",".join(["0." + "1234567890" * 5] * 26_000)
    body = f'{{"input": "Hi.", "speaker_embedding": [{numbers}]}}'
    return http.post(SPEECH, content=body, headers={"content-type": "application/json"})


def _batch_defaults(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    defaults = {"ref_text": "x" * 200_000, "pronunciations": {f"w{one}": "x" * 40 for one in range(1000)}}
    return http.post(f"{SPEECH}/batch", json={**_SAID, **defaults, "items": [{"input": "Hi."}] * 10_000})


def _import(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    codes = np.full((700, 16), number, np.int64)
    voice = Voice(np.full(8, number, np.float32), codes, "x" * 4000).to_bytes({"speaker_description": "x" * 4000})
    broken = (900_000).to_bytes(8, "little") + b'{"a":' + b"[" * 900_000
    content = voice if number % 2 else broken
    return http.post(f"{VOICES}/import?name=new{number}&consent=yes", content=content)


def _encode(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    return http.post("/v1/audio/encode?response_format=mp3", content=bytes(30 * 2**20))


def _delete(http: httpx.AsyncClient, number: int, clips: str) -> Awaitable[httpx.Response]:
    return http.delete(f"{VOICES}/v{1 + number // 2}")  # each by two


ATTACKS: dict[str, Send] = {
    "slow texts of 200,000 characters": _slow_text,
    "lists of 1,000 fat voices": _list,
    "batches of 32 x 10 minutes of pauses": _pauses,
    "clips of 10 MiB from URLs": _fetched_clip,
    "forms of `%zz`": _percents,
    "26,000 numbers of 50 digits": _digits,
    "batches of 10,000 items with large defaults": _batch_defaults,
    "imports of voice files, half of them broken": _import,
    "conversions of 30 MiB": _encode,
    "deletions, each voice by two": _delete,
}


# --- the server, in a process of its own ---


def serve(folder: str) -> None:
    from oscine.config import ServerConfig
    from oscine.server.app import build_app
    from oscine.server.http.listener import bind
    from oscine.server.web_server import WebServer
    from tests.server.scripted_engine import BASE_CARD, ScriptedEngine

    engine = ScriptedEngine(slots=64, queue=64, frame_s=0.02)
    config = ServerConfig(voices_dir=folder, ref_urls=True, ref_hosts=("127.0.0.1:*",), max_voices=4000)
    listener = bind("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    WebServer(build_app(engine, BASE_CARD, config)).run_until_stopped(listener)
    engine.stop()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a front end, and its process."""
    command = [sys.executable, "-m", "tests.faults.attack", "serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid
        finally:
            process.terminate()


def stored_voices(folder: Path) -> None:
    fat, notes = np.zeros((40, 16), np.int64), {"consent": "x" * 1024, "speaker_description": "x" * 4000}
    for number in range(_OTHERS):
        Voice(np.full(8, number, np.float32), fat, "x" * 4000).save(folder / f"v{number}.safetensors", notes)


# --- the attackers, in another one ---


def attack(name: str, url: str, at_once: int, results: Any) -> None:
    async def clip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"RIFF" + random.randbytes(1000) + bytes(_CLIP_BYTES - 1004)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def run() -> Counter[str]:
        statuses: Counter[str] = Counter()
        clips = await asyncio.start_server(clip, "127.0.0.1", 0)
        source = f"http://127.0.0.1:{clips.sockets[0].getsockname()[1]}"
        limits = httpx.Limits(max_connections=None)

        async def one(http: httpx.AsyncClient, number: int) -> None:
            try:
                statuses[str((await ATTACKS[name](http, number, source)).status_code)] += 1
            except httpx.TransportError as error:
                statuses[type(error).__name__] += 1

        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=_LIMIT_S, limits=limits) as http:
            await asyncio.gather(*(one(http, number) for number in range(at_once)))
        return statuses

    results.put(dict(asyncio.run(run())))


# --- the bystanders, here ---


async def listen(http: httpx.AsyncClient, gaps_s: list[float]) -> None:
    body = {**_SAID, "input": "word " * 40, "response_format": "pcm", "stream": True}
    async with http.stream("POST", SPEECH, json=body) as answer:
        last_s = None
        async for _ in answer.aiter_raw():
            now_s = time.monotonic()
            if last_s is not None:
                gaps_s.append(now_s - last_s)
            last_s = now_s


async def timed(send: Callable[[], Awaitable[httpx.Response]], times_s: list[float], failed: Counter[str]) -> None:
    begun_s = time.monotonic()
    try:
        answer = await send()
    except httpx.TransportError as error:
        failed[f"{error.request.url.path} {type(error).__name__}"] += 1
    else:
        if answer.status_code != 200:
            failed[f"{answer.request.url.path} {answer.status_code}"] += 1
    times_s.append(time.monotonic() - begun_s)


async def bystanders(url: str, until: Callable[[], bool]) -> Row:
    times_s: dict[str, list[float]] = {name: [] for name in ("health", "gap", "mp3", "list", "upload")}
    failed: Counter[str] = Counter()
    vector = json.dumps([0.5] * 8)

    def upload(http: httpx.AsyncClient) -> Awaitable[httpx.Response]:
        fields: Any = {"name": (None, f"by{len(times_s['upload'])}"), "consent": (None, "yes")}
        return http.post(VOICES, files={**fields, "speaker_embedding": (None, vector)})

    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=_PATIENCE_S) as http:
        mp3 = {**_SAID, "input": "x" * 38, "response_format": "mp3"}
        asks: dict[str, Callable[[], Awaitable[httpx.Response]]] = {
            "health": lambda: http.get("/health"),
            "mp3": lambda: http.post(SPEECH, json=mp3),
            "list": lambda: http.get(VOICES, params={"limit": 10}),
            "upload": lambda: upload(http),
        }

        async def ask(name: str) -> None:
            while not until():
                await timed(asks[name], times_s[name], failed)
                await asyncio.sleep(_PAUSE_S)

        async def hear() -> None:
            while not until():
                try:
                    await listen(http, times_s["gap"])
                except httpx.TransportError as error:
                    failed[f"stream {type(error).__name__}"] += 1

        await asyncio.gather(hear(), *(ask(name) for name in asks))
    figures = {}
    for name, values in times_s.items():
        ms = sorted(1000 * value for value in values) or [float("nan")]
        figures[f"{name}_ms"] = {
            "p50": ms[len(ms) // 2],
            "p95": ms[int(0.95 * len(ms))],
            "most": ms[-1],
            "number": len(ms),
        }
    return {**figures, "others_refused": dict(failed)}


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measured(name: str | None, at_once: int) -> Row:
    """Measures an attack, or without a name five seconds of peace."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        stored_voices(Path(scratch))
        with serving(Path(scratch)) as (url, pid):
            httpx.get(f"{url}{VOICES}", trust_env=False, timeout=_LIMIT_S)
            before_mib, begun_s = peak_mib(pid), time.monotonic()
            if name is None:
                row = asyncio.run(bystanders(url, lambda: time.monotonic() - begun_s > 5))
                return {**row, "before_mib": before_mib, "peak_mib": peak_mib(pid)}
            results = context.SimpleQueue()
            attackers = context.Process(target=attack, args=(name, url, at_once, results))
            attackers.start()
            row = asyncio.run(bystanders(url, lambda: not attackers.is_alive()))
            took_s = time.monotonic() - begun_s
            statuses = results.get() if not results.empty() else {}
            attackers.join()
            return {**row, "before_mib": before_mib, "peak_mib": peak_mib(pid), "statuses": statuses, "took_s": took_s}


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
        return
    options = read_arguments(__doc__, at_once=100, attacks=["all"])
    names = (
        list(ATTACKS)
        if options.attacks == ["all"]
        else [one for one in ATTACKS if any(a in one for a in options.attacks)]
    )
    rows = {}
    for name in (None, *names):
        rows[name or "none"] = row = measured(name, options.at_once)
        print(name, json.dumps(row), flush=True)
        load = round(os.getloadavg()[0], 1)
        save(options.out, "attacks", {"at_once": options.at_once, "load_average": load, "attacks": rows})


if __name__ == "__main__":
    main()
