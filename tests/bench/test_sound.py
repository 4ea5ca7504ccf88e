"""Encoded formats: how much could be played after how many bytes."""

import io
from array import array

import av
import numpy as np
import pytest
from tests.bench.scripted import HELLO, RATE_HZ, silence, speech

from oscine.bench.exchange import Exchange
from oscine.bench.sound import BadSoundError, hear
from oscine.bench.summary import Judge
from oscine.bench.targets import Target

SECONDS = 4.0
CODECS = {"mp3": ("mp3", "libmp3lame"), "opus": ("ogg", "libopus"), "aac": ("adts", "aac"), "flac": ("flac", "flac")}


def encoded(name: str) -> bytes:
    container_name, codec = CODECS[name]
    file = io.BytesIO()
    with av.open(file, "w", format=container_name) as container:
        stream = container.add_stream(codec, rate=RATE_HZ, layout="mono")
        samples = np.frombuffer(speech(SECONDS), "<i2").reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def arriving(file: bytes, *shares: float) -> Exchange:
    ends = [round(len(file) * share) for share in shares]
    times = array("d", [0.1 * (index + 1) for index in range(len(ends))])
    return Exchange(HELLO, 0.0, arrived_s=times, body_bytes=array("q", ends), body=[file], status=200, end_s=times[-1])


@pytest.mark.parametrize("name", CODECS)
def test_half_the_bytes_of_even_noise_are_half_the_sound(name: str) -> None:
    sound = hear(arriving(encoded(name), 0.0001, 0.25, 0.5, 0.75, 1.0), name)
    # Packets are up to 0.1 s long, an ogg page up to a second; encoders add a little, a FLAC file 8 kB of padding.
    within_s = 1.05 if name == "opus" else 0.3
    assert sound.duration_s == pytest.approx(SECONDS, abs=0.15)
    assert sound.heard_s[0] == 0.0 and sound.heard_s[-1] == pytest.approx(sound.duration_s)
    assert sound.heard_s == pytest.approx((0.0, 1.0, 2.0, 3.0, sound.duration_s), abs=within_s)
    assert list(sound.heard_s) == sorted(sound.heard_s)


@pytest.mark.parametrize("name", CODECS)
def test_a_file_that_is_none_is_malformed(name: str) -> None:
    with pytest.raises(BadSoundError) as error:
        hear(arriving(speech(0.1), 1.0), name)
    assert error.value.failure.kind == "malformed"


@pytest.mark.parametrize(
    "file",
    [
        b"RIFX0000WAVE",
        b"RIFF0000WAVEfmt ",
        b"RIFF0000WAVEdata\x04\0\0\0abcd",  # sound before its format
        b"RIFF0000WAVEfmt \x10\0\0\0\3\0\1\0\x80\xbb\0\0\0\0\0\0\4\0\x20\0data\x04\0\0\0abcd",  # 32-bit floats
    ],
)
def test_a_wav_that_cannot_be_measured_is_malformed(file: bytes) -> None:
    with pytest.raises(BadSoundError) as error:
        hear(arriving(file, 1.0), "wav")
    assert error.value.failure.kind == "malformed"


def test_silence_twice_is_not_doubled_sound() -> None:
    assert hear(arriving(silence(1.0), 1.0), "pcm").duration_s == 1.0


def test_events_and_encoded_formats_are_judged_when_the_load_is_over() -> None:
    def cheap(**options) -> bool:
        return Judge(Target(url="http://x", **options)).cheap

    assert cheap() and cheap(response_format="wav")
    assert not cheap(response_format="mp3") and not cheap(sse=True)
