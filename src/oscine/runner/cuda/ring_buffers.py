"""The codec state of the CUDA backend: a ring buffer before each convolution, and the window's keys and values.

A ring holds the columns of the current frame and the earlier ones that its layer still reads, channels last. Its length
is a power of two, so a column's place is its number modulo the length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oscine.model.config import CodecDecoderConfig, ConvInput
from oscine.model.streaming import StreamState

_ALIGNMENT = 128  # elements: rings begin where wide loads may


def _ring_length(layer: ConvInput) -> int:
    return 1 << (layer.columns + layer.past - 1).bit_length()


def _ring_elements(layer: ConvInput) -> int:
    return -(-_ring_length(layer) * layer.channels // _ALIGNMENT) * _ALIGNMENT


def ring_state_elements(config: CodecDecoderConfig) -> int:
    """Elements of one slot's state."""
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
        """Older columns than those in the state are left as they are: no layer reads them."""
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
