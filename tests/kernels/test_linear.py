"""The fused product against the plain modules' own order of roundings, in bf16."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from tests.kernels.measures import assert_same_roundings, graph_seconds, report

from oscine.kernels.linear import Plan, Scratch, choose_plan, linear
from oscine.kernels.norm import Norm, RowStats, rms_norm, row_stats
from oscine.model.layers import RMSNorm

EPS = 1e-6
ROWS = (1, 3, 16, 17)
SMALL = Plan(32, 64, 1, 4, 2)

PUBLISHED = {  # name: outputs, inputs, norm, residual, glu, bias
    "predictor qkv": (4096, 1024, True, False, False, False),
    "predictor out": (1024, 2048, False, True, False, False),
    "predictor gate/up": (3072, 1024, True, False, True, False),
    "predictor down": (1024, 3072, False, True, False, False),
    "predictor head": (2048, 1024, True, False, False, False),
    "narrow": (1024, 2048, True, False, False, True),
    "talker qkv": (4096, 2048, True, False, False, False),
    "talker out": (2048, 2048, False, True, False, False),
    "talker gate/up": (6144, 2048, True, False, True, False),
    "talker down": (2048, 6144, False, True, False, False),
    "talker head": (3072, 2048, True, False, False, False),
}


class Case:
    """Random operands of one product, and its reference."""

    def __init__(self, device, rows, n, k, *, norm=False, residual=False, glu=False, bias=False, seed=0) -> None:
        generator = torch.Generator(device).manual_seed(seed)

        def random(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
            return (torch.randn(*shape, generator=generator, device=device) * scale + shift).bfloat16()

        self.rows, self.n, self.k, self.glu, self.device = rows, n, k, glu, device
        self.x = random(rows, k, scale=3.0)
        self.weight = random(n * 2 if glu else n, k, scale=k**-0.5)
        self.residual = random(rows, n) if residual else None
        self.bias = random(n) if bias else None
        self.norm_weight = random(k, scale=0.2, shift=1.0) if norm else None
        self.scratch = Scratch.empty(device, floats=1 << 22 if device.type == "cuda" else 1 << 16)

    def norm(self, x: Tensor) -> Norm | None:
        if self.norm_weight is None:
            return None
        stats = RowStats.empty(len(x), self.k, self.device)
        row_stats(x, stats)
        return Norm(self.norm_weight, EPS, stats)

    def run(self, plan: Plan | None = None, stats: RowStats | None = None, rows: slice = slice(None)) -> Tensor:
        x = self.x[rows]
        out = torch.full((len(x), self.n), float("nan"), dtype=torch.bfloat16, device=self.device)
        if self.residual is not None:
            out = self.residual[rows].clone()
        linear(
            x, self.weight, out, self.scratch, norm=self.norm(x), bias=self.bias, glu=self.glu, stats=stats, plan=plan,
            residual=None if self.residual is None else out,
        )  # fmt: skip
        return out

    def reference(self) -> Tensor:
        x = self.x
        if self.norm_weight is not None:
            module = RMSNorm(self.k, EPS)
            module.weight = torch.nn.Parameter(self.norm_weight, requires_grad=False)
            x = module(x)
        # In fp64, then rounded once: what F.linear in bf16 means, without the order of sums of one of its back ends.
        y = x.double() @ self.weight.double().T
        if self.bias is not None:
            y = y + self.bias.double()
        y = y.bfloat16()
        if self.glu:
            gate, up = y.chunk(2, dim=-1)
            y = F.silu(gate) * up
        return y if self.residual is None else self.residual + y


FUSIONS = {
    "plain": {},
    "norm": {"norm": True},
    "norm and glu": {"norm": True, "glu": True},
    "residual": {"residual": True},
    "bias": {"bias": True},
    "norm and bias": {"norm": True, "bias": True},
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("split", [1, 3])
def test_rounds_where_the_modules_round(device, rows, fusion, split):
    case = Case(device, rows, 64, 192, **FUSIONS[fusion])
    assert_same_roundings(case.run(Plan(32, 64, split, 4, 2)), case.reference())


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize(("n", "k"), [(96, 64), (64, 96), (40, 104), (160, 72)])
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("fusion", ["norm and glu", "residual", "norm and bias"])
def test_sizes_that_no_block_divides(device, rows, n, k, split, fusion):
    case = Case(device, rows, n, k, **FUSIONS[fusion])
    assert_same_roundings(case.run(Plan(32, 64, split, 4, 2)), case.reference())


def test_more_rows_than_a_program_holds(device):
    case = Case(device, 150, 64, 64, norm=True)
    assert_same_roundings(case.run(), case.reference())


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("block_n", [32, 64])
@pytest.mark.parametrize("n", [64, 96, 72])
def test_hands_on_the_squares_of_what_it_wrote(device, split, block_n, n):
    case = Case(device, 5, n, 128, residual=True)
    stats = RowStats.empty(5, n, device)
    stats.squares.fill_(float("nan"))
    out = case.run(Plan(block_n, 64, split, 4, 2), stats)
    padded = F.pad(out.double(), (0, -n % 32)).view(5, -1, 32)
    # fp64 sums of exact squares: equal to the last bit, whatever the tiles.
    assert torch.equal(stats.squares, padded.square().sum(2).float())


def test_rows_may_lie_apart(device):
    """The predictor's first pass keeps two rows per sequence; its head reads every second one."""
    case = Case(device, 6, 64, 64, norm=True)
    stats = RowStats.empty(6, 64, device)
    row_stats(case.x, stats)
    out = torch.zeros(6, 64, dtype=torch.bfloat16, device=device)
    out_stats = RowStats.empty(6, 64, device)
    linear(
        case.x[1::2], case.weight, out[::2], case.scratch, stats=out_stats.rows(slice(0, None, 2)),
        norm=Norm(case.norm_weight, EPS, stats.rows(slice(1, None, 2))),
    )  # fmt: skip
    assert_same_roundings(out[::2], case.reference()[1::2])
    assert not out[1::2].any() and not out_stats.squares[1::2].any()
    assert torch.equal(out_stats.squares[::2], out[::2].double().view(3, 2, 32).square().sum(2).float())


