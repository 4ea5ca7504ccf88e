"""The backend in plain PyTorch, for any device and dtype. Every other backend must give the same codes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec
from oscine.model.config import ModelConfig
from oscine.model.speech_model import SpeechModel
from oscine.model.streaming import StreamState
from oscine.request import SamplingParams
from oscine.runner.backend import DEFAULT_OPTIONS, BackendOptions, CaptureProgress, Newcomer, SilentCodec, SlotCodec
from oscine.runner.kv_cache import DecodeCacheView, PagedKVCache, PrefillCacheView
from oscine.runner.memory_budget import MemoryBudget, MemoryFootprint, plain_memory_footprint
from oscine.runner.runner import FrameOutput, Ticket
from oscine.runner.sampling import DrawTable, draw, penalize, uniform
from oscine.runner.slot_state import SlotState

MIN_NEW_TOKENS = 2  # speech cannot end earlier; official


@dataclass(frozen=True, slots=True)
class FinishedTicket:
    output: FrameOutput
    with_prompts: bool = False

    def begun(self) -> bool:
        return True

    def device_free(self) -> bool:
        return True

    def wait_device_free(self) -> None: ...

    def ready(self) -> bool:
        return True


class TorchBackend:
    name = "torch"

    @torch.inference_mode()
    def __init__(self, model: SpeechModel, budget: MemoryBudget, options: BackendOptions = DEFAULT_OPTIONS) -> None:
        self.model, self.budget = model, budget
        like = model.talker.code_embedding.weight
        self.state = SlotState.allocate(model.config, budget, like)
        self.kv = PagedKVCache.allocate(model.config.talker.stack, budget.blocks, like)
        self.codec: SlotCodec = self._make_codec() if options.codec else SilentCodec(budget.slots)

    @staticmethod
    def memory_footprint(config: ModelConfig, element_bytes: int) -> MemoryFootprint:
        return plain_memory_footprint(config, element_bytes)

    def _make_codec(self) -> SlotCodec:
        return TorchCodec(self.model.codec, self.budget.slots)

    def launching(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, progress: CaptureProgress) -> None:
        """Does nothing: there is nothing to capture."""

    def admit(self, newcomer: Newcomer) -> None:
        """Runs at once. Prompts are not packed here, so an error concerns only this request."""
        new, slot, first = newcomer.assignment, newcomer.assignment.slot, newcomer.prefix_rows
        rows, block_row = self.model.prompt_rows(new.prompt), self.state.block_table[slot]
        self.state.write(
            slot,
            position=new.prompt.rows - 1,
            input_row=rows[-1],
            blocks=newcomer.blocks,
            text_ids=new.prompt.trailing_ids.tolist(),
            streaming_text=new.streaming_text,
            sampling=new.sampling,
        )
        if newcomer.prefix is not None:
            self.kv.write(block_row, *newcomer.prefix)
        # The shared prefix alone, then the rest: the rest has the same bits whether the prefix was cached or not.
        ends = sorted({min(new.prompt.prefix_rows, len(rows) - 1), len(rows) - 1})
        for begin, end in pairwise((first, *(end for end in ends if end > first))):
            view = PrefillCacheView(self.kv, block_row, begin, end - begin)
            self.model.talker.stack(rows[None, begin:end], view)
        # Last: a codec with its own thread waits here for the audio of the frame in flight.
        if newcomer.codec_state is None:
            self.codec.reset(slot)
        else:
            self.codec.restore(slot, newcomer.codec_state)

    def flush_admissions(self) -> None:
        """Does nothing: `admit` left nothing."""

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        with torch.inference_mode():
            self.kv.clear(blocks)

    @torch.inference_mode()
    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], max_context: int) -> Ticket:
        device = self.model.device
        pcm = torch.empty(len(slots), self.model.config.codec.samples_per_frame, dtype=torch.int16, device=device)
        codes, finite = self._run_frame(torch.tensor(slots, device=device), sampling, max_context, pcm)
        failed = ~finite.cpu().numpy()
        return self._ticket(FrameOutput(tuple(slots), codes.cpu().numpy(), pcm.cpu().numpy(), failed))

    def _ticket(self, output: FrameOutput) -> Ticket:
        return FinishedTicket(output)

    def collect(self, ticket: Ticket) -> FrameOutput:
        assert isinstance(ticket, FinishedTicket)
        return ticket.output

    def _run_frame(
        self, slots: Tensor, sampling: Sequence[SamplingParams], max_context: int, pcm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns codes [rows, 16], and which rows are finite [rows]; audio goes to `pcm`."""
        state = self.state
        rows = replace(state, ints=state.ints[:, slots], floats=state.floats[:, slots])  # by row of this tick
        positions, frames = rows.int_row("position"), rows.int_row("frame")
        # Both tables come before the talker's step: on a GPU, an upload from pageable memory waits for enqueued work.
        first_table = DrawTable.of([params.first for params in sampling], slots.device)
        rest_table = DrawTable.of([params.rest for params in sampling], slots.device)
        cache = DecodeCacheView(self.kv, state.block_table[slots], positions, max_context)
        hidden = self._talker_step(state.inputs[slots], cache)
        uniforms = uniform(rows.int_row("seed_low"), rows.int_row("seed_high"), frames)
        first_logits = self.model.talker.logits(hidden)
        first = self._first_codes(rows, slots, first_logits, first_table, uniforms[:, 0])
        codes, last_logits = self._frame_codes(hidden, first, rest_table, uniforms)
        self.codec.run(codes, slots, pcm)
        state.inputs[slots] = self.model.frame_rows(codes) + self._text_rows(rows, slots)
        state.int_row("position")[slots] = positions + 1
        state.int_row("frame")[slots] = frames + 1
        # NaN spreads: where any logits of the frame are not finite, these are not. Sums of finite logits are finite.
        return codes, torch.isfinite(first_logits.sum(1) + last_logits.sum(1))

    def _talker_step(self, inputs: Tensor, cache: DecodeCacheView) -> Tensor:
        """Computes input rows [rows, width] -> hidden states [rows, width]."""
        return self.model.talker.stack(inputs[:, None], cache)[:, 0]

    def _first_codes(
        self, rows: SlotState, slots: Tensor, logits: Tensor, table: DrawTable, uniforms: Tensor
    ) -> Tensor:
        config, seen = self.model.config, self.state.seen
        logits = penalize(logits, seen[slots], rows.float_row("penalty")[:, None])
        eos_id, eos = config.talker.eos_id, logits[:, config.talker.eos_id].clone()
        logits[:, config.predictor.vocab :] = float("-inf")
        may_end = (rows.int_row("frame") >= MIN_NEW_TOKENS) & (rows.int_row("hold_eos") == 0)
        logits[:, eos_id] = torch.where(may_end, eos, float("-inf"))
        codes = draw(logits, table, uniforms)
        seen[slots, codes] = True
        return codes

    def _frame_codes(self, hidden: Tensor, first: Tensor, table: DrawTable, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the talker's hidden states [rows, width] and codes 0 [rows] -> codes [rows, 16], logits of the last
        one."""
        predictor = self.model.predictor
        cache = predictor.cache(len(first))
        codes = [first]
        logits = predictor.first(hidden, self.model.talker.code_embedding(first), cache)
        for book in range(1, CODEBOOKS):
            codes.append(draw(logits, table, uniforms[:, book]))
            if book < CODEBOOKS - 1:
                logits = predictor.next(book, codes[-1], cache)
        return torch.stack(codes, dim=1), logits

    def _text_rows(self, rows: SlotState, slots: Tensor) -> Tensor:
        """Returns the text row of this frame; padding after the last id."""
        frames, text_ids = rows.int_row("frame"), self.state.text_ids
        known = frames < rows.int_row("text_count")
        ids = text_ids[slots, frames.clamp(max=text_ids.shape[1] - 1)]
        return self.model.talker.text_rows(torch.where(known, ids, self.model.config.tts_pad_id))


# --- The codec of model/codec.py over slots, in its own precision.


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
