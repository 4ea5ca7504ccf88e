"""Writes the requests of one admission block to their slots, and builds their prompt rows.

    prompt row = bf16(bf16(codec part) + text row)
    codec part: nothing, one code's embedding, a vector, or the sum of the 16 embeddings of a reference frame (in fp32)

The block is written by runner/cuda/admission_block.py: a header for each request, a record for each prompt row, and
their data (text ids, vectors). Other memory on the device (cached keys and values, codec states) is named by its
address. A header with a negative slot and a record with a negative position are padding.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.primitives import rounded, to_bf16

# A record: slot, position, text id, kind, codes. Kind: the number of codes, or -1 - the vector's place in the data.
RECORD_CODES = 4
_TEXT_STEP = 1024
_COPY_WORDS = 1024
_MAX_COPY_PROGRAMS = 32


@dataclass(frozen=True, slots=True)
class HeaderLayout:
    """Places in a header of int64 words. 0..5: slot, first text id in the data, number of text ids, rows of the cached
    prefix, addresses of its keys and of its values."""

    ints: int
    floats: int
    pieces: int  # of a codec state
    blocks: int  # of a slot
    record: int

    @property
    def ints_at(self) -> int:
        return 6

    @property
    def floats_at(self) -> int:
        return self.ints_at + self.ints

    @property
    def record_at(self) -> int:
        """The place of the last prompt row, which the first frame runs."""
        return self.floats_at + self.floats

    @property
    def pieces_at(self) -> int:
        """The place of the source address of each piece of the codec state; 0: zeros, -1: the piece stays as it is."""
        return self.record_at + self.record

    @property
    def blocks_at(self) -> int:
        return self.pieces_at + self.pieces

    @property
    def words(self) -> int:
        return self.blocks_at + self.blocks


@dataclass(frozen=True, slots=True)
class InputTables:
    """The embeddings that make an input row, in bf16."""

    first: Tensor  # [ids, width]: code 0
    others: Tensor  # [books - 1, vocab, width]
    text: Tensor  # [text vocab, width]: projected text rows

    def __post_init__(self) -> None:
        width = self.first.shape[1]
        assert self.others.shape[2] == self.text.shape[1] == width, (self.others.shape, self.text.shape, width)
        for table in (self.first, self.others, self.text):
            assert table.dtype == torch.bfloat16 and table.is_contiguous(), (table.dtype, table.stride())


@triton.jit
def _prompt_row(record, data, first_table, tables, text_table, width, vocab, books: tl.constexpr, block: tl.constexpr):
    """[block] bf16, of which the first `width` count."""
    column = tl.arange(0, block)
    mask = column < width
    kind = tl.load(record + 3).to(tl.int32)
    total = tl.zeros((block,), tl.float32)
    if kind < 0:
        total = tl.load(data + (-1 - kind) + column, mask=mask, other=0).to(tl.float32, bitcast=True)
    if kind > 0:
        code = tl.load(record + 4).to(tl.int64)
        total = tl.load(first_table + code * width + column, mask=mask, other=0.0).to(tl.float32)
    if kind > 1:
        for book in tl.static_range(1, books):
            code = tl.load(record + 4 + book).to(tl.int64) + (book - 1) * vocab
            total += tl.load(tables + code * width + column, mask=mask, other=0.0).to(tl.float32)
    text = tl.load(record + 2).to(tl.int64)
    words = tl.load(text_table + text * width + column, mask=mask, other=0.0).to(tl.float32)
    return to_bf16(rounded(total) + words)


@triton.jit
def _place(
    records, data, first_table, tables, text_table, block_table, inputs, row_blocks, positions,
    width, vocab, record_words, table_stride, blocks,
    books: tl.constexpr, block: tl.constexpr, table_block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    record = records + row * record_words
    position = tl.load(record + 1).to(tl.int64)
    tl.store(positions + row, position)
    if position >= 0:
        slot = tl.load(record).to(tl.int64)
        column = tl.arange(0, block)
        values = _prompt_row(record, data, first_table, tables, text_table, width, vocab, books, block)
        tl.store(inputs + row * width + column, values, mask=column < width)
        at = tl.arange(0, table_block)
        own = tl.load(block_table + slot * table_stride + at, mask=at < blocks, other=0)
        tl.store(row_blocks + row * blocks + at, own, mask=at < blocks)


@triton.jit
def _write_slots(
    headers, data, first_table, tables, text_table, ints, floats, inputs, block_table, text_ids, seen,
    width, vocab, words, slots, text_stride, codes,
    ints_at: tl.constexpr, ints_count: tl.constexpr, floats_at: tl.constexpr, floats_count: tl.constexpr,
    record_at: tl.constexpr, blocks_at: tl.constexpr, blocks: tl.constexpr,
    books: tl.constexpr, block: tl.constexpr, small_block: tl.constexpr, codes_block: tl.constexpr,
    text_step: tl.constexpr,
):  # fmt: skip
    header = headers + tl.program_id(0) * words
    slot = tl.load(header)
    if slot >= 0:
        at = tl.arange(0, small_block)
        tl.store(ints + at * slots + slot, tl.load(header + ints_at + at, mask=at < ints_count), mask=at < ints_count)
        bits = tl.load(header + floats_at + at, mask=at < floats_count, other=0).to(tl.int32)
        tl.store(floats + at * slots + slot, bits.to(tl.float32, bitcast=True), mask=at < floats_count)
        own = tl.load(header + blocks_at + at, mask=at < blocks, other=0)
        tl.store(block_table + slot * blocks + at, own, mask=at < blocks)
        code = tl.arange(0, codes_block)
        tl.store(seen + slot * codes + code, tl.zeros((codes_block,), tl.int8), mask=code < codes)
        text = data + tl.load(header + 1)
        count = tl.load(header + 2).to(tl.int32)
        for first in range(0, count, text_step):
            place = first + tl.arange(0, text_step)
            ids = tl.load(text + place, mask=place < count, other=0).to(tl.int64)
            tl.store(text_ids + slot * text_stride + place, ids, mask=place < count)
        column = tl.arange(0, block)
        record = header + record_at
        values = _prompt_row(record, data, first_table, tables, text_table, width, vocab, books, block)
        tl.store(inputs + slot * width + column, values, mask=column < width)


@triton.jit
def _copy_prefixes(
    headers, keys, values, words, layer_stride, block_stride, head_stride, layers,
    blocks_at: tl.constexpr, kv_heads: tl.constexpr, dim: tl.constexpr, block_size: tl.constexpr,
):  # fmt: skip
    header = headers + tl.program_id(0) * words
    layer = (tl.program_id(1) // kv_heads).to(tl.int64)
    head = tl.program_id(1) % kv_heads
    rows = tl.load(header + 3).to(tl.int32)
    if (tl.load(header) >= 0) & (rows > 0):
        old_keys = tl.load(header + 4).to(tl.pointer_type(tl.bfloat16))  # [rows, layers, kv_heads, dim]
        old_values = tl.load(header + 5).to(tl.pointer_type(tl.bfloat16))
        column = tl.arange(0, dim)[None, :]
        within = tl.arange(0, block_size)[:, None]
        for first in range(0, rows, block_size):
            block = tl.load(header + blocks_at + first // block_size)
            new = layer * layer_stride + block * block_stride + head * head_stride + within * dim + column
            old = (((first + within) * layers + layer) * kv_heads + head) * dim + column
            mask = first + within < rows
            tl.store(keys + new, tl.load(old_keys + old, mask=mask, other=0.0), mask=mask)
            tl.store(values + new, tl.load(old_values + old, mask=mask, other=0.0), mask=mask)


@triton.jit
def _start_codec(headers, pieces, words, pieces_at: tl.constexpr, programs: tl.constexpr, step: tl.constexpr):
    header = headers + tl.program_id(0) * words
    piece = tl.program_id(1)
    slot = tl.load(header)
    source = tl.load(header + pieces_at + piece)
    if (slot >= 0) & (source >= 0):
        size = tl.load(pieces + piece * 3 + 2).to(tl.int32)  # int32 words
        place = tl.load(pieces + piece * 3) + slot * tl.load(pieces + piece * 3 + 1)
        new = place.to(tl.pointer_type(tl.int32))
        old = source.to(tl.pointer_type(tl.int32))
        for first in range(tl.program_id(2) * step, size, programs * step):
            at = first + tl.arange(0, step)
            values = tl.load(old + at, mask=(at < size) & (source > 0), other=0)
            tl.store(new + at, values, mask=at < size)


def place_rows(
    records: Tensor,
    data: Tensor,
    tables: InputTables,
    block_table: Tensor,
    inputs: Tensor,
    row_blocks: Tensor,
    positions: Tensor,
) -> None:
    """records [rows, words] int32, data int32; block_table [slots, blocks] -> inputs [rows, width], row_blocks [rows,
    blocks], positions [rows]. Padding gets its position only."""
    rows, width = inputs.shape
    blocks = block_table.shape[1]
    assert len(records) == len(positions) == len(row_blocks) == rows, (records.shape, inputs.shape)
    assert row_blocks.shape[1] == blocks and row_blocks.is_contiguous() and inputs.is_contiguous(), row_blocks.shape
    assert records.dtype == data.dtype == torch.int32 and records.is_contiguous(), records.dtype
    assert inputs.dtype == torch.bfloat16 and width == tables.first.shape[1], (inputs.dtype, inputs.shape)
    _place[(rows,)](
        records, data, tables.first, tables.others, tables.text, block_table, inputs, row_blocks, positions,
        width, tables.others.shape[1], records.shape[1], block_table.stride(0), blocks,
        books=tables.others.shape[0] + 1, block=triton.next_power_of_2(width),
        table_block=triton.next_power_of_2(blocks), num_warps=4,
    )  # fmt: skip


def write_slots(headers: Tensor, layout: HeaderLayout, data: Tensor, tables: InputTables, state: Any) -> None:
    """headers [requests, words] int64, data int32 -> the tensors of runner/slot_state.py: all of a slot's numbers, its
    block table, text ids and next input row; its codes are no longer seen."""
    width, codes = state.inputs.shape[1], state.seen.shape[1]
    assert headers.shape[1] == layout.words and headers.dtype == torch.int64 and headers.is_contiguous(), headers.shape
    assert len(state.ints) == layout.ints and len(state.floats) == layout.floats, layout
    assert state.block_table.shape[1] == layout.blocks and state.inputs.dtype == torch.bfloat16, layout
    for tensor in (state.ints, state.floats, state.inputs, state.block_table, state.text_ids, state.seen):
        assert tensor.is_contiguous(), tensor.stride()
    _write_slots[(len(headers),)](
        headers, data, tables.first, tables.others, tables.text,
        state.ints, state.floats, state.inputs, state.block_table, state.text_ids, state.seen.view(torch.int8),
        width, tables.others.shape[1], layout.words, state.ints.shape[1], state.text_ids.shape[1], codes,
        ints_at=layout.ints_at, ints_count=layout.ints, floats_at=layout.floats_at, floats_count=layout.floats,
        record_at=layout.record_at, blocks_at=layout.blocks_at, blocks=layout.blocks,
        books=tables.others.shape[0] + 1, block=triton.next_power_of_2(width),
        small_block=triton.next_power_of_2(max(layout.ints, layout.floats, layout.blocks)),
        codes_block=triton.next_power_of_2(codes), text_step=_TEXT_STEP, num_warps=4,
    )  # fmt: skip


def copy_prefixes(headers: Tensor, layout: HeaderLayout, keys: Tensor, values: Tensor) -> None:
    """Copies cached keys and values [rows, layers, kv_heads, dim] to the first positions of their slots: keys and
    values [layers, blocks, kv_heads, positions of a block, dim]."""
    layers, _, kv_heads, block_size, dim = keys.shape
    assert keys.stride() == values.stride() and keys.stride()[3:] == (dim, 1), keys.stride()
    assert keys.dtype == values.dtype == torch.bfloat16, keys.dtype
    _copy_prefixes[(len(headers), layers * kv_heads)](
        headers, keys, values, layout.words, keys.stride(0), keys.stride(1), keys.stride(2), layers,
        blocks_at=layout.blocks_at, kv_heads=kv_heads, dim=dim, block_size=block_size, num_warps=4,
    )  # fmt: skip


def start_codecs(headers: Tensor, layout: HeaderLayout, pieces: Tensor, max_bytes: int) -> None:
    """pieces [pieces, 3] int64: a piece's address in slot 0, the bytes between slots, its size in int32 words; the
    largest has `max_bytes`."""
    programs = min(_MAX_COPY_PROGRAMS, triton.cdiv(max_bytes, 4 * _COPY_WORDS))
    _start_codec[(len(headers), layout.pieces, programs)](
        headers, pieces, layout.words, pieces_at=layout.pieces_at, programs=programs, step=_COPY_WORDS, num_warps=4,
    )  # fmt: skip