def test_counters_are_zero_again(device):
    case = Case(device, 3, 64, 128, norm=True, glu=True)
    first = case.run(Plan(32, 64, 2, 4, 2))
    assert not case.scratch.arrivals.any()
    assert torch.equal(first, case.run(Plan(32, 64, 2, 4, 2)))


@pytest.mark.parametrize("fusion", ["norm and glu", "residual"])
def test_a_row_alone_equals_the_row_in_a_batch(device, fusion):
    case = Case(device, 32, 64, 128, **FUSIONS[fusion])
    together = case.run(Plan(32, 64, 2, 4, 2))
    for rows in (slice(0, 1), slice(3, 8), slice(10, 27)):
        assert torch.equal(case.run(Plan(32, 64, 2, 4, 2), rows=rows), together[rows])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [64, 96])
def test_the_norm_alone(device, rows, width):
    case = Case(device, rows, 32, width, norm=True)
    out = torch.empty_like(case.x)
    norm = case.norm(case.x)
    rms_norm(case.x, norm, out)
    module = RMSNorm(width, EPS)
    module.weight = torch.nn.Parameter(case.norm_weight, requires_grad=False)
    assert_same_roundings(out, module(case.x))


def test_published_shapes_have_plans_that_fit():
    for n, k, _, _, glu, _ in PUBLISHED.values():
        for rows in (1, 16, 32, 64, 128):
            for one_split in (False, True):
                plan = choose_plan(n, k, glu, rows, one_split=one_split)
                assert n % plan.block_n == 0 and k % (plan.split * plan.block_k) == 0
                block_rows = max(16, rows)
                assert n * (2 if glu else 1) * plan.split * block_rows <= 1 << 22
        splits = [choose_plan(n, k, glu, rows).split for rows in (1, 16, 17, 32, 33, 64, 65, 128)]
        assert len(set(splits[:4])) == 1 and len(set(splits[4:])) == 1, splits


@pytest.mark.gpu
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("rows", [1, 8, 17, 32, 64, 128])
def test_published_shapes(device, name, rows):
    n, k, norm, residual, glu, bias = PUBLISHED[name]
    case = Case(device, rows, n, k, norm=norm, residual=residual, glu=glu, bias=bias)
    stats = RowStats.empty(rows, n, device) if residual else None
    # Longer sums than in the small cases: more elements lie near a border.
    assert_same_roundings(case.run(stats=stats), case.reference(), flips=0.02)
    # 100 MB of distinct weights in turn, or the second call would find them in the cache.
    weights = [case.weight.clone() for _ in range(max(1, 10**8 // case.weight.nbytes))]
    out, ready = torch.empty(rows, n, dtype=torch.bfloat16, device=device), case.norm(case.x)
    for one_split in (False, True):
        plan = choose_plan(n, k, glu, rows, one_split=one_split)

        def chain(plan=plan):
            for weight in weights:
                linear(
                    case.x, weight, out, case.scratch, norm=ready, residual=case.residual, bias=case.bias, glu=glu,
                    stats=stats, plan=plan,
                )  # fmt: skip

        seconds = graph_seconds(chain, copies=2) / len(weights)
        report(f"{name}, {rows} rows, {plan}", seconds, case.weight.nbytes)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_of_published_shapes_do_not_depend_on_the_batch(device, name):
    n, k, norm, residual, glu, bias = PUBLISHED[name]
    case = Case(device, 128, n, k, norm=norm, residual=residual, glu=glu, bias=bias)
    alone = case.run(rows=slice(0, 1))
    for count in (2, 16, 17, 32):
        assert torch.equal(case.run(rows=slice(0, count))[:1], alone), count
    large = case.run(rows=slice(0, 33))
    for count in (64, 65, 128):
        assert torch.equal(case.run(rows=slice(0, count))[:33], large), count
    plan = choose_plan(n, k, glu, 128, one_split=True)
    same = torch.equal(case.run(plan, rows=slice(0, 128))[:1], alone)
    print(f"\n{name}: with one split, 1 row and 128 rows agree {'to the bit' if same else 'only roughly'}")
