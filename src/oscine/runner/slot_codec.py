"""The codec over fixed slots: one frame of codes per row in, PCM16 out, the streams' states kept on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from oscine.model.streaming import StreamState


class SlotCodec(ABC):
    """All calls only enqueue work; none reads from the device. So a CUDA graph can capture `run`."""

    scratch: int  # the slot of padding rows; any number of rows may share it
    nbytes: int  # size of all states

    @abstractmethod
    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        """codes [rows, 16] int64, slots [rows] -> pcm16_out [rows, samples per frame] int16.

        No slot may occur twice, except `scratch`. Codes outside the codebook (end of speech) are clamped."""

    @abstractmethod
    def load_state(self, slot: int, state: StreamState) -> None:
        """Continues a stream of model/codec.py, such as a voice's reference, in the slot."""

    @abstractmethod
    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        """Views of the tensors that hold the slot's state; all zeros is the state before the first frame."""

    def cleared_views(self, slot: int) -> tuple[Tensor, ...]:
        """The first of these views: those that must be zero before the first frame."""
        return self.state_views(slot)

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        for view in self.cleared_views(slot):
            view.zero_()

    @torch.inference_mode()
    def snapshot(self, slot: int) -> tuple[Tensor, ...]:
        """A copy of the slot's state, for `restore` into any slot. Faster to restore than load_state."""
        return tuple(view.clone() for view in self.state_views(slot))

    @torch.inference_mode()
    def restore(self, slot: int, snapshot: tuple[Tensor, ...]) -> None:
        for view, saved in zip(self.state_views(slot), snapshot, strict=True):
            view.copy_(saved)


class SilentCodec(SlotCodec):
    """Gives silence: for engines that only deliver codes, and for measuring the cost of the codes."""

    nbytes = 0

    def __init__(self, slots: int) -> None:
        self.scratch = slots

    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        pcm16_out.zero_()

    def load_state(self, slot: int, state: StreamState) -> None: ...

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        return ()
