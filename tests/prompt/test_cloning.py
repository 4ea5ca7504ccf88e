"""Voices are cached by content: samples, rate and transcript, not file name or container."""

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from oscine.audio.clips import Clip
from oscine.errors import VoiceError
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model
from oscine.prompt.cloning import VoiceCloner
from oscine.speech.capabilities import KIND_NAMES
from tests.conftest import CheckpointMaker
from tests.speakers import RATE, noise


@pytest.fixture(scope="module")
def model(small_checkpoints: CheckpointMaker) -> SpeechModel:
    return load_model(small_checkpoints("0b6", "base"), device=torch.device("cpu"))


@pytest.fixture
def encoded(model: SpeechModel) -> Iterator[list[int]]:
    """One entry per run of the speaker encoder."""
    assert model.speaker_encoder is not None
    runs: list[int] = []
    hook = model.speaker_encoder.register_forward_hook(lambda *_: runs.append(1))
    yield runs
    hook.remove()


def wav(samples: np.ndarray, form: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, (samples * 32767).astype(np.int16), RATE, format=form)
    return file.getvalue()


def test_equal_samples_share_a_voice(model: SpeechModel, encoded: list[int], tmp_path: Path) -> None:
    cloner = VoiceCloner(model)
    samples = noise(0.5)
    (tmp_path / "ann.wav").write_bytes(wav(samples))
    (tmp_path / "bob.flac").write_bytes(wav(samples, "FLAC"))
    first = cloner.clone(tmp_path / "ann.wav")
    decoded, _ = soundfile.read(tmp_path / "ann.wav", dtype="float32")
    sources = [str(tmp_path / "ann.wav"), tmp_path / "bob.flac", wav(samples), (decoded, RATE), Clip(decoded, RATE)]
    for source in sources:
        assert cloner.clone(source) is first
    assert len(encoded) == 1


def test_a_file_with_new_content_is_another_voice(model: SpeechModel, encoded: list[int], tmp_path: Path) -> None:
    cloner = VoiceCloner(model)
    path = tmp_path / "voice.wav"
    path.write_bytes(wav(noise(0.5)))
    first = cloner.clone(path)
    path.write_bytes(wav(noise(0.5)[::-1]))
    assert cloner.clone(path) != first
    assert len(encoded) == 2


def test_the_transcript_is_part_of_the_key(model: SpeechModel, encoded: list[int]) -> None:
    cloner = VoiceCloner(model)
    clip = (noise(0.5), RATE)
    voices = [cloner.clone(clip, words) for words in (None, "hello you", "hello you.", "hello you")]
    assert [voice.transcript for voice in voices] == [None, "hello you", "hello you.", "hello you"]
    assert voices[1] is voices[3]
    assert len(encoded) == 3
    np.testing.assert_array_equal(voices[0].speaker, voices[1].speaker)


def test_the_rate_is_part_of_the_key(model: SpeechModel, encoded: list[int]) -> None:
    cloner = VoiceCloner(model)
    assert cloner.clone((noise(0.5), RATE)) != cloner.clone((noise(0.5), 16000))
    assert len(encoded) == 2


def test_the_cache_is_bounded_and_evicted_voices_are_encoded_again(model: SpeechModel, encoded: list[int]) -> None:
    cloner = VoiceCloner(model, capacity=2)
    clips = [(noise(0.5) * loudness, RATE) for loudness in (1.0, 0.9, 0.8)]
    voices = [cloner.clone(clip) for clip in clips]
    assert cloner.clone(clips[2]) is voices[2]
    assert len(encoded) == 3
    again = cloner.clone(clips[0])  # was evicted
    assert again is not voices[0]
    assert again == voices[0]
    assert len(encoded) == 4
    cloner.clone(clips[1])  # was evicted by clips[0]
    assert len(encoded) == 5


def test_a_refused_clip_is_not_cached(model: SpeechModel, encoded: list[int]) -> None:
    cloner = VoiceCloner(model)
    for _ in range(2):
        with pytest.raises(VoiceError, match="silent"):
            cloner.clone((np.zeros(RATE, np.float32), RATE))
    assert encoded == []


def test_cached_voices_are_immutable(model: SpeechModel) -> None:
    cloner = VoiceCloner(model)
    samples = noise(0.5)
    voice = cloner.clone((samples, RATE), "hello")
    with pytest.raises(ValueError, match="read-only"):
        voice.speaker[:] = 0
    samples[:] = 0
    assert cloner.clone((noise(0.5), RATE), "hello") is voice


def test_shapes_of_a_cloned_voice(model: SpeechModel) -> None:
    voice = VoiceCloner(model).clone((noise(0.5), RATE), "hello")
    assert voice.speaker.shape == (64,)
    assert voice.reference_codes is not None
    assert voice.reference_codes.shape == (7, 16)  # 6.25 frames, the last is padded
    assert 0 <= voice.reference_codes.min() <= voice.reference_codes.max() < 2048


def test_threads_clone_at_the_same_time(model: SpeechModel) -> None:
    assert model.speaker_encoder is not None
    cloner, both = VoiceCloner(model), threading.Barrier(2)

    def wait_for_the_other(*_: object) -> None:
        both.wait(timeout=600)

    hook = model.speaker_encoder.register_forward_hook(wait_for_the_other)
    with ThreadPoolExecutor(2) as pool:
        voices = list(pool.map(lambda loudness: cloner.clone((noise(0.5) * loudness, RATE)), (1.0, 0.9)))
    hook.remove()
    assert voices[0] != voices[1]
    for loudness, voice in zip((1.0, 0.9), voices, strict=True):
        assert cloner.clone((noise(0.5) * loudness, RATE)) is voice


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_other_kinds_of_checkpoint_do_not_clone(small_checkpoints: CheckpointMaker, kind: str) -> None:
    other = load_model(small_checkpoints("0b6", kind), device=torch.device("cpu"))
    with pytest.raises(VoiceError, match=f"this {KIND_NAMES[kind]} checkpoint cannot clone; use a Base checkpoint"):
        VoiceCloner(other).clone((noise(0.5), RATE))
