"""Attention of the predictor, the talker and the codec's stack: which launch for how many rows. The kernels have the
formulas."""

from __future__ import annotations

import ctypes

from oscine.kernels.cuda.program import Launch, Program

DIM = 128  # of a head of the predictor and the talker
WINDOW_DIM = 64  # of a head of the codec's stack
BLOCK_POSITIONS = 64  # of a block of the KV cache
CAPACITY = 16  # positions of the predictor
_WARPS = 4  # of a block of talker_attention
_PARTS_BYTES = 4 * DIM * 2  # of a new position: two queries, the key, the value
_PARTIAL_BYTES = (2 * 2 * DIM + 8) * 4  # of a warp: two sums of two heads; peaks and norms

_POINTERS = ("qkv", "q_scale", "k_scale", "cos", "sin", "keys", "values")


class PredictorArguments(ctypes.Structure):  # `Arguments` in predictor_attention.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_POINTERS, "out")),
        *((name, ctypes.c_int) for name in ("position", "qkv_stride", "out_stride", "sequence_stride", "head_stride")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    ]


class TalkerArguments(ctypes.Structure):  # `Arguments` in talker_attention.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_POINTERS, "block_table", "positions", "slots", "out")),
        *((name, ctypes.c_int) for name in ("qkv_stride", "out_stride", "block_stride", "head_stride", "table_stride")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    ]


class WindowArguments(ctypes.Structure):  # `Arguments` in window_attention.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "cos", "sin", "slots", "positions", "keys", "values", "out")),
        *((name, ctypes.c_int) for name in ("qkv_stride", "out_stride", "slot_stride")),
        ("scale", ctypes.c_float),
    ]


def supports(heads: int, kv_heads: int, dim: int) -> bool:
    return dim == DIM and heads == 2 * kv_heads


def predictor_launch(heads: int, kv_heads: int, sequences: int, new: int, *, tiles: bool) -> Launch:
    """`tiles`: of the output."""
    program = Program.of("predictor_attention", HEADS=heads, KV_HEADS=kv_heads, NEW=new, OUT_IN_TILES=int(tiles))
    return Launch(program, (kv_heads, sequences, 1), 32, new * _PARTS_BYTES)


def talker_launch(heads: int, kv_heads: int, rows: int, *, tiles: bool) -> Launch:
    """`tiles`: of the output."""
    program = Program.of("talker_attention", HEADS=heads, KV_HEADS=kv_heads, OUT_IN_TILES=int(tiles))
    return Launch(program, (kv_heads, rows, 1), _WARPS * 32, _WARPS * _PARTIAL_BYTES)


def window_launch(heads: int, window: int, rows: int, *, tiles: bool) -> Launch:
    """`tiles`: of the output."""
    program = Program.of("window_attention", HEADS=heads, WINDOW=window, OUT_IN_TILES=int(tiles))
    return Launch(program, (heads, rows, 1), 32)
