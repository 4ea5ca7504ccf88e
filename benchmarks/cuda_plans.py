"""Plans of the CUDA products. The section `sweep` times all of them, which says what `choose_plan` should choose. The
section `tiled` checks those on wgmma: does it add up as mma does, and do whole products have the bits of few rows?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from benchmarks.cuda_kernels import MAX_ROWS, PRODUCTS, Case, Figures, Report, differences, time_case, weights_of
from oscine.kernels.cuda.launches import CHECK_ROWS, CHECK_WEIGHT_ROWS, CheckArguments, check_inputs, check_launch
from oscine.kernels.cuda.linear import FEW_ROWS, Few, Plan, Product, choose_plan, linear_launch, tiled_plans
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Program

SWEEP_ROWS = (32, 64, 128, 256)
_FEW_PLANS = tuple(Few(tiles) for tiles in (1, 2, 3, 4, 6))


def sweep_plans(product: Product, rows: int) -> list[Plan]:
    if rows <= FEW_ROWS:
        columns = product.outputs * product.columns_per_output
        fitting = [plan for plan in _FEW_PLANS if columns % (plan.tiles * 8) == 0]
        return [plan for plan in fitting if plan.tiles % product.columns_per_output == 0]
    return [*tiled_plans(product, rows)]


def swept(names: str) -> dict[str, Product]:
    """Products whose names begin so."""
    return {name: product for name, product in PRODUCTS.items() if name.startswith(names)}


def sweep_programs(row_counts: Sequence[int], names: str) -> list[Program]:
    return [
        linear_launch(_for_plan(product, plan), rows, plan).program
        for product, rows in itertools.product(swept(names).values(), row_counts)
        for plan in sweep_plans(product, rows)
    ]


def few_at_a_time(case: Case, operations: CudaOperations) -> torch.Tensor:
    """The outputs of all rows, by the kernel for few."""
    parts = [slice(begin, begin + FEW_ROWS) for begin in range(0, MAX_ROWS, FEW_ROWS)]
    return torch.cat([case.run(operations, part) for part in parts])


def sweep_products(report: Report, operations: CudaOperations, row_counts: Sequence[int], names: str) -> None:
    for name, product in swept(names).items():
        case = Case(product)
        weights = weights_of(case)
        expected = few_at_a_time(case, operations)
        for rows in row_counts:
            with report.check(f"sweep {name} {rows}") as figures:
                out = case.residual[:rows].clone()
                times, other_bits = {}, []
                for plan in sweep_plans(product, rows):
                    try:
                        if not torch.equal(case.run(operations, slice(0, rows), plan=plan), expected[:rows]):
                            other_bits.append(str(plan))
                        times[plan] = time_case(case, operations, rows, out, weights, plan=plan)
                    except Exception as error:  # a plan that does not run is a result
                        figures[f"error of {plan}"] = str(error)[:200]
                figures |= _summary(times, product, rows)
                figures["ok bits of few rows"] = not other_bits
                figures["plans with other bits"] = other_bits


def _summary(times: dict[Plan, float], product: Product, rows: int) -> Figures:
    """The best plan of each kind, the chosen one, then all, from the fastest to the slowest."""
    ordered = sorted(times.items(), key=lambda item: item[1])
    best: Figures = {}
    for plan, us in ordered:
        best.setdefault(f"best {type(plan).__name__}", f"{us:.2f} us: {plan}")
    chosen = choose_plan(product, rows)
    return best | {"chosen": f"{times.get(chosen, float('nan')):.2f} us: {chosen}"} | {str(p): us for p, us in ordered}


def _for_plan(product: Product, plan: Plan) -> Product:
    norm = product.norm and isinstance(plan, Few)
    return Product(product.outputs, product.inputs, product.epilogue, norm)


# --- wgmma ---

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

            x, weight = random(CHECK_ROWS), random(CHECK_WEIGHT_ROWS)
            by_mma = torch.full((_CASES, CHECK_ROWS, CHECK_WEIGHT_ROWS), float("nan"), device="cuda")
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
            reference, few = case.reference(), few_at_a_time(case, operations)
            for rows in _ROW_COUNTS:
                plan = tiled_plans(product, rows)[-1]
                out = case.run(operations, slice(0, rows), plan=plan)
                ragged = case.run(operations, slice(0, rows - 5), plan=plan)
                found = differences(out, reference[:rows], 0.02)
                figures |= {f"ok {rows}": found["ok"], f"{rows} error": found["error"], f"{rows} bound": found["bound"]}
                figures[f"ok {rows} has the bits of few"] = torch.equal(out, few[:rows])
                figures[f"{rows} share that differs"] = (out != few[:rows]).float().mean().item()
                figures[f"ok {rows} ragged"] = torch.equal(ragged, out[: rows - 5])


def run_tiled(report: Report, operations: CudaOperations) -> None:
    check_instructions(report, operations)
    check_tiled(report, operations)
