"""The runner over a backend: assigns slots and KV blocks, and caches prefixes and the codec states of references."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from cachetools import LRUCache
from torch import Tensor

from oscine.errors import EngineError, TooLongError
from oscine.request import SamplingParams
from oscine.runner.backend import Backend, CaptureProgress, Newcomer, SilentCodec
from oscine.runner.kv_cache import BlockAllocator, PrefixCache, blocks_for, prefix_key
from oscine.runner.runner import FrameOutput, RunnerCounts, SlotAssignment, Ticket
from oscine.types import Prompt

_log = logging.getLogger(__name__)
_REFERENCE_PIECE_FRAMES = 100  # bounds the memory of decoding a reference
_CACHED_REFERENCES = 32
_MEMORY_AGE_S = 1.0

# Since torch 2.8 most device errors have their own class; Triton's and older ones are recognized by their text. Running
# out of memory is not one of them: the device still works.
_DEVICE_ERRORS = ("CUDA error", "Triton Error [CUDA]", "cuDNN error")
_DEVICE_ERROR: type[Exception] | None = getattr(torch, "AcceleratorError", None)


@dataclass(slots=True)
class _RunningSlot:
    """The host's copy of a slot's counters, so that the device is never read."""

    sampling: SamplingParams
    position: int  # of the next frame's row
    text_count: int


class SlotRunner:
    """Implements Runner. One thread uses it at a time."""

    def __init__(self, backend: Backend) -> None:
        model, budget, config = backend.model, backend.budget, backend.model.config
        self.slots = budget.slots
        self.sample_rate_hz = config.codec.sample_rate_hz
        self.samples_per_frame = config.codec.samples_per_frame
        self.eos_id = config.talker.eos_id
        self.device = model.device
        self.backend, self._model, self._budget = backend, model, budget
        self._weight_bytes = sum(tensor.nbytes for tensor in itertools.chain(model.parameters(), model.buffers()))
        self._allocator = BlockAllocator(budget.blocks)
        self._prefixes = PrefixCache(budget.prefix_bytes)
        self._references: LRUCache[str, tuple[Tensor, ...]] = LRUCache(_CACHED_REFERENCES)
        self._running: dict[int, _RunningSlot] = {}
        self._new_prefixes: list[tuple[str, int, int]] = []  # key, slot, rows: cached after their prefill
        self._allocated_bytes, self._measured_s = 0, float("-inf")  # on a GPU

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Makes the runner's device current in this thread, and turns device failures into EngineErrors: this process
        cannot use the device again after one."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        try:
            with torch.inference_mode():
                yield
        except RuntimeError as error:
            known = _DEVICE_ERROR is not None and isinstance(error, _DEVICE_ERROR)
            if known or any(words in str(error) for words in _DEVICE_ERRORS):
                raise EngineError(f"the device failed: {str(error).splitlines()[0]}") from error
            raise

    @property
    def free_blocks(self) -> int:
        return self._allocator.free_blocks

    def position(self, slot: int) -> int:
        """The position of the slot's next frame: prompt rows and frames so far."""
        return self._running[slot].position

    def capture(self, progress: CaptureProgress = lambda done, total: None) -> None:
        """Compiles and captures everything that a request can trigger, before the first one arrives."""
        with self._on_device():
            self.backend.capture(progress)

    def room_for(self, prompt: Prompt, sampling: SamplingParams) -> bool:
        return blocks_for(self._positions(prompt, sampling)) <= self.free_blocks

    def admit(self, assignment: SlotAssignment) -> None:
        with self._on_device():
            prompt, sampling, slot = assignment.prompt, assignment.sampling, assignment.slot
            assert slot not in self._running, f"slot {slot} is not free"
            self._check_fit(prompt)
            blocks = self._allocator.allocate(slot, blocks_for(self._positions(prompt, sampling)))
            shared = min(prompt.prefix_rows, prompt.rows - 1)  # the first frame runs the last row
            key = prefix_key(prompt, shared) if shared else ""
            prefix = self._prefixes.get(key) if shared else None
            try:
                self.backend.admit(Newcomer(assignment, blocks, prefix, self._codec_state(slot, prompt)))
            except BaseException:
                self._free_blocks(slot, prompt.rows)
                raise
            if shared and prefix is None:
                self._new_prefixes.append((key, slot, shared))
            self._running[slot] = _RunningSlot(sampling, prompt.rows - 1, len(prompt.trailing_ids))

    def flush_admissions(self) -> None:
        """Enqueues all admissions. The other methods do so when needed."""
        with self._on_device():
            self._flush()

    def append_text(self, slot: int, text_ids: Sequence[int], *, ended: bool) -> None:
        with self._on_device():
            self._flush()
            running = self._running[slot]
            if running.text_count + len(text_ids) > self._budget.text_capacity:
                raise TooLongError(f"a text may have at most {self._budget.text_capacity} tokens; end this one", "text")
            self.backend.state.append_text(slot, running.text_count, text_ids, ended=ended)
            running.text_count += len(text_ids)

    def launch(self, slots: Sequence[int]) -> Ticket:
        with self._on_device():
            rows = [self._running[slot] for slot in slots]
            max_context = max(row.position for row in rows) + 1
            with self._caching_prefixes():
                ticket = self.backend.launch(slots, [row.sampling for row in rows], max_context)
            for row in rows:
                row.position += 1
            return ticket

    def collect(self, ticket: Ticket) -> FrameOutput:
        with self._on_device():
            return self.backend.collect(ticket)

    def release(self, slot: int) -> None:
        with self._on_device():
            self._flush()  # pending rows must not be written into blocks that later belong to another slot
            self._free_blocks(slot, self._running.pop(slot).position)

    def _free_blocks(self, slot: int, positions: int) -> None:
        """Frees the slot's blocks, of which at most `positions` were written."""
        self.backend.clear_blocks(self._allocator.release(slot)[: blocks_for(positions)])

    def counts(self) -> RunnerCounts:
        prefixes = self._prefixes
        return RunnerCounts(prefixes.hits, prefixes.misses, prefixes.nbytes, self._memory_bytes())

    def _memory_bytes(self) -> int:
        """Returns the allocated memory on a GPU. It is measured rarely, because torch collects all counters of its
        allocator for it. Elsewhere there is no such counter, and the planned size is returned."""
        if self.device.type == "cuda":
            if time.monotonic() - self._measured_s > _MEMORY_AGE_S:
                self._allocated_bytes, self._measured_s = torch.cuda.memory_allocated(self.device), time.monotonic()
            return self._allocated_bytes
        return self._weight_bytes + self._budget.kv_bytes + self._budget.codec_bytes + self._prefixes.nbytes

    def _positions(self, prompt: Prompt, sampling: SamplingParams) -> int:
        """Returns how many positions this request can need at most; one more frame may be in flight when it ends."""
        return min(prompt.rows + sampling.max_new_tokens + 1, self._budget.positions_per_slot)

    def _check_fit(self, prompt: Prompt) -> None:
        if prompt.rows + 2 > self._budget.positions_per_slot:
            raise TooLongError(
                f"the prompt needs {prompt.rows + 2} positions, a slot has {self._budget.positions_per_slot}; split "
                "the text, shorten the reference clip, or start with more positions per slot",
                "text",
            )
        if len(prompt.trailing_ids) > self._budget.text_capacity:
            raise TooLongError(
                f"the text has {len(prompt.trailing_ids)} tokens, at most {self._budget.text_capacity} fit; split it",
                "text",
            )

    def _flush(self) -> None:
        """Enqueues the admissions together."""
        with self._caching_prefixes():
            self.backend.flush_admissions()

    @contextmanager
    def _caching_prefixes(self) -> Iterator[None]:
        """Surrounds calls that enqueue the admissions, and caches the new prefixes afterwards. If the call fails, none
        is cached, because their keys may not have been computed."""
        new, self._new_prefixes = self._new_prefixes, []
        yield
        for key, slot, shared in new:
            if key in self._prefixes:  # requests that came together may share it
                continue
            try:
                self._prefixes.put(key, self.backend.kv.read(self.backend.state.block_table[slot], shared))
            except torch.OutOfMemoryError:
                _log.warning("there is no memory for a cached prefix of %d rows", shared)

    def _codec_state(self, slot: int, prompt: Prompt) -> tuple[Tensor, ...] | None:
        """Returns None for silence, or the state after the reference of an in-context voice. A reference is decoded
        once per voice, in the free slot; the host waits for that."""
        codec = self.backend.codec
        if prompt.reference_codes is None or isinstance(codec, SilentCodec):
            return None
        key = prefix_key(prompt, 0)
        snapshot = self._references.get(key)
        if snapshot is not None:
            return snapshot
        state = None
        codes = torch.tensor(prompt.reference_codes, device=self.device)[None]
        for piece in codes.split(_REFERENCE_PIECE_FRAMES, dim=1):
            _, state = self._model.codec.decode(piece, state)
        assert state is not None
        codec.load_state(slot, state)
        snapshot = self._references[key] = codec.snapshot(slot)
        return snapshot
