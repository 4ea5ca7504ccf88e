"""The reference path on a GPU: CPU = GPU on small checkpoints, and checkpoints of the published sizes load and speak.

python -m benchmarks.check_model --out docs/results [--scratch DIR] [--frames 40]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.results import save
from oscine import Oscine, SpeechRequest, Voice
from random_checkpoint import KINDS, write_checkpoint

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while."
GIB = 2**30


def same_codes(scratch: Path) -> dict[str, Any]:
    """Greedy codes in fp32, all modes: GPU against CPU, and the largest difference of their samples."""
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
                    instruct="A calm voice." if kind == "voice_design" else None,
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
    """Random weights of the published size: written, loaded in bf16, and made to speak `frames` frames."""
    begun = time.perf_counter()
    folder = write_checkpoint(scratch / f"full-{size}", size=size, kind="custom_voice", widths="published")
    written_s = time.perf_counter() - begun
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    tts = Oscine(folder, device="cuda", dtype="bfloat16")
    torch.cuda.synchronize()
    loaded_s = time.perf_counter() - begun
    weights = sum(p.nbytes for p in tts._model.parameters()) + sum(b.nbytes for b in tts._model.buffers())
    figures: dict[str, Any] = {
        "written_s": written_s,
        "loaded_s": loaded_s,
        "weights_gib": weights / GIB,
        "gpu_peak_while_loading_gib": torch.cuda.max_memory_allocated() / GIB,
    }
    for batch in (1, 8):
        requests = [SpeechRequest(text=TEXT, voice="ryan", seed=n, max_new_tokens=frames + 1) for n in range(batch)]
        tts.speak_batch(requests[:1])
        begun = time.perf_counter()
        speeches = tts.speak_batch(requests)
        took_s = time.perf_counter() - begun
        figures[f"reference_x_real_time_batch_{batch}"] = sum(s.duration_s for s in speeches) / took_s
        figures[f"frames_batch_{batch}"] = [len(s.codes) for s in speeches]
    figures["gpu_peak_gib"] = torch.cuda.max_memory_allocated() / GIB
    figures["host_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{size}: {figures}", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--scratch", type=Path, default=Path(".cache/gpu"))
    parser.add_argument("--frames", type=int, default=40)
    options = parser.parse_args()
    figures = {"tiny_cpu_against_gpu_fp32": same_codes(options.scratch)}
    for size in ("0b6", "1b7"):
        figures[f"published_{size}"] = published(options.scratch, size, options.frames)
    print(save(options.out, "model", figures))
    if not all(figure["codes_equal"] for figure in figures["tiny_cpu_against_gpu_fp32"].values()):
        sys.exit("codes differ between CPU and GPU")


if __name__ == "__main__":
    main()
