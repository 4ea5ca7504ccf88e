"""The codec of model/codec.py over slots, in its own precision."""

from __future__ import annotations

import torch
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.streaming import StreamState
from oscine.runner.slot_codec import SlotCodec


class TorchCodec(SlotCodec):
    @torch.inference_mode()
    def __init__(self, codec: Codec, slots: int) -> None:
        self._codec = codec
        self.scratch = slots
        start = codec.start(1, codec.dequantizer.tables.device)
        self._frames = start.frames.new_zeros(slots + 1)
        self._tails = [tail.new_zeros(slots + 1, *tail.shape[1:]) for tail in start.tails]
        self.nbytes = StreamState(self._frames, tuple(self._tails)).nbytes

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        return tuple(tensor[slot : slot + 1] for tensor in (self._frames, *self._tails))

    def load_state(self, slot: int, state: StreamState) -> None:
        self.restore(slot, (state.frames, *state.tails))

    @torch.inference_mode()
    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        index = slots.long()
        known = codes.clamp(0, self._codec.dequantizer.codebook_size - 1)
        tails = tuple(tail.index_select(0, index) for tail in self._tails)
        samples, state = self._codec.decode(known[:, None], StreamState(self._frames.index_select(0, index), tails))
        self._frames.index_copy_(0, index, state.frames)
        for ours, theirs in zip(self._tails, state.tails, strict=True):
            ours.index_copy_(0, index, theirs)
        pcm16_out.copy_(samples.mul(32767).round_())  # half to even, as audio.pcm16
