"""The backend for NVIDIA GPUs in bf16: kernels, captured graphs for each batch size, pinned memory for transfers.

The host writes the slots of a tick and replays graphs: one for the codes (two if prompts run with the frame), then, on
a second stream, one that copies them and one for their audio, while another one makes the next input rows. With many
rows the next tick's codes are computed during the audio, with few rows after it. An event follows the one copy that
returns codes and audio. Only `collect` waits; two ticks may be in flight. With graphs off it also runs in Triton's
interpreter on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.kernels.operations import Operations, TritonOperations
from oscine.kernels.sample import take_codes
from oscine.model.config import ModelConfig
from oscine.model.speech_model import SpeechModel
from oscine.request import SamplingParams
from oscine.runner.backend import DEFAULT_OPTIONS, BackendOptions, CaptureProgress, Newcomer, SilentCodec, SlotCodec
from oscine.runner.cuda.codec import CudaCodec, ring_state_elements
from oscine.runner.cuda.decode_step import DecodeStep, release_weights, table_bytes
from oscine.runner.cuda.graphs import HIGH_PRIORITY, GraphSet, SideStream, wait_for
from oscine.runner.cuda.long_prefill import LongPrefill, working_bytes
from oscine.runner.cuda.prefill_packs import MIXED_SIZES, PACK_SIZES, BatchedAdmission, PendingRows
from oscine.runner.cuda.programs import make_codec_operations, make_cuda_operations
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.memory_budget import MemoryBudget, MemoryFootprint
from oscine.runner.runner import FrameOutput, Ticket
from oscine.runner.slot_state import SlotState

# For captured graphs, libraries, buffers, and fragmentation. A server of 1.7B with 128 slots used 1.3 GiB more than the
# counted sizes, including the device's context, which exists before free memory is read.
_RESERVE_BYTES = 1024 * 2**20
_PADDING = -1  # slot of rows that fill up a batch
# With fewer rows, overlapping the next frame gained 3 % at most and delayed the audio by 0.9 ms (an H200, 1.7B).
MIN_OVERLAP_ROWS = 17
_IN_FLIGHT = 3  # pinned buffers: two ticks in flight, and one that is being read


@dataclass(frozen=True, slots=True)
class CudaTicket:
    slots: tuple[int, ...]
    size: int
    output: Tensor  # pinned
    start: torch.cuda.Event | None  # None on a CPU, where work is finished when a call returns
    free: torch.cuda.Event | None  # signals that the next tick may begin
    done: torch.cuda.Event | None
    with_prompts: bool

    def begun(self) -> bool:
        return self.start is None or self.start.query()

    def device_free(self) -> bool:
        return self.free is None or self.free.query()

    def wait_device_free(self) -> None:
        if self.free is not None:
            self.free.synchronize()

    def ready(self) -> bool:
        return self.done is None or self.done.query()


class CudaBackend:
    name = "cuda"

    @torch.inference_mode()
    def __init__(self, model: SpeechModel, budget: MemoryBudget, options: BackendOptions = DEFAULT_OPTIONS) -> None:
        self.model, self.budget = model, budget
        like, device, stack = model.talker.head.weight, model.device, model.config.talker.stack
        sizes = options.sizes(budget.slots)
        largest = sizes[-1]
        self.state = SlotState.allocate(model.config, budget, like)
        self.kv = PagedKVCache.allocate(stack, budget.blocks, like)
        self.codec_stream = SideStream(device)
        self.codec: SlotCodec = SilentCodec(budget.slots)
        if options.codec:
            make_codec = make_codec_operations(model.config, sizes) if options.kernels == "cuda" else None
            self.codec = CudaCodec(model.codec, budget.slots, largest, self.codec_stream, make_codec)
        fp8 = options.quantize == "fp8"
        assert options.kernels == "cuda" or not fp8, options
        make_operations: Callable[[Tensor], Operations] = TritonOperations
        if options.kernels == "cuda":
            make_operations = make_cuda_operations(model.config, sizes, fp8=fp8)
        self.step = DecodeStep(model, self.state, self.kv, largest, PACK_SIZES[-1], make_operations)
        long_prefill = None  # with FP8 weights: its products read the matrices that are freed here
        if fp8:
            for stack_module in (model.talker.stack, model.predictor.stack):
                release_weights(stack_module)
        else:
            long_prefill = LongPrefill(model.talker.stack, self.kv, self.step.rope)
            if not long_prefill.sizes:
                long_prefill = None
        parts = (self.step, long_prefill, self.state, self.kv, self.codec, self.codec_stream)
        self._admission = BatchedAdmission(*parts, budget, captured=options.graphs)
        self._samples = model.config.codec.samples_per_frame
        # Of a tick: its slots; and, with prompts in it, the rows of the frame and the slots of all rows.
        counts = (largest, largest, MIXED_SIZES[-1])
        self._tick_indices = torch.full((sum(counts),), _PADDING, dtype=torch.int64, device=device)
        self._slots, self._frame_rows, self._row_slots = self._tick_indices.split(counts)
        self._failed = torch.zeros(largest, dtype=torch.int16, device=device)
        # The codec's own copies: the next tick overwrites the others.
        self._codec_slots = torch.full_like(self._slots, self.codec.scratch, dtype=torch.int32)
        self._codec_codes = torch.zeros_like(self.step.codes)
        self._free: torch.cuda.Event | None = None  # of the last tick
        self._sent_slots: list[int] = []  # of the last tick, with padding
        # A tick's audio, codes and failures in one buffer, for one copy: [size, samples], [size, 16], [size].
        self._output = torch.zeros(largest * (self._samples + CODEBOOKS + 1), dtype=torch.int16, device=device)
        pinned = device.type == "cuda"
        self._host_indices = [
            torch.empty_like(self._tick_indices, device="cpu", pin_memory=pinned) for _ in range(_IN_FLIGHT)
        ]
        self._host_outputs = [
            torch.empty_like(self._output, device="cpu", pin_memory=pinned) for _ in range(_IN_FLIGHT)
        ]
        self._tick = 0
        self._code_graphs = GraphSet(self._run_codes, sizes, captured=options.graphs)
        self._take_graphs = GraphSet(self._take_codes, sizes, captured=options.graphs, priority=HIGH_PRIORITY)
        self._audio_graphs = GraphSet(self._run_audio, sizes, captured=options.graphs, priority=HIGH_PRIORITY)
        self._advance_graphs = GraphSet(self._advance, sizes, captured=options.graphs)
        self._frame_graphs = (self._code_graphs, self._take_graphs, self._audio_graphs, self._advance_graphs)
        self._mixed_graphs = GraphSet(self._run_mixed, MIXED_SIZES, captured=options.graphs)
        self._draw_graphs = GraphSet(self._draw_codes, sizes, captured=options.graphs, warm=True)
        self._all_graphs = (*self._frame_graphs, self._mixed_graphs, self._draw_graphs)  # captured in this order

    @staticmethod
    def memory_footprint(config: ModelConfig, element_bytes: int) -> MemoryFootprint:
        """Counts ring buffers, which are larger than the state that they hold. The buffers of long packs are counted
        with FP8 too, which does not need them."""
        state_bytes = ring_state_elements(config.codec.decoder) * element_bytes
        tables, buffers = table_bytes(config, element_bytes), working_bytes(config.talker.stack, element_bytes)
        return MemoryFootprint(state_bytes, tables + buffers + _RESERVE_BYTES)

    def launching(self) -> AbstractContextManager[None]:
        return nullcontext()

    @torch.inference_mode()
    def capture(self, progress: CaptureProgress) -> None:
        frames = sum(len(graphs.sizes) for graphs in self._all_graphs)
        steps, captured = frames + sum(len(graphs.sizes) for graphs in self._admission.graph_sets), 0
        self._tick_indices.fill_(_PADDING)
        self._sent_slots = []
        for graphs in self._all_graphs:
            graphs.capture(lambda done, total, before=captured: progress(before + done, steps))  # type: ignore[misc]
            captured += len(graphs.sizes)
        self._admission.capture(lambda done, total: progress(frames + done, steps))

    def admit(self, newcomer: Newcomer) -> None:
        self._admission.add(newcomer)

    def flush_admissions(self) -> None:
        self._admission.flush()

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Does nothing: the kernels load only positions that the slot has written."""

    @torch.inference_mode()
    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], max_context: int) -> CudaTicket:
        size = self._code_graphs.size_for(len(slots))
        self._tick = (self._tick + 1) % _IN_FLIGHT
        host_output = self._host_outputs[self._tick]
        prompts = self._admission.flush_mixed(len(slots))
        wait_for(self._free)
        self._send_indices(slots, size, prompts)
        start = torch.cuda.current_stream().record_event() if self._output.is_cuda else None
        if prompts is None:
            self._code_graphs.replay(size)
        else:
            self._mixed_graphs.replay(prompts.size)
            self._draw_graphs.replay(size)
        used = size * (self._samples + CODEBOOKS + 1)
        with self.codec_stream.after_current():
            self._admission.start_codecs()
            self._take_graphs.replay(size)
            taken = self.codec_stream.event()
            self._audio_graphs.replay(size)
            host_output[:used].copy_(self._output[:used], non_blocking=True)
        done = self.codec_stream.event()
        self._advance_graphs.replay(size)  # during the audio
        self._free = taken if size >= MIN_OVERLAP_ROWS else done
        return CudaTicket(tuple(slots), size, host_output, start, self._free, done, prompts is not None)

    def _send_indices(self, slots: Sequence[int], size: int, prompts: PendingRows | None) -> None:
        host, count, max_frames = self._host_indices[self._tick], len(slots), len(self._slots)
        padded = [*slots, *[_PADDING] * (size - count)]
        if prompts is None and padded == self._sent_slots:
            return  # the device has them
        indices = host.numpy()
        indices[:size] = padded
        if prompts is not None:
            frame_rows, row_slots = indices[max_frames : 2 * max_frames], indices[2 * max_frames :]
            first, end = prompts.rows, prompts.rows + count
            frame_rows[:count] = range(first, end)
            frame_rows[count:] = row_slots[:first] = row_slots[end:] = _PADDING
            row_slots[first:end] = slots
        used = size if prompts is None else len(host)
        self._tick_indices[:used].copy_(host[:used], non_blocking=True)
        self._sent_slots = padded

    def collect(self, ticket: Ticket) -> FrameOutput:
        assert isinstance(ticket, CudaTicket)
        if ticket.done is not None:
            ticket.done.synchronize()
        pcm, codes, failed = (view[: len(ticket.slots)].numpy() for view in self._views(ticket.output, ticket.size))
        # Copies: the pinned buffer is overwritten two ticks later.
        return FrameOutput(ticket.slots, codes.astype(np.int64), pcm.copy(), failed.astype(np.bool_))

    @torch.inference_mode()
    def run_eagerly(self, slots: Sequence[int]) -> None:
        """Runs one frame without a graph, for profilers."""
        self._slots[: len(slots)] = torch.tensor(slots, device=self._slots.device)
        self._sent_slots = []
        for graphs in self._frame_graphs:
            graphs.run(len(slots))

    @torch.inference_mode()
    def run_every_size(self) -> None:
        """Runs every frame and admission once without graphs, which launches every kernel that a request can launch."""
        for graphs in (*self._all_graphs, *self._admission.graph_sets):
            for size in graphs.sizes:
                graphs.run(size)

    def _run_codes(self, size: int) -> None:
        self.step.sample_codes(self._slots[:size], self._failed[:size])

    def _run_mixed(self, size: int) -> None:
        """Runs the talker's step for a frame and prompt rows."""
        frame_rows = self._frame_rows[: min(size, len(self._frame_rows))]
        self.step.talker_step_with_prompts(self._row_slots[:size], frame_rows, self._admission.placed_mixed(size))

    def _draw_codes(self, size: int) -> None:
        self.step.draw_codes(self._slots[:size], self._failed[:size])

    def _advance(self, size: int) -> None:
        self.step.advance(self._slots[:size])

    def _take_codes(self, size: int) -> None:
        """Copies the codes; the next tick's codes can then be computed."""
        _, codes_out, failed_out = self._views(self._output, size)
        taken = self._slots[:size], self.step.codes[:size], self._failed[:size]
        take_codes(
            *taken, self.codec.scratch, self._codec_slots[:size], self._codec_codes[:size], codes_out, failed_out
        )

    def _run_audio(self, size: int) -> None:
        pcm, _, _ = self._views(self._output, size)
        self.codec.run(self._codec_codes[:size], self._codec_slots[:size], pcm)

    def _views(self, flat: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        widths = (size * self._samples, size * CODEBOOKS, size)
        pcm, codes, failed = flat[: sum(widths)].split(widths)
        return pcm.view(size, self._samples), codes.view(size, CODEBOOKS), failed
