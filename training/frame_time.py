"""Measures one frame on this machine as the engine runs it: all slots together, on a CPU. With two threads, the audio
of a frame is computed beside the codes of the next one.

    python training/frame_time.py FOLDER [FOLDER ...] [--rows 1 4] [--threads 2]

Other programs disturb the minimum of many frames least; 80 ms is real time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import paths  # noqa: F401
import torch

from oscine import SpeechRequest
from oscine.model.checkpoint import find_checkpoint
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.cpu.codec import CpuCodec
from oscine.runner.factory import make_backend
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of a tree. " * 2


def frame_ms(folder: Path, rows: int, frames: int) -> tuple[list[float], list[float]]:
    """Milliseconds between successive frames, and of the codec alone in the same frames. Run it on a new thread."""
    model = load_model(folder, device=torch.device("cpu"))
    builder = PromptBuilder(model.config, Tokenizer.from_folder(folder))
    budget = plan_memory(
        model.config, slots=rows, positions_per_slot=1024, positions_total=None, element_bytes=4, available_bytes=None
    )
    backend = make_backend(model, budget)
    runner = SlotRunner(backend)
    for slot in range(rows):
        request = SpeechRequest(text=TEXT, seed=slot, max_new_tokens=frames + 8)
        runner.admit(SlotAssignment(slot, builder.build(request), request.sampling(model.config.sampling)))
    slots = list(range(rows))
    collected, codec = [], []
    run = CpuCodec.run

    def timed(*arguments: object) -> None:
        begun = time.perf_counter()
        run(*arguments)  # type: ignore[arg-type]
        codec.append((time.perf_counter() - begun) * 1e3)

    with mock.patch.object(CpuCodec, "run", timed), backend.launching():
        ticket = runner.launch(slots)
        for _ in range(frames + 1):
            following = runner.launch(slots)
            runner.collect(ticket)
            collected.append(time.perf_counter())
            ticket = following
        runner.collect(ticket)
    return [(later - at) * 1e3 for at, later in itertools.pairwise(collected)], codec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--threads", type=int, help="one: the codec has no thread of its own")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for folder in options.folders:
        for rows in options.rows:
            with ThreadPoolExecutor(1) as thread:
                whole, codec = thread.submit(frame_ms, find_checkpoint(folder), rows, options.frames).result()
            print(
                f"{folder}: {rows} rows, {torch.get_num_threads()} threads: least {min(whole):.1f} ms, "
                f"median {statistics.median(whole):.1f} ms (codec {min(codec):.1f} / {statistics.median(codec):.1f}), "
                f"{80 * rows / min(whole):.1f} x real time",
                flush=True,
            )


if __name__ == "__main__":
    main()
