"""Checkpoints with random weights, written once, and the settings for their endless speech. Loads no torch."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from benchmarks.report_table import SIZES
from benchmarks.results import SCRATCH
from oscine.config import EngineConfig, MemoryConfig, RunawayConfig

KINDS = {"preset": "custom_voice", "clone": "base"}
POSITIONS = 1024  # of a slot: far more than prompt and frames need
# Arguments of benchmarks that may run such weights.
WEIGHTS: dict[str, Any] = {
    "size": {"choices": SIZES, "help": "random weights of this size; default: a checkpoint that speaks"},
    "widths": {"choices": ("published", "small"), "default": "published", "help": "of the random weights"},
    "bpe": (Path, "folder with the published vocab.json and merges.txt"),
    "scratch": SCRATCH,
}


def random_weights(
    scratch: Path, size: str, kind: str = "preset", small: bool = False, endless: bool = True, bpe: Path | None = None
) -> Path:
    """Writes them in a process of its own, so that torch and its GPU memory are gone afterwards. `endless`: speech
    never ends by itself."""
    words = ["random", size, kind, *["small"] * small, *["endless"] * endless, *["bpe"] * (bpe is not None)]
    folder = scratch / "-".join(words)
    done = folder / "whole"
    if not done.exists():
        arguments = (folder, size, KINDS[kind], "tiny" if small else "published", bpe, endless)
        process = multiprocessing.get_context("spawn").Process(target=_write, args=arguments)
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"the checkpoint {folder} could not be written")
        done.touch()
    return folder


def _write(folder: Path, size: str, kind: str, widths: str, bpe: Path | None, endless: bool) -> None:
    from random_checkpoint import write_checkpoint

    gain: dict[str, Any] = {"eos_gain": 0.0} if endless else {}
    write_checkpoint(folder, size=size, kind=kind, widths=widths, bpe=bpe, **gain)


def checkpoint(options: argparse.Namespace, size: str | None = None, kind: str = "preset") -> Path:
    """The endless checkpoint that these options (`WEIGHTS`) name."""
    return random_weights(options.scratch, size or options.size, kind, small=options.widths == "small", bpe=options.bpe)


def endless_config(slots: int, **more: Any) -> EngineConfig:
    """Turns off runaway detection, which random weights would trip."""
    memory = MemoryConfig(positions_per_slot=POSITIONS)
    return EngineConfig(slots=slots, memory=memory, runaway=RunawayConfig(enabled=False), **more)
