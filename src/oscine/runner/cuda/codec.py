"""The codec's frame on kernels: 80 launches, state in ring buffers by slot, updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from oscine.kernels.codec_front import attend, depthwise_norm, dequantize, rope_turns
from oscine.kernels.conv import Conv, Rows, Workspace, conv, last_conv
from oscine.model.codec import Codec
from oscine.model.config import CodecDecoderConfig
from oscine.model.streaming import StreamState
from oscine.runner.cuda.codec_layers import Block, conv_layer, into_stack, stack_layer, upsamplings, vocoder_block
from oscine.runner.cuda.ring_buffers import codec_rings


class CodecArena:
    """What CudaCodec's streams remember, in bf16: a ring before each convolution, channels last, and the keys and
    values of the last frames. Row `scratch`, the last, is for padding."""

    @torch.inference_mode()
    def __init__(self, config: CodecDecoderConfig, slots: int, device: torch.device) -> None:
        stack = config.stack
        assert stack.window is not None and stack.heads == stack.kv_heads, stack
        self.scratch = slots
        self.frames = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._specs = tuple(codec_rings(config))
        # One row per slot, so that a slot is forgotten in one stroke.
        row = sum(spec.elements for spec in self._specs)
        self._columns = torch.zeros(slots + 1, row, dtype=torch.bfloat16, device=device)
        self.rings: list[Tensor] = []  # [slots + 1, places, channels] each
        offset = 0
        for spec in self._specs:
            shape = (slots + 1, spec.places, spec.channels)
            self.rings.append(self._columns.as_strided(shape, (row, spec.channels, 1), offset))
            offset += spec.elements
        cache = (stack.layers, slots + 1, stack.heads, stack.window, stack.head_dim)
        self.keys = torch.zeros(cache, dtype=torch.bfloat16, device=device)
        self.values = torch.zeros_like(self.keys)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.frames, self._columns, self.keys, self.values))

    @torch.inference_mode()
    def reset(self, slots: Tensor) -> None:
        index = slots.long()
        self._columns.index_fill_(0, index, 0)
        self.frames.index_fill_(0, index, 0)  # keys and values from before frame 0 are never read

    @torch.inference_mode()
    def load_state(self, slot: int, state: StreamState) -> None:
        """Whatever lies further back than the state tells is past every layer's sight."""
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
        for ring in range(1, len(self._specs)):
            self._load_ring(slot, ring, frames, next(tails))

    def memory(self, slot: int) -> tuple[Tensor, ...]:
        return self.frames[slot : slot + 1], self._columns[slot], self.keys[:, slot], self.values[:, slot]

    def _load_ring(self, slot: int, ring: int, frames: Tensor, tail: Tensor) -> None:
        spec = self._specs[ring]
        back = torch.arange(-spec.past, 0, device=frames.device)
        places = (frames * spec.columns + back) % spec.places
        self.rings[ring][slot].index_copy_(0, places, tail[0].T.to(self.rings[ring]))


