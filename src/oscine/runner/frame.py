"""One frame of every running slot: talker step, code 0, codes 1..15, codec, next input row. Here in plain PyTorch.

This is what every faster frame must equal. Nothing is read back from the device before all of it is enqueued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from oscine.model.speech_model import SpeechModel
from oscine.runner.codec_frame import FrameCodec
from oscine.runner.paged import DecodeMemory, PagedKV
from oscine.runner.runner import FrameOutput, Ticket
from oscine.runner.sampling import DrawTable, draw, penalize, uniform
from oscine.runner.state import SlotState
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
    sizes = 0

    def __init__(self, model: SpeechModel, state: SlotState, kv: PagedKV, codec: FrameCodec) -> None:
        self._model, self._state, self._kv, self._codec = model, state, kv, codec

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
        model, state = self._model, self._state
        positions = state.int_row("position")[slots]
        memory = DecodeMemory(self._kv, state.page_table[slots], positions, longest)
        hidden = model.talker.stack(state.inputs[slots][:, None], memory)[:, 0]
        frames = state.int_row("frame")[slots]
        uniforms = uniform(state.int_row("seed_low")[slots], state.int_row("seed_high")[slots], frames)
        first = self._first_codes(slots, hidden, frames, sampling, uniforms[:, 0])
        codes = self._frame_codes(hidden, first, slots, sampling, uniforms)
        self._codec.run(codes, slots, pcm_out)
        state.inputs[slots] = model.frame_rows(codes) + self._text_rows(slots, frames)
        state.int_row("position")[slots] = positions + 1
        state.int_row("frame")[slots] = frames + 1
        return codes

    def _first_codes(
        self, slots: Tensor, hidden: Tensor, frames: Tensor, sampling: Sequence[SamplingParams], uniforms: Tensor
    ) -> Tensor:
        state, config = self._state, self._model.config
        seen = state.seen[slots]
        logits = penalize(self._model.talker.logits(hidden), seen, state.float_row("penalty")[slots][:, None])
        eos_id, eos = config.talker.eos_id, logits[:, config.talker.eos_id].clone()
        logits[:, config.predictor.vocab :] = float("-inf")
        may_end = (frames >= MIN_NEW_TOKENS) & (state.int_row("hold_eos")[slots] == 0)
        logits[:, eos_id] = torch.where(may_end, eos, float("-inf"))
        codes = draw(logits, self._table("first", slots, sampling), uniforms)
        state.seen[slots, codes] = True
        return codes

    def _frame_codes(
        self, hidden: Tensor, first: Tensor, slots: Tensor, sampling: Sequence[SamplingParams], uniforms: Tensor
    ) -> Tensor:
        predictor = self._model.predictor
        table = self._table("rest", slots, sampling)
        cache = predictor.cache(len(first))
        codes = [first]
        logits = predictor.first(hidden, self._model.talker.code_embedding(first), cache)
        for book in range(1, CODEBOOKS):
            codes.append(draw(logits, table, uniforms[:, book]))
            if book < CODEBOOKS - 1:
                logits = predictor.next(book, codes[-1], cache)
        return torch.stack(codes, dim=1)

    def _text_rows(self, slots: Tensor, frames: Tensor) -> Tensor:
        """The text that goes with this frame; after the last id, padding."""
        state = self._state
        at = frames.clamp(max=state.text_ids.shape[1] - 1)
        known = frames < state.int_row("text_count")[slots]
        ids = torch.where(known, state.text_ids[slots, at], self._model.config.tts_pad_id)
        return self._model.talker.text_rows(ids)

    def _table(self, part: str, slots: Tensor, sampling: Sequence[SamplingParams]) -> DrawTable:
        state = self._state
        params = [params.first if part == "first" else params.rest for params in sampling]
        return DrawTable(
            temperature=state.float_row(f"{part}_temperature")[slots][:, None],
            top_k=state.int_row(f"{part}_top_k")[slots],
            tail=state.float_row(f"{part}_tail")[slots][:, None],
            greedy=state.int_row(f"{part}_greedy")[slots].bool(),
            largest_top_k=max(p.top_k for p in params),
            some_unlimited=any(p.top_k == 0 for p in params),
            some_top_p=any(p.top_p < 1 for p in params),
            all_greedy=all(p.greedy for p in params),
        )
