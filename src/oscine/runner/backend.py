"""The interface between the slot runner and the code that computes frames.

Each backend has a folder here: torch (plain PyTorch, any device), cuda (kernels under CUDA graphs) and cpu
(recorded steps). To add one, implement Backend and name it in factory.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from oscine.model.speech_model import SpeechModel
from oscine.model.streaming import StreamState
from oscine.request import SamplingParams
from oscine.runner.kv_cache import KV, PagedKVCache
from oscine.runner.memory_budget import BackendMemory, MemoryBudget
from oscine.runner.runner import FrameOutput, SlotAssignment, Ticket
from oscine.runner.slot_state import SlotState

CaptureProgress = Callable[[int, int], None]  # steps done, steps in total
Kernels = Literal["triton", "cuda"]
Quantization = Literal["none", "fp8", "int8"]


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Settings for any backend, which ignores those that do not apply to it."""

    frame_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)  # batch sizes to capture as graphs
    graphs: bool = True  # off: the same kernels, launched one by one
    codec: bool = True  # off: codes only, every frame is silent
    kernels: Kernels = "triton"  # of frames on a GPU; factory.choose_kernels checks where CUDA's can run
    quantize: Quantization = "none"  # fp8, which needs CUDA's kernels; a model is loaded in int8 (model/weights.py)

    def sizes(self, slots: int) -> list[int]:
        """Returns the batch sizes of frames: those to capture, up to one that holds all slots."""
        return sorted({*(size for size in self.frame_sizes if size < slots), slots})


DEFAULT_OPTIONS = BackendOptions()


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request on its way into a slot: what the slot runner decided, and what the backend writes to the device."""

    assignment: SlotAssignment
    blocks: Sequence[int]  # of the KV cache, in the order of its positions
    prefix: KV | None = None  # keys and values of its first rows, from the prefix cache
    codec_state: tuple[Tensor, ...] | None = None  # a snapshot of SlotCodec; None: silence

    @property
    def prefix_rows(self) -> int:
        """The number of prompt rows that need no prefill."""
        return 0 if self.prefix is None else self.prefix[0].shape[0]


class Backend(BackendMemory, Protocol):
    """Prefills, decode steps and the codec for all slots of one device.

    Work is enqueued in the order of the calls; only `collect` waits for the device.
    """

    name: str
    model: SpeechModel
    budget: MemoryBudget
    state: SlotState  # the slot runner writes a slot at admission, frames update it
    kv: PagedKVCache
    codec: SlotCodec

    def __init__(self, model: SpeechModel, budget: MemoryBudget, options: BackendOptions = DEFAULT_OPTIONS) -> None: ...

    def launching(self) -> AbstractContextManager[None]:
        """Surrounds all frames on the thread that launches them. It may change torch's settings of that thread, which
        should therefore end afterwards. The backend's own threads end with it."""

    def capture(self, progress: CaptureProgress) -> None:
        """Compiles and captures everything that a request can trigger."""

    def admit(self, newcomer: Newcomer) -> None:
        """Starts a request in its slot: the slot's state, its codec state, and keys and values of its prompt rows
        except the last one, which the first frame runs. May leave the work to `flush_admissions`."""

    def flush_admissions(self) -> None:
        """Enqueues everything that `admit` left. Required before these slots get text or release their blocks."""

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Takes blocks that are free again. Their content must never reach another slot, not even where it is
        masked."""

    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], max_context: int) -> Ticket:
        """Enqueues everything that `admit` left, then one frame: talker step, code 0, codes 1..15, codec, next input
        row. The backend gets `sampling` (one per slot) and `max_context` (all positions are below it), so that it need
        not read them on the device."""

    def collect(self, ticket: Ticket) -> FrameOutput:
        """Waits for a frame and returns it."""


# --- The codec over fixed slots: one frame of codes per row in, PCM16 out; the streams' states stay on the device.


class SlotCodec(ABC):
    """A codec for all slots. Its calls only enqueue work and read nothing from the device, so that a CUDA graph can
    capture `run`."""

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
        """Returns views of the tensors that hold the slot's state; all zeros is the state before the first frame."""

    def cleared_views(self, slot: int) -> tuple[Tensor, ...]:
        """Returns the first of these views: those that must be zero before the first frame."""
        return self.state_views(slot)

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        for view in self.cleared_views(slot):
            view.zero_()

    @torch.inference_mode()
    def snapshot(self, slot: int) -> tuple[Tensor, ...]:
        """Copies the slot's state, for `restore` into any slot, which is faster than load_state."""
        return tuple(view.clone() for view in self.state_views(slot))

    @torch.inference_mode()
    def restore(self, slot: int, snapshot: tuple[Tensor, ...]) -> None:
        for view, saved in zip(self.state_views(slot), snapshot, strict=True):
            view.copy_(saved)


class SilentCodec(SlotCodec):
    """Outputs silence, for engines that only deliver codes and for measuring the cost of the codes."""

    nbytes = 0

    def __init__(self, slots: int) -> None:
        self.scratch = slots

    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        pcm16_out.zero_()

    def load_state(self, slot: int, state: StreamState) -> None: ...

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        return ()
