"""How much shared memory one thread block may use, by GPU."""

from __future__ import annotations

from functools import cache

import torch

# Bytes of a block by compute capability, from NVIDIA's table (the SM's shared memory minus 1 KiB).
BLOCK_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}


@cache
def block_bytes(device: torch.device) -> int:
    """Shared memory of a block on this device. The CPU, where the interpreter runs, has no limit: it gets the largest
    one."""
    if device.type != "cuda":
        return max(BLOCK_BYTES.values())
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # the stubs lack it


def fitting_stages(stages: int, tile_bytes: int, limit_bytes: int) -> int:
    """The number of pipeline stages, `stages` or fewer, whose tiles fit into shared memory. `tile_bytes` are those that
    one step loads; Triton keeps them for all stages but one. Results do not depend on the number of stages."""
    while stages > 2 and (stages - 1) * tile_bytes > limit_bytes:
        stages -= 1
    return stages
