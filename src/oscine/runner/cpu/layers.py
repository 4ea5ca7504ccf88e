"""Recorded steps, and the layers of model/layers.py as such: one new position per row, on a CPU in fp32.

Matrix products run in PyTorch, which follows its thread settings; the small operations between them run in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.model.config import StackConfig
from oscine.model.layers import AttentionCache, Layer, LayerScale, RMSNorm, Stack, SwiGLU, rope_frequencies

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class RecordedStep:
    """A fixed sequence of calls on fixed buffers: the CPU's counterpart of a captured CUDA graph.

    A small model on a CPU spends its time in calls, not in arithmetic. So its code runs once per number of rows to
    record the calls with their arguments; a frame replays them without lookups, views or allocations.
    """

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def add(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        self._calls.append(partial(function, *args, **kwargs))

    def replay(self) -> None:
        for call in self._calls:
            call()


class SharedBuffer(NamedTuple):
    """The same memory as a tensor and as an array: PyTorch is faster at large operations, NumPy at small ones."""

    tensor: Tensor
    array: Floats


class BufferPool:
    """fp32 buffers shared by the recorded steps for up to `max_rows` rows: only one of them runs at a time."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def take(self, name: str, rows: int, *shape: int) -> Tensor:
        """Returns uninitialized memory [rows, *shape], the same for the same name and row size."""
        assert rows <= self._max_rows, (rows, self._max_rows)
        key = (name, math.prod(shape))
        if key not in self._buffers:
            # Not zeros: memory that no step touches costs nothing.
            self._buffers[key] = torch.empty(self._max_rows, key[1])
        return self._buffers[key][:rows].view(rows, *shape)

    def share(self, name: str, rows: int, *shape: int) -> SharedBuffer:
        tensor = self.take(name, rows, *shape)
        return SharedBuffer(tensor, tensor.numpy())


class StackBuffers:
    """The buffers of one forward pass through a stack."""

    def __init__(self, config: StackConfig, rows: int, pool: BufferPool) -> None:
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        self.rows = rows
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


def by_columns(weight: Tensor) -> Tensor:
    """Returns the same matrices [..., outputs, inputs], stored by columns. Then `x @ weight.T` sums a row of x in the
    same order for any number of rows from two on, and needs no packing. (MKL has other kernels for a single row, and
    for few rows with a matrix stored by rows.)"""
    return weight.mT.contiguous().mT


class CpuLayer:
    def __init__(self, layer: Layer) -> None:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, SwiGLU), type(mlp)
        self._attention_norm, self._mlp_norm = Norm.of(layer.attention_norm), Norm.of(layer.mlp_norm)
        self._qk_norm = Norm(attention.qk_weight[:, 0], attention.eps) if attention.qk_norm else None
        self._qkv, self._out = by_columns(attention.qkv.weight), _scaled(attention.out, layer.attention_scale)
        self._gate_up, self._down = by_columns(mlp.gate_up.weight), _scaled(mlp.down, layer.mlp_scale)

    def record_project(self, step: RecordedStep, at: StackBuffers, rope: Rope) -> None:
        """Records at.x -> at.q, at.k, at.v."""
        self._attention_norm.record(step, at.x.array, at.normed.array)
        step.add(torch.mm, at.normed.tensor, self._qkv.T, out=at.qkv.tensor.flatten(1))
        if self._qk_norm is not None:
            self._qk_norm.record(step, at.qk, at.qk)
        halves = at.qk.reshape(at.turned.shape)
        step.add(np.multiply, halves[:, :, ::-1], rope.sin, out=at.turned)
        step.add(np.multiply, halves, rope.cos, out=halves)
        step.add(np.add, halves, at.turned, out=halves)

    def record_finish(self, step: RecordedStep, at: StackBuffers, mix: Callable[[], Tensor]) -> None:
        """Records at.x and the attention output `mix()` [rows, heads, 1, head_dim] -> at.x after the layer."""
        rows, x, out = at.rows, at.x.tensor, self._out.T
        step.add(lambda: x.addmm_(mix().reshape(rows, -1), out))
        self._mlp_norm.record(step, at.x.array, at.normed.array)
        step.add(torch.mm, at.normed.tensor, self._gate_up.T, out=at.gate_up)
        gate, up = at.gate_up.chunk(2, dim=1)
        step.add(F.silu, gate, inplace=True)
        step.add(torch.mul, gate, up, out=at.gated)
        step.add(x.addmm_, at.gated, self._down.T)


def _scaled(linear: nn.Linear, scale: nn.Module) -> Tensor:
    """Folds a layer's scale into the weight before it; the last bits of the products change."""
    return by_columns(linear.weight * scale.scale[:, None] if isinstance(scale, LayerScale) else linear.weight)


class CpuStack:
    """Runs a Stack for rows of one new position each."""

    def __init__(self, stack: Stack, max_rows: int) -> None:
        layers: Any = stack.layers
        self.config, self.pool = stack.config, BufferPool(max_rows)
        self.layers = [CpuLayer(layer) for layer in layers]
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
