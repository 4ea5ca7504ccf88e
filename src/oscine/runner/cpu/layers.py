"""The layers of model/layers.py as recorded steps: one new position per row, on a CPU, with activations in fp32.

Matrix products run in PyTorch, which follows its thread settings; the small operations between them run in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.model.config import StackConfig
from oscine.model.layers import AttentionCache, Layer, LayerScale, RMSNorm, Stack, SwiGLU, rope_frequencies
from oscine.runner.cpu.steps import BufferPool, Floats, Ints, RecordedStep, product_of


class StackBuffers:
    """The buffers of one forward pass through a stack."""

    def __init__(self, config: StackConfig, rows: int, pool: BufferPool) -> None:
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        self.rows, self.pool = rows, pool
        self.x = pool.share("x", rows, config.width)  # the residual stream
        self.normed = pool.share("normed", rows, config.width)
        self.qkv = pool.share("qkv", rows, heads + 2 * kv_heads, dim)
        self.q, self.k, self.v = self.qkv.tensor[:, :, None].split((heads, kv_heads, kv_heads), dim=1)
        self.qk, self.kv = self.qkv.array[:, : heads + kv_heads], self.qkv.array[:, heads:]
        self.turned = pool.share("turned", rows, heads + kv_heads, 2, dim // 2).array
        self.gate_up = pool.take("gate_up", rows, 2 * config.inner)
        self.gated = pool.take("gated", rows, config.inner)


class Rope:
    """RoPE's cos, and its sin with the sign for each half of a head, at the positions given to `set`."""

    def __init__(self, config: StackConfig, rows: int) -> None:
        frequencies = rope_frequencies(config.head_dim, config.theta, torch.device("cpu"))
        # fp64 where positions are unbounded: layers.rope_angles says why.
        self._frequencies = frequencies.numpy().astype(np.float32 if config.window is None else np.float64)
        self.cos: Floats = np.empty((rows, 1, 1, config.head_dim // 2), np.float32)
        self.sin: Floats = np.empty((rows, 1, 2, config.head_dim // 2), np.float32)

    def set(self, positions: Ints) -> None:
        """Computes both for positions [rows]."""
        angles = positions[:, None].astype(self._frequencies.dtype) * self._frequencies
        self.cos[:, 0, 0] = np.cos(angles)
        self.sin[:, 0, 1] = np.sin(angles)
        np.negative(self.sin[:, :, 1], out=self.sin[:, :, 0])


class Norm:
    """RMSNorm over the last dimension. The weight includes the square root of the length, which saves a call."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        length = weight.shape[-1]
        self._weight: Floats = (weight.double() * length**0.5).float().numpy()
        self._eps: Floats = np.full(1, eps * length, np.float32)  # an array: NumPy would convert a number in every call

    @staticmethod
    def of(norm: nn.Module) -> Norm:
        assert isinstance(norm, RMSNorm), type(norm)
        return Norm(norm.weight, norm.eps)

    def record(self, step: RecordedStep, x: Floats, out: Floats) -> None:
        """Records the norm; `out` may be x."""
        square = np.empty((*x.shape[:-1], 1, 1), np.float32)
        step.add(np.matmul, x[..., None, :], x[..., None], out=square)
        step.add(np.add, square, self._eps, out=square)
        step.add(np.sqrt, square, out=square)
        step.add(np.divide, x, square[..., 0], out=out)
        step.add(np.multiply, out, self._weight, out=out)


class CpuLayer:
    def __init__(self, layer: Layer, same_bits: bool) -> None:
        attention, mlp, product = layer.attention, layer.mlp, partial(product_of, same_bits=same_bits)
        assert isinstance(mlp, SwiGLU), type(mlp)
        self._attention_norm, self._mlp_norm = Norm.of(layer.attention_norm), Norm.of(layer.mlp_norm)
        self._qk_norm = Norm(attention.qk_weight[:, 0], attention.eps) if attention.qk_norm else None
        self._qkv, self._out = product(attention.qkv), product(attention.out, _scale(layer.attention_scale))
        self._gate_up, self._down = product(mlp.gate_up), product(mlp.down, _scale(layer.mlp_scale))

    def record_project(self, step: RecordedStep, at: StackBuffers, rope: Rope) -> None:
        """Records at.x -> at.q, at.k, at.v."""
        self._attention_norm.record(step, at.x.array, at.normed.array)
        self._qkv.record(step, at.pool, at.normed.tensor, at.qkv.tensor.flatten(1))
        if self._qk_norm is not None:
            self._qk_norm.record(step, at.qk, at.qk)
        halves = at.qk.reshape(at.turned.shape)
        step.add(np.multiply, halves[:, :, ::-1], rope.sin, out=at.turned)
        step.add(np.multiply, halves, rope.cos, out=halves)
        step.add(np.add, halves, at.turned, out=halves)

    def record_finish(self, step: RecordedStep, at: StackBuffers, mix: Callable[[], Tensor]) -> None:
        """Records at.x and the attention output `mix()` [rows, heads, 1, head_dim] -> at.x after the layer."""
        rows, x = at.rows, at.x.tensor
        self._out.record_add(step, at.pool, lambda: mix().reshape(rows, -1), x)
        self._mlp_norm.record(step, at.x.array, at.normed.array)
        self._gate_up.record(step, at.pool, at.normed.tensor, at.gate_up)
        gate, up = at.gate_up.chunk(2, dim=1)
        step.add(F.silu, gate, inplace=True)
        step.add(torch.mul, gate, up, out=at.gated)
        self._down.record_add(step, at.pool, lambda: at.gated, x)


def _scale(module: nn.Module) -> Tensor | None:
    return module.scale if isinstance(module, LayerScale) else None


class CpuStack:
    """Runs a Stack for rows of one new position each. Without `same_bits`, the last bits of a row alone differ from
    those of a row among others, and it takes less time."""

    def __init__(self, stack: Stack, max_rows: int, *, same_bits: bool = True) -> None:
        layers: Any = stack.layers
        self.config, self.pool = stack.config, BufferPool(max_rows)
        self.layers = [CpuLayer(layer, same_bits) for layer in layers]
        self.norm = Norm.of(stack.norm)
        self._recorded: dict[int, tuple[RecordedStep, StackBuffers, Rope]] = {}
        self._cache: AttentionCache | None = None  # of the current step

    def step(self, rows: Tensor, cache: AttentionCache) -> Tensor:
        """Computes rows [n, width] at cache.positions [n, 1] -> [n, width], which the next step overwrites."""
        if len(rows) not in self._recorded:
            self._recorded[len(rows)] = self._record(len(rows))
        step, at, rope = self._recorded[len(rows)]
        self._cache = cache
        at.x.tensor.copy_(rows)
        rope.set(cache.positions[:, 0].numpy())
        step.replay()
        return at.normed.tensor

    def _record(self, rows: int) -> tuple[RecordedStep, StackBuffers, Rope]:
        step, at, rope = RecordedStep(), StackBuffers(self.config, rows, self.pool), Rope(self.config, rows)

        def attend(layer: int) -> Tensor:
            assert self._cache is not None
            return self._cache.attend(layer, at.q, at.k, at.v)

        self.record(step, at, rope, attend)
        return step, at, rope

    def record(self, step: RecordedStep, at: StackBuffers, rope: Rope, attend: Callable[[int], Tensor]) -> None:
        """Records at.x -> at.normed. attend(layer) stores at.k and at.v, and returns the attention output of at.q."""
        for index, layer in enumerate(self.layers):
            layer.record_project(step, at, rope)
            layer.record_finish(step, at, partial(attend, index))
        self.norm.record(step, at.x.array, at.normed.array)
