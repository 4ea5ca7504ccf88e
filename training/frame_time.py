"""Measures one frame on this machine as the engine runs it: all slots together, the plain torch backend on a CPU.

    python training/frame_time.py FOLDER [FOLDER ...] [--rows 1 4] [--threads 1]

Other programs disturb the minimum of many frames least; 80 ms is real time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import paths  # noqa: F401
import torch

from oscine import SpeechRequest
from oscine.model.checkpoint import find_checkpoint
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.factory import make_backend
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of a tree. " * 2


def frame_ms(folder: Path, rows: int, frames: int) -> tuple[list[float], list[float]]:
    """Milliseconds of whole frames, and of the codec alone in the same frames."""
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
    whole, codec = [], []
    run = backend.codec.run

    def timed(*arguments: object) -> None:
        begun = time.perf_counter()
        run(*arguments)  # type: ignore[arg-type]
        codec.append((time.perf_counter() - begun) * 1e3)

    backend.codec.run = timed  # type: ignore[method-assign,assignment]
    for _ in range(frames):
        begun = time.perf_counter()
        runner.collect(runner.launch(slots))
        whole.append((time.perf_counter() - begun) * 1e3)
    return whole, codec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--threads", type=int, help="one is steadier on a shared machine")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for folder in options.folders:
        for rows in options.rows:
            whole, codec = frame_ms(find_checkpoint(folder), rows, options.frames)
            print(
                f"{folder}: {rows} rows, {torch.get_num_threads()} threads: least {min(whole):.1f} ms, "
                f"median {statistics.median(whole):.1f} ms (codec {min(codec):.1f} / {statistics.median(codec):.1f}), "
                f"{80 * rows / min(whole):.1f} x real time",
                flush=True,
            )


if __name__ == "__main__":
    main()
