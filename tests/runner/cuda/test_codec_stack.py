"""The codec with its transformer on CUDA kernels: they run in the emulator, all others in Triton's interpreter."""

from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("runs on a CPU", allow_module_level=True)

from oscine.kernels.conv import Rows
from oscine.kernels.cuda.linear import FEW_ROWS
from oscine.model.codec import Codec
from oscine.model.config import CodecConfig, read_config
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.codec_layers import StackLayer, stack_layer
from oscine.runner.cuda.codec_stack import CodecStack, CudaCodecStack, TritonCodecStack
from oscine.runner.cuda.programs import codec_programs, codec_supported
from random_codec import random_codec
from tests.conftest import CheckpointMaker
from tests.kernels.cuda.emulated_operations import EmulatedOperations
from tests.runner.codec_streams import SLOTS, PlainStreams, run_ticks, short_config
from tests.runner.cuda.test_codec import TOLERANCE, relative_error

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(small_checkpoints: CheckpointMaker) -> CodecConfig:
    """One layer of the published widths in a codec that is short otherwise."""
    config = short_config(read_config(small_checkpoints("0b6", "custom_voice")).codec)
    sizes = {"width": 512, "inner": 1024, "heads": 16, "kv_heads": 16, "head_dim": 64, "layers": 1}
    return replace(config, decoder=replace(config.decoder, stack=replace(config.decoder.stack, **sizes)))


@pytest.fixture(scope="module")
def codec(config: CodecConfig) -> Codec:
    return random_codec(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


def test_streams_equal_the_plain_codec(codec: Codec, folder: Path) -> None:
    slots = CudaCodec(codec, SLOTS, max_rows=4, make_operations=partial(EmulatedOperations, folder=folder))
    errors, audio = [], []
    for pcm, samples in run_ticks(slots, PlainStreams(codec)):
        errors.append(pcm / 32767 - samples)
        audio.append(samples)
    print(f"relative error {relative_error(errors, audio):.4f}")
    assert relative_error(errors, audio) < TOLERANCE


class Run:
    """Two frames of a few or of many rows; each row has a slot of its own."""

    def __init__(self, codec: Codec, rows: int) -> None:
        config = codec.config.decoder.stack
        generator = torch.Generator().manual_seed(rows)
        self.x = [torch.randn(rows, config.width, generator=generator).bfloat16() for _ in range(2)]
        angles = torch.rand(2, rows, config.head_dim // 2, generator=generator)
        self.angles = angles.cos().contiguous(), angles.sin().contiguous()
        self.cache = (config.layers, rows, config.heads, config.window, config.head_dim)
        self.slots = torch.arange(rows, dtype=torch.int32).flip(0)

    def out(self, stack: CodecStack, rows: slice = slice(None)) -> torch.Tensor:
        keys, values = torch.zeros(2, *self.cache, dtype=torch.bfloat16)
        outs = []
        for frame, x in enumerate(self.x):
            x, slots = x[rows].clone(), self.slots[rows].clone()
            cos, sin = (angle[frame, rows].contiguous() for angle in self.angles)
            stack.run(x, Rows(slots, torch.full_like(slots, frame)), (cos, sin), keys, values)
            outs.append(x)
        return torch.stack(outs)


@pytest.fixture(scope="module")
def layers(codec: Codec) -> list[StackLayer]:
    return [stack_layer(layer, codec.config.decoder.stack.eps) for layer in codec.stack.layers]


@pytest.mark.parametrize("rows", [3, FEW_ROWS + 1])
def test_both_kinds_of_kernels_give_the_same_rows(
    rows: int, codec: Codec, layers: list[StackLayer], folder: Path
) -> None:
    run, made = Run(codec, rows), []

    def make(normed: torch.Tensor) -> EmulatedOperations:
        made.append(EmulatedOperations(normed, folder))
        return made[0]

    cuda = CudaCodecStack(layers, rows, make)
    whole, expected = run.out(cuda), run.out(TritonCodecStack(layers, rows))
    # Measured 0.005: CUDA's kernels round at more places.
    assert relative_error([whole.float() - expected.float()], [expected.float()]) < 0.008
    stack = codec.config.decoder.stack
    assert set(made[0].launched) == set(codec_programs(stack, [rows])), "all programs are compiled at the start"
    assert torch.equal(run.out(cuda, slice(1, 2)), whole[:, 1:2]), "a row alone equals the row in a batch"


def test_other_shapes_run_on_triton(small_checkpoints: CheckpointMaker) -> None:
    stack = read_config(small_checkpoints("0b6", "custom_voice")).codec.decoder.stack
    assert not codec_supported(stack) and codec_programs(stack, [1, 32]) == []
