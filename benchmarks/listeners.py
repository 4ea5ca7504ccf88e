"""Measures how many listeners one engine keeps in real time: submit, chunks, playback clocks. Runs on a CPU with a tiny
random checkpoint, on a GPU with random weights of a published size, or with a checkpoint that speaks.

    python -m benchmarks.listeners [--listeners 1 2 4 8] [--seconds 6]            a CPU, small checkpoint
    python -m benchmarks.listeners --size 1b7 --widths published --process --listeners 1 8 64 128 --churn 500
    python -m benchmarks.listeners --model demo --listeners 1 2 4 6 8             real sentences, the server's settings
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoints import endless_config, random_weights
from benchmarks.playback import PlaybackClock, submit
from benchmarks.results import SCRATCH, read_arguments, save
from demo_files import fingerprint
from oscine.config import EngineConfig, TrimConfig
from oscine.engine.build import build_engine
from oscine.engine.in_process import InProcessEngine
from oscine.engine.remote.client import EngineClient
from oscine.errors import OverloadedError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.request import SpeechRequest
from oscine.types import AudioChunk, Cancel, SpeechEngine

HELD_OUT = Path(__file__).resolve().parent.parent / "training" / "texts" / "heldout.txt"
RATE_HZ = 24000
WORDS = ["hello", "there", "you", "and", "the", "world", "how", "are", "things", "today"]


def run(engine: SpeechEngine, count: int, frames: int) -> dict[str, Any]:
    text = " ".join(WORDS * 8)  # longer than any stream here
    listeners, refused = [], 0
    begun = time.perf_counter()
    for seed in range(count):
        listener = PlaybackClock(RATE_HZ)
        try:
            submit(engine, SpeechRequest(text=text, seed=seed, max_new_tokens=frames + 1), listener.deliver)
            listeners.append(listener)
        except OverloadedError:
            refused += 1
    for listener in listeners:
        listener.ended.wait()
    took_s = time.perf_counter() - begun
    return {"accepted": len(listeners), "refused": refused, **playback_figures([[one] for one in listeners], took_s)}


def playback_figures(each: list[list[PlaybackClock]], took_s: float) -> dict[str, Any]:
    """Figures over all listeners; each made its requests one after the other."""
    everything = [one for requests in each for one in requests]
    first_ms = [one.first_audio_ms for one in everything if one.first_audio_ms is not None]
    return {
        "x_real_time": sum(one.samples for one in everything) / RATE_HZ / took_s,
        "first_audio_ms": {"median": statistics.median(first_ms), "worst": max(first_ms)},
        "worst_deficit_ms": max(one.worst_deficit_s for one in everything) * 1e3,
        "listeners_over_100_ms_late": sum(any(one.worst_deficit_s > 0.1 for one in requests) for requests in each),
    }


# --- a checkpoint that speaks ---


class SentenceLoad:
    """Real sentences, voices in rotation; speech ends where the model ends it."""

    def __init__(self, engine: SpeechEngine, voices: Sequence[str], texts: Sequence[str]) -> None:
        self._engine, self._voices, self._texts = engine, voices, texts
        self.ends: Counter[str] = Counter()

    def alone(self, requests: int) -> dict[str, Any]:
        begun = time.perf_counter()
        listeners = self._listen(range(requests))
        return {"requests": len(listeners), **playback_figures([listeners], time.perf_counter() - begun)}

    def together(self, count: int, sentences: int) -> dict[str, Any]:
        """All listeners start at once; a refused listener leaves."""
        begun = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            numbers = [range(place * sentences, (place + 1) * sentences) for place in range(count)]
            each = list(threads.map(self._listen, numbers))
        stayed = [listeners for listeners in each if len(listeners) == sentences]
        figures = playback_figures([listeners for listeners in each if listeners], time.perf_counter() - begun)
        return {"accepted": len(stayed), "refused": count - len(stayed), "sentences_each": sentences, **figures}

    def _listen(self, numbers: range) -> list[PlaybackClock]:
        listeners: list[PlaybackClock] = []
        for number in numbers:
            listener = PlaybackClock(RATE_HZ)
            voice = self._voices[number % len(self._voices)]
            request = SpeechRequest(text=self._texts[number % len(self._texts)], voice=voice, seed=number)
            try:
                submit(self._engine, request, self._counted(listener))
            except OverloadedError:
                break
            listener.ended.wait()
            listeners.append(listener)
        return listeners

    def _counted(self, listener: PlaybackClock) -> Callable[[AudioChunk], None]:
        def deliver(chunk: AudioChunk) -> None:
            if chunk.finish_reason is not None:
                self.ends[chunk.finish_reason] += 1
            listener.deliver(chunk)

        return deliver


def measure_speaking(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """The engine in its own process, with the default settings of `oscine serve`."""
    folder = find_checkpoint(model)
    card = read_config(folder).card(model)
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    begun = time.perf_counter()
    engine = EngineClient(partial(build_engine, model, EngineConfig(), device=options.device))
    try:
        engine.wait_ready()
        figures: dict[str, Any] = {"ready_s": time.perf_counter() - begun, "weights": fingerprint(folder)}
        load = SentenceLoad(engine, card.speakers, texts)
        figures["alone"] = load.alone(options.alone)
        print(figures["alone"], flush=True)
        figures["listeners"] = {}
        for count in options.listeners:
            figures["listeners"][str(count)] = figure = load.together(count, options.sentences)
            print(count, figure, flush=True)
        return figures | {"ends": dict(load.ends), "memory_bytes": engine.status().memory_bytes}
    finally:
        engine.stop()


def churn(engine: SpeechEngine, count: int, at_once: int) -> dict[str, Any]:
    """Random requests, a third of them cancelled: each ends exactly once, and the engine is empty afterwards."""
    rng, ends, begun = random.Random(0), Counter[str](), time.perf_counter()
    free, ended = threading.Semaphore(at_once), threading.Semaphore(0)

    def start(number: int) -> None:
        listener = PlaybackClock(RATE_HZ)

        def deliver(chunk: AudioChunk) -> None:
            listener.deliver(chunk)
            if chunk.finish_reason is not None:
                ends[chunk.finish_reason] += 1
                free.release()
                ended.release()

        words = rng.choices(WORDS, k=rng.randint(1, 40))
        request = SpeechRequest(text=" ".join(words), seed=number, max_new_tokens=rng.randint(2, 60))
        while True:
            try:
                utterance_id = submit(engine, request, deliver)
                break
            except OverloadedError as error:
                time.sleep(error.retry_after_s)
        if rng.random() < 1 / 3:
            time.sleep(rng.random() * 0.02)
            engine.send(utterance_id, Cancel())

    for number in range(count):
        free.acquire()
        start(number)
    for _ in range(count):
        ended.acquire()
    status = engine.status()
    assert sum(ends.values()) == count and status.slots_active == status.queued == 0, (ends, status)
    return {"requests": count, "at_once": at_once, "ends": dict(ends), "took_s": time.perf_counter() - begun}


def main() -> None:
    options = read_arguments(
        __doc__, scratch=SCRATCH, size=("0b6", "0b6 or 1b7"),
        widths=("tiny", "tiny, or published: random weights of the published shapes"), device="auto",
        process=(False, "run the engine in its own process, as the server does"), listeners=[1, 2, 3, 4, 6, 8],
        seconds=6.0, model=(str, "a checkpoint that speaks: a folder, a hub id or demo"),
        texts=(HELD_OUT, "with --model: one sentence per line"),
        alone=(20, "with --model: sequential requests of one listener"),
        sentences=(4, "with --model: sequential requests of each listener"),
        churn=(0, "random requests with cancels, at the end"),
    )  # fmt: skip
    if options.model:
        if options.process or options.churn:
            sys.exit("--process and --churn need random weights; --model always runs in its own process")
        name = f"listeners-{Path(options.model).name}"
        print(save(options.out, name, measure_speaking(options.model, options)))
        return
    # Every stream has the requested length.
    model = random_weights(options.scratch, options.size, small=options.widths == "tiny")
    settings = endless_config(max(options.listeners), trim_silence=TrimConfig(enabled=False))
    build = partial(build_engine, model, settings, device=options.device)
    begun = time.perf_counter()
    engine: InProcessEngine | EngineClient = EngineClient(build) if options.process else build()
    if isinstance(engine, EngineClient):
        engine.wait_ready()
    figures: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "ready_s": time.perf_counter() - begun,
        "memory_bytes": engine.status().memory_bytes,
        "listeners": {},
    }
    try:
        for count in options.listeners:
            figure = run(engine, count, int(options.seconds * 12.5))
            figures["listeners"][str(count)] = figure
            print(count, figure, flush=True)
        if options.churn:
            figures["churn"] = churn(engine, options.churn, max(options.listeners))
            print(figures["churn"], flush=True)
    finally:
        engine.stop()
    where = f"gpu-{options.size}" if torch.cuda.is_available() else "cpu"
    print(save(options.out, f"listeners-{where}", figures))


if __name__ == "__main__":
    main()
