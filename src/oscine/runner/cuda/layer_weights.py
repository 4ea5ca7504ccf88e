"""The weights of a transformer stack in the form in which the kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from oscine.kernels.fp8 import Weight
from oscine.model.layers import Stack


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor
    qkv: Weight
    q_norm: Tensor
    k_norm: Tensor
    out: Weight
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight


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
    """Frees the matrices of a stack whose `layer_weights` are copies. Only the kernels can run it from then on."""
    for layer in stack.layers:
        for _, linear in _products(layer):
            linear.weight.data = linear.weight.data.new_empty(0)


def _products(layer: Any) -> Iterator[tuple[str, nn.Linear]]:
    yield "qkv", layer.attention.qkv
    yield "out", layer.attention.out
    yield "gate_up", layer.mlp.gate_up
    yield "down", layer.mlp.down
