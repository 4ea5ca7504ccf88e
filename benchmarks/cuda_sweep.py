"""Times of all plans of the CUDA products: what `choose_plan` should choose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from benchmarks.cuda_kernels import MAX_ROWS, PRODUCTS, Case, time_case, weights_of
from benchmarks.cuda_report import Figures, Report
from oscine.kernels.cuda.linear import (
    FEW_ROWS,
    Few,
    Plan,
    Product,
    choose_plan,
    linear_launch,
    tiled_plans,
)
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


def sweep_products(report: Report, operations: CudaOperations, row_counts: Sequence[int], names: str) -> None:
    for name, product in swept(names).items():
        case = Case(product)
        weights = weights_of(case)
        parts = [slice(begin, begin + FEW_ROWS) for begin in range(0, MAX_ROWS, FEW_ROWS)]
        expected = torch.cat([case.run(operations, part) for part in parts])
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
