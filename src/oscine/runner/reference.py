"""The reference path: several prompts -> codes, frame by frame, in plain PyTorch on any device.

Every faster path must give these codes. Rows that end leave the batch; a row alone equals the row in company.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from oscine.model.speech_model import SpeechModel
from oscine.model.streaming import KVCache
from oscine.runner.sampling import DrawTable, draw, penalize, uniforms
from oscine.types import CODEBOOKS, FinishReason, Prompt, SamplingParams

_MIN_NEW_TOKENS = 2  # end of speech is not allowed before; official
_UNIFORM_BLOCK_FRAMES = 64


@dataclass(frozen=True, slots=True)
class FrameStep:
    """What one step made: a frame for some rows, the end of others. Rows are numbered as they were submitted."""

    rows: tuple[int, ...]
    codes: Tensor  # [len(rows), 16]
    ended: tuple[tuple[int, FinishReason], ...]


class _Batch:
    """The rows still speaking, and everything that must shrink with them."""

    def __init__(self, model: SpeechModel, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> None:
        config, device = model.config.talker, model.device
        self.model = model
        self.rows = list(range(len(prompts)))
        self.sampling = list(sampling)
        # The model's positions bound every row, whatever was asked.
        self.limits = [
            min(params.max_new_tokens, config.max_positions - prompt.rows)
            for prompt, params in zip(prompts, sampling, strict=True)
        ]
        self.lengths = [prompt.rows for prompt in prompts]
        self.trailing = [model.trailing_rows(prompt) for prompt in prompts]
        self.seen = torch.zeros(len(prompts), config.code_vocab, dtype=torch.bool, device=device)
        inputs = pad_sequence([model.prompt_rows(prompt) for prompt in prompts], batch_first=True)
        self.cache = KVCache(config.stack, len(prompts), inputs.shape[1], like=inputs)
        self.hidden = model.talker.prefill(inputs, torch.tensor(self.lengths, device=device), self.cache)
        self.frame = 0
        self.retable()

    def retable(self) -> None:
        device = self.model.device
        self.first = DrawTable.of([params.first for params in self.sampling], device)
        self.rest = DrawTable.of([params.rest for params in self.sampling], device)
        self.penalty = torch.tensor([[params.repetition_penalty] for params in self.sampling], device=device)
        self.block = self._block()

    def _block(self) -> Tensor:
        begin = self.frame - self.frame % _UNIFORM_BLOCK_FRAMES
        return uniforms([p.seed for p in self.sampling], begin, _UNIFORM_BLOCK_FRAMES, self.model.device)

    def uniform(self) -> Tensor:
        """[rows, 16] for this frame."""
        within = self.frame % _UNIFORM_BLOCK_FRAMES
        if within == 0 and self.frame:
            self.block = self._block()
        return self.block[:, within]

    def keep(self, places: list[int]) -> None:
        index = torch.tensor(places, device=self.model.device)
        self.hidden, self.seen = self.hidden[index], self.seen[index]
        self.cache.keep(index)
        for name in ("rows", "sampling", "limits", "lengths", "trailing"):
            values = getattr(self, name)
            setattr(self, name, [values[place] for place in places])
        self.retable()

    def text_rows(self) -> Tensor:
        """The text that goes with this frame; after the last one, padding for ever."""
        return torch.stack([rows[min(self.frame, len(rows) - 1)] for rows in self.trailing])


@torch.inference_mode()
def generate(model: SpeechModel, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> Iterator[FrameStep]:
    """Runs until every row has ended. A row that ends in a step has no frame in it."""
    if not prompts:
        return
    batch = _Batch(model, prompts, sampling)
    while batch.rows:
        first = _first_codes(batch)
        reasons = _ends(batch, first)
        ended = tuple((row, reason) for row, reason in zip(batch.rows, reasons, strict=True) if reason)
        if ended:
            places = [place for place, reason in enumerate(reasons) if reason is None]
            first = first[places]
            batch.keep(places) if places else batch.rows.clear()
        if not batch.rows:
            yield FrameStep((), first.new_empty(0, CODEBOOKS), ended)
            return
        codes = _frame_codes(batch, first)
        yield FrameStep(tuple(batch.rows), codes, ended)
        inputs = model.frame_rows(codes) + batch.text_rows()
        positions = torch.tensor(batch.lengths, device=model.device) + batch.frame
        longest = max(batch.lengths) + batch.frame + 1
        batch.hidden = model.talker.step(inputs, positions, longest, batch.cache)
        batch.frame += 1


def _first_codes(batch: _Batch) -> Tensor:
    """Code 0 of each row; the penalty looks at generated codes only, never at the prompt."""
    config = batch.model.config
    logits = penalize(batch.model.talker.logits(batch.hidden), batch.seen, batch.penalty)
    eos_logits = logits[:, config.talker.eos_id].clone()
    logits[:, config.predictor.vocab :] = float("-inf")  # languages, speakers and control ids are no sounds
    if batch.frame >= _MIN_NEW_TOKENS:
        logits[:, config.talker.eos_id] = eos_logits
    codes = draw(logits, batch.first, batch.uniform()[:, 0])
    batch.seen.scatter_(1, codes[:, None], True)
    return codes


def _ends(batch: _Batch, first: Tensor) -> list[FinishReason | None]:
    def reason(code: int, limit: int) -> FinishReason | None:
        if code == batch.model.config.talker.eos_id:
            return "stop"
        return "length" if batch.frame + 1 >= limit else None

    return [reason(code, limit) for code, limit in zip(first.tolist(), batch.limits, strict=True)]


def _frame_codes(batch: _Batch, first: Tensor) -> Tensor:
    """Codes 1..15 behind code 0: [rows, 16]."""
    predictor, uniform = batch.model.predictor, batch.uniform()
    cache = predictor.cache(len(first))
    codes = [first]
    logits = predictor.first(batch.hidden, batch.model.talker.code_embedding(first), cache)
    for book in range(1, CODEBOOKS):
        codes.append(draw(logits, batch.rest, uniform[:, book]))
        if book < CODEBOOKS - 1:
            logits = predictor.next(book, codes[-1], cache)
    return torch.stack(codes, dim=1)
