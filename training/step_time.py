"""Times a training step of the codec and lists its kernels, on noise instead of speech.

    python training/step_time.py [--batch 16] [--compile] [--no-graph] [--steps 40] [--kernels 24]

A step that takes much longer than the sum of its kernels waits for Python. `mel` must fall from line to line, because
every step trains, replayed or not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from captured import CapturedStep
from codec import Trainer, add_common, add_own, prepare_backends
from codes import CODES
from corpus import FRAME_LABELS, Corpus
from sizes import FRAME_SAMPLES
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from oscine.audio.pcm import CODEBOOKS

_UTTERANCES, _FRAMES = 64, 60
_FIRST_STEPS = 5  # until a step is captured, plus one


def write_noise(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw, frames = np.random.default_rng(0), _UTTERANCES * _FRAMES
    np.save(folder / "noise.wave.npy", draw.normal(0, 3000, frames * FRAME_SAMPLES).astype(np.int16))
    np.save(folder / "noise.phones.npy", draw.integers(0, 40, frames * FRAME_LABELS).astype(np.uint8))
    np.save(folder / "noise.codes.npy", draw.integers(0, CODES, (frames, CODEBOOKS), np.uint8))
    about = {"key": "", "text": "", "voice": "wren", "style": "plain", "frames": _FRAMES}
    lines = [json.dumps(about | {"first_frame": number * _FRAMES}) for number in range(_UTTERANCES)]
    (folder / "noise.jsonl").write_text("\n".join(lines))


def timed_steps(trainer: Trainer, corpus: Corpus, steps: int) -> tuple[float, float]:
    """Seconds, and the mel loss of the last step."""
    begun = time.monotonic()
    for _ in range(steps):
        losses = trainer.step(corpus)
    mel = float(losses["mel"])  # waits for the device
    return time.monotonic() - begun, mel


def measure(trainer: Trainer, corpus: Corpus, kernels: int, judged: bool) -> None:
    steps = trainer.options.steps
    trainer.options.judge_from = 0.0 if judged else 2.0
    took_s, mel = timed_steps(trainer, corpus, _FIRST_STEPS)
    step = trainer.current_step
    how = "replayed" if isinstance(step, CapturedStep) and step.recorded else "as they are"
    first = f"the first {_FIRST_STEPS} steps took {took_s:.1f} s, mel {mel:.3f}"
    print(f"judged {judged}: {first}; now {how}", flush=True)
    took_s, mel = timed_steps(trainer, corpus, steps)
    memory = torch.cuda.max_memory_reserved() / 2**30 if trainer.device.type == "cuda" else 0.0
    print(f"judged {judged}: {took_s / steps * 1e3:.1f} ms a step, mel {mel:.3f}, {memory:.1f} GiB", flush=True)
    if not kernels:
        return
    on_gpu = trainer.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        timed_steps(trainer, corpus, 1)
    # Driver calls are rows too, and would count their kernels twice.
    kind, name = (DeviceType.CUDA, "self_device_time_total") if on_gpu else (DeviceType.CPU, "self_cpu_time_total")
    found = [row for row in seen.key_averages() if row.device_type == kind]
    rows = sorted(((getattr(row, name) / 1e3, row.count, row.key) for row in found), reverse=True)
    total_ms, launches = sum(ms for ms, _, _ in rows), sum(count for _, count, _ in rows)
    print(f"judged {judged}: {total_ms:.1f} ms in {launches} kernels", flush=True)
    for ms, count, key in rows[:kernels]:
        print(f"   {ms:8.2f} ms {count:5} x  {key[:110]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser, steps=40, batch=16, rate=4e-4)
    add_own(parser)
    parser.add_argument("--kernels", type=int, default=24, help="kernels to list; 0: no profile")
    options = parser.parse_args(["-", *sys.argv[1:]])
    # The profiler must stay alive between two uses while graphs exist.
    os.environ.update(TEARDOWN_CUPTI="0", DISABLE_CUPTI_LAZY_REINIT="1")
    prepare_backends()
    with tempfile.TemporaryDirectory() as scratch:
        options.work = Path(scratch)
        write_noise(options.work / "speech")
        trainer = Trainer(options)
        corpus = Corpus(options.work / "speech", trainer.device)
    trainer.model.train()
    for judged in (False, True):
        measure(trainer, corpus, options.kernels, judged)


if __name__ == "__main__":
    main()
