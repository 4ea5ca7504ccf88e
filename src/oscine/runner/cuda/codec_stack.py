"""Runs the codec's transformer, one frame per row, on Triton's convolutions or on the CUDA kernels of a decode step.

They round at different places (kernels/conv.py, kernels/cuda/linear.cuh): CUDA's kernels also round normed rows, gates,
ups, and sums before the residual to bf16.
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
    def __init__(self, layers: Sequence[StackLayer], max_rows: int) -> None:
        self.layers = layers
        self._buffers = _Buffers.allocate(layers[0], max_rows)
        products = [one for layer in layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        self._workspace = Workspace(products, max_rows, products[0].weight.device)

    def run(self, x: Tensor, rows: Rows, angles: Angles, keys: Tensor, values: Tensor) -> None:
        workspace, buffers = self._workspace, self._buffers
        qkv, heads, inner = (buffer[: len(rows)] for buffer in (buffers.qkv, buffers.heads, buffers.inner))
        for layer, some_keys, some_values in zip(self.layers, keys, values, strict=True):
            conv(layer.qkv, x, rows, workspace, raw=qkv)
            attend(qkv, some_keys, some_values, angles, rows, heads)
            conv(layer.out, heads, rows, workspace, residual=x, raw=x)
            conv(layer.gate_up, x, rows, workspace, out=inner)
            conv(layer.down, inner, rows, workspace, residual=x, raw=x)


@dataclass(frozen=True, slots=True, eq=False)
class _Weights:
    qkv: Tensor
    out: Tensor
    gate_up: Tensor  # all gates, then all ups (kernels/cuda/linear.cuh)
    down: Tensor

    @staticmethod
    def of(layer: StackLayer) -> _Weights:
        gate_up = layer.gate_up.weight.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1).contiguous()
        return _Weights(layer.qkv.weight, layer.out.weight, gate_up, layer.down.weight)


class CudaCodecStack:
    """Runs on a stream of its own, so its operations share no buffer with those of a decode step."""

    def __init__(self, layers: Sequence[StackLayer], max_rows: int, make_operations: MakeOperations) -> None:
        first = layers[0]
        assert first.qkv.norm_eps is not None, first.qkv.norm_eps
        self._layers, self._eps = [_Weights.of(layer) for layer in layers], first.qkv.norm_eps
        self._buffers = _Buffers.allocate(first, padded_rows(max_rows))
        self._ones = torch.ones_like(first.qkv.weight[0])  # the norms' weights are folded into the products
        self._operations = make_operations(first.qkv.weight.new_zeros(padded_rows(max_rows), first.qkv.inputs))

    def run(self, x: Tensor, rows: Rows, angles: Angles, keys: Tensor, values: Tensor) -> None:
        operations, buffers, count = self._operations, self._buffers, len(rows)
        qkv = buffers.qkv[:count]
        heads, inner = (
            operations.product_input(buffer, count, buffer.shape[1]) for buffer in (buffers.heads, buffers.inner)
        )
        for layer, some_keys, some_values in zip(self._layers, keys, values, strict=True):
            operations.norm_linear(x, self._ones, self._eps, layer.qkv, qkv)
            operations.window_attention(qkv, *angles, rows, some_keys, some_values, heads)
            operations.linear(heads, layer.out, x, residual=x)
            operations.norm_linear(x, self._ones, self._eps, layer.gate_up, inner, glu=True)
            operations.linear(inner, layer.down, x, residual=x)
