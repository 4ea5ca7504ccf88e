"""Cloning: a bad clip is refused with the reason, and a good clip is accepted in every common form."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from oscine import OscineError, RequestError, VoiceError
from tests.conftest import CheckpointMaker
from tests.speakers import RATE, SHORT, Speakers, check_error, noise

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def speakers(small_checkpoints: CheckpointMaker) -> Speakers:
    return Speakers(small_checkpoints)


def wav(samples: np.ndarray, rate_hz: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="WAV")
    return file.getvalue()


@dataclass(frozen=True)
class RefusedClip:
    clip: Callable[[Path], Any]
    messages: tuple[str, ...]
    transcript: Any = None
    error: type[RequestError] = VoiceError
    param: str = "ref_audio"


def in_file(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def with_nan() -> np.ndarray:
    samples = noise(1)
    samples[RATE // 2] = np.nan
    return samples


REFUSED_CLIPS: dict[str, RefusedClip] = {
    "silent": RefusedClip(lambda _: (noise(1) * 1e-4, RATE), ("silent: its peak is -", "check the microphone")),
    "zeros": RefusedClip(lambda _: (np.zeros(RATE, np.float32), RATE), ("silent: its peak is -inf dBFS",)),
    "0.1 s": RefusedClip(lambda _: (noise(0.1), RATE), ("has 0.10 s, the minimum is 0.4 s", "3 to 20 s work best")),
    "10 minutes": RefusedClip(
        lambda _: (np.ones(600 * 8000, np.float32), 8000), ("600.0 s, the maximum is 60 s", "cut the clip and its")
    ),
    "empty bytes": RefusedClip(lambda _: b"", ("is empty (0 bytes)",)),
    "empty file": RefusedClip(in_file("clip.wav", b""), ("clip.wav", "is empty (0 bytes)")),
    "no samples": RefusedClip(lambda _: (np.zeros(0, np.float32), RATE), ("no audio (0 samples)",)),
    "corrupt bytes": RefusedClip(lambda _: b"RIFF" + bytes(range(256)), ("not a known audio format", "use wav")),
    "corrupt file": RefusedClip(in_file("clip.mp3", b"no music"), ("clip.mp3", "not a known audio format")),
    "text as a file": RefusedClip(in_file("notes.txt", b"hello\n" * 50), ("notes.txt", "not a known audio format")),
    "NaN": RefusedClip(lambda _: (with_nan(), RATE), ("has a nan sample at 0.500 s", "export the clip again")),
    "rate 0": RefusedClip(lambda _: (noise(1), 0), ("sample rate of 0 Hz", "from 1000 to 768000")),
    "rate 24000.5": RefusedClip(lambda _: (noise(1), 24000.5), ("sample rate of 24000.5 Hz", "whole number")),
    "no rate": RefusedClip(lambda _: noise(1), ("(samples, rate_hz), got an array without its rate",)),
    "missing file": RefusedClip(lambda folder: folder / "no.wav", ("there is no audio file", "check the path")),
    "folder": RefusedClip(lambda folder: folder, ("is a folder", "name one audio file")),
    "nothing": RefusedClip(lambda _: None, ("a path, the bytes of a file or (samples, rate_hz), got NoneType",)),
    "integers as floats": RefusedClip(lambda _: (noise(1) * 32768, RATE), ("float samples up to", "32768")),
    "empty transcript": RefusedClip(
        lambda _: (noise(1), RATE), ("ref_text is empty",), "", RequestError, "ref_text"
    ),
    "blank transcript": RefusedClip(
        lambda _: (noise(1), RATE), ("ref_text is only white space",), " \n", RequestError, "ref_text"
    ),
    "transcript with half a character": RefusedClip(
        lambda _: (noise(1), RATE), ("ref_text", "(U+DFFF) at index 0"), "\udfff", RequestError, "ref_text"
    ),
    "number as transcript": RefusedClip(
        lambda _: (noise(1), RATE), ("ref_text must be a string, got int",), 5, RequestError, "ref_text"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_CLIPS)
def test_a_bad_clip_is_refused_and_later_speech_is_unchanged(speakers: Speakers, tmp_path: Path, name: str) -> None:
    case = REFUSED_CLIPS[name]
    with pytest.raises(OscineError) as caught:
        speakers.load("1b7-base").clone(case.clip(tmp_path), case.transcript)
    check_error(caught.value, case.error, case.param, case.messages)
    speakers.check_unchanged("1b7-base")


@pytest.mark.parametrize("model", ["1b7-custom_voice", "0b6-custom_voice", "1b7-voice_design"])
def test_only_base_checkpoints_clone(speakers: Speakers, model: str) -> None:
    with pytest.raises(OscineError) as caught:
        speakers.load(model).clone((noise(1), RATE), "hello")
    check_error(caught.value, VoiceError, "ref_audio", ("cannot clone; use a Base checkpoint",))
    speakers.check_unchanged(model)


@pytest.mark.parametrize(
    "clip",
    [
        wav(noise(0.5)),
        wav(noise(0.5, 8000), 8000),
        wav(np.stack([noise(0.5, 44100)] * 2, axis=1), 44100),
        ((noise(0.5) * 32767).astype(np.int16), RATE),
        (noise(0.4), RATE),
    ],
    ids=["24 kHz", "8 kHz", "stereo", "int16", "just long enough"],
)
@pytest.mark.parametrize("transcript", [None, "hello you"])
def test_a_clip_in_any_common_form_gives_a_voice_that_speaks(
    speakers: Speakers, clip: Any, transcript: str | None
) -> None:
    tts = speakers.load("1b7-base")
    voice = tts.clone(clip, transcript)
    assert (voice.reference_codes is None) == (transcript is None)
    assert tts.speak("hello", voice=voice, **SHORT).codes.shape == (2, 16)
