"""One frame of every running slot: talker step, code 0, codes 1..15, codec, next input row. Here in plain PyTorch.

This is what every faster frame must equal. Nothing is read back from the device before all of it is enqueued. On a CPU
in fp32 the talker's step and the predictor's passes are played from tapes, which give the same from fewer calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from oscine.model.speech_model import SpeechModel
from oscine.runner.cpu.layers import CpuStack
from oscine.runner.cpu.predictor import MAX_TABLE_BYTES, CpuPredictor, table_bytes
from oscine.runner.kv_cache import DecodeCacheView, PagedKVCache
from oscine.runner.runner import FrameOutput, Ticket
from oscine.runner.sampling import DrawTable, draw, penalize, uniform
from oscine.runner.slot_state import SlotState
from oscine.runner.torch.codec import FrameCodec
from oscine.types import CODEBOOKS, SamplingParams

MIN_NEW_TOKENS = 2  # end of speech is not allowed before; official


class Frame(Protocol):
    """The place where a faster frame plugs in."""

    sizes: int  # graphs to capture

    def capture(self, progress: Callable[[int, int], None]) -> None: ...

    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], longest: int) -> Ticket:
        """`sampling` and `longest` (no row stands at that position or beyond) are what the host knows of the slots."""

    def collect(self, ticket: Ticket) -> FrameOutput: ...


@dataclass(frozen=True, slots=True)
class TorchTicket:
    output: FrameOutput

    def ready(self) -> bool:
        return True


class TorchFrame:
    """`lean` None: tapes where they can be played, that is on a CPU in fp32."""

    sizes = 0

    def __init__(
        self, model: SpeechModel, state: SlotState, kv: PagedKVCache, codec: FrameCodec, *, lean: bool | None = None
    ) -> None:
        self._model, self._state, self._kv, self._codec = model, state, kv, codec
        if lean is None:
            lean = model.device.type == "cpu" and model.talker.dtype == torch.float32
        max_rows = len(state.inputs)
        self._lean_talker = CpuStack(model.talker.stack, max_rows) if lean else None
        lean = lean and table_bytes(model) <= MAX_TABLE_BYTES
        self._lean_predictor = CpuPredictor(model, max_rows) if lean else None

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Nothing: plain PyTorch runs as it is."""

    @torch.inference_mode()
    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], longest: int) -> TorchTicket:
        device = self._model.device
        pcm = torch.empty(len(slots), self._model.config.codec.samples_per_frame, dtype=torch.int16, device=device)
        codes = self._run(torch.tensor(slots, device=device), sampling, longest, pcm)
        return TorchTicket(FrameOutput(tuple(slots), codes.cpu().numpy(), pcm.cpu().numpy()))

    def collect(self, ticket: Ticket) -> FrameOutput:
        assert isinstance(ticket, TorchTicket)
        return ticket.output

    def _run(self, slots: Tensor, sampling: Sequence[SamplingParams], longest: int, pcm_out: Tensor) -> Tensor:
        state = self._state
        rows = replace(state, ints=state.ints[:, slots], floats=state.floats[:, slots])  # by row of this tick
        positions, frames = rows.int_row("position"), rows.int_row("frame")
        memory = DecodeCacheView(self._kv, state.page_table[slots], positions, longest)
        hidden = self._hidden(state.inputs[slots], memory)
        uniforms = uniform(rows.int_row("seed_low"), rows.int_row("seed_high"), frames)
        first = self._first_codes(rows, slots, hidden, sampling, uniforms[:, 0])
        codes = self._frame_codes(hidden, first, _draw_table("rest", rows, sampling), uniforms)
        self._codec.run(codes, slots, pcm_out)
        state.inputs[slots] = self._model.frame_rows(codes) + self._text_rows(rows, slots)
        state.int_row("position")[slots] = positions + 1
        state.int_row("frame")[slots] = frames + 1
        return codes

    def _hidden(self, inputs: Tensor, memory: DecodeCacheView) -> Tensor:
        if self._lean_talker is not None:
            return self._lean_talker.step(inputs, memory)
        return self._model.talker.stack(inputs[:, None], memory)[:, 0]

    def _first_codes(
        self, rows: SlotState, slots: Tensor, hidden: Tensor, sampling: Sequence[SamplingParams], uniforms: Tensor
    ) -> Tensor:
        config, seen = self._model.config, self._state.seen
        logits = penalize(self._model.talker.logits(hidden), seen[slots], rows.float_row("penalty")[:, None])
        eos_id, eos = config.talker.eos_id, logits[:, config.talker.eos_id].clone()
        logits[:, config.predictor.vocab :] = float("-inf")
        may_end = (rows.int_row("frame") >= MIN_NEW_TOKENS) & (rows.int_row("hold_eos") == 0)
        logits[:, eos_id] = torch.where(may_end, eos, float("-inf"))
        codes = draw(logits, _draw_table("first", rows, sampling), uniforms)
        seen[slots, codes] = True
        return codes

    def _frame_codes(self, hidden: Tensor, first: Tensor, table: DrawTable, uniforms: Tensor) -> Tensor:
        if self._lean_predictor is not None:
            return self._lean_predictor.frame_codes(hidden, first, table, uniforms)
        predictor = self._model.predictor
        cache = predictor.cache(len(first))
        codes = [first]
        logits = predictor.first(hidden, self._model.talker.code_embedding(first), cache)
        for book in range(1, CODEBOOKS):
            codes.append(draw(logits, table, uniforms[:, book]))
            if book < CODEBOOKS - 1:
                logits = predictor.next(book, codes[-1], cache)
        return torch.stack(codes, dim=1)

    def _text_rows(self, rows: SlotState, slots: Tensor) -> Tensor:
        """The text that goes with this frame; after the last id, padding."""
        frames, text_ids = rows.int_row("frame"), self._state.text_ids
        known = frames < rows.int_row("text_count")
        ids = text_ids[slots, frames.clamp(max=text_ids.shape[1] - 1)]
        return self._model.talker.text_rows(torch.where(known, ids, self._model.config.tts_pad_id))


def _draw_table(part: str, rows: SlotState, sampling: Sequence[SamplingParams]) -> DrawTable:
    params = [params.first if part == "first" else params.rest for params in sampling]
    return DrawTable(
        temperature=rows.float_row(f"{part}_temperature")[:, None],
        top_k=rows.int_row(f"{part}_top_k"),
        tail=rows.float_row(f"{part}_tail")[:, None],
        greedy=rows.int_row(f"{part}_greedy").bool(),
        largest_top_k=max(p.top_k for p in params),
        some_unlimited=any(p.top_k == 0 for p in params),
        some_top_p=any(p.top_p < 1 for p in params),
        all_greedy=all(p.greedy for p in params),
    )
