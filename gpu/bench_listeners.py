"""Listeners that one engine keeps in real time, through the engine itself: submit, chunks, playback clocks. For a CPU
with a small random checkpoint, or a GPU with one of the published sizes.

    python gpu/bench_listeners.py [--model FOLDER] [--listeners 1 2 4 8] [--seconds 6] [--device auto]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from results import write_result

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", "tools")]

from oscine.config import EngineConfig  # noqa: E402
from oscine.engine.build import build_engine  # noqa: E402
from oscine.types import AudioChunk, OverloadedError, SpeechEngine, SpeechRequest  # noqa: E402
from random_checkpoint import write_checkpoint  # noqa: E402

RATE_HZ = 24000


class Listener:
    """Plays from the first chunk on, and notes how late the worst sample came."""

    def __init__(self) -> None:
        self.submitted_s = time.perf_counter()
        self.first_s: float | None = None
        self.samples = 0
        self.worst_deficit_s = 0.0
        self.ended = threading.Event()

    def deliver(self, chunk: AudioChunk) -> None:
        now_s = time.perf_counter()
        if chunk.pcm:
            if self.first_s is None:
                self.first_s = now_s
            played_s = now_s - self.first_s
            self.worst_deficit_s = max(self.worst_deficit_s, played_s - self.samples / RATE_HZ)
            self.samples += len(chunk.pcm) // 2
        if chunk.finish_reason is not None:
            self.ended.set()


def run(engine: SpeechEngine, count: int, frames: int) -> dict[str, Any]:
    text = "hello there you and the world " * 12  # long enough that nobody runs out of words
    listeners, refused = [], 0
    begun = time.perf_counter()
    for seed in range(count):
        listener = Listener()
        try:
            engine.submit(SpeechRequest(text=text, seed=seed, max_new_tokens=frames + 1), listener.deliver)
            listeners.append(listener)
        except OverloadedError:
            refused += 1
    for listener in listeners:
        listener.ended.wait()
    took_s = time.perf_counter() - begun
    first_ms = [(one.first_s - one.submitted_s) * 1e3 for one in listeners if one.first_s is not None]
    return {
        "accepted": len(listeners),
        "refused": refused,
        "x_real_time": sum(one.samples for one in listeners) / RATE_HZ / took_s,
        "first_audio_ms": {"median": statistics.median(first_ms), "worst": max(first_ms)},
        "worst_deficit_ms": max(one.worst_deficit_s for one in listeners) * 1e3,
        "listeners_over_100_ms_late": sum(one.worst_deficit_s > 0.1 for one in listeners),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--scratch", type=Path, default=Path(".cache/gpu"))
    parser.add_argument("--model", help="default: a small random checkpoint")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--listeners", nargs="+", type=int, default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    # Few ends by themselves: everybody is to speak for as long as was asked.
    small = {"size": "0b6", "kind": "custom_voice", "eos_gain": 0.0}
    model = options.model or write_checkpoint(options.scratch / "small-listeners", **small)
    settings = {
        "slots": max(options.listeners),
        "memory": {"positions_per_slot": 1024},
        "trim_silence": {"enabled": False},
        "guard": {"enabled": False},
    }
    engine = build_engine(model, EngineConfig.from_mapping(settings), device=options.device)
    figures: dict[str, Any] = {"threads": torch.get_num_threads(), "listeners": {}}
    try:
        for count in options.listeners:
            figure = run(engine, count, int(options.seconds * 12.5))
            figures["listeners"][str(count)] = figure
            print(count, figure, flush=True)
    finally:
        engine.stop()
    print(write_result(options.out, "listeners-gpu" if torch.cuda.is_available() else "listeners-cpu", figures))


if __name__ == "__main__":
    main()
