"""The Python API: streaming, batching, caching and saving never change what is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import CheckpointMaker

from oscine import Oscine, Speech, SpeechRequest, Voice
from oscine.types import ConfigError, RequestError

RATE = 24000
FRAME = 1920


def clip(seconds: float, seed: int = 0) -> tuple[np.ndarray, int]:
    times = np.arange(int(RATE * seconds)) / RATE
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(3 * times + seed)) * times)
    return (tone + 0.02 * np.random.default_rng(seed).standard_normal(times.size)).astype(np.float32), RATE


def assert_same(left: Speech, right: Speech) -> None:
    np.testing.assert_array_equal(left.codes, right.codes)
    np.testing.assert_array_equal(left.audio, right.audio)  # to the last bit
    assert (left.finish_reason, left.seed, left.sample_rate) == (right.finish_reason, right.seed, right.sample_rate)


@pytest.fixture(scope="module")
def preset(small_checkpoints: CheckpointMaker) -> Oscine:
    return Oscine(small_checkpoints("1b7", "custom_voice"), device="cpu")


@pytest.fixture(scope="module")
def base_folder(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("0b6", "base")


@pytest.fixture(scope="module")
def base(base_folder: Path) -> Oscine:
    return Oscine(base_folder, device="cpu")


@pytest.fixture(scope="module")
def in_context(base: Oscine) -> Voice:
    return base.clone(clip(1.3), "hello you")


@pytest.mark.parametrize("cap", [2, 3, 20])
def test_a_stream_is_the_speech_in_pieces(preset: Oscine, cap: int) -> None:
    fields: dict[str, Any] = {"voice": "ryan", "seed": 3, "max_new_tokens": cap}
    speech = preset.speak("hello you", **fields)
    pieces = list(preset.stream("hello you", **fields))
    assert len(speech.audio) == len(speech.codes) * FRAME
    assert len(pieces[0]) == FRAME  # the first sound does not wait for a second frame
    assert all(len(piece) for piece in pieces)
    np.testing.assert_array_equal(np.concatenate(pieces), speech.audio)


def test_a_cloned_stream_is_the_speech_in_pieces(base: Oscine, in_context: Voice) -> None:
    fields: dict[str, Any] = {"voice": in_context, "seed": 3, "max_new_tokens": 20}
    speech, pieces = base.speak("hello", **fields), list(base.stream("hello", **fields))
    np.testing.assert_array_equal(np.concatenate(pieces), speech.audio)


def test_a_batch_is_each_of_its_rows(preset: Oscine) -> None:
    requests = [
        SpeechRequest(text="hello you", voice="ryan", seed=1, max_new_tokens=16),
        SpeechRequest(text="you " * 20, voice="eric", greedy=True, seed=0, text_mode="streaming", max_new_tokens=9),
        SpeechRequest(text="a", seed=2, temperature=1.2, top_k=0, top_p=0.8, instruct="speak", max_new_tokens=2),
        SpeechRequest(text="you", voice="Vivian", language="Chinese", seed=3, max_new_tokens=17),
    ]
    for request, speech in zip(requests, preset.speak_batch(requests), strict=True):
        (alone,) = preset.speak_batch([request])
        assert_same(speech, alone)
    assert preset.speak_batch([]) == []


def test_a_batch_of_cloned_voices_is_each_of_its_rows(base: Oscine, in_context: Voice) -> None:
    timbre = base.clone(clip(0.9, seed=1))
    requests = [
        SpeechRequest(text="hello", voice=voice, seed=seed, max_new_tokens=cap)
        for seed, (voice, cap) in enumerate([(in_context, 14), (timbre, 9), (in_context, 5)])
    ]
    for request, speech in zip(requests, base.speak_batch(requests), strict=True):
        assert_same(speech, base.speak_batch([request])[0])


def test_chunks_tell_where_they_belong(preset: Oscine) -> None:
    requests = [SpeechRequest(text=text, seed=1, max_new_tokens=20) for text in ("hello", "you")]
    chunks: list[Any] = []
    speeches = preset.speak_batch(requests, on_chunk=chunks.append)
    for row, speech in enumerate(speeches):
        own = [chunk for chunk in chunks if chunk.row == row]
        frames = np.cumsum([0, *(len(chunk.codes) for chunk in own)])
        assert [chunk.first_frame for chunk in own] == frames[:-1].tolist()
        assert [chunk.finish_reason for chunk in own] == [None] * (len(own) - 1) + [speech.finish_reason]
        assert frames[-1] == len(speech.codes)


def test_the_drawn_seed_is_told_and_repeats_the_speech(preset: Oscine) -> None:
    first = preset.speak("hello", max_new_tokens=6)
    assert_same(preset.speak("hello", max_new_tokens=6, seed=first.seed), first)
    assert preset.speak("hello", max_new_tokens=6).seed != first.seed


def test_a_voice_from_the_cache_is_the_fresh_one(base: Oscine, base_folder: Path, in_context: Voice) -> None:
    assert base.clone(clip(1.3), "hello you") is in_context
    fresh = Oscine(base_folder, device="cpu").clone(clip(1.3), "hello you")
    assert fresh == in_context
    assert base.clone(clip(1.3)) != in_context  # without the words: another voice
    assert base.clone(clip(1.3), "hello me") != in_context
    assert base.clone(clip(1.3, seed=2), "hello you") != in_context


def test_the_second_use_of_a_voice_speaks_as_the_first(base_folder: Path) -> None:
    fresh = Oscine(base_folder, device="cpu")
    voice = fresh.clone(clip(1.3), "hello you")
    first, second = (fresh.speak("you", voice=voice, seed=4, max_new_tokens=10) for _ in range(2))
    assert_same(first, second)
    # A stream that is left half-way does not spoil what is kept of the reference.
    next(fresh.stream("another", voice=voice, seed=5, max_new_tokens=10))
    assert_same(fresh.speak("you", voice=voice, seed=4, max_new_tokens=10), first)


@pytest.mark.parametrize("transcript", ["hello you", None])
def test_a_saved_voice_speaks_as_before(base: Oscine, tmp_path: Path, transcript: str | None) -> None:
    voice = base.clone(clip(1.3), transcript)
    voice.save(tmp_path / "voice.safetensors")
    loaded = Voice.load(tmp_path / "voice.safetensors")
    assert loaded == voice
    before, after = (base.speak("you", voice=one, seed=4, max_new_tokens=10) for one in (voice, loaded))
    assert_same(before, after)


def test_the_reference_is_heard_by_the_codec_but_not_spoken(base: Oscine, in_context: Voice) -> None:
    speech = base.speak("you", voice=in_context, seed=4, max_new_tokens=10)
    assert len(speech.audio) == len(speech.codes) * FRAME
    assert in_context.reference_codes is not None
    assert len(in_context.reference_codes) == 17  # 1.3 s are 16.25 frames


def test_codec_windows_matter_only_past_300_frames(base_folder: Path, base: Oscine) -> None:
    # 24 s of reference are 300 frames: the first spoken frame opens the second window.
    official = Oscine(base_folder, device="cpu", codec_windows="official")
    for seconds, same in ((2.0, True), (24.0, False)):
        voice = base.clone(clip(seconds), "hello you")
        fields: dict[str, Any] = {"voice": voice, "seed": 4, "max_new_tokens": 5}
        exact, windowed = base.speak("you", **fields), official.speak("you", **fields)
        np.testing.assert_array_equal(exact.codes, windowed.codes)
        assert exact.audio.shape == windowed.audio.shape
        assert (np.abs(exact.audio - windowed.audio).max() < 1e-5) == same


def test_names_are_told_as_they_may_be_asked(preset: Oscine, base: Oscine) -> None:
    assert "ryan" in preset.voices
    assert base.voices == []
    assert preset.languages[0] == "auto"
    assert not any("dialect" in name for name in preset.languages)
    assert preset.sample_rate == RATE


@pytest.mark.parametrize("batch", [["hello"], "hello", [None]])
def test_a_batch_of_anything_but_requests_is_refused(preset: Oscine, batch: Any) -> None:
    for asked in (preset.speak_batch, preset.run, preset.check):
        with pytest.raises(RequestError, match=r"a request must be a SpeechRequest, got (str|NoneType); write"):
            asked(batch)


@pytest.mark.parametrize("model", [None, 3, b"demo"])
def test_a_model_that_is_no_name_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match=f"model must be a folder, a hub id or 'demo', got {type(model).__name__}"):
        Oscine(model)
