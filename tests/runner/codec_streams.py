"""Tiny random codecs, and streams in slots next to the same streams on the plain codec."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from msgspec.structs import replace
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec
from oscine.model.config import CodecConfig
from oscine.model.streaming import StreamState
from oscine.runner.backend import SlotCodec

SLOTS = 3
CPU = torch.device("cpu")

# The slots of the rows of each tick. Streams start at different frames; None is a padding row.
TICKS: list[list[int | None]] = [[0], [0, 2], [2, 0, None, None], [0, 2], [2, 0, 1], [None, 1, 2]]
RESETS = {4: 2}  # before tick 4 a new stream starts in slot 2


def short_config(config: CodecConfig) -> CodecConfig:
    """Few columns, widths that fill no tile, and a window that wraps soon: for the interpreter."""
    decoder = config.decoder
    stack = replace(decoder.stack, window=3, heads=2, kv_heads=2, width=24)
    sizes = {"codebook_size": 32, "latent": 20, "upsample_rates": (3,), "decoder_dim": 24}
    return replace(config, decoder=replace(decoder, stack=stack, **sizes))


def random_codes(codec: Codec, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, codec.dequantizer.codebook_size, (*shape, CODEBOOKS), generator=generator)


def slot_vector(rows: list[int | None], scratch: int, device: torch.device = CPU) -> Tensor:
    return torch.tensor([scratch if row is None else row for row in rows], dtype=torch.int32, device=device)


def to_pcm16(samples: Tensor) -> Tensor:
    return (samples * 32767).round().to(torch.int16)


class PlainStreams:
    """The plain codec with a state per slot."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.states: dict[int | None, StreamState] = {}

    def tick(self, rows: list[int | None], codes: Tensor) -> Tensor:
        fresh = self.codec.start(1, CPU)
        states = [self.states.get(row, fresh) for row in rows]
        tails = zip(*(state.tails for state in states), strict=True)
        joined = StreamState(torch.cat([state.frames for state in states]), tuple(torch.cat(tail) for tail in tails))
        samples, state = self.codec.decode(codes[:, None], joined)
        for place, row in enumerate(rows):
            one = slice(place, place + 1)
            self.states[row] = StreamState(state.frames[one], tuple(tail[one] for tail in state.tails))
        return samples


def run_ticks(slots: SlotCodec, plain: PlainStreams) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields for rows that are not padding: PCM16 from the slots, samples from the plain codec."""
    codec = plain.codec
    for tick, rows in enumerate(TICKS):
        if tick in RESETS:
            slots.reset(RESETS[tick])
            plain.states.pop(RESETS[tick])
        codes = random_codes(codec, len(rows), seed=tick)
        pcm = torch.zeros(len(rows), codec.config.samples_per_frame, dtype=torch.int16)
        slots.run(codes, slot_vector(rows, slots.scratch), pcm)
        live = [place for place, row in enumerate(rows) if row is not None]
        yield pcm[live], plain.tick([rows[place] for place in live], codes[live])
