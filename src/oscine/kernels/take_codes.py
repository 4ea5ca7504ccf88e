"""Copies a tick's codes, which the next tick overwrites, to where the codec and the host read them. One launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _take(
    slots, codes, failed, codec_slots, codec_codes, codes_out, failed_out, scratch, stride, books: tl.constexpr
):  # fmt: skip
    row, book = tl.program_id(0), tl.arange(0, books)
    slot = tl.load(slots + row)
    tl.store(codec_slots + row, tl.where(slot < 0, scratch, slot).to(tl.int32))
    code = tl.load(codes + row * stride + book)
    tl.store(codec_codes + row * stride + book, code)
    tl.store(codes_out + row * books + book, code.to(tl.int16))
    tl.store(failed_out + row, tl.load(failed + row))


def take_codes(
    slots: Tensor,
    codes: Tensor,
    failed: Tensor,
    scratch: int,
    codec_slots: Tensor,
    codec_codes: Tensor,
    codes_out: Tensor,
    failed_out: Tensor,
) -> None:
    """slots [rows], codes [rows, books] int64, failed [rows] int16 -> codec_slots, int32, with `scratch` for rows
    without a slot; codec_codes; codes_out, int16; failed_out."""
    rows, books = codes.shape
    assert slots.shape == codec_slots.shape == failed.shape == failed_out.shape == (rows,), (slots.shape, codes.shape)
    assert codec_codes.shape == codes_out.shape == codes.shape, (codec_codes.shape, codes_out.shape)
    assert slots.dtype == codes.dtype == codec_codes.dtype == torch.int64, (slots.dtype, codes.dtype)
    assert codec_slots.dtype == torch.int32, codec_slots.dtype
    assert failed.dtype == failed_out.dtype == codes_out.dtype == torch.int16, (failed.dtype, codes_out.dtype)
    assert codes.stride() == codec_codes.stride() and codes_out.is_contiguous(), (codes.stride(), codes_out.stride())
    _take[(rows,)](
        slots, codes, failed, codec_slots, codec_codes, codes_out, failed_out, scratch, codes.stride(0),
        books=books, num_warps=1,
    )  # fmt: skip
