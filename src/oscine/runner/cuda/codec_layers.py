"""Converts the codec's weights to the kernels' layout: channels last, bf16, computed in fp64 and rounded once.

Scales, weights of norms, and adjacent linear layers are folded together here. (Any: the elements of a ModuleList are
typed as Module, whose attributes have no types.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oscine.kernels.conv import Conv
from oscine.kernels.residual_unit import UnitLayers
from oscine.model.codec import Codec, ConvNeXt
from oscine.model.streaming import CausalConv, CausalUpsample, Snake


@dataclass(frozen=True, slots=True, eq=False)
class StackLayer:
    qkv: Conv
    out: Conv
    gate_up: Conv
    down: Conv


@dataclass(frozen=True, slots=True, eq=False)
class Upsampling:
    """An upsampling convolution and the ConvNeXt block after it."""

    upsample: Conv
    columns: int  # after the upsampling
    depthwise: tuple[Tensor, Tensor, float]  # weight [taps, channels], bias, eps of the norm
    up: Conv
    down: Conv


@dataclass(frozen=True, slots=True, eq=False)
class VocoderLayers:
    """One block of the vocoder."""

    upsample: Conv
    units: list[UnitLayers]


def _layer(weight: Tensor, columns: int, *, bias: Tensor | None = None, **options: Any) -> Conv:
    return Conv(weight.to(torch.bfloat16).contiguous(), columns, bias=None if bias is None else bias.float(), **options)


def _snake(snake: Snake | None) -> dict[str, Any]:
    return {"activation": "snake", "snake": (snake.rate[:, 0].float(), snake.depth[:, 0].float())} if snake else {}


def _bias(layer: nn.Module) -> Tensor:
    assert isinstance(layer.bias, Tensor)
    return layer.bias.double()


def conv_layer(layer: CausalConv, columns: int, *, snake: Snake | None = None) -> Conv:
    weight = layer.weight.permute(0, 2, 1).flatten(1)  # [outputs, taps * inputs]
    (taps,), (dilation,) = layer.kernel_size, layer.dilation
    return _layer(weight, columns, bias=_bias(layer), taps=taps, dilation=dilation, **_snake(snake))


def _phases(layer: CausalUpsample) -> Tensor:
    """Returns [rate * outputs, taps * inputs]: output columns rate * i .. depend on input column i and the ones before
    it."""
    inputs, outputs, _ = layer.weight.shape
    oldest_first = layer.weight.double().view(inputs, outputs, -1, layer.rate).flip(2)
    return oldest_first.permute(3, 1, 2, 0).reshape(layer.rate * outputs, -1)


def _upsample_layer(layer: CausalUpsample, columns: int, *, snake: Snake | None = None) -> Conv:
    bias = _bias(layer).repeat(layer.rate)
    return _layer(_phases(layer), columns, bias=bias, taps=layer.past + 1, phases=layer.rate, **_snake(snake))


def into_stack(codec: Codec) -> Conv:
    """Joins pre_conv and the stack's input projection, which are adjacent, in one layer."""
    project, conv = codec.stack_in, codec.pre_conv
    weight = torch.einsum("sl,lwk->skw", project.weight.double(), conv.weight.double()).flatten(1)
    bias = project.weight.double() @ _bias(conv) + _bias(project)
    return _layer(weight, 1, bias=bias, taps=conv.kernel_size[0])


def stack_layer(layer: Any, eps: float) -> StackLayer:
    attention, mlp = layer.attention, layer.mlp
    gate, up = (mlp.gate_up.weight.double() * layer.mlp_norm.weight).chunk(2)
    return StackLayer(
        qkv=_layer(attention.qkv.weight.double() * layer.attention_norm.weight, 1, norm_eps=eps),
        out=_layer(layer.attention_scale.scale[:, None] * attention.out.weight.double(), 1),
        gate_up=_layer(torch.stack((gate, up), dim=1).flatten(0, 1), 1, norm_eps=eps, activation="swiglu"),
        down=_layer(layer.mlp_scale.scale[:, None] * mlp.down.weight.double(), 1),
    )


def upsamplings(codec: Any) -> Iterator[Upsampling]:
    columns = 1
    for upsample, convnext in zip(codec.upsamples, codec.convnexts, strict=True):
        assert upsample.past == 0, upsample.past
        if columns == 1:
            # The stack's last norm and output projection are folded into the first upsampling.
            norm, project, phases = codec.stack.norm, codec.stack_out, _phases(upsample)
            weight = phases @ project.weight.double() * norm.weight
            bias = phases @ _bias(project) + _bias(upsample).repeat(upsample.rate)
            layer = _layer(weight, 1, bias=bias, phases=upsample.rate, norm_eps=norm.eps)
        else:
            layer = _upsample_layer(upsample, columns)
        columns *= upsample.rate
        yield Upsampling(layer, columns, *_convnext(convnext, columns))


def _convnext(block: ConvNeXt, columns: int) -> tuple[tuple[Tensor, Tensor, float], Conv, Conv]:
    depthwise = block.depthwise.weight[:, 0].T.to(torch.bfloat16).contiguous()
    wide, gamma = block.up.weight.double(), block.gamma.double()
    up_bias = wide @ _bias(block.norm) + _bias(block.up)
    return (
        (depthwise, _bias(block.depthwise).float(), block.norm.eps),
        _layer(wide * block.norm.weight, columns, bias=up_bias, activation="gelu"),
        _layer(gamma[:, None] * block.down.weight, columns, bias=gamma * _bias(block.down)),
    )


def vocoder_block(block: Any, columns: int, after: Snake) -> VocoderLayers:
    """Converts one block. `after` is the snake of the layer that follows it."""
    upsample = _upsample_layer(block.upsample, columns, snake=block.units[0].snake1)
    columns *= block.upsample.rate
    units: list[UnitLayers] = []
    followers = [*(unit.snake1 for unit in block.units[1:]), after]
    for unit, follower in zip(block.units, followers, strict=True):
        conv1 = conv_layer(unit.conv1, columns, snake=unit.snake2)
        units.append(UnitLayers(conv1, conv_layer(unit.conv2, columns, snake=follower)))
    return VocoderLayers(upsample, units)
