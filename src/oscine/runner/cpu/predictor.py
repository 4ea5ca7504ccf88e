"""Records the code predictor as steps, on a CPU: model/speech_model.py and the draws.

After position 0 the first layer's input depends on one code only. So in small checkpoints its queries, keys and values
come from one table per codebook, computed once.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.layers import attention
from oscine.model.speech_model import Predictor, SpeechModel
from oscine.runner.cpu.layers import CpuStack, Rope, StackBuffers
from oscine.runner.cpu.steps import BufferPool, Floats, Fp32Product, Ints, RecordedProduct, RecordedStep, product_of
from oscine.runner.sampling import DrawTable, draw

MAX_TABLE_BYTES = 64 * 2**20  # published sizes would need 600 MiB
_FLOAT_BYTES = 4


def table_bytes(model: SpeechModel) -> int:
    config, stack = model.config, model.config.predictor.stack
    entries = config.talker.code_vocab + (CODEBOOKS - 2) * config.predictor.vocab  # the last code is not an input
    return entries * (stack.width + (stack.heads + 2 * stack.kv_heads) * stack.head_dim) * _FLOAT_BYTES


class _Table(NamedTuple):
    """What follows from each code: the stack's input, and the first layer's q, k and v of it at its position."""

    inputs: Floats
    qkv: Floats | None


class _Passes:
    """The recorded passes of a frame, one per position, and their buffers."""

    def __init__(self, stack: CpuStack, vocab: int, rows: int) -> None:
        config, pool = stack.config, stack.pool
        self.at = StackBuffers(config, rows, pool)
        self.logits = pool.share("logits", rows, vocab)
        self.past = [  # keys and values
            pool.share(f"past {layer}", rows, 2 * config.kv_heads, CODEBOOKS, config.head_dim)
            for layer in range(config.layers)
        ]
        self.codes = torch.zeros(CODEBOOKS, rows, dtype=torch.int64)
        self.codes_array: Ints = self.codes.numpy()
        self.steps = [RecordedStep() for _ in range(CODEBOOKS)]


class CpuPredictor:
    @torch.inference_mode()
    def __init__(self, model: SpeechModel, max_rows: int) -> None:
        predictor = model.predictor
        self._vocab, self._narrow = predictor.config.vocab, predictor.narrow
        self._stack = CpuStack(predictor.stack, max_rows)
        self._heads = _heads(predictor)
        self._ropes = [self._rope(position) for position in range(CODEBOOKS)]
        embeddings = (model.talker.code_embedding.weight, *predictor.embeddings[: CODEBOOKS - 2])
        with_qkv = table_bytes(model) <= MAX_TABLE_BYTES
        self._tables = [self._table(entries, position, with_qkv) for position, entries in enumerate(embeddings, 1)]
        self._recorded: dict[int, _Passes] = {}

    def frame_codes(self, hidden: Tensor, first: Tensor, table: DrawTable, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Computes codes [rows, 16] from the talker's hidden states [rows, width] and codes 0 [rows]. Also returns the
        logits of the last code, which the next frame overwrites."""
        rows = len(first)
        if rows not in self._recorded:
            self._recorded[rows] = self._record(rows)
        passes = self._recorded[rows]
        passes.at.x.tensor.copy_(self._narrow(hidden))
        passes.steps[0].replay()
        passes.codes[0] = first
        for book in range(1, CODEBOOKS):
            passes.steps[book].replay()
            if table.all_greedy:
                passes.logits.array.argmax(axis=1, out=passes.codes_array[book])
            else:
                passes.codes[book] = draw(passes.logits.tensor, table, uniforms[:, book])
        return torch.stack(passes.codes.unbind(), dim=1), passes.logits.tensor

    def _rope(self, position: int) -> Rope:
        rope = Rope(self._stack.config, 1)
        rope.set(np.array([position]))
        return rope

    def _table(self, entries: Tensor, position: int, with_qkv: bool) -> _Table:
        inputs = self._narrow(entries)
        if not with_qkv:
            return _Table(inputs.numpy(), None)
        step, at = RecordedStep(), StackBuffers(self._stack.config, len(entries), BufferPool(len(entries)))
        at.x.tensor.copy_(inputs)
        self._stack.layers[0].record_project(step, at, self._ropes[position])
        step.replay()
        return _Table(at.x.array, at.qkv.array)

    def _record(self, rows: int) -> _Passes:
        passes = _Passes(self._stack, self._vocab, rows)
        at = passes.at
        self._record_layers(passes, 0)  # at.x holds the hidden state
        for position in range(1, CODEBOOKS):
            step, codes, table = passes.steps[position], passes.codes_array[position - 1], self._tables[position - 1]
            step.add(table.inputs.take, codes, axis=0, out=at.x.array, mode="clip")  # the default mode is slower
            if table.qkv is not None:
                step.add(table.qkv.take, codes, axis=0, out=at.qkv.array, mode="clip")
            self._record_layers(passes, position)
            self._stack.norm.record(step, at.x.array, at.normed.array)
            self._heads[position - 1].record(step, at.pool, at.normed.tensor, passes.logits.tensor)
        return passes

    def _record_layers(self, passes: _Passes, position: int) -> None:
        step, at, layers = passes.steps[position], passes.at, self._stack.layers
        for index, (layer, past) in enumerate(zip(layers, passes.past, strict=True)):
            if position == 0 or index > 0 or self._tables[position - 1].qkv is None:
                layer.record_project(step, at, self._ropes[position])
            step.add(np.copyto, past.array[:, :, position], at.kv)
            if position == 0 and index + 1 == len(layers):
                return  # only the last layer's keys and values are needed there
            keys, values = past.tensor[:, :, : position + 1].chunk(2, dim=1)
            layer.record_finish(step, at, partial(attention, at.q, keys, values))


def _heads(predictor: Predictor) -> list[RecordedProduct]:
    if isinstance(predictor.heads, nn.ModuleList):
        return [product_of(head) for head in predictor.heads]
    return [Fp32Product(head) for head in predictor.heads]
