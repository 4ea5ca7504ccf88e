"""Triton kernels: the autoregressive chain (linear, attention, sample, embed) and the codec. Nothing of ours in them.

Each takes its outputs and scratch from the caller, waits for nothing and allocates nothing, so that a CUDA graph can
hold it. A row whose slot is negative is padding of the batch: the kernels that know slots leave it alone.
"""

from __future__ import annotations

import importlib.util

import torch


def available(device: torch.device) -> bool:
    """Whether the kernels can run there: triton is installed, and the GPU multiplies bf16 (Ampere or later)."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0)
