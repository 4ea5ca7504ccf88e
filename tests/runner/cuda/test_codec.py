"""The codec on Triton kernels: bf16 against the fp32 model. On a CPU the kernels run in Triton's interpreter."""

from unittest.mock import Mock

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.config import CodecConfig, read_config
from random_codec import random_codec
from tests.conftest import CheckpointMaker
from tests.runner.codec_streams import (
    CPU,
    SLOTS,
    PlainStreams,
    random_codes,
    run_ticks,
    short_config,
    slot_vector,
    to_pcm16,
)

pytest.importorskip("triton")

from oscine.kernels import residual_unit
from oscine.kernels.conv_tiles import UNITS, UnitTile
from oscine.kernels.cuda.operations import CudaOperations
from oscine.runner.cuda.codec import CodecRings, CudaCodec, ring_state_elements
from oscine.runner.cuda.programs import HOPPER

pytestmark = pytest.mark.slow

# Root mean square of the error over that of the audio, all frames together. bf16 has 8 bits and each of some 30 layers
# rounds: measured 0.006 to 0.013; PyTorch's own bf16 run of the short codec is off by 0.015.
TOLERANCE = 0.02

# Compiled kernels are tested at the published sizes, below.
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a CPU, in Triton's interpreter")


@pytest.fixture(scope="module")
def config(small_checkpoints: CheckpointMaker) -> CodecConfig:
    return read_config(small_checkpoints("0b6", "custom_voice")).codec


@pytest.fixture(scope="module")
def codec(config: CodecConfig) -> Codec:
    return random_codec(short_config(config))


def relative_error(errors: list[Tensor], samples: list[Tensor]) -> float:
    return float(torch.cat(errors).norm() / torch.cat(samples).norm())


def test_the_memory_plan_has_the_size_of_the_rings(config: CodecConfig) -> None:
    rings = CodecRings(config.decoder, SLOTS, CPU)
    assert rings.nbytes - rings.frames.nbytes == (SLOTS + 1) * 2 * ring_state_elements(config.decoder)


def test_alignment_adds_less_than_half_to_the_state(codec: Codec) -> None:
    state = CodecRings(codec.config.decoder, SLOTS, CPU)
    rings = sum(ring.numel() * ring.element_size() for ring in state.rings)
    cache = state.keys.nbytes + state.values.nbytes
    assert rings + cache <= state.nbytes < 1.5 * (rings + cache)


@interpreted
def test_streams_in_slots_do_not_mix(codec: Codec) -> None:
    slots = CudaCodec(codec, SLOTS, max_rows=4)
    errors, audio = [], []
    for pcm, samples in run_ticks(slots, PlainStreams(codec)):
        errors.append(pcm / 32767 - samples)
        audio.append(samples)
        assert relative_error(errors[-1:], audio[-1:]) < 2 * TOLERANCE  # no frame far worse than the others
    print(f"relative error {relative_error(errors, audio):.4f}")
    assert relative_error(errors, audio) < TOLERANCE
    assert slots.state.frames[:SLOTS].tolist() == [5, 2, 2]


