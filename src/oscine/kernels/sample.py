"""Samples one code per row from its logits, in one launch; per-row settings are read from tensors.

    x = fp32(logits); code 0 only: x = x < 0 ? x * p : x / p for ids seen before; ids that are not codes excluded
    greedy:  argmax x, the first of equals
    else:    x / temperature; keep the k largest and ties with the k-th; drop the least likely ids that together hold
             at most the tail, 1 - top_p (equals in the order of ids), but never the likeliest; softmax; the first id
             whose cumulative mass is above u * total
    NaN and infinity fail the row and count as 0, so that every code is a valid index; -infinity excludes an id.
    u = 24 bits of word 0 of Philox4x32-10, counter (frame, codebook, 0, 0), key the two halves of the seed

Divisions are IEEE; sums run in fp64 and are rounded to fp32 before comparisons. The ids equal those of the plain
reference, unless u or the tail is within the last fp32 digit of a border between two ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_MAX_IDS = 4096


@dataclass(frozen=True, slots=True)
class Draws:
    """Sampling settings, one per slot."""

    temperature: Tensor  # fp32, above 0
    top_k: Tensor  # int32, 0: off
    tail: Tensor  # fp32, 1 - top_p, 0: off
    greedy: Tensor  # bool or uint8
    seed_low: Tensor  # int64, the seed's lower 32 bits
    seed_high: Tensor  # int64, its upper 32 bits
    frame: Tensor  # int32, counted from 0; read only


@dataclass(frozen=True, slots=True)
class FirstCode:
    """Settings for code 0."""

    penalty: Tensor  # [slots] fp32
    seen: Tensor  # [slots, ids] bool or uint8: code-0 ids of this utterance; the drawn one is added
    hold_eos: Tensor  # [slots], nonzero: more text follows, so speech must not end
    codes: int  # ids below are codes; of the others only end-of-speech can be drawn
    eos: int
    min_frames: int = 2  # the official minimum before end-of-speech


@triton.jit
def _ordered(x):
    """uint32 keys in the order of fp32 values; -0 and 0 are equal."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    flipped = tl.where(bits < 0, ~bits, bits | -0x80000000)
    return flipped.to(tl.uint32, bitcast=True)


@triton.jit
def _kth_largest(key, k, bits: tl.constexpr):
    """The k-th largest key, two bits per round: one sum counts the keys above three candidates, in 16 bits each."""
    best = tl.full((), 0, tl.uint32)
    for step in tl.static_range(0, bits, 2):
        low = best | (1 << (bits - 2 - step))
        middle = best | (2 << (bits - 2 - step))
        high = best | (3 << (bits - 2 - step))
        above = (key >= low).to(tl.int64) + ((key >= middle).to(tl.int64) << 16) + ((key >= high).to(tl.int64) << 32)
        count = tl.sum(above, 0)
        best = tl.where((count & 0xFFFF) >= k, low, best)
        best = tl.where(((count >> 16) & 0xFFFF) >= k, middle, best)
        best = tl.where((count >> 32) >= k, high, best)
    return best


@triton.jit
def _shares(x, keep):
    """Softmax over the kept ids; the likeliest id is always kept, so max(x) is theirs."""
    e = tl.where(keep, tl.exp(x - tl.max(x, 0)), 0.0)
    return tl.div_rn(e, tl.sum(e.to(tl.float64), 0).to(tl.float32))


@triton.jit
def _nucleus(keep, share, key, limit, bits: tl.constexpr):
    """`keep` without the least likely ids that together hold at most `limit`."""
    share = share.to(tl.float64)
    border = tl.full((), 0, tl.uint32)  # the largest key for which all smaller ones hold at most `limit`
    for step in tl.static_range(bits):
        larger = border | (1 << (bits - 1 - step))
        below = tl.sum(tl.where(key < larger, share, 0.0), 0)
        border = tl.where(below.to(tl.float32) <= limit, larger, border)
    highest = tl.max(key, 0)
    border = tl.minimum(border, highest)
    below = tl.sum(tl.where(key < border, share, 0.0), 0)
    tied = below + tl.cumsum(tl.where(key == border, share, 0.0), 0)
    drop = (key < border) | ((key == border) & (tied.to(tl.float32) <= limit))
    at = tl.arange(0, key.shape[0])
    likeliest = tl.max(tl.where(key == highest, at, -1), 0)
    return keep & (~drop | (at == likeliest))


@triton.jit
def _uniform(seed_low, seed_high, frame, book):
    word, _, _, _ = tl.philox(seed_low | (seed_high << 32), frame, book, 0, 0)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit(do_not_specialize=["book"])
