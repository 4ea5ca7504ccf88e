"""The code predictor of a small checkpoint on a CPU in fp32: what model/predictor.py and draws between its passes give.

Behind position 0 the input of its first layer is a function of one code. So that layer's queries, keys and values are
looked up in a table for each codebook, made once; a predictor of one layer computes them for the hidden state only.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from oscine.model.layers import attention
from oscine.model.speech_model import SpeechModel
from oscine.runner.cpu.layers import CpuStack, Rope, Scratch, Weight
from oscine.runner.cpu.recorded_step import Arena, Floats, Ints, RecordedStep
from oscine.runner.sampling import DrawTable, draw
from oscine.types import CODEBOOKS

MAX_TABLE_BYTES = 64 * 2**20  # published sizes would need 600 MiB
_FLOAT_BYTES = 4


def table_bytes(model: SpeechModel) -> int:
    config, stack = model.config, model.config.predictor.stack
    entries = config.talker.code_vocab + (CODEBOOKS - 2) * config.predictor.vocab  # no pass takes the last code in
    return entries * (stack.width + (stack.heads + 2 * stack.kv_heads) * stack.head_dim) * _FLOAT_BYTES


class _Passes:
    """The passes of a frame, one tape for each position, and what they read and write."""

    def __init__(self, stack: CpuStack, vocab: int, rows: int) -> None:
        config, arena = stack.config, stack.arena
        self.at = Scratch(config, rows, arena)
        self.logits = arena.share("logits", rows, vocab)
        self.past = [  # keys and values
            arena.share(f"past {layer}", rows, 2 * config.kv_heads, CODEBOOKS, config.head_dim)
            for layer in range(config.layers)
        ]
        self.codes = torch.zeros(CODEBOOKS, rows, dtype=torch.int64)
        self.known: Ints = self.codes.numpy()
        self.tapes = [RecordedStep() for _ in range(CODEBOOKS)]


class CpuPredictor:
    @torch.inference_mode()
    def __init__(self, model: SpeechModel, max_rows: int) -> None:
        predictor = model.predictor
        self._vocab, self._narrow = predictor.config.vocab, predictor.narrow
        self._stack = CpuStack(predictor.stack, max_rows)
        self._heads = [Weight(head) for head in predictor.heads]
        self._ropes = [self._rope(position) for position in range(CODEBOOKS)]
        embeddings = (model.talker.code_embedding.weight, *predictor.embeddings[: CODEBOOKS - 2])
        self._tables = [self._table(entries, position) for position, entries in enumerate(embeddings, 1)]
        self._recorded: dict[int, _Passes] = {}

    def frame_codes(self, hidden: Tensor, first: Tensor, table: DrawTable, uniforms: Tensor) -> Tensor:
        """The talker's hidden states [rows, width] and codes 0 [rows] -> codes [rows, 16]."""
        rows = len(first)
        if rows not in self._recorded:
            self._recorded[rows] = self._record(rows)
        passes = self._recorded[rows]
        passes.at.x.tensor.copy_(self._narrow(hidden))
        passes.tapes[0].play()
        passes.codes[0] = first
        for book in range(1, CODEBOOKS):
            passes.tapes[book].play()
            if table.all_greedy:
                passes.logits.array.argmax(axis=1, out=passes.known[book])
            else:
                passes.codes[book] = draw(passes.logits.tensor, table, uniforms[:, book])
        return torch.stack(passes.codes.unbind(), dim=1)

    def _rope(self, position: int) -> Rope:
        rope = Rope(self._stack.config, 1)
        rope.set(np.array([position]))
        return rope

    def _table(self, entries: Tensor, position: int) -> tuple[Floats, Floats]:
        """Of every entry at this position: its row in the stack's width, and the first layer's q, k and v of it."""
        tape, at = RecordedStep(), Scratch(self._stack.config, len(entries), Arena(len(entries)))
        at.x.tensor.copy_(self._narrow(entries))
        self._stack.layers[0].record_project(tape, at, self._ropes[position])
        tape.play()
        return at.x.array, at.qkv.array

    def _record(self, rows: int) -> _Passes:
        passes = _Passes(self._stack, self._vocab, rows)
        at = passes.at
        self._record_layers(passes, 0)  # the hidden state is there
        for position in range(1, CODEBOOKS):
            tape, codes = passes.tapes[position], passes.known[position - 1]
            for table, out in zip(self._tables[position - 1], (at.x.array, at.qkv.array), strict=True):
                tape.add(table.take, codes, axis=0, out=out, mode="clip")  # without a mode NumPy takes a detour
            self._record_layers(passes, position)
            self._stack.norm.record(tape, at.x.array, at.normed.array)
            tape.add(torch.mm, at.normed.tensor, self._heads[position - 1].by(rows), out=passes.logits.tensor)
        return passes

    def _record_layers(self, passes: _Passes, position: int) -> None:
        tape, at, layers = passes.tapes[position], passes.at, self._stack.layers
        for index, (layer, past) in enumerate(zip(layers, passes.past, strict=True)):
            if position == 0 or index > 0:  # else it was looked up
                layer.record_project(tape, at, self._ropes[position])
            tape.add(np.copyto, past.array[:, :, position], at.kv)
            if position == 0 and index + 1 == len(layers):
                return  # nobody asks for more of the last layer there
            keys, values = past.tensor[:, :, : position + 1].chunk(2, dim=1)
            layer.record_finish(tape, at, partial(attention, at.q, keys, values))
