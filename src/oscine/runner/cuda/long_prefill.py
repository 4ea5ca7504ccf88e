"""Prefills many rows in packs of a few sizes, with cuBLAS's products.

With a thousand rows a product takes as long as its arithmetic, and cuBLAS is fastest. For another number of rows it may
choose another algorithm, and so another order of a row's sums. So packs have few sizes, and only sizes whose products
give a row the bits of the largest size, at any place, are used (`LongPrefill.sizes`);
tests/runner/cuda/test_long_prefill.py tests whole packs on a GPU. These bits differ from those of DecodeStep.prefill,
so which rows run here must depend on their request alone (`is_long`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from oscine.kernels.norm import add_norm, rms_norm, swiglu
from oscine.kernels.prefill import prompt_attention, write_keys_values
from oscine.model.config import StackConfig
from oscine.model.layers import Stack
from oscine.runner.cuda.decode_step import PromptRows, layer_weights
from oscine.runner.kv_cache import PagedKVCache
from oscine.types import Prompt

LONG_PACK_SIZES = (512, 1024, 2048)  # rows, ascending
MIN_ROWS = 256  # of a part of a prompt; fewer fill at most half of the largest short pack
_WORKSPACE_BYTES = 32 * 2**20  # torch's for cuBLAS on Hopper, on the stream of the capture
_COMPARED_ROWS = 128  # every pack has a multiple of these

_log = logging.getLogger(__name__)


def is_long(prompt: Prompt, rows: int) -> bool:
    """Whether part of a prompt (its prefix of `prefix_rows`, or the rest) runs in long packs. The prefix may come from
    the prefix cache, so the answer must be the same for all prompts that share it. A reference's frames count for both
    parts, because every prompt with that prefix has them: so one pack has all rows of a cloned voice."""
    frames = 0 if prompt.reference_codes is None else len(prompt.reference_codes)
    return max(rows, frames) >= MIN_ROWS


def working_bytes(config: StackConfig, element_bytes: int) -> int:
    """Returns the memory of LongPrefill's buffers and its products' workspace."""
    columns = sum(_widths(config)) + config.width  # and the rows of the admission
    return LONG_PACK_SIZES[-1] * columns * element_bytes + _WORKSPACE_BYTES


def _widths(config: StackConfig) -> tuple[int, ...]:
    """x, normed, y, mixed, qkv, gate and up, inner."""
    mixed = config.heads * config.head_dim
    qkv = mixed + 2 * config.kv_heads * config.head_dim
    return config.width, config.width, config.width, mixed, qkv, 2 * config.inner, config.inner


class LongPrefill:
    """Prefills long packs. It reads the stack's own matrices, which FP8 weights replace, so it cannot run with them.
    `sizes` are the packs that give a row the same bits; if there are none, do not use it."""

    def __init__(self, stack: Stack, kv: PagedKVCache, rope: tuple[Tensor, Tensor]) -> None:
        self._config, self._kv, self._rope = stack.config, kv, rope
        self._layers = layer_weights(stack, lambda weight: weight)
        like = self._layers[0].attention_norm
        self._buffers = [like.new_zeros(LONG_PACK_SIZES[-1], width) for width in _widths(stack.config)]
        self.sizes: Sequence[int] = LONG_PACK_SIZES
        if like.is_cuda:
            # This is a setting of the process: by default torch lets cuBLAS add parts of a sum in bf16.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            self.sizes = self._sizes_of_equal_bits()

    @torch.inference_mode()
    def prefill(self, prompts: PromptRows) -> None:
        """Same as DecodeStep.prefill; the number of rows must be one of `sizes`."""
        x, rows = prompts.inputs, len(prompts.inputs)
        assert rows in self.sizes, (x.shape, self.sizes)
        kv, eps, layers = self._kv, self._config.eps, self._layers
        total, normed, y, mixed, qkv, gate_up, inner = (buffer[:rows] for buffer in self._buffers)
        rms_norm(x, layers[0].attention_norm, eps, normed)
        for index, layer in enumerate(layers):
            norms, cache = layer.norms(eps, self._rope), prompts.cache(kv, index)
            _linear(layer.qkv, normed, qkv)
            write_keys_values(qkv, norms, cache)
            if index + 1 == len(layers):
                return  # its output is not needed
            prompt_attention(qkv, norms, cache, mixed)
            _linear(layer.out, mixed, y)
            add_norm(x, y, layer.mlp_norm, eps, total, normed)
            x = total
            _linear(layer.gate_up, normed, gate_up)
            swiglu(gate_up, inner)
            _linear(layer.down, inner, y)
            add_norm(x, y, layers[index + 1].attention_norm, eps, x, normed)

    def _sizes_of_equal_bits(self) -> Sequence[int]:
        _, normed, y, mixed, qkv, gate_up, inner = self._buffers
        layer, sizes = self._layers[0], self.sizes
        products = ((normed, layer.qkv, qkv), (mixed, layer.out, y), (normed, layer.gate_up, gate_up))
        for x, weight, out in (*products, (inner, layer.down, y)):
            sizes = sizes_of_equal_bits(partial(_linear, weight), x, out, sizes)
        if len(sizes) < len(self.sizes):
            unused = sorted({*self.sizes} - {*sizes})
            _log.warning("long packs of %s rows are not used: cuBLAS's products would have other bits", unused)
        return sizes


def sizes_of_equal_bits(
    product: Callable[[Tensor, Tensor], None], x: Tensor, out: Tensor, sizes: Sequence[int]
) -> Sequence[int]:
    """Returns the sizes at which product(x, out) gives a row the same bits at any place, and the bits of the largest
    size; none if the largest one does not. Tested on random rows that repeat."""
    rows = x[:_COMPARED_ROWS].normal_(generator=torch.Generator(x.device).manual_seed(0))
    x.view(-1, *rows.shape).copy_(rows.clone())
    expected: Tensor | None = None
    equal: list[int] = []
    for size in reversed(sizes):
        product(x[:size], out[:size])
        results = out[:size].view(-1, _COMPARED_ROWS, out.shape[1])
        expected = results[0].clone() if expected is None else expected
        if bool((results == expected).all()):
            equal.insert(0, size)
        elif not equal:
            return []
    return equal


def _linear(weight: object, x: Tensor, out: Tensor) -> None:
    assert isinstance(weight, Tensor), "cuBLAS's products take bf16"
    torch.mm(x, weight.T, out=out)
