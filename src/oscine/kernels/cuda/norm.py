"""RMSNorm of rows that a product for many rows reads; `norm.cuh` has the formula."""

from __future__ import annotations

import ctypes

from oscine.kernels.cuda.linear import SEGMENTS
from oscine.kernels.cuda.program import Launch, Program

_WARPS = 4  # of a block; one row each


class NormArguments(ctypes.Structure):  # `Arguments` in rms_norm.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "scale", "out")),
        *((name, ctypes.c_int) for name in ("rows", "x_stride", "out_stride")),
        ("epsilon", ctypes.c_float),
    ]


def norm_launch(width: int, rows: int, *, tiles: bool, segments: int | None = None) -> Launch:
    """Its bits equal those of a product that norms rows of this width itself. `tiles`: of the output."""
    program = Program.of("rms_norm", INPUTS=width, SEGMENTS=segments or SEGMENTS[width], OUT_IN_TILES=int(tiles))
    return Launch(program, (-(-rows // _WARPS), 1, 1), _WARPS * 32)
