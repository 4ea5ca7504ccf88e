"""Keys and values of a prompt's rows are written where attention reads them; each row sees its own prompt."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.attention import PagedCache
from oscine.kernels.cuda.program import from_tiles, in_tiles
from oscine.kernels.prefill import prompt_attention, write_keys_values
from tests.kernels.measures import assert_same_roundings
from tests.kernels.test_attention import Heads, random

pytestmark = pytest.mark.slow

BLOCK_SIZE = 16


def test_each_row_is_written_to_its_block_and_padding_is_not(device):
    model = Heads(device, 4, 2, 16, positions=64)
    table = torch.tensor([[3, 1], [3, 1], [5, 4], [0, 0]], device=device)  # two rows of one prompt, one of another
    position = torch.tensor([15, 16, 2, -1], device=device)
    keys, values = (torch.zeros(6, 2, BLOCK_SIZE, 16, dtype=torch.bfloat16, device=device) for _ in range(2))
    qkv = random(device, 4, model.row_width, seed=6)
    write_keys_values(qkv, model.norms, PagedCache(keys, values, table, position))
    for row, (block, offset) in enumerate(((3, 15), (1, 0), (5, 2))):
        _, k, v = model.split(qkv[row], int(position[row]))
        assert_same_roundings(keys[block, :, offset], k)
        assert torch.equal(values[block, :, offset], v)
    written = (values != 0).any(-1).nonzero().tolist()
    assert {(block, offset) for block, _, offset in written} == {(3, 15), (1, 0), (5, 2)}


@dataclass
class Pack:
    """Rows of several prompts: (first position, rows) of each. What was there before is random, all else NaN."""

    model: Heads
    prompts: list[tuple[int, int]]
    padding: int = 0
    blocks_each: int = 5

    def __post_init__(self) -> None:
        device, model = self.model.device, self.model
        shape = (len(self.prompts) * self.blocks_each + 1, model.kv_heads, BLOCK_SIZE, model.dim)
        self.keys, self.values = (torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
        tables, positions, qkv = [], [], []
        for number, (first, rows) in enumerate(self.prompts):
            table = (
                1 + number * self.blocks_each + torch.randperm(self.blocks_each, generator=_seeded(number)).to(device)
            )
            for position in range(first):
                at = table[position // BLOCK_SIZE], slice(None), position % BLOCK_SIZE
                self.keys[at] = random(device, model.kv_heads, model.dim, seed=1000 * number + position)
                self.values[at] = random(device, model.kv_heads, model.dim, seed=2000 * number + position)
            tables += [table] * rows
            positions += range(first, first + rows)
            qkv.append(random(device, rows, model.row_width, scale=2.0, seed=100 + number))
        unused = torch.full((self.padding, model.row_width), torch.nan, dtype=torch.bfloat16, device=device)
        self.qkv = torch.cat((*qkv, unused))
        self.table = torch.stack(tables + [torch.zeros_like(tables[0])] * self.padding)
        self.position = torch.tensor(positions + [-1] * self.padding, device=device)

    def run(self, *, tiles: bool = False) -> Tensor:
        model, cache = self.model, PagedCache(self.keys, self.values, self.table, self.position)
        out = torch.full((len(self.qkv), model.heads * model.dim), 7.0, dtype=torch.bfloat16, device=model.device)
        out = in_tiles(out) if tiles else out
        write_keys_values(self.qkv, model.norms, cache)
        prompt_attention(self.qkv, model.norms, cache, out)
        return from_tiles(out, len(self.qkv)) if tiles else out

    def expected(self, row: int) -> Tensor:
        """Returns the row's attention over the caches after `run`."""
        length = int(self.position[row]) + 1
        keys, values = (blocks[self.table[row]].transpose(0, 1).flatten(1, 2)[:, :length] for blocks in self._caches)
        return self.model.attend(self.model.split(self.qkv[row], length - 1)[0], keys, values)

    @property
    def _caches(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("prompts", "padding"),
    [([(0, 16)], 0), ([(0, 5), (3, 20), (16, 1), (0, 7)], 3), ([(7, 40), (0, 30)], 2)],
    ids=["one", "several", "longer than a tile"],
)
def test_each_row_sees_its_prompt_up_to_its_own_position(device, prompts, padding):
    pack = Pack(Heads(device, 4, 2, 16, positions=80), prompts, padding)
    out = pack.run()
    rows = len(out) - padding
    assert_same_roundings(out[:rows], torch.stack([pack.expected(row) for row in range(rows)]), flips=0.02)
    assert (out[rows:] == 7.0).all()


def test_an_output_in_tiles_has_the_same_values(device):
    pack = Pack(Heads(device, 4, 2, 32, positions=80), [(0, 5), (3, 20), (0, 9)], padding=3)
    assert torch.equal(pack.run(tiles=True), pack.run())


def test_the_bits_of_a_row_depend_neither_on_its_place_nor_on_its_company(device):
    model = Heads(device, 4, 2, 16, positions=80)
    alone = Pack(model, [(3, 20)]).run()
    prompts = [(3, 20), (0, 9), (5, 30)]
    assert torch.equal(Pack(model, prompts, padding=5).run()[:20], alone)
    turned = Pack(model, prompts)
    order = torch.cat((torch.arange(20, 29), torch.arange(20), torch.arange(29, 59)))
    turned.qkv, turned.table, turned.position = turned.qkv[order], turned.table[order], turned.position[order]
    assert torch.equal(turned.run()[9:29], alone)


def test_the_bits_of_a_row_do_not_depend_on_how_its_prompt_is_divided_into_packs(device):
    model = Heads(device, 4, 2, 16, positions=80)
    whole, parts = Pack(model, [(0, 40)]), Pack(model, [(0, 40)])
    outs = []
    qkv, table, position = parts.qkv, parts.table, parts.position
    for rows in (slice(0, 13), slice(13, 40)):
        parts.qkv, parts.table, parts.position = qkv[rows], table[rows], position[rows]
        outs.append(parts.run())
    assert torch.equal(torch.cat(outs), whole.run())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_values_that_are_not_finite_stay_in_their_prompt(device):
    model = Heads(device, 4, 2, 16, positions=80)
    alone = Pack(model, [(0, 9)]).run()
    pack = Pack(model, [(0, 9), (0, 9)])
    pack.qkv[9:] = float("inf")
    out = pack.run()
    assert torch.equal(out[:9], alone) and not out[9:].isfinite().any()
