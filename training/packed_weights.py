"""The teacher's weights in a small file.

Large tensors are stored as int8 with a float16 scale for every 64 numbers, the prosody predictor and small tensors as
float16.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

_GROUP = 64
_LEAST_QUANTIZED = 16384
_HALF = ("predictor.",)  # durations and pitch
_NUMBERS, _SCALES = ".int8", ".scale"


def quantize(value: Tensor) -> tuple[Tensor, Tensor]:
    flat = value.float().flatten()
    groups = torch.nn.functional.pad(flat, (0, -len(flat) % _GROUP)).view(-1, _GROUP)
    scale = (groups.abs().amax(1) / 127).half()
    safe = scale.float().clamp(min=1e-7)[:, None]
    return (groups / safe).round().clamp(-127, 127).to(torch.int8), scale


def packed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    made = {}
    for name, value in state.items():
        if value.numel() < _LEAST_QUANTIZED or name.startswith(_HALF):
            made[name] = value.half()
        else:
            made[name + _NUMBERS], made[name + _SCALES] = quantize(value)
    return made


def load_weights(path: Path, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """float32 tensors of these shapes, from a packed or an exact file."""
    stored, state = load_file(path), {}
    for name, shape in shapes.items():
        if name in stored:
            state[name] = stored[name].float()
        else:
            scale = stored[name + _SCALES].float().clamp(min=1e-7)[:, None]
            state[name] = (stored[name + _NUMBERS].float() * scale).flatten()[: shape.numel()].view(shape)
    return state
