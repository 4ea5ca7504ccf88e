"""The codec's state as the kernels keep it: a ring before each convolution. Sizes only, for who plans or makes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oscine.model.config import CodecDecoderConfig

_ALIGNMENT = 128  # elements: rings begin where wide loads may


@dataclass(frozen=True, slots=True)
class Ring:
    """One layer's input: `columns` new ones per frame, `past` older ones that it still sees."""

    columns: int
    past: int
    channels: int

    @property
    def places(self) -> int:
        return 1 << (self.columns + self.past - 1).bit_length()

    @property
    def elements(self) -> int:
        return -(-self.places * self.channels // _ALIGNMENT) * _ALIGNMENT


def codec_rings(config: CodecDecoderConfig) -> Iterator[Ring]:
    """In the order of the signal path, as the tails of a StreamState."""
    columns, width = 1, config.decoder_dim
    yield Ring(columns, 2, config.codebook_dim)
    for ratio in config.upsampling_ratios:
        columns *= ratio
        yield Ring(columns, 6, config.latent)
    yield Ring(columns, 6, config.latent)
    for rate in config.upsample_rates:
        yield Ring(columns, 1, width)
        columns, width = columns * rate, width // 2
        for dilation in (1, 3, 9):
            yield Ring(columns, 6 * dilation, width)
    yield Ring(columns, 6, width)


def ring_codec_elements(config: CodecDecoderConfig) -> int:
    """Of one stream: its rings, and the keys and values of its window."""
    stack = config.stack
    assert stack.window is not None
    window = 2 * stack.layers * stack.heads * stack.window * stack.head_dim
    return window + sum(ring.elements for ring in codec_rings(config))
