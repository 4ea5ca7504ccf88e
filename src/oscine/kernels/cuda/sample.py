"""A code from its logits, and the predictor's next input by that code (`sample.cu`)."""

from __future__ import annotations

import ctypes

from oscine.kernels.cuda.program import Launch, Program

_POINTERS = (
    *("logits", "slots", "codes", "failed", "temperature", "tail", "top_k", "greedy", "seed_low", "seed_high"),
    *("frame", "inputs", "first_qkv", "next_x", "next_qkv", "penalty", "hold_eos", "seen"),
)
_INTS = (
    *("book", "logits_stride", "code_stride", "x_stride", "qkv_stride"),
    *("code_count", "eos", "min_frames", "seen_stride"),
)
_IDS_OF_WARP = 256
_MAX_IDS = 32 * _IDS_OF_WARP


class SampleArguments(ctypes.Structure):  # `Arguments` in sample.cu
    _fields_ = [*((name, ctypes.c_void_p) for name in _POINTERS), *((name, ctypes.c_int) for name in _INTS)]


def sample_launch(ids: int, x_width: int, qkv_width: int, rows: int, *, first: bool = False) -> Launch:
    """A width of 0: no such look-up. `first`: for code 0."""
    assert ids % 8 == 0 and ids <= _MAX_IDS, ids
    warps = -(-ids // _IDS_OF_WARP)
    program = Program.of("sample", IDS=ids, FIRST=int(first), X_WIDTH=x_width, QKV_WIDTH=qkv_width)
    return Launch(program, (rows, 1, 1), warps * 32, 2 * warps * 8)
