"""The layers of model/layers.py on tapes: one new position per row, on a CPU in fp32.

Products are PyTorch's, since it knows how many threads there may be; the small steps between them are NumPy's.
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
from oscine.runner.cpu.recorded_step import Arena, Floats, Ints, RecordedStep

_MAX_COPIED_BYTES = 4 * 2**20  # of one weight: only small models have all of theirs twice


class Scratch:
    """What a pass through a stack writes."""

    def __init__(self, config: StackConfig, rows: int, arena: Arena) -> None:
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        self.rows = rows
        self.x = arena.share("x", rows, config.width)  # the residual stream
        self.normed = arena.share("normed", rows, config.width)
        self.qkv = arena.share("qkv", rows, heads + 2 * kv_heads, dim)
        self.q, self.k, self.v = self.qkv.tensor[:, :, None].split((heads, kv_heads, kv_heads), dim=1)
        self.qk, self.kv = self.qkv.array[:, : heads + kv_heads], self.qkv.array[:, heads:]
        self.turned = arena.share("turned", rows, heads + kv_heads, 2, dim // 2).array
        self.gate_up = arena.take("gate_up", rows, 2 * config.inner)
        self.gated = arena.take("gated", rows, config.inner)


class Rope:
    """cos, and sin with its sign for either half of a head, at the positions that were set."""

    def __init__(self, config: StackConfig, rows: int) -> None:
        frequencies = rope_frequencies(config.head_dim, config.theta, torch.device("cpu"))
        # fp64 where positions have no end: layers.rope_angles tells why.
        self._frequencies = frequencies.numpy().astype(np.float32 if config.window is None else np.float64)
        self.cos: Floats = np.empty((rows, 1, 1, config.head_dim // 2), np.float32)
        self.sin: Floats = np.empty((rows, 1, 2, config.head_dim // 2), np.float32)

    def set(self, positions: Ints) -> None:
        """positions [rows]"""
        angles = positions[:, None].astype(self._frequencies.dtype) * self._frequencies
        self.cos[:, 0, 0] = np.cos(angles)
        self.sin[:, 0, 1] = np.sin(angles)
        np.negative(self.sin[:, :, 1], out=self.sin[:, :, 0])


class Norm:
    """RMSNorm over the last dimension. The root of its length is in the weight: one call less."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        length = weight.shape[-1]
        self._weight: Floats = (weight.double() * length**0.5).float().numpy()
        self._eps: Floats = np.full(1, eps * length, np.float32)  # an array: each call would make one of a number

    @staticmethod
    def of(norm: nn.Module) -> Norm:
        assert isinstance(norm, RMSNorm), type(norm)
        return Norm(norm.weight, norm.eps)

    def record(self, tape: RecordedStep, x: Floats, out: Floats) -> None:
        """`out` may be x."""
        square = np.empty((*x.shape[:-1], 1, 1), np.float32)
        tape.add(np.matmul, x[..., None, :], x[..., None], out=square)
        tape.add(np.add, square, self._eps, out=square)
        tape.add(np.sqrt, square, out=square)
        tape.add(np.divide, x, square[..., 0], out=out)
        tape.add(np.multiply, out, self._weight, out=out)


class Weight:
    """The right factor of x @ weight.T. One row takes it as it lies. For several rows OpenBLAS packs it in every call,
    which takes a quarter less of the whole time if it lies transposed."""

    def __init__(self, weight: Tensor) -> None:
        self._for_one = self._for_several = weight.T
        if weight.nbytes <= _MAX_COPIED_BYTES:
            self._for_several = weight.T.contiguous()

    def by(self, rows: int) -> Tensor:
        return self._for_one if rows == 1 else self._for_several


