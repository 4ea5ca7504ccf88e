"""The codec's transformer, one frame per row: on Triton's convolutions, or on the CUDA kernels of a decode step.

Both round where kernels/conv.py and kernels/cuda/linear.cuh say, so their samples differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from oscine.kernels import padded_rows
from oscine.kernels.codec_front import attend
from oscine.kernels.conv import Rows, Workspace, conv
from oscine.kernels.cuda.operations import CudaOperations
from oscine.runner.cuda.codec_layers import StackLayer

Angles = tuple[Tensor, Tensor]  # cos and sin of a frame, [rows, dim / 2]
MakeOperations = Callable[[Tensor], CudaOperations]  # gets a buffer for normed rows


class CodecStack(Protocol):
    def run(self, x: Tensor, rows: Rows, angles: Angles, keys: Tensor, values: Tensor) -> None:
        """Updates x [rows, width] in place. keys, values: [layers, slots, heads, window, dim]."""


@dataclass(frozen=True, slots=True, eq=False)
class _Buffers:
    qkv: Tensor
    heads: Tensor
    inner: Tensor

    @staticmethod
    def allocate(layer: StackLayer, rows: int) -> _Buffers:
        widths = layer.qkv.channels, layer.out.inputs, layer.down.inputs
        return _Buffers(*(layer.qkv.weight.new_zeros(rows, width) for width in widths))


class TritonCodecStack:
    def __init__(self, layers: Sequence[StackLayer], max_rows: int, workspace: Workspace) -> None:
        self._layers, self._workspace = layers, workspace
        self._buffers = _Buffers.allocate(layers[0], max_rows)

    def run(self, x: Tensor, rows: Rows, angles: Angles, keys: Tensor, values: Tensor) -> None:
        workspace, buffers = self._workspace, self._buffers
        qkv, heads, inner = (buffer[: len(rows)] for buffer in (buffers.qkv, buffers.heads, buffers.inner))
        for layer, some_keys, some_values in zip(self._layers, keys, values, strict=True):
            conv(layer.qkv, x, rows, workspace, raw=qkv)
            attend(qkv, some_keys, some_values, angles, rows, heads)
            conv(layer.out, heads, rows, workspace, residual=x, raw=x)
            conv(layer.gate_up, x, rows, workspace, out=inner)
            conv(layer.down, inner, rows, workspace, residual=x, raw=x)


class CudaCodecStack:
    """As it runs on a stream of its own, its operations share no buffer with those of a decode step."""

    def __init__(self, layers: Sequence[StackLayer], max_rows: int, make_operations: MakeOperations) -> None:
        self._layers = layers
        self._buffers = _Buffers.allocate(layers[0], padded_rows(max_rows))
        x = layers[0].qkv.weight.new_zeros(padded_rows(max_rows), layers[0].qkv.inputs)
        self._operations = make_operations(x)
        self._ones = torch.ones_like(x[0])  # the norms' weights are folded into the products
        self._gate_up = [_gates_first(layer.gate_up.weight) for layer in layers]

    def run(self, x: Tensor, rows: Rows, angles: Angles, keys: Tensor, values: Tensor) -> None:
        operations, buffers, count = self._operations, self._buffers, len(rows)
        qkv = buffers.qkv[:count]
        heads, inner = (
            operations.product_input(buffer, count, buffer.shape[1]) for buffer in (buffers.heads, buffers.inner)
        )
        for layer, gate_up, some_keys, some_values in zip(self._layers, self._gate_up, keys, values, strict=True):
            operations.norm_linear(x, self._ones, _eps(layer), layer.qkv.weight, qkv)
            operations.window_attention(qkv, *angles, rows, some_keys, some_values, heads)
            operations.linear(heads, layer.out.weight, x, residual=x)
            operations.norm_linear(x, self._ones, _eps(layer), gate_up, inner, glu=True)
            operations.linear(inner, layer.down.weight, x, residual=x)


def _gates_first(gate_up: Tensor) -> Tensor:
    """Of rows that alternate (kernels/conv.py), all gates, then all ups (kernels/cuda/linear.cuh)."""
    return gate_up.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1).contiguous()


def _eps(layer: StackLayer) -> float:
    assert layer.qkv.norm_eps is not None and layer.qkv.norm_eps == layer.gate_up.norm_eps, layer
    return layer.qkv.norm_eps
