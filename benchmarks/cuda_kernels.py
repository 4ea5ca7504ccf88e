"""Checks and times of single CUDA kernels beside the Triton ones, on the published shapes."""

from __future__ import annotations

import itertools
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import kernel_shapes as shapes
from benchmarks.kernel_shapes import CODEC_PRODUCTS, FIRST_IDS, HEADS, IDS, KV_HEADS, LAYER_PRODUCTS, PRODUCT_SHAPES
from benchmarks.timing import copy_bandwidth, graph_us
from oscine.kernels.attention import PagedCache, QkvNorms
from oscine.kernels.codec_front import attend
from oscine.kernels.conv import Rows
from oscine.kernels.cuda.launches import (
    BLOCK_POSITIONS,
    CAPACITY,
    DIM,
    WINDOW_DIM,
    norm_launch,
    predictor_launch,
    sample_launch,
    talker_launch,
    window_launch,
)
from oscine.kernels.cuda.linear import FEW_ROWS, Epilogue, Product, choose_plan, linear_launch
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Program, from_tiles, in_tiles, tile_launch
from oscine.kernels.operations import Following, Operations, TritonOperations, Weight
from oscine.kernels.sample import Draws, FirstCode
from oscine.request import DrawParams

Figures = dict[str, Any]
_ULP = 2.0**-7  # the largest relative distance of two adjacent bf16 numbers


class Report:
    def __init__(self, path: Path, limit_s: float) -> None:
        self._path = path
        self._deadline = time.monotonic() + limit_s
        self.figures: Figures = {"failures": {}, "skipped": []}

    @contextmanager
    def check(self, name: str) -> Iterator[Figures]:
        """A check writes its figures into the dictionary that it gets. An exception is a figure too."""
        figures: Figures = {}
        if time.monotonic() > self._deadline:
            self.figures["skipped"].append(name)
            raise OutOfTimeError(name)
        begun = time.monotonic()
        try:
            yield figures
            torch.cuda.synchronize()
            wrong = [key for key, value in figures.items() if key.startswith("ok") and not value]
            if wrong:
                self.figures["failures"][name] = f"{', '.join(wrong)} of {figures}"
        except Exception as error:  # a kernel may fail in any way; the others are still measured
            figures["error"] = f"{type(error).__name__}: {error}"
            self.figures["failures"][name] = figures["error"]
            traceback.print_exc(file=sys.stdout)
        self.figures[name] = figures
        shown = {key: round(value, 5) if isinstance(value, float) else value for key, value in figures.items()}
        print(f"{name} [{time.monotonic() - begun:.1f} s]: {shown}", flush=True)
        self.save()

    def save(self) -> None:
        self._path.write_text(json.dumps(self.figures, indent=1))


class OutOfTimeError(Exception):
    """The section's time is over; the remaining checks are skipped."""


def differences(actual: Tensor, expected: Tensor, flips: float) -> Figures:
    """How far bf16 results are from a reference whose sums ran in another order. A missing or misplaced rounding
    changes a tenth of all elements or more; `ok` allows the share `flips`, each by one unit of the largest value."""
    a, b = actual.float(), expected.float()
    differ = (actual != expected).float().mean().item()
    error, bound = (a - b).abs().max().item(), _ULP * b.abs().max().item()
    finite = bool(a.isfinite().all())
    relative = ((a - b).norm() / b.norm()).item()
    return {
        "ok": finite and error <= bound and differ <= flips,
        "flips": differ,
        "error": error,
        "bound": bound,
        "relative": relative,
        "finite": finite,
    }


EPS = 1e-6
DEVICE = "cuda"  # tests without a GPU name another one
MAX_ROWS = 256
ROWS_ALONE = (1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 128, 200)

PRODUCTS = {
    name: Product(shape.outputs, shape.inputs, Epilogue[shape.epilogue], shape.norm)
    for name, shape in PRODUCT_SHAPES.items()
}
FP8_PRODUCTS = {f"{name}, FP8": replace(PRODUCTS[name], fp8=True) for name in LAYER_PRODUCTS}


