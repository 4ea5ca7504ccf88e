"""The codes of a tick are copied as they are, and rows without a slot go to the codec's scratch slot."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.sample import take_codes

pytestmark = pytest.mark.slow

BOOKS, SCRATCH = 16, 40


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_codes_slots_and_failures_are_copied(device, rows):
    slots = torch.arange(rows, device=device).flip(0)
    slots[rows // 2] = -1
    codes = torch.randint(3072, (rows, BOOKS), device=device)
    failed = torch.arange(rows, device=device, dtype=torch.int16) % 2
    codec_slots, codec_codes = torch.full_like(slots, -7, dtype=torch.int32), torch.full_like(codes, -7)
    codes_out, failed_out = torch.full_like(codes, -7, dtype=torch.int16), torch.full_like(failed, -7)
    take_codes(slots, codes, failed, SCRATCH, codec_slots, codec_codes, codes_out, failed_out)
    assert torch.equal(codec_slots, torch.where(slots < 0, SCRATCH, slots).int())
    assert torch.equal(codec_codes, codes) and torch.equal(codes_out.long(), codes)
    assert torch.equal(failed_out, failed)
