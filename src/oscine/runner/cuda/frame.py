"""The frame on a GPU: everything a tick does is one captured graph per batch size, fed and read by pinned memory.

The host writes which slots run, replays, and records an event behind the one copy that brings codes and sound back.
Nothing is waited for until `collect`; two ticks may be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oscine.runner.cuda.decode_step import DecodeStep
from oscine.runner.cuda.graphs import GraphSet
from oscine.runner.runner import FrameOutput, Ticket
from oscine.runner.torch.codec import FrameCodec
from oscine.types import CODEBOOKS, SamplingParams

_NOBODY = -1  # the slot of rows that only fill a batch up
_IN_FLIGHT = 3  # pinned buffers: two ticks in flight, and one that is being read


@dataclass(frozen=True, slots=True)
class CudaTicket:
    slots: tuple[int, ...]
    size: int
    pinned: Tensor
    done: torch.cuda.Event

    def ready(self) -> bool:
        return self.done.query()


class CudaFrame:
    def __init__(
        self,
        chain: DecodeStep,
        codec: FrameCodec,
        samples_per_frame: int,
        sizes: Sequence[int],
        device: torch.device,
        *,
        captured: bool,
    ) -> None:
        largest = max(sizes)
        self._chain, self._codec, self._samples = chain, codec, samples_per_frame
        self._slots = torch.full((largest,), _NOBODY, dtype=torch.int64, device=device)
        # Sound and codes of a tick side by side, so that one copy brings both: [size, samples] then [size, 16].
        self._out = torch.zeros(largest * (self._samples + CODEBOOKS), dtype=torch.int16, device=device)
        self._slots_pinned = [torch.empty(largest, dtype=torch.int64, pin_memory=True) for _ in range(_IN_FLIGHT)]
        self._out_pinned = [torch.empty_like(self._out, device="cpu", pin_memory=True) for _ in range(_IN_FLIGHT)]
        self._turn = 0
        self._graphs = GraphSet(self._run, sizes, captured=captured)
        self.sizes = len(self._graphs.sizes)

    def capture(self, progress: Callable[[int, int], None]) -> None:
        with torch.inference_mode():
            self._slots.fill_(_NOBODY)  # the warm-up runs speak for no slot
            self._graphs.capture(progress)

    @torch.inference_mode()
    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], longest: int) -> CudaTicket:
        size = self._graphs.size_for(len(slots))
        self._turn = (self._turn + 1) % _IN_FLIGHT
        indices, pinned = self._slots_pinned[self._turn], self._out_pinned[self._turn]
        indices[:size] = torch.tensor([*slots, *[_NOBODY] * (size - len(slots))])
        self._slots[:size].copy_(indices[:size], non_blocking=True)
        self._graphs.replay(size)
        used = size * (self._samples + CODEBOOKS)
        pinned[:used].copy_(self._out[:used], non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return CudaTicket(tuple(slots), size, pinned, done)

    def collect(self, ticket: Ticket) -> FrameOutput:
        assert isinstance(ticket, CudaTicket)
        ticket.done.synchronize()
        pcm, codes = self._views(ticket.pinned, ticket.size)
        rows = len(ticket.slots)
        # Copies: the pinned buffer is written again two ticks later.
        return FrameOutput(ticket.slots, codes[:rows].numpy().astype(np.int64), pcm[:rows].numpy().copy())

    def _run(self, size: int) -> None:
        pcm, codes_out = self._views(self._out, size)
        slots = self._slots[:size]
        codes = self._chain.speak(slots)
        self._codec.run(codes, torch.where(slots < 0, self._codec.scratch, slots), pcm)
        self._chain.advance(slots)
        codes_out.copy_(codes)

    def _views(self, flat: Tensor, size: int) -> tuple[Tensor, Tensor]:
        pcm = flat[: size * self._samples].view(size, self._samples)
        codes = flat[size * self._samples :][: size * CODEBOOKS].view(size, CODEBOOKS)
        return pcm, codes
