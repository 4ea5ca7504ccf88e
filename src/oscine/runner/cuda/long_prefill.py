"""Prefill of many rows: packs of a fixed number of rows, whose products are cuBLAS's.

With a thousand rows a product takes as long as its arithmetic, and cuBLAS's are the fastest. Which algorithm it uses,
and so the order of a row's sums, depends on the number of rows, which is why that number is fixed: then a row has the
same bits at any place of any pack (tests/runner/cuda/test_long_prefill.py tests it on a GPU). They are not those of
DecodeStep.prefill, so which rows run here must depend on their request alone (`is_long`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from oscine.kernels.norm import add_norm, rms_norm
from oscine.kernels.prefill import prompt_attention, write_keys_values
from oscine.kernels.swiglu import swiglu
from oscine.model.config import StackConfig
from oscine.model.layers import Stack
from oscine.runner.cuda.layer_weights import layer_weights
from oscine.runner.kv_cache import PagedKVCache
from oscine.types import Prompt

PACK_ROWS = 1024
MIN_ROWS = 256  # of a part of a prompt; fewer fill a short pack of half its largest size at most
_WORKSPACE_BYTES = 32 * 2**20  # torch's for cuBLAS on Hopper, for each stream


def is_long(prompt: Prompt, rows: int) -> bool:
    """Whether part of a prompt, its prefix of `prefix_rows` or the others, runs in long packs. The prefix may come from
    the prefix cache, so its answer must be the same for all prompts that share it. A reference's frames count for both
    parts, because every prompt with that prefix has them: then one pack has all rows of a cloned voice."""
    frames = 0 if prompt.reference_codes is None else len(prompt.reference_codes)
    return max(rows, frames) >= MIN_ROWS


def working_bytes(config: StackConfig, element_bytes: int) -> int:
    """Of LongPrefill's buffers and its products' workspace."""
    columns = sum(_widths(config)) + config.width  # and the rows of the admission
    return PACK_ROWS * columns * element_bytes + _WORKSPACE_BYTES


def _widths(config: StackConfig) -> tuple[int, ...]:
    """x, normed, y, mixed, qkv, gate and up, inner."""
    mixed = config.heads * config.head_dim
    qkv = mixed + 2 * config.kv_heads * config.head_dim
    return config.width, config.width, config.width, mixed, qkv, 2 * config.inner, config.inner


class LongPrefill:
    """Reads the stack's own matrices, so they must be there: not with FP8 weights, which replace them."""

    def __init__(self, stack: Stack, kv: PagedKVCache, rope: tuple[Tensor, Tensor]) -> None:
        self._config, self._kv, self._rope, self.rows = stack.config, kv, rope, PACK_ROWS
        self._layers = layer_weights(stack, lambda weight: weight)
        like = self._layers[0].attention_norm
        buffers = [like.new_zeros(self.rows, width) for width in _widths(stack.config)]
        self._x, self._normed, self._y, self._mixed, self._qkv, self._gate_up, self._inner = buffers

    @torch.inference_mode()
    def prefill(self, inputs: Tensor, block_table: Tensor, positions: Tensor) -> None:
        """As DecodeStep.prefill, of exactly `rows` rows."""
        assert len(inputs) == self.rows, (inputs.shape, self.rows)
        kv, eps, layers = self._kv, self._config.eps, self._layers
        x, normed, y = inputs, self._normed, self._y
        rms_norm(x, layers[0].attention_norm, eps, normed)
        with _fp32_sums():
            for index, layer in enumerate(layers):
                cache = (*self._rope, kv.keys[index], kv.values[index], block_table, positions)
                _linear(normed, layer.qkv, self._qkv)
                write_keys_values(self._qkv, layer.k_norm, eps, *cache)
                if index + 1 == len(layers):
                    return  # nobody needs its output
                prompt_attention(self._qkv, layer.q_norm, eps, *cache, self._mixed)
                _linear(self._mixed, layer.out, y)
                add_norm(x, y, layer.mlp_norm, eps, self._x, normed)
                x = self._x
                _linear(normed, layer.gate_up, self._gate_up)
                swiglu(self._gate_up, self._inner)
                _linear(self._inner, layer.down, y)
                add_norm(x, y, layers[index + 1].attention_norm, eps, x, normed)


def _linear(x: Tensor, weight: object, out: Tensor) -> None:
    assert isinstance(weight, Tensor), "cuBLAS's products take bf16"
    torch.mm(x, weight.T, out=out)


@contextmanager
def _fp32_sums() -> Iterator[None]:
    """By default torch lets cuBLAS add parts of a sum in bf16."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
