"""The codec decodes streams: pieces of any size give the same samples; states can be stored, stacked, selected."""

import random

import pytest
import torch
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.streaming import StreamState
from oscine.model.weights import load_model
from tests.codec_states import decode_official, select_rows, stack_states
from tests.conftest import CheckpointMaker

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
WINDOW_FRAMES = 72
ATOL = 1e-5  # samples are in -1..1; other pieces change the order of sums, measured 1e-6


@pytest.fixture(scope="module")
def codec(small_checkpoints: CheckpointMaker) -> Codec:
    return load_model(small_checkpoints("0b6", "custom_voice"), device=CPU).codec


def random_codes(batch: int, frames: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 2048, (batch, frames, 16), generator=torch.Generator().manual_seed(seed))


def ragged(frames: int, seed: int) -> list[int]:
    """Random piece sizes, mostly small, like those of a busy model."""
    rng, pieces = random.Random(seed), []
    while left := frames - sum(pieces):
        pieces.append(min(left, rng.choice((1, 1, 1, 2, 3, 7, 20, WINDOW_FRAMES, 90))))
    return pieces


def in_pieces(codec: Codec, codes: Tensor, pieces: list[int], state: StreamState | None = None) -> Tensor:
    samples = []
    for piece in codes.split(pieces, dim=1):
        made, state = codec.decode(piece, state)
        samples.append(made)
    return torch.cat(samples, dim=1)


def assert_close(left: Tensor, right: Tensor, atol: float = ATOL) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=atol)


@pytest.mark.parametrize("pieces", [[1] * 75 + [65], [71, 1, 68], [72, 68], *(ragged(140, seed) for seed in range(3))])
def test_audio_does_not_depend_on_how_frames_arrive(codec: Codec, pieces: list[int]) -> None:
    codes = random_codes(2, 140)
    whole, _ = codec.decode(codes)
    assert whole.shape == (2, 140 * 1920)
    assert whole.abs().max() <= 1
    assert whole.std() > 0.05
    assert_close(in_pieces(codec, codes, pieces), whole)


def test_decode_whole_is_one_forward(codec: Codec) -> None:
    codes = random_codes(1, 230, seed=1)
    assert_close(codec.decode_whole(codes), codec.decode(codes)[0])


def test_up_to_300_frames_official_windows_are_exact(codec: Codec) -> None:
    codes = random_codes(1, 301, seed=2)
    exact, official = codec.decode_whole(codes), decode_official(codec, codes)
    assert exact.shape == official.shape
    assert_close(official[:, : 300 * 1920], exact[:, : 300 * 1920])
    assert (official - exact)[:, 300 * 1920 :].abs().max() > 1e-3  # beyond, the official window lacks earlier frames


def test_a_row_alone_equals_the_row_in_a_batch(codec: Codec) -> None:
    codes = random_codes(3, 90, seed=3)
    batch, _ = codec.decode(codes)
    for row in range(3):
        assert_close(codec.decode(codes[row : row + 1])[0], batch[row : row + 1])


def test_later_codes_never_change_earlier_samples(codec: Codec) -> None:
    codes = random_codes(1, 80, seed=4)
    whole, _ = codec.decode(codes)
    for frames in (1, 33, 79):
        other = codes.clone()
        other[:, frames:] = random_codes(1, 80 - frames, seed=5)
        changed, _ = codec.decode(other)
        assert torch.equal(changed[:, : frames * 1920], whole[:, : frames * 1920])
        assert not torch.equal(changed[:, frames * 1920 :], whole[:, frames * 1920 :])


def test_decoding_twice_from_a_state_gives_the_same_samples(codec: Codec) -> None:
    codes = random_codes(2, 100, seed=6)
    _, state = codec.decode(codes[:, :80])
    kept = StreamState(state.frames.clone(), tuple(tail.clone() for tail in state.tails))
    first, after_first = codec.decode(codes[:, 80:], state)
    codec.decode(random_codes(2, 30, seed=7), state)
    again, after_again = codec.decode(codes[:, 80:], state)
    assert torch.equal(first, again)
    for left, right in ((state, kept), (after_first, after_again)):
        assert torch.equal(left.frames, right.frames)
        assert all(torch.equal(*tails) for tails in zip(left.tails, right.tails, strict=True))


def test_the_start_state_equals_no_state(codec: Codec) -> None:
    codes = random_codes(2, 20, seed=8)
    samples, state = codec.decode(codes)
    started, after_start = codec.decode(codes, codec.start(2, CPU))
    assert_close(started, samples)
    assert torch.equal(after_start.frames, state.frames)
    assert [tail.shape for tail in after_start.tails] == [tail.shape for tail in state.tails]


def test_a_state_does_not_grow_with_the_stream(codec: Codec) -> None:
    _, short = codec.decode(random_codes(1, 1))
    _, long = codec.decode(random_codes(1, 200))
    assert short.nbytes == long.nbytes == codec.start(1, CPU).nbytes
    # Its tails do not keep the larger tensors alive that they are views of.
    assert sum(tail.untyped_storage().nbytes() for tail in long.tails) <= 2 * long.nbytes


def test_the_config_derives_the_layout_of_a_state(codec: Codec) -> None:
    config, tails = codec.config.decoder, [tail[0] for tail in codec.start(1, CPU).tails]
    caches = 2 * config.stack.layers  # keys and values follow the first convolution's tail
    columns = [tails[0], *tails[1 + caches :]]
    assert [tuple(tail.shape) for tail in columns] == [(one.channels, one.past) for one in config.conv_inputs]
    assert config.state_elements == sum(tail.numel() for tail in tails)
    assert config.conv_inputs[-1].columns == config.samples_per_frame == codec.config.samples_per_frame


def test_streams_of_different_ages_share_a_batch(codec: Codec) -> None:
    ages = (0, 1, 70, 72, 90)
    codes = random_codes(len(ages), 100, seed=9)
    states = [codec.start(1, CPU)]
    states += [codec.decode(codes[row : row + 1, :age])[1] for row, age in enumerate(ages) if age]
    following = torch.stack([codes[row, age : age + 10] for row, age in enumerate(ages)])
    together, after = codec.decode(following, stack_states(states))
    assert after.frames.tolist() == [age + 10 for age in ages]
    for row, state in enumerate(states):
        alone, _ = codec.decode(following[row : row + 1], state)
        assert_close(together[row : row + 1], alone)


def test_selected_rows_of_a_batch_continue_alone(codec: Codec) -> None:
    codes = random_codes(4, 110, seed=10)
    whole, _ = codec.decode(codes)
    _, state = codec.decode(codes[:, :85])
    selected = torch.tensor([3, 1, 1])
    samples, _ = codec.decode(codes[selected, 85:], select_rows(state, selected))
    assert_close(samples, whole[selected, 85 * 1920 :])


@pytest.mark.parametrize("age", [40_000, 1_080_000])  # 53 minutes, a day
def test_precision_does_not_decay_with_the_age_of_a_stream(codec: Codec, age: int) -> None:
    # Zero tails are valid at any age: RoPE does not change zero keys.
    codes, empty = random_codes(1, 150, seed=11), codec.start(1, CPU)
    young, old = (StreamState(torch.tensor([frames]), empty.tails) for frames in (100, age))
    pieces = ragged(150, seed=5)
    assert_close(in_pieces(codec, codes, pieces, old), in_pieces(codec, codes, pieces, young), atol=1e-4)