def programs(
    row_counts: Sequence[int] = (1, 9, 17, 33, 65, 129, 257), products: Iterable[Product] = PRODUCTS.values()
) -> list[Program]:
    """Everything that the checks and frames launch."""
    found = []
    for product, rows in itertools.product(products, row_counts):
        norms = (False,) if rows > FEW_ROWS else {False, product.norm}
        plan = choose_plan(product, rows)
        found += [linear_launch(replace(product, norm=norm), rows, plan) for norm in norms]
    found += [
        norm_launch(width, 1, tiles=tiles)
        for width in (shapes.CODEC_WIDTH, *shapes.NORM_WIDTHS)
        for tiles in (False, True)
    ]
    found += [tile_launch(width, 1) for width in (1024, 2048, 3072, 6144)]
    found += [talker_launch(HEADS, KV_HEADS, 1, tiles=tiles) for tiles in (False, True)]
    found += [predictor_launch(HEADS, KV_HEADS, 1, new, tiles=tiles) for new in (1, 2) for tiles in (False, True)]
    found += [window_launch(shapes.CODEC_HEADS, shapes.CODEC_WINDOW, 1, tiles=tiles) for tiles in (False, True)]
    found += [sample_launch(IDS, *widths, 1) for widths in ((1024, 4096), (0, 0))]
    found += [sample_launch(FIRST_IDS, 1024, 0, 1, first=True)]
    return [launch.program for launch in found]


@dataclass
class Case:
    """Random operands of one product, for up to MAX_ROWS rows."""

    product: Product

    def __post_init__(self) -> None:
        product, generator = self.product, torch.Generator(DEVICE).manual_seed(0)

        def random(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
            return (torch.randn(*shape, generator=generator, device=DEVICE) * scale + shift).bfloat16()

        columns = product.outputs * product.columns_per_output
        self.x = random(MAX_ROWS, product.inputs, scale=3.0)
        self.weight = random(columns, product.inputs, scale=product.inputs**-0.5)
        self.residual = random(MAX_ROWS, product.outputs)
        self._tiles: dict[tuple[int, int], Tensor] = {}
        self.inner = torch.empty_like(self.residual)  # of a GLU, whose output may be in tiles
        self.bias = random(product.outputs)
        self.scale = random(product.inputs, scale=0.2, shift=1.0)

    def run(
        self, operations: Any, rows: slice, out: Tensor | None = None, weight: Weight | None = None, **plan: Any
    ) -> Tensor:
        product, x = self.product, self.x[rows]
        weight = self.weight if weight is None else weight
        glu = product.epilogue == Epilogue.GLU
        timed = out is not None
        if out is None:
            out = self.residual[rows].clone()
        if glu:
            out = operations.product_input(self.inner, len(x), product.outputs)
        if product.norm:
            operations.norm_linear(x, self.scale, EPS, weight, out, glu=glu, **plan)
        else:
            residual = out if product.epilogue == Epilogue.RESIDUAL else None
            bias = self.bias if product.epilogue == Epilogue.BIAS else None
            if residual is not None:
                x = self._stored(operations, rows)
            operations.linear(x, weight, out, residual=residual, bias=bias, glu=glu, **plan)
        return out if timed else _rows(out, len(x)).clone()

    def _stored(self, operations: Any, rows: slice) -> Tensor:
        """x of an output or down product, which the kernel before it has stored for it."""
        x = self.x[rows]
        if operations.product_input(self.x, *x.shape).ndim == 2:
            return x
        key = (rows.start, rows.stop)
        if key not in self._tiles:
            self._tiles[key] = in_tiles(x)
        return self._tiles[key]

    def reference(self) -> Tensor:
        x = self.x
        if self.product.norm:
            exact = x.double()
            x = (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + EPS)).float().bfloat16() * self.scale
        y = x.double() @ self.weight.double().T
        if self.product.epilogue == Epilogue.BIAS:
            y = y + self.bias.double()
        y = y.float().bfloat16()
        if self.product.epilogue == Epilogue.GLU:
            gate, up = y.chunk(2, dim=-1)
            y = F.silu(gate) * up
        return self.residual + y if self.product.epilogue == Epilogue.RESIDUAL else y


