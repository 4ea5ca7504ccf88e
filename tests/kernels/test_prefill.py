"""Keys and values of a prompt's rows are written to the positions that attention reads."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.prefill import write_keys_values
from tests.kernels.measures import assert_same_roundings
from tests.kernels.test_attention import EPS, Heads, random

pytestmark = pytest.mark.slow

BLOCK_SIZE = 16


def test_each_row_is_written_to_its_block_and_padding_is_not(device):
    model = Heads(device, 4, 2, 16, positions=64)
    table = torch.tensor([[3, 1], [3, 1], [5, 4], [0, 0]], device=device)  # two rows of one prompt, one of another
    position = torch.tensor([15, 16, 2, -1], device=device)
    keys, values = (torch.zeros(6, 2, BLOCK_SIZE, 16, dtype=torch.bfloat16, device=device) for _ in range(2))
    qkv = random(device, 4, model.row_width, seed=6)
    write_keys_values(qkv, model.k_norm, EPS, model.cos, model.sin, keys, values, table, position)
    for row, (block, offset) in enumerate(((3, 15), (1, 0), (5, 2))):
        _, k, v = model.split(qkv[row], int(position[row]))
        assert_same_roundings(keys[block, :, offset], k)
        assert torch.equal(values[block, :, offset], v)
    written = (values != 0).any(-1).nonzero().tolist()
    assert {(block, offset) for block, _, offset in written} == {(3, 15), (1, 0), (5, 2)}