class CpuLayer:
    def __init__(self, layer: Layer) -> None:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, SwiGLU), type(mlp)
        self._attention_norm, self._mlp_norm = Norm.of(layer.attention_norm), Norm.of(layer.mlp_norm)
        self._qk_norm = Norm(attention.qk_weight[:, 0], attention.eps) if attention.qk_norm else None
        self._qkv, self._out = Weight(attention.qkv.weight), _scaled(attention.out, layer.attention_scale)
        self._gate_up, self._down = Weight(mlp.gate_up.weight), _scaled(mlp.down, layer.mlp_scale)

    def record_project(self, tape: RecordedStep, at: Scratch, rope: Rope) -> None:
        """at.x -> at.q, at.k, at.v"""
        self._attention_norm.record(tape, at.x.array, at.normed.array)
        tape.add(torch.mm, at.normed.tensor, self._qkv.by(at.rows), out=at.qkv.tensor.flatten(1))
        if self._qk_norm is not None:
            self._qk_norm.record(tape, at.qk, at.qk)
        halves = at.qk.reshape(at.turned.shape)
        tape.add(np.multiply, halves[:, :, ::-1], rope.sin, out=at.turned)
        tape.add(np.multiply, halves, rope.cos, out=halves)
        tape.add(np.add, halves, at.turned, out=halves)

    def record_finish(self, tape: RecordedStep, at: Scratch, mix: Callable[[], Tensor]) -> None:
        """at.x and what attention makes of at.q, [rows, heads, 1, head_dim] -> at.x behind the layer"""
        rows, x, out = at.rows, at.x.tensor, self._out.by(at.rows)
        tape.add(lambda: x.addmm_(mix().reshape(rows, -1), out))
        self._mlp_norm.record(tape, at.x.array, at.normed.array)
        tape.add(torch.mm, at.normed.tensor, self._gate_up.by(rows), out=at.gate_up)
        gate, up = at.gate_up.chunk(2, dim=1)
        tape.add(F.silu, gate, inplace=True)
        tape.add(torch.mul, gate, up, out=at.gated)
        tape.add(x.addmm_, at.gated, self._down.by(rows))


def _scaled(linear: nn.Linear, scale: nn.Module) -> Weight:
    """A layer's scale goes into the weight before it: each product rounds a last bit in another place."""
    return Weight(linear.weight * scale.scale[:, None] if isinstance(scale, LayerScale) else linear.weight)


class CpuStack:
    """Gives what a Stack gives for rows of one position each."""

    def __init__(self, stack: Stack, max_rows: int) -> None:
        layers: Any = stack.layers
        self.config, self.arena = stack.config, Arena(max_rows)
        self.layers = [CpuLayer(layer) for layer in layers]
        self.norm = Norm.of(stack.norm)
        self._recorded: dict[int, tuple[RecordedStep, Scratch, Rope]] = {}
        self._memory: AttentionCache | None = None  # of the step that runs

    def step(self, rows: Tensor, memory: AttentionCache) -> Tensor:
        """rows [n, width] at memory.positions [n, 1] -> [n, width], which the next step overwrites."""
        if len(rows) not in self._recorded:
            self._recorded[len(rows)] = self._record(len(rows))
        tape, at, rope = self._recorded[len(rows)]
        self._memory = memory
        at.x.tensor.copy_(rows)
        rope.set(memory.positions[:, 0].numpy())
        tape.play()
        return at.normed.tensor

    def _record(self, rows: int) -> tuple[RecordedStep, Scratch, Rope]:
        tape, at, rope = RecordedStep(), Scratch(self.config, rows, self.arena), Rope(self.config, rows)

        def attend(layer: int) -> Tensor:
            assert self._memory is not None
            return self._memory.attend(layer, at.q, at.k, at.v)

        self.record(tape, at, rope, attend)
        return tape, at, rope

    def record(self, tape: RecordedStep, at: Scratch, rope: Rope, attend: Callable[[int], Tensor]) -> None:
        """at.x -> at.normed; attend(layer) keeps at.k and at.v and mixes what at.q sees."""
        for index, layer in enumerate(self.layers):
            layer.record_project(tape, at, rope)
            layer.record_finish(tape, at, partial(attend, index))
        self.norm.record(tape, at.x.array, at.normed.array)
