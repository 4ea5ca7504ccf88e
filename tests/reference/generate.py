"""The reference path: several prompts -> codes, frame by frame, in plain PyTorch. Tests compare the engine with it.

It shares the model's modules and the sampling with the engine, but no slots, blocks, prefixes or graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from oscine.audio.pcm import CODEBOOKS
from oscine.model.speech_model import SpeechModel
from oscine.request import SamplingParams
from oscine.runner.sampling import DrawTable, draw, penalize, uniform
from oscine.types import FinishReason, Prompt
from tests.reference.kv_cache import DenseKVCache

_MIN_NEW_TOKENS = 2  # end of speech is not allowed before; official


@dataclass(frozen=True, slots=True)
class FrameStep:
    """The result of one step: a frame for some rows, the end of others. Rows are numbered like the prompts."""

    rows: tuple[int, ...]
    codes: Tensor  # [len(rows), 16]
    ended: tuple[tuple[int, FinishReason], ...]


class _Batch:
    """The rows that are still running."""

    def __init__(self, model: SpeechModel, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> None:
        config, device = model.config.talker, model.device
        self.model = model
        self.rows = list(range(len(prompts)))
        self.sampling = list(sampling)
        self.limits = [
            min(params.max_new_tokens, config.max_positions - prompt.rows)
            for prompt, params in zip(prompts, sampling, strict=True)
        ]
        self.lengths = [prompt.rows for prompt in prompts]
        self.trailing = [trailing_rows(model, prompt) for prompt in prompts]
        self.seen = torch.zeros(len(prompts), config.code_vocab, dtype=torch.bool, device=device)
        inputs = pad_sequence([model.prompt_rows(prompt) for prompt in prompts], batch_first=True)
        self.cache = DenseKVCache(config.stack, len(prompts), inputs.shape[1], like=inputs)
        self.hidden = prefill(model, inputs, self.lengths, self.cache)
        self.frame = 0
        self.retable()

    def retable(self) -> None:
        device = self.model.device
        self.first = DrawTable.of([params.first for params in self.sampling], device)
        self.rest = DrawTable.of([params.rest for params in self.sampling], device)
        self.penalty = torch.tensor([[params.repetition_penalty] for params in self.sampling], device=device)

    def uniform(self) -> Tensor:
        """[rows, 16] for this frame."""
        return uniforms([p.seed for p in self.sampling], self.frame, 1, self.model.device)[:, 0]

    def keep(self, places: list[int]) -> None:
        index = torch.tensor(places, device=self.model.device)
        self.hidden, self.seen = self.hidden[index], self.seen[index]
        self.cache.keep(index)
        for name in ("rows", "sampling", "limits", "lengths", "trailing"):
            values = getattr(self, name)
            setattr(self, name, [values[place] for place in places])
        self.retable()

    def text_rows(self) -> Tensor:
        """The text row of this frame; padding after the last one."""
        return torch.stack([rows[min(self.frame, len(rows) - 1)] for rows in self.trailing])


def uniforms(seeds: Sequence[int], first_frame: int, frames: int, device: torch.device) -> Tensor:
    """[rows, frames, 16] in [0, 1), for the same range of frames in all rows."""
    low = torch.tensor([seed & 0xFFFFFFFF for seed in seeds], device=device)
    high = torch.tensor([seed >> 32 for seed in seeds], device=device)
    frame = torch.arange(first_frame, first_frame + frames, device=device)
    return uniform(low[:, None], high[:, None], frame[None])


def trailing_rows(model: SpeechModel, prompt: Prompt) -> Tensor:
    """Text rows to add to the generated frames, [trailing + 1, width]; the last one is padding."""
    ids = np.append(prompt.trailing_ids, model.config.tts_pad_id)
    return model.talker.text_rows(torch.tensor(ids, device=model.device))


def prefill(model: SpeechModel, inputs: Tensor, lengths: Sequence[int], cache: DenseKVCache) -> Tensor:
    """inputs [batch, longest, width], padded on the right -> the hidden state of each row's last position."""
    hidden = model.talker.stack(inputs, cache.prefill(inputs.shape[1]))
    return hidden[torch.arange(len(lengths)), torch.tensor(lengths) - 1]


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
        batch.hidden = model.talker.stack(inputs[:, None], batch.cache.step(positions, longest))[:, 0]
        batch.frame += 1


def _first_codes(batch: _Batch) -> Tensor:
    """Code 0 of each row; the repetition penalty counts generated codes only, not the prompt's."""
    config = batch.model.config
    logits = penalize(batch.model.talker.logits(batch.hidden), batch.seen, batch.penalty)
    eos_logits = logits[:, config.talker.eos_id].clone()
    logits[:, config.predictor.vocab :] = float("-inf")  # languages, speakers and control ids
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
    """Codes 0..15: [rows, 16]."""
    predictor, uniform = batch.model.predictor, batch.uniform()
    cache = predictor.cache(len(first))
    codes = [first]
    logits = predictor.first(batch.hidden, batch.model.talker.code_embedding(first), cache)
    for book in range(1, CODEBOOKS):
        codes.append(draw(logits, batch.rest, uniform[:, book]))
        if book < CODEBOOKS - 1:
            logits = predictor.next(book, codes[-1], cache)
    return torch.stack(codes, dim=1)
