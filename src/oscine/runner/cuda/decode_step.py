"""The decode step on kernels: talker step, code 0, codes 1..15, next input row; and the prefill.

The layers of model/layers.py with the same roundings in bf16; `_layers` shows which kernel does what. All buffers are
allocated once, so a CUDA graph can capture every method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.kernels import padded_rows
from oscine.kernels.admit import InputTables
from oscine.kernels.attention import PagedCache, QkvNorms
from oscine.kernels.embed import gather, next_input
from oscine.kernels.operations import Following, Operations, TritonOperations, Weight
from oscine.kernels.prefill import prompt_attention, write_keys_values
from oscine.kernels.sample import Draws, FirstCode
from oscine.model.config import ModelConfig, StackConfig
from oscine.model.layers import Stack, rope_angles
from oscine.model.speech_model import SpeechModel
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.slot_state import SlotState

_TEXT_TABLE_ROWS = 8192  # projected at a time
QKV_TABLE_ROWS = 128  # of one product


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer in the layout that the kernels read."""

    attention_norm: Tensor
    qkv: Weight
    q_norm: Tensor
    k_norm: Tensor
    out: Weight
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight

    def norms(self, eps: float, rope: tuple[Tensor, Tensor]) -> QkvNorms:
        return QkvNorms(self.q_norm, self.k_norm, eps, *rope)


def layer_weights(stack: Stack, prepare: Callable[[Tensor], Weight]) -> list[LayerWeights]:
    layers: Any = stack.layers  # a ModuleList's elements have no attribute types
    return [
        LayerWeights(
            attention_norm=layer.attention_norm.weight,
            q_norm=layer.attention.q_norm.weight,
            k_norm=layer.attention.k_norm.weight,
            mlp_norm=layer.mlp_norm.weight,
            **{name: prepare(linear.weight) for name, linear in _products(layer)},
        )
        for layer in layers
    ]


def release_weights(stack: Stack) -> None:
    """Frees the matrices of a stack whose `layer_weights` are copies. Only the kernels can run the stack afterwards."""
    for layer in stack.layers:
        for _, linear in _products(layer):
            linear.weight.data = linear.weight.data.new_empty(0)


