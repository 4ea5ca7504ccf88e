"""One codec frame for every row of a tick: codes in, PCM16 out, what a stream remembers held in fixed slots.

TorchCodec runs the plain model anywhere. CpuCodec (lean_codec.py, for a CPU) and CudaCodec (triton_codec.py) must
sound like it; SilentCodec is for measuring what codes alone cost. All enqueue only: nothing is read back from the
device, so that a run can be captured in a CUDA graph. Rows that fill a batch up use the slot `scratch`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.streaming import StreamState


class FrameCodec(Protocol):
    scratch: int  # the slot of padding rows: any number of them may share it
    nbytes: int  # what all slots hold

    def reset(self, slots: Tensor) -> None:
        """Forgets everything that was heard in these slots, on the device and behind what is enqueued."""

    def load_state(self, slot: int, state: StreamState) -> None:
        """The slot goes on from a state of the plain codec, such as the one behind a voice's reference frames."""

    def memory(self, slot: int) -> tuple[Tensor, ...]:
        """Views of all that the slot remembers. A copy of them, written into another slot, lets that one go on from
        here: sooner than load_state, which may have to put everything in its place."""

    def run(self, codes: Tensor, slot: Tensor, pcm16_out: Tensor) -> None:
        """codes [rows, 16] int64, slot [rows] int32 -> pcm16_out [rows, samples per frame] int16. No slot may stand
        in two rows but `scratch`. A code above the codebook (end of speech) is taken as the last entry."""


class SilentCodec:
    """What is left of a frame is codes."""

    nbytes = 0

    def __init__(self, slots: int) -> None:
        self.scratch = slots

    def reset(self, slots: Tensor) -> None: ...

    def load_state(self, slot: int, state: StreamState) -> None: ...

    def memory(self, slot: int) -> tuple[Tensor, ...]:
        return ()

    def run(self, codes: Tensor, slot: Tensor, pcm16_out: Tensor) -> None: ...


class TorchCodec:
    """The plain codec over slots, in the codec's own precision."""

    @torch.inference_mode()
    def __init__(self, codec: Codec, slots: int) -> None:
        self._codec = codec
        self.scratch = slots
        device = codec.dequantizer.tables.device
        start = codec.start(1, device)
        self._frames = start.frames.new_zeros(slots + 1)
        self._tails = [tail.new_zeros(slots + 1, *tail.shape[1:]) for tail in start.tails]
        self.nbytes = StreamState(self._frames, tuple(self._tails)).nbytes

    @torch.inference_mode()
    def reset(self, slots: Tensor) -> None:
        index = slots.long()
        for tensor in (self._frames, *self._tails):
            tensor.index_fill_(0, index, 0)

    @torch.inference_mode()
    def load_state(self, slot: int, state: StreamState) -> None:
        self._frames[slot : slot + 1].copy_(state.frames)
        for ours, theirs in zip(self._tails, state.tails, strict=True):
            ours[slot : slot + 1].copy_(theirs)

    def memory(self, slot: int) -> tuple[Tensor, ...]:
        return tuple(tensor[slot : slot + 1] for tensor in (self._frames, *self._tails))

    @torch.inference_mode()
    def run(self, codes: Tensor, slot: Tensor, pcm16_out: Tensor) -> None:
        index = slot.long()
        known = codes.clamp(0, self._codec.dequantizer.codebook_size - 1)
        tails = tuple(tail.index_select(0, index) for tail in self._tails)
        samples, state = self._codec.decode(known[:, None], StreamState(self._frames.index_select(0, index), tails))
        self._frames.index_copy_(0, index, state.frames)
        for ours, theirs in zip(self._tails, state.tails, strict=True):
            ours.index_copy_(0, index, theirs)
        pcm16_out.copy_(samples.mul(32767).round_())  # a half to the even side, as audio.pcm16
