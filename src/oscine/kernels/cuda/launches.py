"""Chooses launches of attention, norms and sampling: the kernels' arguments, and the grid for a number of rows. The
`.cu` files have the formulas."""

from __future__ import annotations

import ctypes

from oscine.kernels.cuda.linear import SEGMENTS
from oscine.kernels.cuda.program import Launch, Program

DIM = 128  # of a head of the predictor and the talker
WINDOW_DIM = 64  # of a head of the codec's stack
BLOCK_POSITIONS = 64  # of a block of the KV cache
CAPACITY = 16  # positions of the predictor
_TALKER_WARPS = 4  # of a block
_PARTS_BYTES = 4 * DIM * 2  # of a new position: two queries, the key, the value
_PARTIAL_BYTES = (2 * 2 * DIM + 8) * 4  # of a warp: two sums of two heads; peaks and norms

_ATTENTION_POINTERS = ("qkv", "q_scale", "k_scale", "cos", "sin", "keys", "values")


class PredictorArguments(ctypes.Structure):  # `Arguments` in predictor_attention.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_ATTENTION_POINTERS, "out")),
        *((name, ctypes.c_int) for name in ("position", "qkv_stride", "out_stride", "sequence_stride", "head_stride")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    ]


class TalkerArguments(ctypes.Structure):  # `Arguments` in talker_attention.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_ATTENTION_POINTERS, "block_table", "positions", "slots", "out")),
        *((name, ctypes.c_int) for name in ("qkv_stride", "out_stride", "block_stride", "head_stride", "table_stride")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    ]


class WindowArguments(ctypes.Structure):  # `Arguments` in window_attention.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "cos", "sin", "slots", "positions", "keys", "values", "out")),
        *((name, ctypes.c_int) for name in ("qkv_stride", "out_stride", "slot_stride")),
        ("scale", ctypes.c_float),
    ]


def supports_attention(heads: int, kv_heads: int, dim: int) -> bool:
    return dim == DIM and heads == 2 * kv_heads


def predictor_launch(heads: int, kv_heads: int, sequences: int, new: int, *, tiles: bool) -> Launch:
    """`tiles`: the output is in tiles."""
    program = Program.of("predictor_attention", HEADS=heads, KV_HEADS=kv_heads, NEW=new, OUT_IN_TILES=int(tiles))
    return Launch(program, (kv_heads, sequences, 1), 32, new * _PARTS_BYTES)


def talker_launch(heads: int, kv_heads: int, rows: int, *, tiles: bool) -> Launch:
    """`tiles`: the output is in tiles."""
    program = Program.of("talker_attention", HEADS=heads, KV_HEADS=kv_heads, OUT_IN_TILES=int(tiles))
    return Launch(program, (kv_heads, rows, 1), _TALKER_WARPS * 32, _TALKER_WARPS * _PARTIAL_BYTES)


def window_launch(heads: int, window: int, rows: int, *, tiles: bool) -> Launch:
    """`tiles`: the output is in tiles."""
    program = Program.of("window_attention", HEADS=heads, WINDOW=window, OUT_IN_TILES=int(tiles))
    return Launch(program, (heads, rows, 1), 32)


# --- RMSNorm of rows that a product for many rows reads; `norm.cuh` has the formula.

_NORM_WARPS = 4  # of a block; one row each


class NormArguments(ctypes.Structure):  # `Arguments` in rms_norm.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "scale", "out")),
        *((name, ctypes.c_int) for name in ("rows", "x_stride", "out_stride")),
        ("epsilon", ctypes.c_float),
    ]


def norm_launch(width: int, rows: int, *, tiles: bool, segments: int | None = None) -> Launch:
    """Gives the same bits as a product that norms rows of this width itself. `tiles`: the output is in tiles."""
    program = Program.of("rms_norm", INPUTS=width, SEGMENTS=segments or SEGMENTS[width], OUT_IN_TILES=int(tiles))
    return Launch(program, (-(-rows // _NORM_WARPS), 1, 1), _NORM_WARPS * 32)


# --- A code from its logits, and the predictor's next input by that code (`sample.cu`).

_SAMPLE_POINTERS = (
    *("logits", "slots", "codes", "failed", "temperature", "tail", "top_k", "greedy", "seed_low", "seed_high"),
    *("frame", "inputs", "first_qkv", "next_x", "next_qkv", "penalty", "hold_eos", "seen"),
)
_SAMPLE_INTS = (
    *("book", "logits_stride", "code_stride", "x_stride", "qkv_stride"),
    *("code_count", "eos", "min_frames", "seen_stride"),
)
_IDS_OF_WARP = 256
_MAX_IDS = 32 * _IDS_OF_WARP


class SampleArguments(ctypes.Structure):  # `Arguments` in sample.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in _SAMPLE_POINTERS),
        *((name, ctypes.c_int) for name in _SAMPLE_INTS),
    ]


def sample_launch(ids: int, x_width: int, qkv_width: int, rows: int, *, first: bool = False) -> Launch:
    """A width of 0 means that there is no such table to look up. `first`: for code 0."""
    assert ids % 8 == 0 and ids <= _MAX_IDS, ids
    warps = -(-ids // _IDS_OF_WARP)
    program = Program.of("sample", IDS=ids, FIRST=int(first), X_WIDTH=x_width, QKV_WIDTH=qkv_width)
    return Launch(program, (rows, 1, 1), warps * 32, 2 * warps * 8)


# --- A kernel that compares two instructions; `wgmma_check.cu` says why.

CHECK_ROWS, CHECK_WEIGHT_ROWS = 32, 64
_OPERAND_ROW_BYTES = 128


class CheckArguments(ctypes.Structure):  # `Arguments` in wgmma_check.cu
    _fields_ = [(name, ctypes.c_void_p) for name in ("x", "weight", "by_mma", "by_wgmma")]


def check_launch(instructions: int, cases: int) -> Launch:
    """Launches chains of so many instructions; x [cases, CHECK_ROWS, inputs], weights [cases, CHECK_WEIGHT_ROWS,
    inputs]."""
    program = Program.of("wgmma_check", INPUTS=check_inputs(instructions), INSTRUCTIONS=instructions)
    return Launch(program, (cases, 1, 1), 128, CHECK_ROWS * _OPERAND_ROW_BYTES)


def check_inputs(instructions: int) -> int:
    return -(-instructions // 4) * 64
