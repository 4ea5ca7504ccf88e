"""How long the greedy codes of both kinds of kernels, and of FP8 weights, agree with plain PyTorch in bf16, on a Hopper
GPU.

    python -m benchmarks.agreement --out docs/results [--sizes 1b7 0b6] [--sequences 100] [--frames 100]

Two computations in bf16 part at the first near tie, and random weights have many, so the number of leading codes that
agree is random. The CUDA kernels must not agree worse than Triton's, beyond three standard errors.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.checkpoints import random_weights
from benchmarks.frame import KINDS
from benchmarks.loaded_checkpoint import LoadedCheckpoint
from benchmarks.results import SCRATCH, read_arguments, save
from oscine.request import SpeechRequest
from oscine.runner.backend import Backend, BackendOptions
from oscine.runner.memory_budget import MemoryBudget
from oscine.runner.slot_runner import SlotRunner
from oscine.runner.torch_backend import TorchBackend

TEXT = "one day the quick brown fox met a lazy dog in the shade of an old tree and they talked for a while"
Codes = npt.NDArray[np.int64]  # [sequences, frames, 16]


def request(number: int, frames: int) -> SpeechRequest:
    """Texts of different lengths and orders."""
    words = np.random.default_rng(number).permutation(TEXT.split())[: 3 + number % 15]
    return SpeechRequest(text=" ".join(words), voice="ryan", greedy=True, max_new_tokens=frames + 1)


def speak(loaded: LoadedCheckpoint, backend: Backend, sequences: int, frames: int) -> Codes:
    """All sequences together. An end is ignored."""
    runner, slots = SlotRunner(backend), range(sequences)
    runner.capture()
    for slot in slots:
        runner.admit(loaded.assign(slot, request(slot, frames)))
    return np.stack([runner.collect(runner.launch(slots)).codes for _ in range(frames)], axis=1)


def leading_equal(codes: Codes, reference: Codes) -> npt.NDArray[np.int64]:
    """Per sequence, the codes before the first one that differs."""
    equal = (codes == reference).reshape(len(codes), -1)
    return np.logical_and.accumulate(equal, axis=1).sum(axis=1)


def figures_of(equal: npt.NDArray[np.int64], count: int) -> dict[str, Any]:
    return {
        "leading_codes_mean": float(equal.mean()),
        "leading_codes_median": float(np.median(equal)),
        "standard_error": float(equal.std(ddof=1) / len(equal) ** 0.5),
        "agree_to_the_end": int((equal == count).sum()),
    }


def no_worse(cuda: npt.NDArray[np.int64], triton: npt.NDArray[np.int64]) -> bool:
    """The sequences are the same, so their differences are compared."""
    difference = cuda - triton
    return bool(difference.mean() >= -3 * difference.std(ddof=1) / len(difference) ** 0.5)


def budget_for(loaded: LoadedCheckpoint, sequences: int, frames: int) -> MemoryBudget:
    positions = -(-(frames + 200) // 64) * 64  # with a prompt
    return loaded.budget(sequences, positions, prefix_bytes=0)


def measure(folder: Path, sequences: int, frames: int) -> dict[str, Any]:
    from oscine.runner.cuda.backend import CudaBackend

    loaded = LoadedCheckpoint.load(folder, torch.device("cuda"), torch.bfloat16)
    budget = budget_for(loaded, sequences, frames)
    plain = speak(loaded, TorchBackend(loaded.model, budget, BackendOptions(codec=False)), sequences, frames)
    figures: dict[str, Any] = {"codes": frames * plain.shape[2]}
    equal = {}
    for kind, options in KINDS.items():  # FP8 comes last: it frees the weights of the model
        gc.collect()  # a backend and its graphs reference each other
        torch.cuda.empty_cache()
        backend = CudaBackend(loaded.model, budget, replace(options, frame_sizes=(), codec=False))
        equal[kind] = leading_equal(speak(loaded, backend, sequences, frames), plain)
        figures[kind] = figures_of(equal[kind], figures["codes"])
        print(kind, figures[kind], flush=True)
    return figures | {"cuda_no_worse": no_worse(equal["cuda"], equal["triton"])}


def main() -> None:
    options = read_arguments(__doc__, scratch=SCRATCH, sizes=["1b7", "0b6"], sequences=100, frames=100)
    figures: dict[str, Any] = {"sequences": options.sequences, "frames": options.frames}
    for size in options.sizes:
        folder = random_weights(options.scratch, size, endless=False)
        figures[size] = measure(folder, options.sequences, options.frames)
        print(save(options.out, "agreement", figures), flush=True)
    worse = [size for size in options.sizes if not figures[size]["cuda_no_worse"]]
    sys.exit(f"the CUDA kernels agree worse than Triton's: {', '.join(worse)}" if worse else 0)


if __name__ == "__main__":
    main()