def _sample(
    logits, slots, codes, failed, temperatures, top_ks, tails, greedies, seeds_low, seeds_high, frames,
    penalties, seen, holds,
    vocab, code_count, eos, min_frames, book, logits_stride, codes_stride, seen_stride,
    block: tl.constexpr, key_bits: tl.constexpr, first: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        at = tl.arange(0, block)
        is_id = at < vocab
        x = tl.load(logits + row * logits_stride + at, mask=is_id, other=float("-inf")).to(tl.float32)
        is_bad = ~(x < float("inf"))
        fails = tl.max(is_bad.to(tl.int32), 0)
        x = tl.where(is_bad, 0.0, x)
        tl.store(failed + row, fails.to(failed.dtype.element_ty), mask=(fails != 0) | first)
        frame = tl.load(frames + slot).to(tl.int32)
        if first:
            was = tl.load(seen + slot * seen_stride + at, mask=is_id, other=0) != 0
            penalty = tl.load(penalties + slot)
            x = tl.where(was, tl.where(x < 0, x * penalty, tl.div_rn(x, penalty)), x)
            may_end = (frame >= min_frames) & (tl.load(holds + slot) == 0)
            x = tl.where((at < code_count) | ((at == eos) & may_end), x, float("-inf"))
        if tl.load(greedies + slot) != 0:
            code = tl.argmax(x, 0)
        else:
            scaled = tl.div_rn(x, tl.load(temperatures + slot))
            # Temperature keeps the order and the ties of bf16 logits, so their upper 16 bits suffice as keys.
            key = _ordered(x) >> 16 if key_bits == 16 else _ordered(scaled)
            key = tl.where(is_id, key, 0)
            keep = is_id
            top_k = tl.minimum(tl.load(top_ks + slot).to(tl.int32), vocab)
            if top_k > 0:
                keep = keep & (key >= _kth_largest(key, top_k, key_bits))
            tail = tl.load(tails + slot)
            if tail > 0.0:
                keep = _nucleus(keep, _shares(scaled, keep), key, tail, key_bits)
            mass = tl.cumsum(_shares(scaled, keep).to(tl.float64), 0).to(tl.float32)
            total = tl.max(mass, 0)
            u = _uniform(tl.load(seeds_low + slot), tl.load(seeds_high + slot), frame, book)
            # Rounding must not raise the target to the total: no id would be above it.
            highest = (total.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
            code = tl.sum((mass <= tl.minimum(u * total, highest)).to(tl.int32), 0)
        tl.store(codes + row * codes_stride + book, code.to(codes.dtype.element_ty))
        if first:
            tl.store(seen + slot * seen_stride + code, 1)


def sample(
    logits: Tensor,
    slot: Tensor,
    draws: Draws,
    codes: Tensor,
    book: int,
    failed: Tensor,
    *,
    first: FirstCode | None = None,
) -> None:
    """logits [rows, ids] bf16 or fp32, slot [rows] -> codes[:, book], codes [rows, books] int32 or int64, and failed
    [rows]: 1 if a logit is NaN or infinite; otherwise unchanged, but 0 for codebook 0.

    `first` is for codebook 0. Rows with a negative slot keep their code.
    """
    rows, vocab = logits.shape
    assert vocab <= _MAX_IDS and logits.stride(1) == 1, (logits.shape, logits.stride())
    assert logits.dtype in (torch.bfloat16, torch.float32), logits.dtype
    assert slot.shape == (rows,) and slot.is_contiguous(), slot.shape
    assert failed.shape == (rows,) and failed.is_contiguous(), failed.shape
    assert codes.shape[0] >= rows and 0 <= book < codes.shape[1] and codes.stride(1) == 1, (codes.shape, book)
    slots = draws.temperature.shape
    for tensor in (draws.top_k, draws.tail, draws.greedy, draws.seed_low, draws.seed_high, draws.frame):
        assert tensor.shape == slots and tensor.is_contiguous(), (tensor.shape, slots)
    assert draws.seed_low.dtype == draws.seed_high.dtype == torch.int64, draws.seed_low.dtype
    assert draws.temperature.dtype == draws.tail.dtype == torch.float32, draws.temperature.dtype
    if first is not None:
        assert first.seen.shape == (*slots, vocab) and first.seen.stride(1) == 1, first.seen.shape
        assert first.penalty.dtype == torch.float32 and first.penalty.is_contiguous(), first.penalty.dtype
        assert first.eos < vocab and first.codes <= vocab, (first.eos, first.codes, vocab)
    _sample[(rows,)](
        logits, slot, codes, failed, draws.temperature, draws.top_k, draws.tail, _bytes(draws.greedy),
        draws.seed_low, draws.seed_high, draws.frame,
        first.penalty if first else logits, _bytes(first.seen) if first else logits,
        _bytes(first.hold_eos) if first else logits,
        vocab, first.codes if first else vocab, first.eos if first else 0, first.min_frames if first else 0, book,
        logits.stride(0), codes.stride(0), first.seen.stride(0) if first else 0,
        block=triton.next_power_of_2(vocab), first=first is not None,
        # A repetition penalty makes values that bf16 cannot hold.
        key_bits=16 if logits.dtype == torch.bfloat16 and first is None else 32,
        num_warps=8,
    )  # fmt: skip


def _bytes(flags: Tensor) -> Tensor:
    return flags.view(torch.uint8) if flags.dtype == torch.bool else flags


# --- Copies of a tick's codes for the codec and the host, because the next tick overwrites them. One launch.


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