def buffers() -> Tensor:
    return torch.zeros(MAX_ROWS, 6144, dtype=torch.bfloat16, device=DEVICE)


def _rows(made: Tensor, count: int) -> Tensor:
    return from_tiles(made, count) if made.ndim == 3 else made


def check_products(report: Report, operations: CudaOperations, plain: CudaOperations) -> None:
    """Roundings; a row alone against the row in a batch; programmatic launches against plain ones."""
    for name, product in PRODUCTS.items():
        with report.check(f"product {name}") as figures:
            case = Case(product)
            expected = case.reference()
            whole = case.run(operations, slice(0, MAX_ROWS))
            for label, count in (("few", 8), ("many", MAX_ROWS)):
                found = differences(case.run(operations, slice(0, count)), expected[:count], 0.02)
                figures |= {f"ok {label}" if key == "ok" else f"{label} {key}": value for key, value in found.items()}
            ranges = [slice(0, count) for count in ROWS_ALONE] + [slice(5, 5 + count) for count in (1, 11, 30)]
            unequal = [str(rows) for rows in ranges if not torch.equal(case.run(operations, rows), whole[rows])]
            figures["ok alone as in a batch"] = not unequal
            figures["rows that differ from the batch"] = unequal
            figures["ok programmatic as plain"] = all(
                torch.equal(case.run(plain, slice(0, n)), whole[:n]) for n in (1, 16, 64, 256)
            )


def time_products(report: Report, operations: CudaOperations, triton: Operations, rows: Sequence[int]) -> None:
    """Weights of 200 MB in turn, so that calls miss the L2 cache. With norm where the product has one."""
    both = [(name, product) for name, product in PRODUCTS.items() if name not in CODEC_PRODUCTS]
    for (name, product), count in itertools.product(both, rows):
        with report.check(f"time {name} {count}") as figures:
            case = Case(product)
            weights = weights_of(case)
            out = case.residual[:count].clone()
            figures["plan"] = str(operations.plan(product, count))
            for label, using in (("cuda", operations), ("triton", triton)):
                figures[f"{label}_us"] = time_case(case, using, count, out, weights)