@interpreted
def test_units_of_one_launch_make_the_same_audio(config: CodecConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    short = short_config(config)
    codec = random_codec(replace(short, decoder=replace(short.decoder, decoder_dim=64)))  # units of 32 channels
    fused = Mock(wraps=residual_unit.fused_unit)
    monkeypatch.setattr(residual_unit, "fused_unit", fused)
    monkeypatch.setitem(UNITS, 32, (UnitTile(16, 16, 16, 4, 2),) * 4)
    errors, audio = [], []
    for pcm, samples in run_ticks(CudaCodec(codec, SLOTS, max_rows=4), PlainStreams(codec)):
        errors.append(pcm / 32767 - samples)
        audio.append(samples)
    assert fused.call_count == 3 * len(audio)
    assert relative_error(errors, audio) < TOLERANCE


@interpreted
def test_a_slot_continues_from_a_stream_state(codec: Codec) -> None:
    """The state has fewer frames than the window has, or more."""
    frames_before = {2: 2, 0: 11}  # by slot
    slots, plain = CudaCodec(codec, SLOTS, max_rows=2), PlainStreams(codec)
    slot = slot_vector([2, 0], slots.scratch)
    pcm, out = torch.zeros(2, 12, dtype=torch.int16), torch.zeros(2, 12)
    slots.run(random_codes(codec, 2, seed=9), slot, pcm)  # another stream used the slots before
    for row, frames in frames_before.items():
        _, plain.states[row] = codec.decode(random_codes(codec, 1, frames, seed=row))
        slots.load_state(row, plain.states[row])
    errors, audio = [], []
    for frame in range(2):
        codes = random_codes(codec, 2, seed=20 + frame)
        slots.run(codes, slot, pcm, out)
        audio.append(plain.tick([2, 0], codes))
        errors.append(out - audio[-1])
        assert torch.equal(pcm, to_pcm16(out))
    print(f"relative error {relative_error(errors, audio):.4f}")
    assert relative_error(errors, audio) < TOLERANCE


@interpreted
def test_a_slot_continues_from_another_slots_snapshot(codec: Codec) -> None:
    """Past the window, so that every ring has wrapped."""
    slots = CudaCodec(codec, SLOTS, max_rows=2)
    slot, pcm = slot_vector([2, 0], slots.scratch), torch.zeros(2, 12, dtype=torch.int16)
    slots.run(random_codes(codec, 2, seed=9), slot, pcm)
    for frame in range(3):
        slots.run(random_codes(codec, 1, seed=frame), slot[:1], pcm[:1])
    slots.restore(0, slots.snapshot(2))
    for frame in range(2):
        slots.run(random_codes(codec, 1, seed=20 + frame).expand(2, -1).contiguous(), slot, pcm)
        assert torch.equal(pcm[0], pcm[1]) and pcm.any()


@interpreted
def test_a_reset_slot_starts_a_new_stream(codec: Codec) -> None:
    slots, slot, pcm = (
        CudaCodec(codec, SLOTS, max_rows=1),
        slot_vector([1], SLOTS),
        torch.zeros(1, 12, dtype=torch.int16),
    )
    streams = []
    for _ in range(2):
        slots.reset(1)
        for frame in range(2):
            slots.run(random_codes(codec, 1, seed=frame), slot, pcm)
            streams.append(pcm.clone())
    assert torch.equal(torch.cat(streams[:2]), torch.cat(streams[2:])) and streams[0].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernels", ["triton", "cuda"])
def test_published_sizes_under_a_graph(config: CodecConfig, kernels: str) -> None:
    from tests.kernels.measures import graph_seconds

    if kernels == "cuda" and torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("the CUDA kernels are for Hopper GPUs")
    cuda, decoder = torch.device("cuda"), config.decoder
    stack = replace(decoder.stack, width=512, inner=1024, layers=8, heads=16, kv_heads=16, head_dim=64)
    decoder = replace(decoder, stack=stack, codebook_dim=512, latent=1024, decoder_dim=1536)
    codec = random_codec(replace(config, decoder=decoder)).to(cuda)
    slots = CudaCodec(codec, 128, max_rows=128, make_operations=CudaOperations if kernels == "cuda" else None)
    print(f"\n{slots.nbytes / 129 / 2**20:.1f} MiB per slot")
    codes = random_codes(codec, 3, 84).to(cuda)
    whole = codec.decode_whole(codes)
    slot, pcm = slot_vector([5, 0, 90], slots.scratch, cuda), torch.empty(3, 1920, dtype=torch.int16, device=cuda)
    frame_codes, graph = codes[:, 0].clone(), torch.cuda.CUDAGraph()
    slots.run(frame_codes, slot, pcm)  # compiles the kernels
    with torch.cuda.graph(graph):
        slots.run(frame_codes, slot, pcm)
    for used in (5, 0, 90):
        slots.reset(used)
    frames = []
    for frame in range(84):
        frame_codes.copy_(codes[:, frame])
        graph.replay()
        frames.append(pcm / 32767)
    error = relative_error([torch.cat(frames, 1) - whole], [whole])
    for rows in (1, 8, 32, 128):
        inputs = random_codes(codec, rows).to(cuda), torch.arange(rows, dtype=torch.int32, device=cuda)
        out = torch.empty(rows, 1920, dtype=torch.int16, device=cuda)
        print(f"B={rows}: {graph_seconds(lambda: slots.run(*inputs, out)) * 1e3:.3f} ms per frame")  # noqa: B023
    rounded = codec.bfloat16().decode_whole(codes).float()
    plain_error = relative_error([rounded - whole], [whole])
    print(f"84 frames: relative error {error:.4f}, PyTorch in bf16 {plain_error:.4f}")
    assert error < 1.2 * plain_error
