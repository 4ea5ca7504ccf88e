"""Milliseconds of a training step of the codec, and the kernels that they go to, on noise in the place of speech.

python training/step_time.py [--batch 48] [--compile] [--steps 8] [--kernels 24]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from codec import Trainer, add_common, add_own, prepare_backends
from corpus import FRAME_LABELS, Corpus
from sizes import FRAME_SAMPLES
from torch.profiler import ProfilerActivity, profile

_UTTERANCES, _FRAMES = 64, 60


def write_noise(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw, frames = np.random.default_rng(0), _UTTERANCES * _FRAMES
    np.save(folder / "noise.wave.npy", draw.normal(0, 3000, frames * FRAME_SAMPLES).astype(np.int16))
    np.save(folder / "noise.phones.npy", draw.integers(0, 40, frames * FRAME_LABELS).astype(np.uint8))
    about = {"key": "", "text": "", "voice": "wren", "style": "plain", "frames": _FRAMES}
    lines = [json.dumps(about | {"first_frame": number * _FRAMES}) for number in range(_UTTERANCES)]
    (folder / "noise.jsonl").write_text("\n".join(lines))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, steps=8, batch=48, rate=6e-4)
    add_own(parser)
    parser.add_argument("--kernels", type=int, default=24)
    options = parser.parse_args(["-", *sys.argv[1:]])
    prepare_backends()
    with tempfile.TemporaryDirectory() as scratch:
        options.work = Path(scratch)
        write_noise(options.work / "speech")
        trainer = Trainer(options)
        corpus = Corpus(options.work / "speech", trainer.device)
    trainer.model.train()
    activity = ProfilerActivity.CUDA if trainer.device.type == "cuda" else ProfilerActivity.CPU
    for judged in (False, True):
        trainer.options.judges_from = 0.0 if judged else 2.0
        begun = time.monotonic()
        for _ in range(3):
            trainer.step(corpus)
        wait(trainer.device)
        print(f"judges {judged}: the first three steps took {time.monotonic() - begun:.1f} s", flush=True)
        begun = time.monotonic()
        for _ in range(options.steps):
            trainer.step(corpus)
        wait(trainer.device)
        print(f"judges {judged}: {(time.monotonic() - begun) / options.steps * 1e3:.1f} ms a step", flush=True)
        with profile(activities=[activity]) as seen:
            trainer.step(corpus)
            wait(trainer.device)
        rows = sorted(seen.key_averages(), key=lambda row: -_own_us(row))[: options.kernels]
        for row in rows:
            print(f"   {_own_us(row) / 1e3:8.2f} ms {row.count:5} x  {row.key[:110]}", flush=True)


def _own_us(row: object) -> float:
    return float(getattr(row, "self_device_time_total", 0.0) or getattr(row, "self_cpu_time_total", 0.0))


if __name__ == "__main__":
    main()
