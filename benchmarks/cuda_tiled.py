"""Checks of the product on wgmma: does wgmma add up as mma does, and do whole products have the bits of few rows?"""

from __future__ import annotations

import torch

from benchmarks.cuda_kernels import MAX_ROWS, PRODUCTS, Case
from benchmarks.cuda_report import Report, differences
from oscine.kernels.cuda.linear import FEW_ROWS, Product, linear_launch, tiled_plans
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Program
from oscine.kernels.cuda.wgmma_check import ROWS, WEIGHT_ROWS, CheckArguments, check_inputs, check_launch

CHAINS = (1, 2, 8, 24)  # instructions: one, two, and those of the two sizes of segments
_CASES = 64
_OCTAVES = 12  # operands are between 2**-12 and 2**12 times a normal number
_ROW_COUNTS = (32, 64, MAX_ROWS)


def tiled_check_programs() -> list[Program]:
    plain = [Product(one.outputs, one.inputs, one.epilogue) for one in PRODUCTS.values()]
    products = [linear_launch(one, rows, tiled_plans(one, rows)[-1]) for one in plain for rows in _ROW_COUNTS]
    return [launch.program for launch in (*products, *(check_launch(count, _CASES) for count in CHAINS))]


def check_instructions(report: Report, operations: CudaOperations) -> None:
    """One instruction and chains of them, on operands whose products differ by many orders of magnitude."""
    for instructions in CHAINS:
        with report.check(f"wgmma as mma, {instructions} instructions") as figures:
            generator, inputs = torch.Generator("cuda").manual_seed(instructions), check_inputs(instructions)

            def random(rows: int, inputs: int = inputs, generator: torch.Generator = generator) -> torch.Tensor:
                shape = (_CASES, rows, inputs)
                octaves = torch.randint(-_OCTAVES, _OCTAVES + 1, shape, generator=generator, device="cuda")
                return (torch.randn(shape, generator=generator, device="cuda") * 2.0**octaves).bfloat16()

            x, weight = random(ROWS), random(WEIGHT_ROWS)
            by_mma = torch.full((_CASES, ROWS, WEIGHT_ROWS), float("nan"), device="cuda")
            by_wgmma = by_mma.clone()
            arguments = CheckArguments(*(tensor.data_ptr() for tensor in (x, weight, by_mma, by_wgmma)))
            operations.launch(check_launch(instructions, _CASES), arguments, x.device)
            differ = by_mma.view(torch.int32) != by_wgmma.view(torch.int32)
            figures["ok same bits"] = not differ.any().item()
            figures["share that differs"] = differ.float().mean().item()
            figures["ok finite"] = bool(by_mma.isfinite().all() and by_wgmma.isfinite().all())
            figures["relative distance"] = ((by_mma - by_wgmma).norm() / by_mma.norm()).item()


def check_tiled(report: Report, operations: CudaOperations) -> None:
    for name, product in PRODUCTS.items():
        with report.check(f"tiled product {name}") as figures:
            case = Case(product)
            reference = case.reference()
            parts = [slice(begin, begin + FEW_ROWS) for begin in range(0, MAX_ROWS, FEW_ROWS)]
            few = torch.cat([case.run(operations, part) for part in parts])
            for rows in _ROW_COUNTS:
                plan = tiled_plans(product, rows)[-1]
                out = case.run(operations, slice(0, rows), plan=plan)
                ragged = case.run(operations, slice(0, rows - 5), plan=plan)
                found = differences(out, reference[:rows], 0.02)
                figures |= {f"ok {rows}": found["ok"], f"{rows} error": found["error"], f"{rows} bound": found["bound"]}
                figures[f"ok {rows} has the bits of few"] = torch.equal(out, few[:rows])
                figures[f"{rows} share that differs"] = (out != few[:rows]).float().mean().item()
                figures[f"ok {rows} ragged"] = torch.equal(ragged, out[: rows - 5])
