"""The exported files, run by onnxruntime, against our own modules. One export serves all tests: it takes a while."""

import json
import re
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from oscine import Oscine
from oscine.audio.clips import write_wav
from oscine.errors import ExportError, RequestError
from oscine.export import CodecWindow, ExportedFile, export_codec_window, export_parts, read_codec_window, read_file
from oscine.export.codec_step import NEXT, start_states
from oscine.export.codec_window import SAMPLE_TOLERANCE, context_error, exact_context_frames
from oscine.model.codec import Codec
from oscine.model.weights import load_model
from tests.conftest import ROOT, CheckpointMaker

pytestmark = pytest.mark.slow

CONTEXT_FRAMES, NEW_FRAMES = 60, 4
SAMPLES_PER_FRAME = 1920
GUIDE = ROOT / "docs" / "guides" / "export.md"


@pytest.fixture(scope="module")
def checkpoint(small_checkpoints: CheckpointMaker) -> Path:
    """The exporter takes a time for each operation; tests/tritonserver exports a codec with all its blocks."""
    return small_checkpoints("0b6", "base", few_blocks=True)


@pytest.fixture(scope="module")
def files(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedFile]:
    folder = tmp_path_factory.mktemp("work") / "exported"
    made = export_parts(checkpoint, folder, left_context_frames=CONTEXT_FRAMES, new_frames=NEW_FRAMES)
    assert sorted(path.name for path in folder.iterdir()) == sorted(file.path.name for file in made)
    return {file.part: file for file in made}


@pytest.fixture(scope="module")
def codec(checkpoint: Path) -> Codec:
    return load_model(checkpoint, device=torch.device("cpu"), parts=["codec"]).codec


@pytest.fixture(scope="module")
def window(files: dict[str, ExportedFile]) -> CodecWindow:
    return CodecWindow.of(files["codec-window"])


def session(file: ExportedFile) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file.path, providers=["CPUExecutionProvider"])


def random_codes(rows: int, frames: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 2048, (rows, frames, 16), generator=torch.Generator().manual_seed(seed))