def weights_of(case: Case) -> list[Tensor]:
    """Copies that are larger than the L2 cache together."""
    return [case.weight.clone() for _ in range(max(2, 2 * 10**8 // case.weight.nbytes))]


def time_case(case: Case, operations: Any, rows: int, out: Tensor, weights: Sequence[Tensor], **plan: Any) -> float:
    def chain() -> None:
        for weight in weights:
            case.run(operations, slice(0, rows), out, weight, **plan)

    return graph_us(chain) / len(weights)


def _angles(positions: int) -> tuple[Tensor, Tensor]:
    at = torch.arange(positions, device=DEVICE)[:, None] * 1e6 ** (-torch.arange(0, DIM, 2, device=DEVICE) / DIM)
    return at.cos().contiguous(), at.sin().contiguous()


def _random(*shape: int, seed: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device=DEVICE) * scale + shift).bfloat16()


class PredictorCase:
    def __init__(self, sequences: int, position: int, new: int) -> None:
        self.position, self.new = position, new
        self.qkv = _random(sequences * new, (HEADS + 2 * KV_HEADS) * DIM, seed=0)
        self.scales = [_random(DIM, seed=seed, scale=0.2, shift=1.0) for seed in (1, 2)]
        self.cache = [_random(sequences, KV_HEADS, CAPACITY, DIM, seed=seed) for seed in (3, 4)]
        self.out = buffers()
        self.angles = _angles(CAPACITY)

    def run(self, operations: Any, sequences: int) -> Tensor:
        return _rows(self.launch(operations, sequences), sequences * self.new)

    def launch(self, operations: Any, sequences: int) -> Tensor:
        rows = sequences * self.new
        out = operations.product_input(self.out, rows, HEADS * DIM)
        caches = [cache[:sequences] for cache in self.cache]
        norms = QkvNorms(self.scales[0], self.scales[1], EPS, *self.angles)
        operations.predictor_attention(self.qkv[:rows], norms, *caches, self.position, out, new=self.new)
        return out


class TalkerCase:
    """Rows at context, context + 1 ...; their cache blocks are scattered."""

    def __init__(self, rows: int, context: int) -> None:
        blocks = (context + rows) // BLOCK_POSITIONS + 1
        self.qkv = _random(rows, (HEADS + 2 * KV_HEADS) * DIM, seed=0)
        self.scales = [_random(DIM, seed=seed, scale=0.2, shift=1.0) for seed in (1, 2)]
        self.cache = [_random(rows * blocks, KV_HEADS, BLOCK_POSITIONS, DIM, seed=seed) for seed in (3, 4)]
        self.table = torch.randperm(rows * blocks, device=DEVICE).view(rows, blocks)
        self.positions = torch.arange(rows, device=DEVICE) + context
        self.slots = torch.arange(rows, device=DEVICE)
        self.out = buffers()
        self.angles = _angles(context + rows + 1)

    def run(self, operations: Any, rows: int) -> Tensor:
        return _rows(self.launch(operations, rows), rows)

    def launch(self, operations: Any, rows: int) -> Tensor:
        out = operations.product_input(self.out, rows, HEADS * DIM)
        norms = QkvNorms(self.scales[0], self.scales[1], EPS, *self.angles)
        cache = PagedCache(self.cache[0], self.cache[1], self.table, self.positions)
        operations.talker_attention(self.qkv[:rows], norms, cache, self.slots[:rows], out)
        return out


class WindowCase:
    """Streams that begin, and streams whose ring has wrapped."""

    def __init__(self, rows: int) -> None:
        cache = (rows, shapes.CODEC_HEADS, shapes.CODEC_WINDOW, WINDOW_DIM)
        self.qkv = _random(rows, 3 * shapes.CODEC_HEADS * WINDOW_DIM, seed=0)
        self.cache = _random(*cache, seed=1), _random(*cache, seed=2)
        self.slots = torch.arange(rows, dtype=torch.int32, device=DEVICE).flip(0)
        self.positions = torch.arange(rows, dtype=torch.int32, device=DEVICE) * 7
        angles = self.positions[:, None] * 1e4 ** (-torch.arange(0, WINDOW_DIM, 2, device=DEVICE) / WINDOW_DIM)
        self.angles = angles.cos(), angles.sin()
        self.out = buffers()

    def run(self, operations: CudaOperations | None, rows: int) -> Tensor:
        """Runs Triton's kernel if there are no operations."""
        cos, sin = (angle[:rows] for angle in self.angles)
        which, qkv = Rows(self.slots[:rows], self.positions[:rows]), self.qkv[:rows]
        width = shapes.CODEC_HEADS * WINDOW_DIM
        if operations is None:
            out = self.out.flatten()[: rows * width].view(rows, width)
            attend(qkv, *self.cache, (cos, sin), which, out)
        else:
            out = operations.product_input(self.out, rows, width)
            operations.window_attention(qkv, cos, sin, which, *self.cache, out)
        return _rows(out, rows).clone()


def check_attention(report: Report, operations: CudaOperations, triton: Operations) -> None:
    """Against the Triton kernels, whose roundings are the same up to the softmax's sums."""
    for position, new in ((0, 2), (2, 1), (9, 1), (15, 1)):
        with report.check(f"predictor attention at {position}") as figures:
            compare_attention(figures, PredictorCase(128, position, new), (operations, triton), 128, (1, 2, 7, 64), new)
    for context in (0, 1, 60, 500):
        with report.check(f"talker attention at {context}") as figures:
            compare_attention(figures, TalkerCase(64, context), (operations, triton), 64, (1, 5, 33))
    with report.check("codec attention") as figures:
        compare_attention(figures, WindowCase(64), (operations, None), 64, (1, 5, 33))
        figures["ok keys"] = figures["key flips"] < 1e-3


def compare_attention(
    figures: Figures, case: Any, using: tuple[Any, Any], sequences: int, counts: Sequence[int], new: int = 1
) -> None:
    """Both kernels on the same cache, which each of them extends; then fewer `sequences`."""
    operations, other = using
    before = [cache.clone() for cache in case.cache]
    expected, written = case.run(other, sequences).clone(), [cache.clone() for cache in case.cache]
    for cache, old in zip(case.cache, before, strict=True):
        cache.copy_(old)
    actual = case.run(operations, sequences).clone()
    figures |= differences(actual, expected, 0.03)
    figures["key flips"] = (written[0] != case.cache[0]).float().mean().item()
    figures["ok values"] = torch.equal(written[1], case.cache[1])
    figures["ok alone as in a batch"] = all(
        torch.equal(case.run(operations, count), actual[: count * new]) for count in counts
    )


class NormCase:
    """Rows that a product reads: in tiles if there are many."""

    def __init__(self, rows: int, width: int) -> None:
        self.x, self.scale, self.out = _random(rows, width, seed=0), _random(width, seed=1, shift=1.0), buffers()

    def launch(self, operations: Operations) -> None:
        operations.norm(self.x, self.scale, EPS, operations.product_input(self.out, *self.x.shape))


ALL_DRAWS = (DrawParams(), DrawParams(greedy=True), DrawParams(top_k=0), DrawParams(top_k=20, top_p=0.5))


@dataclass
class SampleCase:
    """Rows with these settings in turn, each with a slot of its own. `first`: code 0, after half of the ids."""

    rows: int
    kinds: Sequence[DrawParams] = (DrawParams(),)
    first: bool = False

    def __post_init__(self) -> None:
        params = [self.kinds[row % len(self.kinds)] for row in range(self.rows)]

        def column(name: str, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor([getattr(one, name) for one in params], dtype=dtype, device=DEVICE)

        low, high = torch.randint(0, 2**32, (2, self.rows), device=DEVICE)
        frames = torch.arange(self.rows, device=DEVICE)
        floats = (column("temperature", torch.float32), column("tail", torch.float32))
        self.draws = Draws(floats[0], column("top_k"), floats[1], column("greedy"), low, high, frames)
        self.book, ids = (0, FIRST_IDS) if self.first else (3, IDS)
        self.logits = _random(self.rows, ids, seed=0) * 4
        self.seen = _random(self.rows, ids, seed=3) > 0
        penalty, hold_eos = torch.full_like(floats[0], 1.05), torch.zeros_like(frames)
        rules = FirstCode(penalty, self.seen, hold_eos, codes=IDS, eos=IDS + 102)
        self.rules = rules if self.first else None
        self.slots = torch.arange(self.rows, device=DEVICE).flip(0)
        self.inputs, self.first_qkv = _random(ids, 1024, seed=1), _random(ids, 4096, seed=2)
        self.codes = torch.zeros(self.rows, 16, dtype=torch.int64, device=DEVICE)
        self.failed = torch.zeros(self.rows, dtype=torch.int16, device=DEVICE)
        self.x, self.qkv = self.inputs.new_zeros(self.rows, 1024), self.inputs.new_zeros(self.rows, 4096)

    def run(self, operations: Operations, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, and the rows that follow from them."""
        seen = self.seen.clone()
        self.launch(operations, count)
        self.seen.copy_(seen)
        return self.codes[:count, self.book].clone(), self.x[:count].clone(), self.qkv[:count].clone()

    def launch(self, operations: Operations, count: int) -> None:
        parts = (self.logits, self.slots, self.codes, self.failed)
        logits, slots, codes, failed = (part[:count] for part in parts)
        following = Following(self.inputs, self.x[:count], self.first_qkv, self.qkv[:count])
        if self.first:
            following = Following(self.inputs, self.x[:count])
        operations.sample(logits, slots, self.draws, codes, self.book, failed, following, first=self.rules)


def check_sample(report: Report, operations: CudaOperations, triton: Operations) -> None:
    for first in (False, True):
        with report.check("sample code 0" if first else "sample") as figures:
            case = SampleCase(MAX_ROWS, ALL_DRAWS, first)
            codes, x, qkv = case.run(operations, MAX_ROWS)
            expected, _, _ = case.run(triton, MAX_ROWS)
            figures["ok next input"] = torch.equal(x, case.inputs[codes])
            figures["ok its qkv"] = first or torch.equal(qkv, case.first_qkv[codes])
            figures["equal codes"] = (codes == expected).float().mean().item()
            figures["ok codes"] = figures["equal codes"] > 0.99  # of draws on a border between two ids, some may differ
            figures["ok alone as in a batch"] = all(torch.equal(case.run(operations, n)[0], codes[:n]) for n in (1, 17))


def time_rest(report: Report, operations: CudaOperations, triton: Operations, rows: Sequence[int]) -> None:
    def both(figures: dict[str, Any], call: Callable[[Any], object]) -> None:
        for label, using in (("cuda", operations), ("triton", triton)):
            figures[f"{label}_us"] = graph_us(lambda using=using: call(using), copies=20)  # type: ignore[misc]

    for count in rows:
        for name, first in (("sample", False), ("sample code 0", True)):
            with report.check(f"time {name} {count}") as figures:
                # Copies of code 0 may read `seen` too early: nobody looks at their codes.
                draws = SampleCase(count, first=first)
                both(figures, lambda using, case=draws, count=count: case.launch(using, count))  # type: ignore[misc]
        for width in shapes.NORM_WIDTHS:
            with report.check(f"time rms_norm {width} {count}") as figures:
                norm = NormCase(count, width)
                both(figures, lambda using, case=norm: case.launch(using))  # type: ignore[misc]
        with report.check(f"time predictor attention {count}") as figures:
            case = PredictorCase(count, shapes.PREDICTOR_POSITION, 1)
            both(figures, lambda using, case=case, count=count: case.launch(using, count))  # type: ignore[misc]
        for context in (64, 512):
            with report.check(f"time talker attention {count} at {context}") as figures:
                talker = TalkerCase(count, context)
                both(figures, lambda using, case=talker, count=count: case.launch(using, count))  # type: ignore[misc]


def warm_triton(share: int, shares: int) -> None:
    """Compiles every `shares`-th product of the Triton path; the compiled kernels are in Triton's cache afterwards."""
    triton = TritonOperations(buffers())
    for product, rows in list(itertools.product(PRODUCTS.values(), (16, 32, 64, 128)))[share::shares]:
        Case(product).run(triton, slice(0, rows))


def run_checks(report: Report, make: Callable[..., CudaOperations]) -> None:
    operations, plain = make(buffers()), make(buffers(), programmatic=False)
    check_products(report, operations, plain)
    triton = TritonOperations(buffers())
    check_sample(report, operations, triton)
    check_attention(report, operations, triton)


def run_times(report: Report, make: Callable[..., CudaOperations], rows: Sequence[int]) -> None:
    operations, triton = make(buffers()), TritonOperations(buffers())
    report.figures["copy_bandwidth_tb_s"] = copy_bandwidth() / 1e12  # what the shares are of (report_pages.py)
    time_rest(report, operations, triton, rows)
    time_products(report, operations, triton, rows)
