"""Checks the models on a GPU: equal codes on CPU and GPU in fp32 with small checkpoints; loads checkpoints of the
published sizes and speaks with them.

python -m benchmarks.check_model --out docs/results [--scratch DIR] [--frames 40]
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loaded_checkpoint import LoadedCheckpoint
from benchmarks.results import SCRATCH, read_arguments, save
from oscine import Oscine, SpeechRequest, Voice
from random_checkpoint import KINDS, write_checkpoint

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while."
GIB = 2**30


def same_codes(scratch: Path) -> dict[str, Any]:
    """Codes in fp32 on GPU and CPU, in all modes, and the largest difference of their samples."""
    figures = {}
    for size in ("1b7", "0b6"):
        for kind in KINDS:
            folder = write_checkpoint(scratch / f"tiny-{size}-{kind}", size=size, kind=kind, seed=1)
            cpu, gpu = (Oscine(folder, device=device, dtype="float32") for device in ("cpu", "cuda"))
            voice: str | Voice | None = {"custom_voice": "ryan", "voice_design": None, "base": a_voice(cpu)}[kind]
            requests = [
                SpeechRequest(
                    text=TEXT,
                    voice=voice,
                    instructions="A calm voice." if kind == "voice_design" else None,
                    text_mode=mode,
                    greedy=greedy,
                    seed=7,
                    max_new_tokens=60,
                )
                for mode in ("whole", "streaming")
                for greedy in (True, None)
            ]
            pairs = list(zip(cpu.speak_batch(requests), gpu.speak_batch(requests), strict=True))
            figures[f"{size}-{kind}"] = {
                "frames": sum(len(a.codes) for a, _ in pairs),
                "codes_equal": all(np.array_equal(a.codes, b.codes) for a, b in pairs),
                "largest_sample_difference": max(
                    float(np.abs(a.audio - b.audio).max()) for a, b in pairs if len(a.audio) == len(b.audio)
                ),
            }
            print(f"{size}-{kind}: {figures[f'{size}-{kind}']}", flush=True)
    return figures


def a_voice(base: Oscine) -> Voice | None:
    if base.config.kind != "base":
        return None
    noise = np.random.default_rng(0).standard_normal(48000).astype(np.float32)
    return base.clone((0.2 * noise, 24000), "a few words of reference")


def published(scratch: Path, size: str, frames: int) -> dict[str, Any]:
    """Writes random weights of a published size, loads them in bf16, and makes `frames` frames."""
    begun = time.perf_counter()
    folder = write_checkpoint(scratch / f"full-{size}", size=size, kind="custom_voice", widths="published")
    written_s = time.perf_counter() - begun
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    model = LoadedCheckpoint.load(folder, torch.device("cuda"), torch.bfloat16).model
    torch.cuda.synchronize()
    loaded_s = time.perf_counter() - begun
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    figures: dict[str, Any] = {
        "written_s": written_s,
        "loaded_s": loaded_s,
        "weights_gib": weights / GIB,
        "gpu_peak_while_loading_gib": torch.cuda.max_memory_allocated() / GIB,
    }
    del model
    with Oscine(folder, device="cuda", dtype="bfloat16") as tts:
        requests = [SpeechRequest(text=TEXT, voice="ryan", seed=n, max_new_tokens=frames + 1) for n in range(8)]
        figures["frames_batch_8"] = [len(speech.codes) for speech in tts.speak_batch(requests)]
    figures["gpu_peak_gib"] = torch.cuda.max_memory_allocated() / GIB
    figures["host_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{size}: {figures}", flush=True)
    return figures


def main() -> None:
    options = read_arguments(__doc__, scratch=SCRATCH, frames=40)
    figures = {"tiny_cpu_against_gpu_fp32": same_codes(options.scratch)}
    for size in ("0b6", "1b7"):
        figures[f"published_{size}"] = published(options.scratch, size, options.frames)
    print(save(options.out, "model", figures))
    if not all(figure["codes_equal"] for figure in figures["tiny_cpu_against_gpu_fp32"].values()):
        sys.exit("codes differ between CPU and GPU")


if __name__ == "__main__":
    main()
