"""The codec on kernels: one frame in about 80 launches, with states in ring buffers that are updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from oscine.kernels.codec_front import depthwise_norm, dequantize, rope_turns
from oscine.kernels.conv import Conv, Rows, Workspace, conv, last_conv
from oscine.kernels.residual_unit import residual_unit
from oscine.model.codec import Codec
from oscine.model.config import CodecDecoderConfig, ConvInput
from oscine.model.streaming import StreamState
from oscine.runner.backend import SlotCodec
from oscine.runner.cuda.codec_layers import (
    VocoderLayers,
    conv_layer,
    into_stack,
    stack_layer,
    upsamplings,
    vocoder_block,
)
from oscine.runner.cuda.codec_stack import CodecStack, CudaCodecStack, MakeOperations, TritonCodecStack
from oscine.runner.cuda.graphs import SideStream


class CudaCodec(SlotCodec):
    """Runs the codec with bf16 weights, channels last; sums, norms, softmax and sines are in fp32. Frames may run on
    `side`; a state is loaded after them. With `make_operations` the transformer runs on CUDA kernels; all else runs on
    Triton's."""

    @torch.inference_mode()
    def __init__(
        self,
        codec: Codec,
        slots: int,
        max_rows: int,
        side: SideStream | None = None,
        make_operations: MakeOperations | None = None,
    ) -> None:
        self._side = side
        self.state = CodecRings(codec.config.decoder, slots, codec.dequantizer.tables.device)
        self.scratch, self.nbytes, self._max_rows = slots, self.state.nbytes, max_rows
        config, device = codec.config.decoder, self.state.frames.device
        self._tables = codec.dequantizer.tables
        self._turns = rope_turns(config.stack.head_dim, config.stack.theta, device)
        self._into_stack = into_stack(codec)
        layers = [stack_layer(layer, config.stack.eps) for layer in codec.stack.layers]
        self.stack: CodecStack = (
            CudaCodecStack(layers, max_rows, make_operations) if make_operations else TritonCodecStack(layers, max_rows)
        )
        self._upsamplings = list(upsamplings(codec))
        columns = self._upsamplings[-1].columns
        blocks: Any = codec.blocks
        snakes = [*(block.snake for block in blocks), codec.snake]
        self._vocoder_in = conv_layer(codec.vocoder_in, columns, snake=snakes[0])
        self.blocks: list[VocoderLayers] = []
        for block, after in zip(blocks, snakes[1:], strict=True):
            self.blocks.append(vocoder_block(block, columns, after))
            columns *= block.upsample.rate
        self.vocoder_out = conv_layer(codec.vocoder_out, columns)
        self._workspace = Workspace((*self.front_layers(), *self.vocoder_layers()), max_rows, device)
        self._position = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._angles = torch.zeros(2, max_rows, len(self._turns), device=device)  # cos and sin
        front = max(layer.columns * max(layer.weight.shape) for layer in self.front_layers())
        vocoder = max(layer.columns * len(layer.weight) for layer in self.vocoder_layers())
        # Two for the residual stream, which an upsampling moves from one to the other, and two for the inside of a
        # residual branch. The vocoder needs one of each.
        self._buffers = [
            torch.empty(max_rows * width, dtype=torch.bfloat16, device=device)
            for width in (max(front, vocoder), front, max(front, vocoder), front)
        ]

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        return self.state.views(slot)

    def cleared_views(self, slot: int) -> tuple[Tensor, ...]:
        return self.state_views(slot)[:2]  # keys and values from before frame 0 are never read

    def load_state(self, slot: int, state: StreamState) -> None:
        if self._side is not None:
            self._side.join()
        self.state.load_state(slot, state)

    @torch.inference_mode()
    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor, samples_out: Tensor | None = None) -> None:
        """Same as SlotCodec.run; slots are int32. `samples_out` [rows, samples per frame] gets the samples in fp32."""
        assert len(codes) <= self._max_rows and slots.dtype == torch.int32, (len(codes), self._max_rows, slots.dtype)
        rows = Rows(slots, self._position[: len(codes)])
        rings = iter(self.state.rings)
        first = next(rings)
        cos, sin = self._angles[:, : len(rows)]
        dequantize(codes, self._tables, rows, self.state.frames, first, self._turns, (cos, sin))
        x = _dense(self._buffers[0], len(rows), self._into_stack.channels)
        conv(self._into_stack, first, rows, self._workspace, raw=x)
        self.stack.run(x, rows, (cos, sin), self.state.keys, self.state.values)
        ring = self._run_upsamplings(rows, rings)
        ring = self._run_vocoder(rows, ring, rings)
        last_conv(self.vocoder_out, ring, rows, pcm16_out=pcm16_out, samples_out=samples_out)

    def _run_upsamplings(self, rows: Rows, rings: Iterator[Tensor]) -> Tensor:
        """Returns the ring of the vocoder's first convolution."""
        before, after, wide, normed = self._buffers
        workspace, batch = self._workspace, len(rows)
        for step in self._upsamplings:
            source = _dense(before, batch * step.upsample.columns, step.upsample.inputs)
            x = _dense(after, batch * step.columns, step.up.inputs)
            ring = next(rings)
            conv(step.upsample, source, rows, workspace, raw=x, out=ring)
            mixed = _dense(normed, *x.shape)
            weight, bias, eps = step.depthwise
            depthwise_norm(ring, weight, bias, rows, step.columns, eps, mixed)
            inner = _dense(wide, batch * step.columns, step.up.channels)
            conv(step.up, mixed, rows, workspace, out=inner)
            last = step is self._upsamplings[-1]
            ring = next(rings) if last else ring
            conv(step.down, inner, rows, workspace, residual=x, raw=None if last else x, out=ring if last else None)
            before, after = after, before
        return ring

    def _run_vocoder(self, rows: Rows, ring: Tensor, rings: Iterator[Tensor]) -> Tensor:
        """Returns the ring of the last convolution. The rings here hold the signal after their layer's snake."""
        stream, _, wide, _ = self._buffers
        workspace, batch = self._workspace, len(rows)
        source, ring = ring, next(rings)
        conv(self._vocoder_in, source, rows, workspace, out=ring)
        for block in self.blocks:
            columns, channels = block.upsample.columns * block.upsample.phases, block.upsample.channels
            x = _dense(stream, batch * columns, channels)
            inner = _dense(wide, batch * columns, channels)
            source, ring = ring, next(rings)
            conv(block.upsample, source, rows, workspace, raw=x, out=ring)
            for unit in block.units:
                source, ring = ring, next(rings)
                # Only the next unit needs the sum itself; the next block does not.
                raw = None if unit is block.units[-1] else x
                residual_unit(unit, source, rows, workspace, residual=x, raw=raw, inner=inner, out=ring)
        return ring

    def front_layers(self) -> Iterator[Conv]:
        yield self._into_stack
        for step in self._upsamplings:
            yield from (step.upsample, step.up, step.down)

    def vocoder_layers(self) -> Iterator[Conv]:
        yield self._vocoder_in
        for block in self.blocks:
            yield block.upsample
            for unit in block.units:
                yield from (unit.conv1, unit.conv2)


