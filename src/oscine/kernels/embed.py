"""Looks up embeddings: the predictor's input for a sampled code, and the talker's next input.

next input = bf16(bf16(sum of the 16 code embeddings) + text row)        summed in fp32, in codebook order
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.primitives import rounded, to_bf16


@triton.jit
def _gather(table, ids, out, width, ids_stride, table_stride, out_stride, block: tl.constexpr):
    row = tl.program_id(0)
    index = tl.load(ids + row * ids_stride).to(tl.int64)
    if index >= 0:
        column = tl.arange(0, block)
        mask = column < width
        values = tl.load(table + index * table_stride + column, mask=mask, other=0.0)
        tl.store(out + row * out_stride + column, values, mask=mask)


@triton.jit
def _next_input(
    codes, slots, first_table, tables, text_table, text_ids, text_counts, frames, positions, inputs,
    width, vocab, pad, codes_stride, text_ids_stride, inputs_stride, books: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    # One program per row: it alone reads and then advances the row's two counters.
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        frame = tl.load(frames + slot)
        position = tl.load(positions + slot)
        is_given = frame < tl.load(text_counts + slot)
        text = tl.load(text_ids + slot * text_ids_stride + frame, mask=is_given, other=pad).to(tl.int64)
        column = tl.arange(0, block)
        mask = column < width
        code = tl.load(codes + row * codes_stride).to(tl.int64)
        total = tl.load(first_table + code * width + column, mask=mask, other=0.0).to(tl.float32)
        for book in tl.static_range(1, books):
            code = tl.load(codes + row * codes_stride + book).to(tl.int64) + (book - 1) * vocab
            total += tl.load(tables + code * width + column, mask=mask, other=0.0).to(tl.float32)
        words = tl.load(text_table + text * width + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(inputs + slot * inputs_stride + column, to_bf16(rounded(total) + words), mask=mask)
        tl.debug_barrier()  # all warps have read the counters before one advances them
        tl.store(frames + slot, frame + 1)
        tl.store(positions + slot, position + 1)


def gather(table: Tensor, ids: Tensor, out: Tensor) -> None:
    """out[r] = table[ids[r]].

    table [entries, width], ids [rows] (may be a column of the codes) -> out [rows, width]. The table may also hold
    the talker's inputs by slot, with slots as ids. Rows with a negative id keep their values.
    """
    rows, width = out.shape
    assert ids.shape == (rows,) and table.shape[1] == width, (ids.shape, table.shape, out.shape)
    assert table.dtype == out.dtype == torch.bfloat16 and table.stride(1) == out.stride(1) == 1, table.stride()
    _gather[(rows,)](
        table, ids, out, width, ids.stride(0), table.stride(0), out.stride(0),
        block=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip


def next_input(
    codes: Tensor,
    slot: Tensor,
    first_table: Tensor,
    tables: Tensor,
    text_table: Tensor,
    text_ids: Tensor,
    text_count: Tensor,
    pad_id: int,
    frame: Tensor,
    position: Tensor,
    inputs: Tensor,
) -> None:
    """Writes the talker's next input, inputs[slot], and advances frame[slot] and position[slot] by one.

    codes [rows, books], slot [rows]; first_table [ids, width] embeds code 0, tables [books - 1, vocab, width] the
    others; text_table [text vocab, width] holds projected text rows; text_ids [slots, capacity] holds one id per
    frame, of which text_count[slot] are valid; later frames use `pad_id`. Each slot may occur in one row only.
    """
    rows, books = codes.shape
    width = first_table.shape[1]
    assert slot.shape == (rows,) and slot.is_contiguous() and codes.stride(1) == 1, (slot.shape, codes.shape)
    assert tables.shape[0] == books - 1 and tables.shape[2] == width, (tables.shape, codes.shape, width)
    assert text_table.shape[1] == width and inputs.shape[1] == width and inputs.stride(1) == 1, text_table.shape
    assert first_table.is_contiguous() and tables.is_contiguous() and text_table.is_contiguous()
    assert first_table.dtype == tables.dtype == text_table.dtype == inputs.dtype == torch.bfloat16, inputs.dtype
    assert 0 <= pad_id < text_table.shape[0], (pad_id, text_table.shape)
    slots = (inputs.shape[0],)
    assert frame.shape == position.shape == text_count.shape == slots and text_ids.shape[0] == slots[0], slots
    _next_input[(rows,)](
        codes, slot, first_table, tables, text_table, text_ids, text_count, frame, position, inputs,
        width, tables.shape[1], pad_id, codes.stride(0), text_ids.stride(0), inputs.stride(0),
        books=books, block=triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
