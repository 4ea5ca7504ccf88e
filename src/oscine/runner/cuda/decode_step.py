"""The autoregressive part of a frame on kernels: talker step, code 0, codes 1..15, next input row; and prefill.

The same layers as model/layers.py with the same roundings in bf16; which kernel does what is readable in `_layer`.
All buffers are made once, so every method can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from oscine.kernels.attention import predictor_attention, talker_attention
from oscine.kernels.embed import gather, next_input
from oscine.kernels.linear import Scratch, linear
from oscine.kernels.norm import rms_norm
from oscine.kernels.prefill import write_keys_values
from oscine.kernels.sample import Draws, FirstCode, sample
from oscine.model.layers import Stack, rope_angles
from oscine.model.speech_model import SpeechModel
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.slot_state import SlotState
from oscine.types import CODEBOOKS

_TABLE_ROWS = 8192  # text rows projected at a time, when the table is made
_LOOKED_UP = 128  # rows of one product

Attend = Callable[[int, Tensor, Tensor], None]  # layer, qkv, mixed


class DecodeStep:
    """Rows whose slot is negative fill a batch up: no kernel touches any slot for them."""

    @torch.inference_mode()
    def __init__(
        self, model: SpeechModel, state: SlotState, kv: PagedKVCache, max_rows: int, max_prefill_rows: int
    ) -> None:
        self._model, self._state, self._kv = model, state, kv
        talker, predictor, device = model.talker, model.predictor, model.device
        rows = max(2 * max_rows, max_prefill_rows)  # the predictor begins with two rows per sequence
        like = talker.head.weight
        stacks = (talker.stack.config, predictor.stack.config)
        self._qkv = like.new_zeros(rows, max((c.heads + 2 * c.kv_heads) * c.head_dim for c in stacks))
        self._mixed = like.new_zeros(rows, max(c.heads * c.head_dim for c in stacks))
        self._inner = like.new_zeros(rows, max(c.inner for c in stacks))
        self._x = like.new_zeros(rows, talker.stack.config.width)
        self._normed = like.new_zeros(rows, max(c.width for c in stacks))
        self._narrow_x = like.new_zeros(rows, predictor.stack.config.width)
        self._hidden = like.new_zeros(max_rows, talker.stack.config.width)
        self._logits = like.new_zeros(max_rows, talker.config.code_vocab)
        self._rest_logits = like.new_zeros(max_rows, predictor.config.vocab)
        self._codes = torch.zeros(max_rows, CODEBOOKS, dtype=torch.int64, device=device)
        cache = predictor.stack.config
        shape = (cache.layers, max_rows, cache.kv_heads, CODEBOOKS, cache.head_dim)
        self._rest_keys, self._rest_values = like.new_zeros(shape), like.new_zeros(shape)
        self._scratch = Scratch.empty(device)
        self._rope = _rope(talker.stack, state.page_table.shape[1] * kv.keys.shape[3], device)
        self._rest_rope = _rope(predictor.stack, CODEBOOKS, device)
        self._text_table = torch.cat([talker.text_rows(ids) for ids in _ids(talker.config.text_vocab, device)])
        # What the predictor reads for a code, made narrow once: a row is a function of its id alone.
        self._first_table = predictor.narrow(talker.code_embedding.weight)
        self._rest_tables = predictor.narrow(predictor.embeddings)
        self._rest_qkv = self._looked_up()

    def _looked_up(self) -> Tensor:
        """[books, codes, q k v] of the predictor's first layer: what it makes of a code's row, whatever came before. By
        the frame's own kernels, which give a row the same bits in any batch."""
        stack = self._model.predictor.stack
        layer = cast(Any, stack.layers[0])
        books = self._rest_tables[: CODEBOOKS - 2]  # nothing is asked behind the last code
        tables = books.new_empty(*books.shape[:2], layer.attention.qkv.out_features)
        for rows, made in zip(
            books.flatten(0, 1).split(_LOOKED_UP), tables.flatten(0, 1).split(_LOOKED_UP), strict=True
        ):
            normed = torch.empty_like(rows)
            _norm(layer.attention_norm, stack, rows, normed)
            linear(normed, layer.attention.qkv.weight, made, self._scratch)
        return tables

    @torch.inference_mode()
    def speak(self, slots: Tensor) -> Tensor:
        """slots [rows] -> codes [rows, 16], a view that the next call overwrites."""
        self._talker_step(slots)
        rows, state, config = len(slots), self._state, self._model.config
        codes = self._codes[:rows]
        rules = FirstCode(
            penalty=state.float_row("penalty"),
            seen=state.seen,
            hold_eos=state.int_row("hold_eos"),
            codes=config.predictor.vocab,
            eos=config.talker.eos_id,
        )
        linear(self._hidden[:rows], self._model.talker.head.weight, self._logits[:rows], self._scratch)
        sample(self._logits[:rows], slots, self._draws("first"), codes, 0, first=rules)
        self._rest_codes(slots, codes)
        return codes

    @torch.inference_mode()
    def advance(self, slots: Tensor) -> None:
        """From the codes just spoken to the talker's next input; each slot's counters grow by one."""
        state, model = self._state, self._model
        next_input(
            self._codes[: len(slots)],
            slots,
            model.talker.code_embedding.weight,
            model.predictor.embeddings,
            self._text_table,
            state.text_ids,
            state.int_row("text_count"),
            model.config.tts_pad_id,
            state.int_row("frame"),
            state.int_row("position"),
            state.inputs,
        )

    @torch.inference_mode()
    def prefill(self, inputs: Tensor, page_table: Tensor, positions: Tensor) -> None:
        """inputs [rows, width] of any prompts, page_table [rows, pages] and positions [rows] each row's own, the rows
        of a prompt in order. Fills the pages; what the last layer makes of the rows is nobody's."""
        stack, rows, kv = self._model.talker.stack, len(inputs), self._kv
        x = self._x[:rows]
        x.copy_(inputs)
        own = torch.where(positions < 0, positions, torch.arange(rows, device=positions.device))
        heads = [cast(Any, layer).attention for layer in stack.layers]

        def attend(layer: int, qkv: Tensor, mixed: Tensor) -> None:
            norm, pages = heads[layer], (kv.keys[layer], kv.values[layer])
            eps = stack.config.eps
            write_keys_values(qkv, norm.k_norm.weight, eps, *self._rope, *pages, page_table, positions)
            if layer + 1 < len(heads):
                norms = (norm.q_norm.weight, norm.k_norm.weight)
                # Not written again: another kernel's last bit may differ, and rows read each other's keys meanwhile.
                talker_attention(qkv, *norms, eps, *self._rope, *pages, page_table, positions, own, mixed, write=False)

        for index in range(len(heads)):
            self._layer(stack, index, x, attend)

    def _talker_step(self, slots: Tensor) -> None:
        stack, rows, state, kv = self._model.talker.stack, len(slots), self._state, self._kv
        x = self._x[:rows]
        gather(state.inputs, slots, x)
        heads = [cast(Any, layer).attention for layer in stack.layers]

        def attend(layer: int, qkv: Tensor, mixed: Tensor) -> None:
            norms = (heads[layer].q_norm.weight, heads[layer].k_norm.weight)
            pages = (kv.keys[layer], kv.values[layer])
            position = state.int_row("position")
            talker_attention(
                qkv, *norms, stack.config.eps, *self._rope, *pages, state.page_table, position, slots, mixed
            )

        for index in range(len(heads)):
            self._layer(stack, index, x, attend)
        _norm(stack.norm, stack, x, self._hidden[:rows])

    def _rest_codes(self, slots: Tensor, codes: Tensor) -> None:
        """Codes 1..15: the first pass has two rows per sequence, the talker's hidden state and code 0."""
        predictor, sequences = self._model.predictor, len(slots)
        stack, draws = predictor.stack, self._draws("rest")
        x, logits = self._narrow_x[: 2 * sequences], self._rest_logits[:sequences]
        normed = self._rows_of(self._normed, sequences, stack.config.width)
        qkv = self._rows_of(self._qkv, sequences, self._rest_qkv.shape[-1])
        self._begin(codes, x)
        self._pass(x, position=0, new=2)
        last = x[1::2]
        for book in range(1, CODEBOOKS):
            _norm(stack.norm, stack, last, normed)
            linear(normed, predictor.heads[book - 1], logits, self._scratch)
            sample(logits, slots, draws, codes, book)
            if book < CODEBOOKS - 1:
                last = self._narrow_x[:sequences]
                gather(self._rest_tables[book - 1], codes[:, book], last)
                gather(self._rest_qkv[book - 1], codes[:, book], qkv)
                self._pass(last, position=book + 1, new=1, qkv=qkv)

    def _begin(self, codes: Tensor, x: Tensor) -> None:
        hidden, narrow = self._hidden[: len(x) // 2], self._model.predictor.narrow
        if isinstance(narrow, nn.Linear):
            linear(hidden, narrow.weight, x[0::2], self._scratch, bias=narrow.bias)
        else:
            x[0::2].copy_(hidden)
        gather(self._first_table, codes[:, 0], x[1::2])

    def _pass(self, x: Tensor, *, position: int, new: int, qkv: Tensor | None = None) -> None:
        """`qkv`: the first layer's, where they are known."""
        stack = self._model.predictor.stack
        heads = [cast(Any, layer).attention for layer in stack.layers]

        def attend(layer: int, qkv: Tensor, mixed: Tensor) -> None:
            norms = (heads[layer].q_norm.weight, heads[layer].k_norm.weight)
            cache = (self._rest_keys[layer], self._rest_values[layer])
            predictor_attention(qkv, *norms, stack.config.eps, *self._rest_rope, *cache, position, mixed, new=new)

        for index in range(len(heads)):
            self._layer(stack, index, x, attend, None if index else qkv)

    def _layer(self, stack: Stack, index: int, x: Tensor, attend: Attend, qkv: Tensor | None = None) -> None:
        """x in place. Seven launches: norm, qkv, attention, out, norm, gate and up, down; five where qkv are known."""
        layer, config, rows = cast(Any, stack.layers[index]), stack.config, len(x)
        normed = self._rows_of(self._normed, rows, config.width)
        mixed = self._rows_of(self._mixed, rows, config.heads * config.head_dim)
        inner = self._rows_of(self._inner, rows, config.inner)
        if qkv is None:
            qkv = self._rows_of(self._qkv, rows, layer.attention.qkv.out_features)
            _norm(layer.attention_norm, stack, x, normed)
            linear(normed, layer.attention.qkv.weight, qkv, self._scratch)
        attend(index, qkv, mixed)
        linear(mixed, layer.attention.out.weight, x, self._scratch, residual=x)
        _norm(layer.mlp_norm, stack, x, normed)
        linear(normed, layer.mlp.gate_up.weight, inner, self._scratch, glu=True)
        linear(inner, layer.mlp.down.weight, x, self._scratch, residual=x)

    @staticmethod
    def _rows_of(buffer: Tensor, rows: int, width: int) -> Tensor:
        """The buffers are as wide as the widest stack needs; narrower rows lie close together."""
        return buffer.flatten()[: rows * width].view(rows, width)

    def _draws(self, part: str) -> Draws:
        state = self._state
        return Draws(
            temperature=state.float_row(f"{part}_temperature"),
            top_k=state.int_row(f"{part}_top_k"),
            tail=state.float_row(f"{part}_tail"),
            greedy=state.int_row(f"{part}_greedy"),
            seed_low=state.int_row("seed_low"),
            seed_high=state.int_row("seed_high"),
            frame=state.int_row("frame"),
        )


def _norm(norm: nn.Module, stack: Stack, x: Tensor, out: Tensor) -> None:
    rms_norm(x, cast(Tensor, norm.weight), stack.config.eps, out)


def _rope(stack: Stack, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    at = torch.arange(positions, device=device)[None]
    cos, sin = rope_angles(at, stack.config.head_dim, stack.config.theta, endless=False)
    return cos[0, 0].contiguous(), sin[0, 0].contiguous()


def _ids(count: int, device: torch.device) -> tuple[Tensor, ...]:
    return torch.arange(count, device=device).split(_TABLE_ROWS)
