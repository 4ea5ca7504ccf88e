"""Writes a checkpoint whose layers have FP8 weights, widened again: any device speaks it as `--quantize fp8` would, up
to the rounding of activations. For a checkpoint whose widths the FP8 kernels do not have, such as the demo voice.

    python -m benchmarks.fp8_checkpoint --out .cache/demo-fp8 [--model demo]
"""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.results import read_arguments
from oscine.kernels.operations import dequantized, quantize
from oscine.model.checkpoint import find_checkpoint

_WEIGHTS = "model.safetensors"


def is_quantized(name: str) -> bool:
    """The matrices of the talker's and the predictor's layers."""
    return ".layers." in name and name.endswith("_proj.weight")


def rounded(weight: Tensor) -> Tensor:
    values, scale = dequantized(quantize(weight))
    return values.float() * scale[:, None]


def write_fp8_checkpoint(model: Path, out: Path) -> int:
    """Returns the number of matrices."""
    shutil.copytree(model, out)
    weights = load_file(model / _WEIGHTS)
    chosen = [name for name in weights if is_quantized(name)]
    save_file({**weights, **{name: rounded(weights[name]) for name in chosen}}, out / _WEIGHTS)
    return len(chosen)


def main() -> None:
    options = read_arguments(
        __doc__, model=("demo", "a folder, a hub id or demo; with one file of weights"),
        out={"type": Path, "required": True, "help": "a new folder"},
    )  # fmt: skip
    count = write_fp8_checkpoint(find_checkpoint(options.model), options.out)
    print(f"{options.out}: {count} matrices in FP8")


if __name__ == "__main__":
    main()
