"""The fused product against the plain modules' roundings in bf16."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.linear import Plan, SplitKScratch, choose_plan, linear
from tests.kernels.measures import assert_same_roundings, graph_seconds, report

pytestmark = pytest.mark.slow

ROWS = (1, 3, 16, 17)
SMALL = Plan(32, 64, 1, 4, 2)

PUBLISHED = {  # name: outputs, inputs, residual, glu, bias
    "predictor qkv": (4096, 1024, False, False, False),
    "predictor out": (1024, 2048, True, False, False),
    "predictor gate/up": (3072, 1024, False, True, False),
    "predictor down": (1024, 3072, True, False, False),
    "predictor head": (2048, 1024, False, False, False),
    "narrow": (1024, 2048, False, False, True),
    "talker qkv": (4096, 2048, False, False, False),
    "talker out": (2048, 2048, True, False, False),
    "talker gate/up": (6144, 2048, False, True, False),
    "talker down": (2048, 6144, True, False, False),
    "talker head": (3072, 2048, False, False, False),
}


class Case:
    """Random operands of one product, and its reference."""

    def __init__(self, device, rows, n, k, *, residual=False, glu=False, bias=False, seed=0) -> None:
        generator = torch.Generator(device).manual_seed(seed)

        def random(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
            return (torch.randn(*shape, generator=generator, device=device) * scale + shift).bfloat16()

        self.rows, self.n, self.k, self.glu, self.device = rows, n, k, glu, device
        self.x = random(rows, k, scale=3.0)
        self.weight = random(n * 2 if glu else n, k, scale=k**-0.5)
        self.residual = random(rows, n) if residual else None
        self.bias = random(n) if bias else None
        self.scratch = SplitKScratch.empty(device, rows=256)
        if device.type == "cpu":  # the interpreter copies it at every launch
            self.scratch = SplitKScratch(self.scratch.partial[: 1 << 16].clone(), self.scratch.arrivals)

    def run(self, plan: Plan | None = None, rows: slice = slice(None)) -> Tensor:
        x = self.x[rows]
        out = torch.full((len(x), self.n), float("nan"), dtype=torch.bfloat16, device=self.device)
        if self.residual is not None:
            out = self.residual[rows].clone()
        linear(
            x, self.weight, out, self.scratch, bias=self.bias, glu=self.glu, plan=plan,
            residual=None if self.residual is None else out,
        )  # fmt: skip
        return out

    def reference(self) -> Tensor:
        # In fp64 and rounded once: F.linear in bf16, independent of a backend's order of sums.
        y = self.x.double() @ self.weight.double().T
        if self.bias is not None:
            y = y + self.bias.double()
        y = y.bfloat16()
        if self.glu:
            gate, up = y.chunk(2, dim=-1)
            y = F.silu(gate) * up
        return y if self.residual is None else self.residual + y


FUSIONS = {"plain": {}, "glu": {"glu": True}, "residual": {"residual": True}, "bias": {"bias": True}}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("split", [1, 3])
def test_roundings_equal_those_of_the_modules(device, rows, fusion, split):
    case = Case(device, rows, 64, 192, **FUSIONS[fusion])
    assert_same_roundings(case.run(Plan(32, 64, split, 4, 2)), case.reference())


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize(("n", "k"), [(96, 64), (64, 96), (40, 104), (160, 72)])
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("fusion", ["glu", "residual"])
def test_sizes_that_are_not_multiples_of_a_block(device, rows, n, k, split, fusion):
    case = Case(device, rows, n, k, **FUSIONS[fusion])
    assert_same_roundings(case.run(Plan(32, 64, split, 4, 2)), case.reference())


def test_more_rows_than_a_program_holds(device):
    case = Case(device, 150, 64, 64)
    assert_same_roundings(case.run(), case.reference())


def test_rows_may_be_strided(device):
    """The predictor's first pass keeps two rows per sequence; its head reads every second one."""
    case = Case(device, 6, 64, 64)
    out = torch.zeros(6, 64, dtype=torch.bfloat16, device=device)
    linear(case.x[1::2], case.weight, out[::2], case.scratch)
    assert_same_roundings(out[::2], case.reference()[1::2])
    assert not out[1::2].any()


