"""Encoded formats: how much could be played after how many bytes."""

import io
from array import array

import av
import numpy as np
import pytest

from oscine.audio import wav_header
from oscine.bench.exchange import Exchange
from oscine.bench.sound import BadSoundError, hear
from oscine.bench.summary import Judge
from oscine.bench.targets import Target
from tests.bench.scripted import HELLO, RATE_HZ, silence, speech

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


def typed(content_type: str | None, file: bytes, **headers: str) -> Exchange:
    exchange = arriving(file, 1.0)
    exchange.headers = headers if content_type is None else {"content-type": content_type, **headers}
    return exchange


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "audio/pcm",
        "Audio/PCM; rate=24000",
        "audio/L16",
        "audio/x-raw",
        "audio/basic",
        "application/octet-stream",
    ],
)
def test_raw_sound_has_many_names(content_type: str | None) -> None:
    assert hear(typed(content_type, speech(0.5)), "pcm").duration_s == 0.5


@pytest.mark.parametrize("content_type", ["audio/ogg; codecs=opus", "audio/opus", "application/ogg", "audio/pcm"])
def test_a_container_has_many_names(content_type: str) -> None:
    assert hear(typed(content_type, encoded("opus")), "opus").duration_s == pytest.approx(SECONDS, abs=0.15)


@pytest.mark.parametrize(
    ("content_type", "asked", "said"),
    [
        ("text/html; charset=utf-8", "pcm", "answered text/html, asked for pcm"),
        ("audio/wav", "pcm", "answered audio/wav, asked for pcm"),
        ("audio/mpeg", "pcm", "answered audio/mpeg, asked for pcm"),
        ("audio/mpeg", "opus", "answered audio/mpeg, asked for opus"),
        ("video/mp4", "aac", "answered video/mp4, asked for aac"),
        ("text/event-stream", "pcm", "answered text/event-stream, asked for pcm"),
    ],
)
def test_what_says_that_it_is_something_else_is_not_heard(content_type: str, asked: str, said: str) -> None:
    with pytest.raises(BadSoundError) as error:
        hear(typed(content_type, speech(0.5)), asked)
    assert (error.value.failure.kind, error.value.failure.message) == ("malformed", said)


def test_bytes_are_no_events() -> None:
    with pytest.raises(BadSoundError, match="answered audio/pcm, asked for events"):
        hear(typed("audio/pcm", speech(0.5)), "pcm", sse=True)


def test_json_instead_of_sound_is_read_out() -> None:
    with pytest.raises(BadSoundError, match="answered application/json, asked for pcm: no such voice"):
        hear(typed("application/json", b'{"error": {"message": "no such voice"}}'), "pcm")


@pytest.mark.parametrize("rate", ["0", "1", "-24000", "3999", "384001", "9" * 5000, "nan", "inf", "fast"])
def test_a_rate_at_which_nobody_plays_is_malformed(rate: str) -> None:
    with pytest.raises(BadSoundError, match="a sample rate of") as error:
        hear(typed("audio/pcm", speech(0.5), **{"x-sample-rate": rate}), "pcm")
    assert error.value.failure.kind == "malformed"


@pytest.mark.parametrize(("rate", "seconds"), [("4000", 3.0), ("384000", 0.03125), ("24000.0", 0.5), ("", 0.5)])
def test_a_rate_that_can_be_played_is_taken(rate: str, seconds: float) -> None:
    assert hear(typed("audio/pcm", speech(0.5), **{"x-sample-rate": rate}), "pcm").duration_s == seconds


def test_a_wav_is_held_to_the_same_rates() -> None:
    with pytest.raises(BadSoundError, match="a sample rate of 1 Hz"):
        hear(arriving(wav_header(1, 12000) + speech(0.5), 1.0), "wav")


def test_silence_twice_is_not_doubled_sound() -> None:
    assert hear(arriving(silence(1.0), 1.0), "pcm").duration_s == 1.0


def test_events_and_encoded_formats_are_judged_when_the_load_is_over() -> None:
    def cheap(**options) -> bool:
        return Judge(Target(url="http://x", **options)).cheap

    assert cheap() and cheap(response_format="wav")
    assert not cheap(response_format="mp3") and not cheap(sse=True)
