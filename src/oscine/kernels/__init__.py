"""Triton kernels of admission, prefill, the decode step and the codec; `cuda/` has CUDA C++ kernels for Hopper.

The caller passes outputs and scratch. No kernel allocates or synchronizes, so a CUDA graph can capture all of them.
A row with a negative slot pads the batch; kernels that read slots skip it.
"""

from __future__ import annotations

import importlib.util

import torch

_ROW_PADDING = 128


def padded_rows(rows: int) -> int:
    """Returns the number of rows that a product's input buffer needs: products may read whole tiles, and the padding
    may hold anything."""
    return -(-rows // _ROW_PADDING) * _ROW_PADDING


def available(device: torch.device) -> bool:
    """Whether Triton is installed and the device is a GPU with bf16 tensor cores (Ampere or later)."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0)