class CudaCodec:
    """Weights in bf16, channels last; sums, norms, softmax and sines in fp32. Scales, the weights of norms and linear
    layers that meet with nothing between them are multiplied together beforehand."""

    @torch.inference_mode()
    def __init__(self, codec: Codec, arena: CodecArena, max_rows: int) -> None:
        self._arena, self._max_rows = arena, max_rows
        self.scratch, self.nbytes = arena.scratch, arena.nbytes
        config, device = codec.config.decoder, arena.frames.device
        self._tables = codec.dequantizer.tables
        self._turns = rope_turns(config.stack.head_dim, config.stack.theta, device)
        self._into_stack = into_stack(codec)
        self._stack = [stack_layer(layer, config.stack.eps) for layer in codec.stack.layers]
        self._upsamplings = list(upsamplings(codec))
        columns = self._upsamplings[-1].columns
        blocks: Any = codec.blocks
        snakes = [*(block.snake for block in blocks), codec.snake]
        self._vocoder_in = conv_layer(codec.vocoder_in, columns, snake=snakes[0])
        self._blocks: list[Block] = []
        for block, after in zip(blocks, snakes[1:], strict=True):
            self._blocks.append(vocoder_block(block, columns, after))
            columns *= block.upsample.rate
        self._vocoder_out = conv_layer(codec.vocoder_out, columns)
        self._workspace = Workspace((*self._front_layers(), *self._vocoder_layers()), max_rows, device)
        self._position = torch.zeros(max_rows, dtype=torch.int32, device=device)
        front = max(layer.columns * max(layer.weight.shape) for layer in self._front_layers())
        vocoder = max(layer.columns * len(layer.weight) for layer in self._vocoder_layers())
        # Two for the residual stream, which goes from one to the other in an upsampling; two for what stands inside a
        # residual branch. The vocoder needs one of each.
        self._buffers = [
            torch.empty(max_rows * width, dtype=torch.bfloat16, device=device)
            for width in (max(front, vocoder), front, max(front, vocoder), front)
        ]

    def reset(self, slots: Tensor) -> None:
        self._arena.reset(slots)

    def load_state(self, slot: int, state: StreamState) -> None:
        self._arena.load_state(slot, state)

    def memory(self, slot: int) -> tuple[Tensor, ...]:
        return self._arena.memory(slot)

    @torch.inference_mode()
    def run(self, codes: Tensor, slot: Tensor, pcm16_out: Tensor, samples_out: Tensor | None = None) -> None:
        """`samples_out` [rows, samples per frame]: the same in fp32."""
        assert len(codes) <= self._max_rows, (len(codes), self._max_rows)
        rows = Rows(slot, self._position[: len(codes)])
        rings = iter(self._arena.rings)
        first = next(rings)
        dequantize(codes, self._tables, rows, self._arena.frames, first)
        self._run_stack(rows, first)
        ring = self._run_upsamplings(rows, rings)
        ring = self._run_vocoder(rows, ring, rings)
        last_conv(self._vocoder_out, ring, rows, pcm16_out=pcm16_out, samples_out=samples_out)

    def _run_stack(self, rows: Rows, ring: Tensor) -> None:
        stream, _, wide, mixed = self._buffers
        workspace, arena, batch = self._workspace, self._arena, len(rows)
        x = _dense(stream, batch, self._into_stack.channels)
        conv(self._into_stack, ring, rows, workspace, raw=x)
        for layer, keys, values in zip(self._stack, arena.keys, arena.values, strict=True):
            qkv = _dense(wide, batch, layer.qkv.channels)
            heads = _dense(mixed, batch, layer.out.inputs)
            conv(layer.qkv, x, rows, workspace, raw=qkv)
            attend(qkv, keys, values, self._turns, rows, heads)
            conv(layer.out, heads, rows, workspace, residual=x, raw=x)
            inner = _dense(wide, batch, layer.down.inputs)
            conv(layer.gate_up, x, rows, workspace, out=inner)
            conv(layer.down, inner, rows, workspace, residual=x, raw=x)

    def _run_upsamplings(self, rows: Rows, rings: Iterator[Tensor]) -> Tensor:
        """The vocoder's ring."""
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
        """The ring of the last convolution. All rings here hold what their layer's snake has made of the signal."""
        stream, _, wide, _ = self._buffers
        workspace, batch = self._workspace, len(rows)
        source, ring = ring, next(rings)
        conv(self._vocoder_in, source, rows, workspace, out=ring)
        for block in self._blocks:
            columns, channels = block.upsample.columns * block.upsample.phases, block.upsample.channels
            x = _dense(stream, batch * columns, channels)
            inner = _dense(wide, batch * columns, channels)
            source, ring = ring, next(rings)
            conv(block.upsample, source, rows, workspace, raw=x, out=ring)
            for conv1, conv2 in block.units:
                conv(conv1, ring, rows, workspace, out=inner)
                ring = next(rings)
                # The sum itself is needed by the next unit only, not by the next block.
                raw = None if conv2 is block.units[-1][1] else x
                conv(conv2, inner, rows, workspace, residual=x, raw=raw, out=ring)
        return ring

    def _front_layers(self) -> Iterator[Conv]:
        yield self._into_stack
        for layer in self._stack:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
        for step in self._upsamplings:
            yield from (step.upsample, step.up, step.down)

    def _vocoder_layers(self) -> Iterator[Conv]:
        yield self._vocoder_in
        for block in self._blocks:
            yield block.upsample
            for unit in block.units:
                yield from unit


def _dense(buffer: Tensor, columns: int, channels: int) -> Tensor:
    return buffer[: columns * channels].view(columns, channels)
