"""codec_window.onnx: windows of codes give the samples of our streaming decoder."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from oscine.errors import RequestError
from oscine.export import CodecWindow, codec_window, export_codec_window, read_codec_window
from oscine.model.codec import Codec
from oscine.model.weights import load_model
from tests.conftest import CheckpointMaker

pytestmark = pytest.mark.slow

NEW_FRAMES = 4


@pytest.fixture(scope="module")
def folder(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("0b6", "base")


@pytest.fixture(scope="module")
def codec(folder: Path) -> Codec:
    return load_model(folder, device=torch.device("cpu"), parts=["codec"]).codec


@pytest.fixture(scope="module")
def window(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CodecWindow:
    """One export for the module, with a finite context."""
    path = tmp_path_factory.mktemp("export") / "codec_window.onnx"
    return export_codec_window(folder, path, left_context_frames=60, new_frames=NEW_FRAMES)


@pytest.fixture(scope="module")
def session(window: CodecWindow) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(window.path, providers=["CPUExecutionProvider"])


def rows_at(codes: np.ndarray, ages: list[int], new: int, context: int) -> tuple[np.ndarray, np.ndarray]:
    """What a server sends for streams that have spoken `ages` frames of `codes` [streams, frames, 16]."""
    rows = np.zeros((len(ages), context + new, 16), dtype=np.int64)
    kept = np.minimum(ages, context)
    for row, (age, before) in enumerate(zip(ages, kept.tolist(), strict=True)):
        rows[row, : before + new] = codes[row, age - before : age + new]
    return rows, kept[:, None]


@pytest.mark.parametrize("new", [1, NEW_FRAMES, 7])
def test_streams_of_all_ages_share_a_batch_and_are_exact_while_the_window_holds_their_past(
    codec: Codec, window: CodecWindow, session: onnxruntime.InferenceSession, new: int
) -> None:
    ages = [0, 1, 9, 40, window.left_context_frames]
    codes = torch.randint(0, 2048, (len(ages), 100, 16), generator=torch.Generator().manual_seed(1))
    whole = codec.decode_whole(codes).numpy()
    rows, context = rows_at(codes.numpy(), ages, new, window.left_context_frames)
    (samples,) = session.run(["samples"], {"codes": rows, "context_frames": context})
    assert samples.shape == (len(ages), new * window.samples_per_frame)
    for row, age in enumerate(ages):
        expected = whole[row, age * window.samples_per_frame :][: new * window.samples_per_frame]
        np.testing.assert_allclose(samples[row], expected, rtol=0, atol=codec_window.SAMPLE_TOLERANCE)


def test_padding_after_the_new_frames_changes_nothing(
    window: CodecWindow, session: onnxruntime.InferenceSession
) -> None:
    codes = np.random.default_rng(2).integers(0, 2048, (1, window.window_frames, 16))
    context = np.array([[3]])
    (samples,) = session.run(["samples"], {"codes": codes, "context_frames": context})
    codes[:, 3 + NEW_FRAMES :] = 7
    (padded,) = session.run(["samples"], {"codes": codes, "context_frames": context})
    np.testing.assert_array_equal(samples, padded)


def test_the_file_describes_itself(window: CodecWindow) -> None:
    assert read_codec_window(window.path) == window
    assert window.window_frames == 60 + NEW_FRAMES
    assert (window.samples_per_frame, window.sample_rate_hz, window.codebooks) == (1920, 24000, 16)
    assert 0 < window.max_error < codec_window.SAMPLE_TOLERANCE < window.context_error


def test_only_the_exact_context_leaves_no_error(codec: Codec) -> None:
    exact = codec_window.exact_context_frames(codec.config.decoder)
    assert codec_window.context_error(codec, exact, NEW_FRAMES) < 1e-5
    assert codec_window.context_error(codec, exact // 2, NEW_FRAMES) > 1e-4


@pytest.mark.parametrize(("frames", "new"), [(9, 8), (100_000, 8), (60, 0)])
def test_a_context_that_cannot_work_is_refused_before_the_export(
    folder: Path, tmp_path: Path, frames: int, new: int
) -> None:
    with pytest.raises(RequestError, match=r"got (9|100000|0)"):
        export_codec_window(folder, tmp_path / "codec.onnx", left_context_frames=frames, new_frames=new)
    assert not list(tmp_path.iterdir())