def assert_close(samples: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(samples, expected, rtol=0, atol=SAMPLE_TOLERANCE)


@pytest.mark.parametrize("new", [1, NEW_FRAMES, 7])
def test_a_window_is_exact_for_streams_of_all_ages_whose_past_it_holds(
    files: dict[str, ExportedFile], codec: Codec, new: int
) -> None:
    ages = [0, 1, 9, 40, CONTEXT_FRAMES]
    codes = random_codes(len(ages), CONTEXT_FRAMES + new, seed=1)
    rows = np.zeros((len(ages), CONTEXT_FRAMES + new, 16), dtype=np.int64)
    for row, age in enumerate(ages):
        rows[row, : age + new] = codes[row, : age + new]
    inputs = {"codes": rows, "context_frames": np.array(ages)[:, None]}
    (samples,) = session(files["codec-window"]).run(["samples"], inputs)
    whole = codec.decode_whole(codes).numpy()
    for row, age in enumerate(ages):
        assert_close(samples[row], whole[row, age * SAMPLES_PER_FRAME : (age + new) * SAMPLES_PER_FRAME])


def test_padding_after_the_new_frames_changes_nothing(files: dict[str, ExportedFile]) -> None:
    codes = random_codes(1, CONTEXT_FRAMES + NEW_FRAMES, seed=2).numpy()
    run, context = session(files["codec-window"]).run, np.array([[3]])
    (samples,) = run(["samples"], {"codes": codes, "context_frames": context})
    codes[:, 3 + NEW_FRAMES :] = 7
    (padded,) = run(["samples"], {"codes": codes, "context_frames": context})
    np.testing.assert_array_equal(samples, padded)


def test_only_the_exact_context_leaves_no_error(codec: Codec, window: CodecWindow) -> None:
    assert window.exact_context_frames == exact_context_frames(codec.config.decoder)
    assert context_error(codec, window.exact_context_frames, NEW_FRAMES) < 1e-5
    assert window.context_error == context_error(codec, CONTEXT_FRAMES, NEW_FRAMES) > 1e-4


def test_streams_join_and_leave_a_batch_of_steps(files: dict[str, ExportedFile], codec: Codec) -> None:
    facts, step = files["codec-step"].facts, session(files["codec-step"])
    names = [output.name for output in step.get_outputs()]
    codes = random_codes(2, 90, seed=3)
    whole = codec.decode_whole(codes).numpy()

    def run(states: dict[str, np.ndarray], new: torch.Tensor) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        made = dict(zip(names, step.run(names, {"codes": new.numpy(), **states}), strict=True))
        return made["samples"], {name: made[NEXT + name] for name in states}

    first, old = run(start_states(facts["states"], 1), codes[:1, :80])
    both = {name: np.concatenate((old[name], zeros)) for name, zeros in start_states(facts["states"], 1).items()}
    together, both = run(both, torch.stack((codes[0, 80:83], codes[1, :3])))
    last, _ = run({name: state[:1] for name, state in both.items()}, codes[:1, 83:])
    assert_close(np.concatenate((first[0], together[0], last[0])), whole[0])
    assert_close(together[1], whole[1, : 3 * SAMPLES_PER_FRAME])


def test_a_file_describes_itself(files: dict[str, ExportedFile], window: CodecWindow) -> None:
    for file in files.values():
        assert read_file(file.path) == file
        stored = {one.key: one.value for one in onnx.load(file.path).metadata_props}
        assert json.loads(stored["oscine"])["max_error"] == file.max_error <= file.tolerance
        assert stored["oscine_version"] and stored["oscine_commit"] and len(stored["checkpoint_sha256"]) == 64
        assert list(json.loads(stored["inputs"])) == [one.name for one in session(file).get_inputs()]
    assert read_codec_window(window.path) == window
    assert window.window_frames == CONTEXT_FRAMES + NEW_FRAMES
    with pytest.raises(ExportError, match="holds the codec-step"):
        read_codec_window(files["codec-step"].path)


# The guide


def run_block(number: int, folder: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", blocks[number]], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]


def wav_samples(path: Path) -> np.ndarray:
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32767


@pytest.mark.parametrize("block", [0, 1], ids=["step", "window"])
def test_the_guide_decodes_codes_with_plain_onnxruntime(
    files: dict[str, ExportedFile], codec: Codec, block: int
) -> None:
    work = files["codec-step"].path.parent.parent
    codes = random_codes(1, 50, seed=4)
    np.save(work / "codes.npy", codes[0].numpy())
    run_block(block, work)
    np.testing.assert_allclose(wav_samples(work / "speech.wav"), codec.decode_whole(codes)[0], rtol=0, atol=2**-14)


def test_the_guide_clones_a_voice_with_plain_onnxruntime(files: dict[str, ExportedFile], checkpoint: Path) -> None:
    work = files["codec-step"].path.parent.parent
    noise = np.random.default_rng(5).normal(0, 0.1, 50_000).astype(np.float32)
    write_wav(work / "clip.wav", noise, 24_000)
    run_block(2, work)
    with Oscine(checkpoint, device="cpu", slots=1) as tts:
        voice = tts.clone(work / "clip.wav", "Some words.")
    np.testing.assert_array_equal(np.load(work / "reference_codes.npy"), voice.reference_codes)
    np.testing.assert_allclose(np.load(work / "speaker.npy"), voice.speaker, rtol=0, atol=1e-4)


# What cannot work is refused before anything is exported


@pytest.mark.parametrize(("context", "new"), [(3, 8), (100_000, 8), (60, 0)])
def test_a_window_that_cannot_work_is_refused(checkpoint: Path, tmp_path: Path, context: int, new: int) -> None:
    with pytest.raises(RequestError, match=r"got (3|100000|0)$"):
        export_codec_window(checkpoint, tmp_path / "codec.onnx", left_context_frames=context, new_frames=new)
    assert not list(tmp_path.iterdir())


def test_only_base_checkpoints_have_encoders(small_checkpoints: CheckpointMaker, tmp_path: Path) -> None:
    folder = small_checkpoints("0b6", "custom_voice")
    with pytest.raises(
        RequestError, match=r"a custom_voice checkpoint has no speaker-encoder \(possible: codec-window"
    ):
        export_parts(folder, tmp_path, only=["speaker-encoder"])
