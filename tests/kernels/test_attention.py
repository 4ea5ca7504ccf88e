"""Attention against the plain modules: norm, rotation and cache in bf16 like theirs, the softmax in fp64."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.attention import PagedCache, QkvNorms, predictor_attention, talker_attention
from oscine.model.layers import RMSNorm, apply_rope, rope_angles
from tests.kernels.measures import assert_same_roundings, graph_seconds, report

pytestmark = pytest.mark.slow

EPS = 1e-6
THETA = 1e6


def random(device, *shape: int, scale: float = 1.0, shift: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device=device) * scale + shift).bfloat16()


@dataclass
class Heads:
    """Sizes and norm weights, and the reference for one row."""

    device: torch.device
    heads: int
    kv_heads: int
    dim: int
    positions: int

    def __post_init__(self) -> None:
        self.q_norm = random(self.device, self.dim, scale=0.2, shift=1.0, seed=1)
        self.k_norm = random(self.device, self.dim, scale=0.2, shift=1.0, seed=2)
        angles = rope_angles(torch.arange(self.positions, device=self.device)[None], self.dim, THETA, unbounded=False)
        self.cos, self.sin = (part[0, 0].contiguous() for part in angles)  # fp32: the kernel rounds
        self.norms = QkvNorms(self.q_norm, self.k_norm, EPS, self.cos, self.sin)

    @property
    def row_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim

    def split(self, row: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """q [heads, dim], k and v [kv_heads, dim] of one row, normed and rotated in bf16."""
        q, k, v = row.view(-1, self.dim).split((self.heads, self.kv_heads, self.kv_heads))
        cos, sin = self.cos[position].bfloat16(), self.sin[position].bfloat16()
        return apply_rope(self._norm(q, self.q_norm), cos, sin), apply_rope(self._norm(k, self.k_norm), cos, sin), v

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        module = RMSNorm(self.dim, EPS)
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
        return module(x)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """q [heads, dim], keys and values [kv_heads, positions, dim] -> [heads * dim]."""
        group = self.heads // self.kv_heads
        keys, values = keys.double().repeat_interleave(group, 0), values.double().repeat_interleave(group, 0)
        weights = torch.softmax(torch.einsum("hd,hpd->hp", q.double(), keys) * self.dim**-0.5, dim=-1)
        return torch.einsum("hp,hpd->hd", weights, values).flatten().bfloat16()


@dataclass
class Blocks:
    """Slots of different lengths with blocks in random order."""

    model: Heads
    lengths: list[int]  # filled positions per slot
    size: int  # positions per block

    def __post_init__(self) -> None:
        device, model = self.model.device, self.model
        per_slot = max(self.lengths) // self.size + 1
        count = per_slot * len(self.lengths) + 1
        shape = (count, model.kv_heads, self.size, model.dim)
        self.keys, self.values = random(device, *shape, seed=3), random(device, *shape, seed=4)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(5))[: count - 1].to(device)
        self.table = order.view(len(self.lengths), per_slot).int()
        self.position = torch.tensor(self.lengths, dtype=torch.int32, device=device)
        # Unfilled positions hold a previous owner's values, which must not matter.
        for slot, length in enumerate(self.lengths):
            for position in range(length, per_slot * self.size):
                block = self.table[slot, position // self.size]
                self.keys[block, :, position % self.size] = float("nan")
                self.values[block, :, position % self.size] = float("nan")

    def past(self, blocks: Tensor, slot: int, length: int) -> Tensor:
        """[kv_heads, length, dim]"""
        return blocks[self.table[slot].long()].transpose(0, 1).flatten(1, 2)[:, :length]

    def run(self, qkv: Tensor, slot: Tensor, out: Tensor) -> None:
        cache = PagedCache(self.keys, self.values, self.table, self.position)
        talker_attention(qkv, self.model.norms, cache, slot, out)


def check_talker(model: Heads, lengths: list[int], block_size: int, slots: list[int]) -> None:
    memory = Blocks(model, lengths, block_size)
    slot = torch.tensor(slots, dtype=torch.int32, device=model.device)
    qkv = random(model.device, len(slots), model.row_width, scale=2.0, seed=6)
    out = torch.zeros(len(slots), model.heads * model.dim, dtype=torch.bfloat16, device=model.device)
    expected = torch.zeros_like(out)
    written = []
    for row, place in enumerate(slots):
        if place < 0:
            continue
        length = lengths[place]
        q, k, v = model.split(qkv[row], length)
        keys = torch.cat((memory.past(memory.keys, place, length), k[:, None]), 1)
        values = torch.cat((memory.past(memory.values, place, length), v[:, None]), 1)
        expected[row] = model.attend(q, keys, values)
        written.append((place, length, k, v))
    before = memory.keys.clone()
    memory.run(qkv, slot, out)
    assert_same_roundings(out, expected, flips=0.02)
    for place, length, k, v in written:
        assert_same_roundings(memory.past(memory.keys, place, length + 1)[:, -1], k)
        assert torch.equal(memory.past(memory.values, place, length + 1)[:, -1], v)
    # Only the new positions were written.
    changed = ~((memory.keys == before) | (memory.keys.isnan() & before.isnan())).flatten(2).all(-1)
    assert changed.sum() <= len(written) * model.kv_heads


@pytest.mark.parametrize(("rows", "heads", "kv_heads"), [(1, 2, 1), (3, 4, 4), (3, 8, 2), (16, 2, 1), (17, 2, 1)])
def test_talker(device, rows, heads, kv_heads):
    model = Heads(device, heads, kv_heads, 16, positions=64)
    # Empty, one position short of a block, a full block, in the middle of one.
    lengths = [(0, 15, 16, 17, 32, 50)[slot % 6] for slot in range(rows + 1)]
    check_talker(model, lengths, 16, slots=list(range(rows, 0, -1)))


def test_talker_with_the_published_head(device):
    check_talker(Heads(device, 2, 1, 128, positions=192), [130, 63], 64, slots=[1, 0])


def test_rows_without_a_slot_are_unchanged(device):
    check_talker(Heads(device, 2, 1, 16, positions=64), [5, 17, 3], 16, slots=[2, -1, 0, -1])


def test_a_row_alone_equals_the_row_in_a_batch(device):
    model = Heads(device, 2, 1, 16, positions=64)
    qkv = random(device, 5, model.row_width, seed=7)
    results = []
    for slots in ([0, 1, 2, 3, 4], [2]):
        memory = Blocks(model, [3, 30, 17, 16, 0], 16)
        out = torch.zeros(len(slots), 2 * 16, dtype=torch.bfloat16, device=device)
        memory.run(qkv[slots], torch.tensor(slots, device=device), out)
        results.append(out)
    assert torch.equal(results[0][2], results[1][0])


def check_predictor(model: Heads, sequences: int, capacity: int, spare: int = 0) -> None:
    """A frame: two rows per sequence first, then one at a time."""
    shape = (sequences + spare, model.kv_heads, capacity, model.dim)
    keys = torch.full(shape, float("nan"), dtype=torch.bfloat16, device=model.device)
    values = keys.clone()
    past_k: list[list[Tensor]] = [[] for _ in range(sequences)]
    past_v: list[list[Tensor]] = [[] for _ in range(sequences)]
    position = 0
    while position < capacity:
        new = 2 if position == 0 else 1
        qkv = random(model.device, sequences * new, model.row_width, scale=2.0, seed=10 + position)
        out = torch.empty(sequences * new, model.heads * model.dim, dtype=torch.bfloat16, device=model.device)
        predictor_attention(qkv, model.norms, keys, values, position, out, new=new)
        expected = torch.empty_like(out)
        for row in range(sequences * new):
            sequence, token = divmod(row, new)
            q, k, v = model.split(qkv[row], position + token)
            past_k[sequence].append(k)
            past_v[sequence].append(v)
            expected[row] = model.attend(q, torch.stack(past_k[sequence], 1), torch.stack(past_v[sequence], 1))
        assert_same_roundings(out, expected, flips=0.02)
        position += new
    for sequence in range(sequences):
        assert_same_roundings(keys[sequence], torch.stack(past_k[sequence], 1))
        assert torch.equal(values[sequence], torch.stack(past_v[sequence], 1))
    assert keys[sequences:].isnan().all()


# Many sequences run the first pass only: the interpreter needs 0.1 s for each.
@pytest.mark.parametrize(("sequences", "capacity"), [(1, 4), (3, 4), (16, 2), (17, 2)])
def test_predictor(device, sequences, capacity):
    check_predictor(Heads(device, 2, 1, 16, positions=4), sequences, capacity, spare=1)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "capacity"), [(4, 2, 32, 4), (4, 4, 16, 4), (2, 1, 128, 16)])
def test_predictor_of_other_sizes(device, heads, kv_heads, dim, capacity):
    check_predictor(Heads(device, heads, kv_heads, dim, positions=16), 1, capacity)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 32, 128])
@pytest.mark.parametrize("length", [64, 512])
def test_published_talker(device, rows, length):
    model = Heads(device, 16, 8, 128, positions=length + 1)
    check_talker(model, [length - slot % 7 for slot in range(rows)], 64, slots=list(range(rows)))
    # 28 layers in turn, so that reads miss the L2 cache.
    memories = [Blocks(model, [length] * rows, 64) for _ in range(max(1, 10**8 // (rows * length * 4096)))]
    qkv = random(device, rows, model.row_width)
    out = torch.empty(rows, 2048, dtype=torch.bfloat16, device=device)
    slot = torch.arange(rows, device=device)

    def chain() -> None:
        for memory in memories:
            memory.run(qkv, slot, out)

    seconds = graph_seconds(chain, copies=2) / len(memories)
    report(f"talker attention, {rows} rows at {length}", seconds, rows * length * 8 * 128 * 2 * 2)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 32, 128])
def test_published_predictor(device, rows):
    model = Heads(device, 16, 8, 128, positions=16)
    check_predictor(model, rows, 16)
    keys = random(device, rows, 8, 16, 128)
    values, qkv = keys.clone(), random(device, rows, model.row_width)
    out = torch.empty(rows, 2048, dtype=torch.bfloat16, device=device)

    def call() -> None:
        predictor_attention(qkv, model.norms, keys, values, 15, out)

    report(f"predictor attention, {rows} rows at 15", graph_seconds(call), 2 * keys.nbytes)