def _products(layer: Any) -> Iterator[tuple[str, nn.Linear]]:
    yield "qkv", layer.attention.qkv
    yield "out", layer.attention.out
    yield "gate_up", layer.mlp.gate_up
    yield "down", layer.mlp.down


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of any prompts; the rows of a prompt are in order, and rows at a negative position are padding."""

    inputs: Tensor  # [rows, width]
    block_table: Tensor  # [rows, blocks]
    positions: Tensor  # [rows]

    def cache(self, kv: PagedKVCache, layer: int) -> PagedCache:
        return PagedCache(kv.keys[layer], kv.values[layer], self.block_table, self.positions)


# Layer, its weights, qkv -> what the output product reads, or None if the rest of the layer is not needed.
Attend = Callable[[int, LayerWeights, Tensor], Tensor | None]


def table_bytes(config: ModelConfig, element_bytes: int) -> int:
    """Returns the size of the tables that DecodeStep computes from the weights."""
    talker, predictor, stack = config.talker, config.predictor, config.predictor.stack
    elements = talker.text_vocab * talker.stack.width
    if predictor.talker_width != stack.width:
        elements += (talker.code_vocab + (CODEBOOKS - 1) * predictor.vocab) * stack.width
    elements += (CODEBOOKS - 2) * predictor.vocab * (stack.heads + 2 * stack.kv_heads) * stack.head_dim
    return element_bytes * elements


class DecodeStep:
    """Runs frames and prompts on kernels. Padding rows of a batch have a negative slot: no kernel writes to a slot for
    them."""

    @torch.inference_mode()
    def __init__(
        self,
        model: SpeechModel,
        state: SlotState,
        kv: PagedKVCache,
        max_rows: int,
        max_prefill_rows: int,
        make_operations: Callable[[Tensor], Operations] = TritonOperations,
    ) -> None:
        """`make_operations` gets a buffer for normed rows."""
        self._model, self._state, self._kv = model, state, kv
        talker, predictor, device = model.talker, model.predictor, model.device
        # The predictor's first pass has two rows per sequence.
        rows = padded_rows(max(2 * max_rows, max_prefill_rows, QKV_TABLE_ROWS))
        like = talker.head.weight
        stacks = (talker.stack.config, predictor.stack.config)
        self._qkv = like.new_zeros(rows, max((c.heads + 2 * c.kv_heads) * c.head_dim for c in stacks))
        self._mixed = like.new_zeros(rows, max(c.heads * c.head_dim for c in stacks))
        self._inner = like.new_zeros(rows, max(c.inner for c in stacks))
        self._x = like.new_zeros(rows, talker.stack.config.width)
        normed = like.new_zeros(rows, max(c.width for c in stacks))
        self.operations = make_operations(normed)
        self._talker_layers = layer_weights(talker.stack, self.operations.prepare)
        self._predictor_layers = layer_weights(predictor.stack, self.operations.prepare)
        self._narrow_x = like.new_zeros(rows, predictor.stack.config.width)
        self._frame_x = like.new_zeros(max_rows, talker.stack.config.width)  # of frames that run with prompts
        self.hidden = like.new_zeros(max_rows, talker.stack.config.width)  # of the last talker step
        self._first_logits = like.new_zeros(max_rows, talker.config.code_vocab)
        self.rest_logits = like.new_zeros(max_rows, predictor.config.vocab)  # of the last code
        self.codes = torch.zeros(max_rows, CODEBOOKS, dtype=torch.int64, device=device)
        cache = predictor.stack.config
        shape = (cache.layers, max_rows, cache.kv_heads, CODEBOOKS, cache.head_dim)
        self._rest_keys, self._rest_values = like.new_zeros(shape), like.new_zeros(shape)
        self.rope = _rope(talker.stack, state.block_table.shape[1] * kv.keys.shape[3], device)
        self._rest_rope = _rope(predictor.stack, CODEBOOKS, device)
        ids = torch.arange(talker.config.text_vocab, device=device)
        text_table = torch.cat([talker.text_rows(some) for some in ids.split(_TEXT_TABLE_ROWS)])
        self.input_tables = InputTables(talker.code_embedding.weight, predictor.embeddings, text_table)
        # The predictor's input rows depend on one code each, so they are projected once.
        self._first_table = predictor.narrow(talker.code_embedding.weight)
        self.rest_tables = predictor.narrow(predictor.embeddings)  # [books, codes, width]
        self.rest_qkv = self._qkv_tables()

    def _qkv_tables(self) -> Tensor:
        """Returns [books, codes, q k v] of the predictor's first layer, which depend on one code each. A frame's
        kernels compute them, so that a row has the same bits as in any batch."""
        layer, eps = self._predictor_layers[0], self._model.predictor.stack.config.eps
        books = self.rest_tables[: CODEBOOKS - 2]  # the last code is not an input
        tables = books.new_empty(*books.shape[:2], layer.qkv.shape[0])
        inputs, outputs = (table.flatten(0, 1).split(QKV_TABLE_ROWS) for table in (books, tables))
        for rows, qkv in zip(inputs, outputs, strict=True):
            self.operations.norm_linear(rows, layer.attention_norm, eps, layer.qkv, qkv)
        return tables

    @torch.inference_mode()
    def sample_codes(self, slots: Tensor, failed: Tensor) -> Tensor:
        """Computes slots [rows] -> codes [rows, 16], a view of `codes` that the next call overwrites, and failed [rows]
        int16: 1 where logits were not finite."""
        self.talker_step(slots)
        return self.draw_codes(slots, failed)

    @torch.inference_mode()
    def draw_codes(self, slots: Tensor, failed: Tensor) -> Tensor:
        """Same as `sample_codes`, after the talker's step."""
        rows, state, config = len(slots), self._state, self._model.config
        codes, logits = self.codes[:rows], self._first_logits[:rows]
        rules = FirstCode(
            penalty=state.float_row("penalty"),
            seen=state.seen,
            hold_eos=state.int_row("hold_eos"),
            codes=config.predictor.vocab,
            eos=config.talker.eos_id,
        )
        following = Following(self._first_table, self._narrow_x[1 : 2 * rows : 2])
        self.operations.linear(self.hidden[:rows], self._model.talker.head.weight, logits)
        self.operations.sample(logits, slots, self._draws("first"), codes, 0, failed, following, first=rules)
        self.predict_codes(slots, codes, failed)
        return codes

    @torch.inference_mode()
    def advance(self, slots: Tensor) -> None:
        """Computes the talker's next input row from the sampled codes, and advances each slot's counters by one."""
        state, model = self._state, self._model
        tables = (self.input_tables.first, self.input_tables.others, self.input_tables.text)
        text = (state.text_ids, state.int_row("text_count"), model.config.tts_pad_id)
        counters = (state.int_row("frame"), state.int_row("position"))
        next_input(self.codes[: len(slots)], slots, *tables, *text, *counters, state.inputs)

    @torch.inference_mode()
    def prefill(self, prompts: PromptRows) -> None:
        """Fills the KV cache. The last layer stops after its keys and values, because its output is not needed."""
        stack, kv, rows = self._model.talker.stack, self._kv, len(prompts.inputs)
        x, eps = self._x[:rows], stack.config.eps
        x.copy_(prompts.inputs)
        out = self._mixed_of(stack.config, rows)

        def attend(layer: int, weights: LayerWeights, qkv: Tensor) -> Tensor | None:
            norms, cache = weights.norms(eps, self.rope), prompts.cache(kv, layer)
            write_keys_values(qkv, norms, cache)
            if layer + 1 == stack.config.layers:
                return None
            prompt_attention(qkv, norms, cache, out)
            return out

        self._layers(stack.config, self._talker_layers, x, attend)

    @torch.inference_mode()
    def talker_step(self, slots: Tensor) -> None:
        x = self._x[: len(slots)]
        gather(self._state.inputs, slots, x)
        self._step_rows(x, slots, None)
        self._norm_hidden(x)

    @torch.inference_mode()
    def talker_step_with_prompts(self, slots: Tensor, frame_rows: Tensor, prompts: PromptRows) -> None:
        """Runs prompt rows and the rows of a frame in one step, so that the weights are read once. slots [rows] are
        negative for prompt rows; frame_rows [max frames] are the rows of the frame, then negative ones. Each layer
        writes the keys of prompt rows before rows of the frame read them: a launch that is not programmatic lies
        between both."""
        x = self._x[: len(slots)]
        x.copy_(prompts.inputs)
        gather(self._state.inputs, slots, x)
        self._step_rows(x, slots, prompts)
        gather(x, frame_rows, self._frame_x[: len(frame_rows)])
        self._norm_hidden(self._frame_x[: len(frame_rows)])

    def _step_rows(self, x: Tensor, slots: Tensor, prompts: PromptRows | None) -> None:
        stack, state, kv = self._model.talker.stack, self._state, self._kv
        out, eps = self._mixed_of(stack.config, len(slots)), stack.config.eps

        def attend(layer: int, weights: LayerWeights, qkv: Tensor) -> Tensor:
            norms = weights.norms(eps, self.rope)
            if prompts is not None:
                cache = prompts.cache(kv, layer)
                write_keys_values(qkv, norms, cache)
                prompt_attention(qkv, norms, cache, out)
            cache = PagedCache(kv.keys[layer], kv.values[layer], state.block_table, state.int_row("position"))
            self.operations.talker_attention(qkv, norms, cache, slots, out)
            return out

        self._layers(stack.config, self._talker_layers, x, attend)

    def _norm_hidden(self, x: Tensor) -> None:
        stack = self._model.talker.stack
        self.operations.norm(x, cast(Tensor, stack.norm.weight), stack.config.eps, self.hidden[: len(x)])

    @torch.inference_mode()
    def predict_codes(self, slots: Tensor, codes: Tensor, failed: Tensor) -> None:
        """Samples codes 1..15. The first pass has two rows per sequence: the talker's hidden state, and code 0, whose
        input row exists already."""
        predictor, sequences = self._model.predictor, len(slots)
        stack, draws = predictor.stack, self._draws("rest")
        x, logits = self._narrow_x[: 2 * sequences], self.rest_logits[:sequences]
        norm = (cast(Tensor, stack.norm.weight), stack.config.eps)
        qkv = self._rows_of(self._qkv, sequences, self.rest_qkv.shape[-1])
        self._narrow_hidden(x[0::2])
        self._pass(x, position=0, new=2)
        last = x[1::2]
        for book in range(1, CODEBOOKS):
            self.operations.norm_linear(last, *norm, predictor.heads[book - 1], logits)
            following = None
            if book < CODEBOOKS - 1:
                last = self._narrow_x[:sequences]
                following = Following(self.rest_tables[book - 1], last, self.rest_qkv[book - 1], qkv)
            self.operations.sample(logits, slots, draws, codes, book, failed, following)
            if following is not None:
                self._pass(last, position=book + 1, new=1)

    def _narrow_hidden(self, x: Tensor) -> None:
        hidden, narrow = self.hidden[: len(x)], self._model.predictor.narrow
        if isinstance(narrow, nn.Linear):
            self.operations.linear(hidden, narrow.weight, x, bias=narrow.bias)
        else:
            x.copy_(hidden)

    def _pass(self, x: Tensor, *, position: int, new: int) -> None:
        """Runs one pass of the predictor. After position 0 the first layer's qkv are in their buffer already, from the
        tables."""
        config = self._model.predictor.stack.config

        out = self._mixed_of(config, len(x))

        def attend(layer: int, weights: LayerWeights, qkv: Tensor) -> Tensor:
            norms, cache = (
                weights.norms(config.eps, self._rest_rope),
                (self._rest_keys[layer], self._rest_values[layer]),
            )
            self.operations.predictor_attention(qkv, norms, *cache, position, out, new=new)
            return out

        self._layers(config, self._predictor_layers, x, attend, first_qkv_ready=position > 0)

    def _layers(
        self,
        config: StackConfig,
        layers: Sequence[LayerWeights],
        x: Tensor,
        attend: Attend,
        *,
        first_qkv_ready: bool = False,
    ) -> None:
        """Runs the layers, which update x in place."""
        rows, operations = len(x), self.operations
        inner = operations.product_input(self._inner, rows, config.inner)
        qkv = self._rows_of(self._qkv, rows, layers[0].qkv.shape[0])
        for index, layer in enumerate(layers):
            if index or not first_qkv_ready:
                operations.norm_linear(x, layer.attention_norm, config.eps, layer.qkv, qkv)
            mixed = attend(index, layer, qkv)
            if mixed is None:
                return
            operations.linear(mixed, layer.out, x, residual=x)
            operations.norm_linear(x, layer.mlp_norm, config.eps, layer.gate_up, inner, glu=True)
            operations.linear(inner, layer.down, x, residual=x)

    def _mixed_of(self, config: StackConfig, rows: int) -> Tensor:
        return self.operations.product_input(self._mixed, rows, config.heads * config.head_dim)

    @staticmethod
    def _rows_of(buffer: Tensor, rows: int, width: int) -> Tensor:
        """Returns views of the buffers, which are wide enough for the widest stack; narrower rows are packed."""
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


def _rope(stack: Stack, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    at = torch.arange(positions, device=device)[None]
    cos, sin = rope_angles(at, stack.config.head_dim, stack.config.theta, unbounded=False)
    return cos[0, 0].contiguous(), sin[0, 0].contiguous()
