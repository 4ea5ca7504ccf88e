"""Streams in slots of the torch and cpu codecs equal streams on the plain codec, whatever runs next to them."""

import pytest
import torch
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec
from oscine.model.weights import load_model
from oscine.runner.backend import SlotCodec
from oscine.runner.cpu.codec import CpuCodec
from oscine.runner.torch_backend import TorchCodec
from tests.conftest import CheckpointMaker
from tests.runner.codec_streams import (
    CPU,
    SLOTS,
    PlainStreams,
    random_codes,
    run_ticks,
    slot_vector,
    to_pcm16,
)


@pytest.fixture(scope="module")
def codec(small_checkpoints: CheckpointMaker) -> Codec:
    """Tiny, with the published factors: 1920 samples per frame."""
    return load_model(small_checkpoints("0b6", "custom_voice"), device=CPU).codec


@pytest.fixture(params=[TorchCodec, CpuCodec])
def slots(request: pytest.FixtureRequest, codec: Codec) -> SlotCodec:
    return request.param(codec, SLOTS)


def frame(rows: int = 1) -> Tensor:
    return torch.empty(rows, 1920, dtype=torch.int16)


def assert_same_audio(pcm: Tensor, samples: Tensor) -> None:
    """fp32 sums of another batch size run in another order: a sample may round to the next integer."""
    assert (pcm.int() - to_pcm16(samples).int()).abs().max() <= 1


def test_the_torch_codec_equals_the_plain_codec(codec: Codec) -> None:
    slots, plain = TorchCodec(codec, SLOTS), PlainStreams(codec)
    for rows in ([0], [2, 0], [0, 2, 1]):  # no padding: the same rows in the same order give the same bits
        codes, pcm = random_codes(codec, len(rows), seed=len(rows)), frame(len(rows))
        slots.run(codes, slot_vector(rows, slots.scratch), pcm)
        assert torch.equal(pcm, to_pcm16(plain.tick(rows, codes)))


def test_streams_in_slots_do_not_mix(slots: SlotCodec, codec: Codec) -> None:
    for pcm, samples in run_ticks(slots, PlainStreams(codec)):
        assert_same_audio(pcm, samples)


def test_slots_equal_the_plain_codec_past_the_attention_window(slots: SlotCodec, codec: Codec) -> None:
    frames = 84
    codes, pcm = random_codes(codec, 1, frames), frame()
    whole = codec.decode_whole(codes)
    for index in range(frames):
        slots.run(codes[:, index], slot_vector([1], slots.scratch), pcm)
        assert_same_audio(pcm, whole[:, index * 1920 : (index + 1) * 1920])


def test_a_slot_continues_from_a_stream_state(slots: SlotCodec, codec: Codec) -> None:
    codes, pcm = random_codes(codec, 1, 9), frame()
    _, state = codec.decode(codes[:, :8])
    slots.load_state(1, state)
    slots.run(codes[:, 8], slot_vector([1], slots.scratch), pcm)
    assert_same_audio(pcm, codec.decode(codes[:, 8:], state)[0])


def test_a_slot_continues_from_another_slots_snapshot(slots: SlotCodec, codec: Codec) -> None:
    codes, pcm = random_codes(codec, 2, 4), frame(2)
    slots.run(codes[:, 0], slot_vector([0, 2], slots.scratch), pcm)
    for index in (1, 2):
        slots.run(codes[:1, index], slot_vector([0], slots.scratch), pcm[:1])
    slots.restore(2, slots.snapshot(0))
    slots.run(codes[:1, 3].expand(2, -1), slot_vector([0, 2], slots.scratch), pcm)
    assert torch.equal(pcm[0], pcm[1]) and pcm.any()


def test_the_end_of_speech_code_is_accepted(slots: SlotCodec) -> None:
    slots.run(torch.full((1, CODEBOOKS), 2150), slot_vector([0], slots.scratch), frame())


def test_nbytes_is_the_size_of_all_states(slots: SlotCodec, codec: Codec) -> None:
    assert slots.nbytes == (SLOTS + 1) * codec.start(1, CPU).nbytes
