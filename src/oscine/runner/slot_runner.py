"""The runner: slots, their memory, prefill and frames. Two ways to compute, over the same state: plain PyTorch on any
device (frame.py), and kernels under captured graphs (graph_frame.py, kernel_prefill.py)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oscine.cache import BoundedCache
from oscine.kernels import available
from oscine.model.speech_model import SpeechModel
from oscine.runner.block_allocator import BlockAllocator, pages_for
from oscine.runner.cpu.codec import CpuCodec
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.memory_budget import MemoryBudget
from oscine.runner.prefix_cache import PrefixCache, prefix_key
from oscine.runner.runner import FrameOutput, RunnerCounts, SlotAssignment, Ticket
from oscine.runner.slot_state import SlotState
from oscine.runner.torch.codec import FrameCodec, SilentCodec, TorchCodec
from oscine.runner.torch.frame import Frame, TorchFrame
from oscine.runner.torch.prefill import Prefill, TorchPrefill
from oscine.types import EngineError, Prompt, SamplingParams, TooLongError

_REFERENCE_PIECE_FRAMES = 100  # bounds the memory of decoding a voice's reference
_CACHED_REFERENCES = 32

Progress = Callable[[int, int], None]  # steps done, steps in all
_P = ParamSpec("_P")
_R = TypeVar("_R")

# Since torch 2.8 most have a class of their own; Triton's and older ones are known by their words. Not among them: a
# device that is out of memory, which still works.
_DEVICE_ERRORS = ("CUDA error", "Triton Error [CUDA]", "cuDNN error")
_DEVICE_ERROR: type[Exception] | None = getattr(torch, "AcceleratorError", None)


def _on_device(
    method: Callable[Concatenate[SlotRunner, _P], _R],
) -> Callable[Concatenate[SlotRunner, _P], _R]:
    """Makes the runner's device the calling thread's own. Its failures become EngineErrors: after one of them nothing
    works any more in this process."""

    @functools.wraps(method)
    def on_device(runner: SlotRunner, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if runner._device.type == "cuda":
            torch.cuda.set_device(runner._device)
        try:
            return method(runner, *args, **kwargs)
        except RuntimeError as error:
            known = _DEVICE_ERROR is not None and isinstance(error, _DEVICE_ERROR)
            if known or any(words in str(error) for words in _DEVICE_ERRORS):
                raise EngineError(f"the device failed: {str(error).splitlines()[0]}") from error
            raise

    return on_device


@dataclass(slots=True)
class _Held:
    """What the host knows of a slot, so that it never has to ask the device."""

    sampling: SamplingParams
    position: int  # of the next frame's row
    text_known: int


def uses_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    return available(device) and dtype == torch.bfloat16


class SlotRunner:
    """`kernels` None: where they can run, that is on a GPU in bfloat16. `graphs` off: the same kernels, one by one.
    `sounding` off: codes without sound."""

    @torch.inference_mode()
    def __init__(
        self,
        model: SpeechModel,
        budget: MemoryBudget,
        *,
        frame_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
        kernels: bool | None = None,
        graphs: bool = True,
        sounding: bool = True,
    ) -> None:
        config = model.config
        self.slots = budget.slots
        self.sample_rate_hz = config.codec.sample_rate_hz
        self.samples_per_frame = config.codec.samples_per_frame
        self.eos_id = config.talker.eos_id
        self._model, self._budget, self._device = model, budget, model.device
        self._weight_bytes = sum(tensor.nbytes for tensor in itertools.chain(model.parameters(), model.buffers()))
        like = model.talker.head.weight
        self._pool = BlockAllocator(budget.pages)
        self._kv = PagedKVCache.allocate(config.talker.stack, budget.pages, like)
        self._state = SlotState.allocate(config, budget.slots, budget.pages_per_slot, budget.text_capacity, like)
        self._prefixes = PrefixCache(budget.prefix_bytes)
        self._references: BoundedCache[tuple[Tensor, ...]] = BoundedCache(_CACHED_REFERENCES)
        self._held: dict[int, _Held] = {}
        self._new_prefixes: list[tuple[str, Tensor, int]] = []  # key, pages, rows: read when they are filled
        self._slot_ids = torch.arange(budget.slots, device=model.device)  # sending one up would make the host wait
        if kernels is None:
            kernels = uses_kernels(model.device, like.dtype)
        sizes = sorted({*(size for size in frame_sizes if size < budget.slots), budget.slots})
        self._codec = self._make_codec(kernels, sizes[-1]) if sounding else SilentCodec(budget.slots)
        self._frame: Frame
        self._prefill: Prefill
        if kernels:
            self._frame, self._prefill = self._on_kernels(sizes, graphs)
        else:
            self._frame = TorchFrame(model, self._state, self._kv, self._codec)
            self._prefill = TorchPrefill(model, self._kv)

    def _make_codec(self, kernels: bool, max_rows: int) -> FrameCodec:
        codec, device = self._model.codec, self._device
        if kernels:
            from oscine.runner.cuda.codec import CodecArena, CudaCodec  # here, not above: it needs Triton

            return CudaCodec(codec, CodecArena(codec.config.decoder, self.slots, device), max_rows)
        return (CpuCodec if device.type == "cpu" else TorchCodec)(codec, self.slots)

    def _on_kernels(self, sizes: Sequence[int], graphs: bool) -> tuple[Frame, Prefill]:
        # Here, not above: they need Triton.
        from oscine.runner.cuda.decode_step import DecodeStep
        from oscine.runner.cuda.frame import CudaFrame
        from oscine.runner.cuda.prefill import PREFILL_SIZES, CudaPrefill

        model, device = self._model, self._device
        chain = DecodeStep(model, self._state, self._kv, sizes[-1], PREFILL_SIZES[-1])
        frame = CudaFrame(chain, self._codec, self.samples_per_frame, sizes, device, captured=graphs)
        width, like = model.config.talker.stack.width, model.talker.head.weight
        prefill = CudaPrefill(chain, width, self._budget.pages_per_slot, like, captured=graphs)
        return frame, prefill

    @_on_device
    def capture(self, progress: Progress = lambda done, total: None) -> None:
        """Compiles and captures everything that a request may meet, before the first one comes."""
        steps = self._frame.sizes + self._prefill.sizes
        self._frame.capture(lambda done, total: progress(done, steps))
        self._prefill.capture(lambda done, total: progress(self._frame.sizes + done, steps))

    def room_for(self, prompt: Prompt, sampling: SamplingParams) -> bool:
        return pages_for(self._positions(prompt, sampling)) <= self._pool.free

    @_on_device
    @torch.inference_mode()
    def admit(self, admission: SlotAssignment) -> None:
        prompt, sampling, slot = admission.prompt, admission.sampling, admission.slot
        assert slot not in self._held, f"slot {slot} is not free"
        self._check_fit(prompt)
        pages = self._pool.take(slot, pages_for(self._positions(prompt, sampling)))
        try:
            rows = self._model.prompt_rows(prompt)
            self._state.write(
                slot,
                position=prompt.rows - 1,
                # The last row is left to the first frame: a frame begins with a talker step.
                input_row=rows[-1],
                pages=pages,
                text_ids=prompt.trailing_ids.tolist(),
                streaming_text=admission.streaming_text,
                sampling=sampling,
            )
            self._start_codec(slot, prompt)
            self._fill(prompt, rows[:-1], self._state.page_table[slot])
        except BaseException:
            self._pool.give(slot)
            raise
        self._held[slot] = _Held(sampling, prompt.rows - 1, len(prompt.trailing_ids))

    @_on_device
    def append_text(self, slot: int, text_ids: Sequence[int], *, ended: bool) -> None:
        held = self._held[slot]
        if held.text_known + len(text_ids) > self._budget.text_capacity:
            raise TooLongError(f"a text may have at most {self._budget.text_capacity} tokens; end this one", "text")
        with torch.inference_mode():
            self._state.append_text(slot, held.text_known, text_ids, ended=ended)
        held.text_known += len(text_ids)

    @_on_device
    @torch.inference_mode()
    def launch(self, slots: Sequence[int]) -> Ticket:
        self._flush()
        rows = [self._held[slot] for slot in slots]
        longest = max(row.position for row in rows) + 1
        ticket = self._frame.launch(slots, [row.sampling for row in rows], longest)
        for row in rows:
            row.position += 1
        return ticket

    @_on_device
    def collect(self, ticket: Ticket) -> FrameOutput:
        return self._frame.collect(ticket)

    @_on_device
    @torch.inference_mode()
    def release(self, slot: int) -> None:
        self._flush()  # or rows that still wait would be written into the next holder's pages
        del self._held[slot]
        self._pool.give(slot)

    def counts(self) -> RunnerCounts:
        prefixes = self._prefixes
        return RunnerCounts(prefixes.hits, prefixes.misses, prefixes.nbytes, self._memory_bytes())

    def _memory_bytes(self) -> int:
        """On a GPU what the allocator has given out; elsewhere what was planned, as nobody counts there."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return self._weight_bytes + self._budget.kv_bytes + self._budget.codec_bytes + self._prefixes.nbytes

    def _positions(self, prompt: Prompt, sampling: SamplingParams) -> int:
        """The most that this request can need; one more frame may be in flight when it ends."""
        limit = self._budget.positions_per_slot
        return min(prompt.rows + sampling.max_new_tokens + 1, limit)

    def _check_fit(self, prompt: Prompt) -> None:
        if prompt.rows + 2 > self._budget.positions_per_slot:
            raise TooLongError(
                f"the prompt needs {prompt.rows + 2} positions, a slot has {self._budget.positions_per_slot}; split "
                "the text, shorten the reference clip, or start with more positions per slot",
                "text",
            )
        if len(prompt.trailing_ids) > self._budget.text_capacity:
            raise TooLongError(
                f"the text has {len(prompt.trailing_ids)} tokens, at most {self._budget.text_capacity} can be held; "
                "split it",
                "text",
            )

    def _fill(self, prompt: Prompt, rows: Tensor, page_row: Tensor) -> None:
        """Keys and values of all rows but the last; the shared beginning comes from the cache where it is known."""
        shared = min(prompt.prefix_rows, len(rows))
        key = prefix_key(prompt, shared)
        prefix = self._prefixes.get(key) if shared else None
        if prefix:
            self._kv.write(page_row, *prefix)
        first = shared if prefix else 0
        if first < len(rows):
            self._prefill.add(rows[first:], first, page_row)
        if shared and not prefix:
            self._new_prefixes.append((key, page_row, shared))

    def _flush(self) -> None:
        """What admissions have left to do: one prefill for all of them, then beginnings to keep."""
        self._prefill.flush()
        for key, page_row, shared in self._new_prefixes:
            self._prefixes.put(key, self._kv.read(page_row, shared))
        self._new_prefixes.clear()

    def _start_codec(self, slot: int, prompt: Prompt) -> None:
        """Silence before the first frame; for an in-context voice, the sound of its reference."""
        if prompt.reference_codes is None:
            self._codec.reset(self._slot_ids[slot : slot + 1])
            return
        codes, memory = prompt.reference_codes, self._codec.memory(slot)
        known = self._references.get_or_make(prefix_key(prompt, 0), lambda: self._heard(slot, codes))
        for ours, theirs in zip(memory, known, strict=True):
            ours.copy_(theirs)

    def _heard(self, slot: int, codes: npt.NDArray[np.int64]) -> tuple[Tensor, ...]:
        """What a slot remembers behind these frames. It is decoded once for each voice: the host waits here."""
        state = None
        for piece in torch.tensor(codes, device=self._device)[None].split(_REFERENCE_PIECE_FRAMES, dim=1):
            _, state = self._model.codec.decode(piece, state)
        assert state is not None
        self._codec.load_state(slot, state)
        return tuple(part.clone() for part in self._codec.memory(slot))
