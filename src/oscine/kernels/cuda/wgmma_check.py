"""A kernel that compares two instructions; `wgmma_check.cu` says why."""

from __future__ import annotations

import ctypes

from oscine.kernels.cuda.program import Launch, Program

ROWS, WEIGHT_ROWS = 32, 64
_OPERAND_ROW_BYTES = 128


class CheckArguments(ctypes.Structure):  # `Arguments` in wgmma_check.cu
    _fields_ = [(name, ctypes.c_void_p) for name in ("x", "weight", "by_mma", "by_wgmma")]


def check_launch(instructions: int, cases: int) -> Launch:
    """Chains of that many instructions; x [cases, ROWS, inputs], weights [cases, WEIGHT_ROWS, inputs]."""
    program = Program.of("wgmma_check", INPUTS=check_inputs(instructions), INSTRUCTIONS=instructions)
    return Launch(program, (cases, 1, 1), 128, ROWS * _OPERAND_ROW_BYTES)


def check_inputs(instructions: int) -> int:
    return -(-instructions // 4) * 64