def _dense(buffer: Tensor, columns: int, channels: int) -> Tensor:
    return buffer[: columns * channels].view(columns, channels)


# --- A slot's codec state as pieces of contiguous memory: one kernel clears or restores any number of slots.


_ZEROS, _KEEP = 0, -1  # instead of the address of a source


class CodecPieces:
    def __init__(self, codec: SlotCodec, device: torch.device) -> None:
        first, second = (list(_pieces(codec.state_views(slot))) for slot in (0, 1))
        self.max_bytes = max((size for _, size in first), default=0)
        rows = [(at, after - at, size // 4) for (at, size), (after, _) in zip(first, second, strict=True)]
        assert all(size % 4 == 0 for _, size in first), first
        self.table = torch.tensor(rows, dtype=torch.int64, device=device)  # see kernels.admit.start_codecs
        cleared = len(list(_pieces(codec.cleared_views(0))))
        self._silence = [_ZEROS] * cleared + [_KEEP] * (len(first) - cleared)

    def __len__(self) -> int:
        return len(self._silence)

    def sources(self, snapshot: tuple[Tensor, ...] | None) -> list[int]:
        """Returns the source address of each piece; no state means silence."""
        return self._silence if snapshot is None else [address for address, _ in _pieces(snapshot)]


def _pieces(views: tuple[Tensor, ...]) -> Iterator[tuple[int, int]]:
    """Yields address and bytes of each piece. A view of several dimensions is divided along the first one."""
    for view in views:
        for part in (view,) if view.dim() == 1 else view.unbind(0):
            assert part.is_contiguous(), (view.shape, view.stride())
            yield part.data_ptr(), part.nbytes


# --- The codec state: a ring buffer before each convolution, and the window's keys and values.
#
# A ring holds the columns of the current frame and the earlier ones that its layer still reads, channels last. Its
# length is a power of two, so a column's place is its number modulo the length.

_ALIGNMENT = 128  # elements: rings begin where wide loads may


def _ring_length(layer: ConvInput) -> int:
    return 1 << (layer.columns + layer.past - 1).bit_length()


def _ring_elements(layer: ConvInput) -> int:
    return -(-_ring_length(layer) * layer.channels // _ALIGNMENT) * _ALIGNMENT


def ring_state_elements(config: CodecDecoderConfig) -> int:
    """Returns the number of elements of one slot's state."""
    stack = config.stack
    window = 2 * stack.layers * stack.heads * stack.window * stack.head_dim
    return window + sum(map(_ring_elements, config.conv_inputs))


class CodecRings:
    """The states of `slots` streams in bf16. Row `slots`, the last, is for padding rows."""

    @torch.inference_mode()
    def __init__(self, config: CodecDecoderConfig, slots: int, device: torch.device) -> None:
        stack = config.stack
        assert stack.heads == stack.kv_heads, stack
        self._layers = config.conv_inputs
        self.frames = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        # All rings of a slot in one row, so that one call clears or copies them.
        width = sum(map(_ring_elements, self._layers))
        self._columns = torch.zeros(slots + 1, width, dtype=torch.bfloat16, device=device)
        self.rings: list[Tensor] = []  # [slots + 1, ring length, channels] each
        offset = 0
        for layer in self._layers:
            shape = (slots + 1, _ring_length(layer), layer.channels)
            self.rings.append(self._columns.as_strided(shape, (width, layer.channels, 1), offset))
            offset += _ring_elements(layer)
        cache = (stack.layers, slots + 1, stack.heads, stack.window, stack.head_dim)
        self.keys = torch.zeros(cache, dtype=torch.bfloat16, device=device)
        self.values = torch.zeros_like(self.keys)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.frames, self._columns, self.keys, self.values))

    def views(self, slot: int) -> tuple[Tensor, ...]:
        return self.frames[slot : slot + 1], self._columns[slot], self.keys[:, slot], self.values[:, slot]

    @torch.inference_mode()
    def load_state(self, slot: int, state: StreamState) -> None:
        """Writes a state to a slot. Columns older than those in the state stay as they are, because no layer reads
        them."""
        frames = state.frames.to(self.frames.device)
        self.frames[slot : slot + 1].copy_(frames)
        layers, _, _, window, _ = self.keys.shape
        tails = iter(state.tails)
        self._load_ring(slot, 0, frames, next(tails))
        for layer in range(layers):
            for cache in (self.keys, self.values):
                tail = next(tails)[0].to(cache)  # [heads, window - 1, dim]
                back = torch.arange(1 - window, 0, device=cache.device)
                cache[layer, slot].index_copy_(1, (frames + back) % window, tail)
        for ring in range(1, len(self.rings)):
            self._load_ring(slot, ring, frames, next(tails))

    def _load_ring(self, slot: int, index: int, frames: Tensor, tail: Tensor) -> None:
        layer, ring = self._layers[index], self.rings[index]
        back = torch.arange(-layer.past, 0, device=frames.device)
        places = (frames * layer.columns + back) % _ring_length(layer)
        ring[slot].index_copy_(0, places, tail[0].T.to(ring))
