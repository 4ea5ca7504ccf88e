"""Measures what planning a plain request takes the front end: from the body's bytes to the SpeechPlan that the engine
speaks, without HTTP, engine or model.

    python -m benchmarks.planning [--before ../old/src] [--rounds 10]

`--before` is the `src` of another commit (08e7b93 and later), whose rounds alternate with those of this one. Each round
is a process of its own; it times batches of requests in seconds of the CPU. The shortest batch of all rounds counts,
because a busy machine only adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.report_sections import planning_table
from benchmarks.results import RESULTS, read_arguments, save

TEXTS = {"short": "Hello there.", "sentences": "I never said that the project would be easy. Take a deep breath. " * 3}
# One request after the other, in batches; it also counts the calls of Python functions in one request.
_PROBE = """
import asyncio, gc, json, sys, time
from oscine.server.app import build_app
from oscine.types import EngineStatus, ModelCard
from oscine.server.schemas import SpeechBody

class Engine:
    def status(self):
        return EngineStatus(True, 8, 0, 0, 0, 0.001)

card = ModelCard(name="plain", kind="custom_voice", speakers=("wren", "finch"), languages=("english",), dialects=(),
                 takes_instructions=True, sample_rate_hz=24000, samples_per_frame=1920, speaker_width=8)
service = build_app(Engine(), card).state.service
plan = service.plan if hasattr(service, "plan") else service.planner.plan
bodies = [json.dumps({"input": text, "voice": "wren", "stream": True}).encode() for text in json.loads(sys.argv[1])]

async def planned(data):
    body = SpeechBody.model_validate(json.loads(data))
    try:
        model = service.route(body, body.input)
    except TypeError:
        model = service.route(body)
    return await plan(model, body, body.input)

async def measure(data):
    for _ in range(200):
        await planned(data)
    gc.collect()
    gc.disable()
    batches = []
    for _ in range(200):
        begun = time.process_time()
        for _ in range(10):
            await planned(data)
        batches.append((time.process_time() - begun) / 10)
    calls = 0
    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"
    sys.setprofile(count)
    await planned(data)
    sys.setprofile(None)
    return {"us": 1e6 * min(batches), "calls": calls}

print(json.dumps([asyncio.run(measure(data)) for data in bodies]))
"""


def measured(source: Path) -> list[dict[str, float]]:
    environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
    command = [sys.executable, "-c", _PROBE, json.dumps(list(TEXTS.values()))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"planning with {source} failed:\n{done.stderr[-3000:]}")
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    options = read_arguments(__doc__, before={"type": Path}, before_commit=("", "which it is"), rounds=10)
    sources = {"after": Path("src")} | ({"before": options.before} if options.before else {})
    runs: dict[str, list[list[dict[str, float]]]] = {name: [] for name in sources}
    for _ in range(options.rounds):
        for name, source in sources.items():
            runs[name].append(measured(source))
    figures: dict[str, Any] = {"rounds": options.rounds, "before_commit": options.before_commit, "chars": {}}
    for index, (text, words) in enumerate(TEXTS.items()):
        figures["chars"][text] = len(words)
        for name, rounds in runs.items():
            best = {key: min(one[index][key] for one in rounds) for key in ("us", "calls")}
            figures.setdefault(name, {})[text] = best
    print(planning_table(figures))
    folder = options.out / "waist" if options.out == RESULTS else options.out
    folder.mkdir(parents=True, exist_ok=True)
    print(save(folder, "planning", figures))


if __name__ == "__main__":
    main()