def test_counters_are_reset(device):
    case = Case(device, 3, 64, 128, glu=True)
    first = case.run(Plan(32, 64, 2, 4, 2))
    assert not case.scratch.arrivals.any()
    assert torch.equal(first, case.run(Plan(32, 64, 2, 4, 2)))


@pytest.mark.parametrize("fusion", ["glu", "residual"])
def test_a_row_alone_equals_the_row_in_a_batch(device, fusion):
    case = Case(device, 32, 64, 128, **FUSIONS[fusion])
    together = case.run(Plan(32, 64, 2, 4, 2))
    for rows in (slice(0, 1), slice(3, 8), slice(10, 27)):
        assert torch.equal(case.run(Plan(32, 64, 2, 4, 2), rows=rows), together[rows])


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("k", [192, 160])
def test_one_program_gives_the_bits_of_a_split(device, fusion, k):
    case = Case(device, 17, 64, k, **FUSIONS[fusion])
    assert torch.equal(case.run(Plan(32, 64, 3, 4, 2, serial=True)), case.run(Plan(32, 64, 3, 4, 2)))


def test_published_shapes_have_plans_that_fit_and_one_split():
    for n, k, _, glu, _ in PUBLISHED.values():
        splits = set()
        for rows in (1, 16, 17, 32, 33, 64, 65, 128, 256, 257, 512):
            plan = choose_plan(n, k, glu, rows)
            splits.add(plan.split)
            assert n % plan.block_n == 0 and k % (plan.split * plan.block_k) == 0
        assert len(splits) == 1, splits


@pytest.mark.parametrize("rows", [1, 128, 256, 512])
def test_the_scratch_holds_the_partial_sums_of_published_shapes(rows):
    """512: the predictor's first pass has two rows for each of 256 streams."""
    scratch, padded = SplitKScratch.empty(torch.device("cpu"), rows=rows), -(-rows // 128) * 128
    for outputs, inputs, _, glu, _ in PUBLISHED.values():
        plan = choose_plan(outputs, inputs, glu, rows)
        assert plan.split * outputs * (2 if glu else 1) * padded <= scratch.partial.numel()
        assert outputs // plan.block_n * padded // 128 <= scratch.arrivals.numel()


@pytest.mark.gpu
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("rows", [1, 8, 17, 32, 64, 128, 256, 512])
def test_published_shapes(device, name, rows):
    n, k, residual, glu, bias = PUBLISHED[name]
    case = Case(device, rows, n, k, residual=residual, glu=glu, bias=bias)
    # Longer sums than in the small cases: more elements are near a rounding border.
    assert_same_roundings(case.run(), case.reference(), flips=0.02)
    # 100 MB of distinct weights in turn, so that calls miss the L2 cache.
    weights = [case.weight.clone() for _ in range(max(1, 10**8 // case.weight.nbytes))]
    out = torch.empty(rows, n, dtype=torch.bfloat16, device=device)

    def chain():
        for weight in weights:
            linear(case.x, weight, out, case.scratch, residual=case.residual, bias=case.bias, glu=glu)

    seconds = graph_seconds(chain, copies=2) / len(weights)
    report(f"{name}, {rows} rows, {choose_plan(n, k, glu, rows)}", seconds, case.weight.nbytes)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_of_published_shapes_do_not_depend_on_the_batch(device, name):
    n, k, residual, glu, bias = PUBLISHED[name]
    case = Case(device, 512, n, k, residual=residual, glu=glu, bias=bias)
    whole = case.run()
    for count in (1, 2, 16, 17, 32, 33, 64, 65, 128, 256):
        assert torch.equal(case.run(rows=slice(0, count)), whole[:count]), count
