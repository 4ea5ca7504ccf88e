"""A stream's samples do not depend on the other streams of its ticks, nor on their number."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.config import CodecConfig, parse_codec_config, read_config
from tests.conftest import CheckpointMaker
from tests.runner.codec_streams import random_codes, short_config

pytest.importorskip("triton")

from checkpoint_shapes import published_codec_config
from oscine import kernels
from oscine.kernels.conv import Conv
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.residual_unit import UnitLayers
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.codec_stack import TritonCodecStack
from oscine.runner.cuda.programs import HOPPER, codec_supported
from random_codec import random_codec

DEMO = Path(kernels.__file__).parents[1] / "demo"
MAX_ROWS = 256


@pytest.fixture(scope="module", params=["published", "demo voice"])
def shapes(request: pytest.FixtureRequest) -> CodecConfig:
    if request.param == "published":
        return parse_codec_config(published_codec_config())
    return read_config(DEMO).codec


# --- plans ---


def layers_of(codec: CudaCodec) -> Iterator[Conv]:
    assert isinstance(codec.stack, TritonCodecStack)
    yield from (*codec.front_layers(), *codec.vocoder_layers())
    for layer in codec.stack.layers:
        yield from (layer.qkv, layer.out, layer.gate_up, layer.down)


def units_of(codec: CudaCodec) -> Iterator[UnitLayers]:
    for block in codec.blocks:
        yield from block.units


@pytest.fixture(scope="module")
def planned(shapes: CodecConfig) -> CudaCodec:
    with torch.inference_mode():
        return CudaCodec(random_codec(shapes, "meta"), 1, 1)


def order_of(layer: Conv, rows: int) -> tuple[int, int, int]:
    """What the order of a sum depends on: parts, their length, and the columns that a norm adds up at a time."""
    tile, shape = layer.tile(rows), (layer.taps, layer.inputs, len(layer.weight))
    return tile.splits, tile.span(shape), tile.depth if layer.norm_eps is not None else 0


def test_the_order_of_a_sum_is_the_same_for_any_number_of_rows(planned: CudaCodec) -> None:
    for layer in layers_of(planned):
        orders = {order_of(layer, rows) for rows in range(1, MAX_ROWS + 1)}
        assert len(orders) == 1, (layer.taps, layer.inputs, len(layer.weight), orders)


def test_no_part_of_a_sum_is_empty(planned: CudaCodec) -> None:
    for layer in layers_of(planned):
        parts, span, _ = order_of(layer, 1)
        assert (parts - 1) * span < layer.taps * layer.inputs or parts == 1, (layer.weight.shape, parts, span)


def test_a_unit_of_one_launch_has_the_sums_of_two(planned: CudaCodec) -> None:
    """Its programs add up all of K at once."""
    for unit in units_of(planned):
        if any(unit.tile(rows) for rows in range(1, MAX_ROWS + 1)):
            assert order_of(unit.conv1, 1)[0] == order_of(unit.conv2, 1)[0] == 1, unit.channels


# --- samples ---


def samples(codec: CudaCodec, codes: Tensor, slots: Sequence[int]) -> Tensor:
    """Samples of streams from their start: codes [streams, frames, 16] -> [streams, frames, samples]."""
    device, width = codes.device, codec_width(codec)
    slot = torch.tensor(slots, dtype=torch.int32, device=device)
    for one in slots:
        codec.reset(one)
    made = []
    for frame_codes in codes.unbind(1):
        pcm = torch.empty(len(slots), width, dtype=torch.int16, device=device)
        made.append(torch.empty(len(slots), width, device=device))
        codec.run(frame_codes.contiguous(), slot, pcm, made[-1])
    return torch.stack(made, 1)


def codec_width(codec: CudaCodec) -> int:
    return codec.vocoder_out.columns


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a CPU, in Triton's interpreter")
def test_a_row_alone_equals_the_row_in_batches(small_checkpoints: CheckpointMaker) -> None:
    config = short_config(read_config(small_checkpoints("0b6", "custom_voice")).codec)
    plain = random_codec(config)
    codec = CudaCodec(plain, 17, 17)
    codes = random_codes(plain, 17, 1)
    alone = samples(codec, codes[:1], [16])
    for rows in (3, 17):
        assert torch.equal(samples(codec, codes[:rows], range(rows))[:1], alone), rows


def gpu_codec(config: CodecConfig, kernels: str) -> tuple[Codec, CudaCodec]:
    if kernels == "cuda" and torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("the CUDA kernels are for Hopper GPUs")
    if kernels == "cuda" and not codec_supported(config.decoder.stack):
        pytest.skip("the CUDA kernels have no plans for this transformer: it runs on Triton's")
    codec = random_codec(config, "cuda")
    return codec, CudaCodec(codec, MAX_ROWS, MAX_ROWS, make_operations=CudaOperations if kernels == "cuda" else None)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernels", ["cuda", "triton"])
@torch.inference_mode()
def test_each_row_of_any_batch_equals_the_row_alone(shapes: CodecConfig, kernels: str) -> None:
    plain, codec = gpu_codec(shapes, kernels)
    codes = random_codes(plain, MAX_ROWS, 3).to("cuda")
    alone = torch.cat([samples(codec, codes[row : row + 1], [row]) for row in range(MAX_ROWS)])
    assert alone.isfinite().all() and alone.std() > 0
    different = {}
    for rows in (2, 3, 8, 16, 17, 32, 64, 128, 256):
        slots = list(range(MAX_ROWS - rows, MAX_ROWS))[::-1]  # also in another order than alone
        batch = samples(codec, codes[slots], slots)
        different[rows] = int((batch != alone[slots]).flatten(1).any(1).sum())
    assert not any(different.values()), f"rows that differ from those alone: {different}"
