"""Decoding of responses: audio, content types, sample rates."""

import io
from array import array

import av
import numpy as np
import pytest

from oscine.audio.clips import wav_header
from oscine_bench.exchange import Exchange
from oscine_bench.received_audio import InvalidAudioError, ReceivedAudio, decode_audio
from oscine_bench.targets import Target
from tests.oscine_bench.scripted import HELLO, RATE_HZ, silence, speech

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


def decode(exchange: Exchange, response_format: str, **options: bool) -> ReceivedAudio:
    return decode_audio(exchange, Target(url="http://x", response_format=response_format, **options))


@pytest.mark.parametrize("name", CODECS)
def test_half_the_bytes_of_uniform_noise_are_half_the_audio(name: str) -> None:
    audio = decode(arriving(encoded(name), 0.0001, 0.25, 0.5, 0.75, 1.0), name)
    # Packets are up to 0.1 s long, an ogg page up to a second; encoders add a little, a FLAC file 8 kB of padding.
    within_s = 1.05 if name == "opus" else 0.3
    assert audio.duration_s == pytest.approx(SECONDS, abs=0.15)
    assert audio.playable_s[0] == 0.0 and audio.playable_s[-1] == pytest.approx(audio.duration_s)
    assert audio.playable_s == pytest.approx((0.0, 1.0, 2.0, 3.0, audio.duration_s), abs=within_s)
    assert list(audio.playable_s) == sorted(audio.playable_s)


@pytest.mark.parametrize("name", CODECS)
def test_a_file_of_another_format_is_malformed(name: str) -> None:
    with pytest.raises(InvalidAudioError) as error:
        decode(arriving(speech(0.1), 1.0), name)
    assert error.value.failure.kind == "malformed"


@pytest.mark.parametrize(
    "file",
    [
        b"RIFX0000WAVE",
        b"RIFF0000WAVEfmt ",
        b"RIFF0000WAVEdata\x04\0\0\0abcd",  # data before the format
        b"RIFF0000WAVEfmt \x10\0\0\0\3\0\1\0\x80\xbb\0\0\0\0\0\0\4\0\x20\0data\x04\0\0\0abcd",  # 32-bit floats
    ],
)
def test_an_unsupported_wav_is_malformed(file: bytes) -> None:
    with pytest.raises(InvalidAudioError) as error:
        decode(arriving(file, 1.0), "wav")
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
def test_content_types_of_raw_audio_are_accepted(content_type: str | None) -> None:
    assert decode(typed(content_type, speech(0.5)), "pcm").duration_s == 0.5


@pytest.mark.parametrize("content_type", ["audio/ogg; codecs=opus", "audio/opus", "application/ogg", "audio/pcm"])
def test_content_types_of_a_container_are_accepted(content_type: str) -> None:
    assert decode(typed(content_type, encoded("opus")), "opus").duration_s == pytest.approx(SECONDS, abs=0.15)


@pytest.mark.parametrize(
    ("content_type", "expected", "message"),
    [
        ("text/html; charset=utf-8", "pcm", "expected pcm, got text/html"),
        ("audio/wav", "pcm", "expected pcm, got audio/wav"),
        ("audio/mpeg", "pcm", "expected pcm, got audio/mpeg"),
        ("audio/mpeg", "opus", "expected opus, got audio/mpeg"),
        ("video/mp4", "aac", "expected aac, got video/mp4"),
        ("text/event-stream", "pcm", "expected pcm, got text/event-stream"),
    ],
)
def test_another_content_type_is_malformed(content_type: str, expected: str, message: str) -> None:
    with pytest.raises(InvalidAudioError) as error:
        decode(typed(content_type, speech(0.5)), expected)
    assert (error.value.failure.kind, error.value.failure.message) == ("malformed", message)


def test_raw_bytes_are_not_events() -> None:
    with pytest.raises(InvalidAudioError, match="expected events, got audio/pcm"):
        decode(typed("audio/pcm", speech(0.5)), "pcm", sse=True)


def test_a_json_response_shows_its_message() -> None:
    with pytest.raises(InvalidAudioError, match="expected pcm, got application/json: no such voice"):
        decode(typed("application/json", b'{"error": {"message": "no such voice"}}'), "pcm")


@pytest.mark.parametrize("rate", ["0", "1", "-24000", "3999", "384001", "9" * 5000, "nan", "inf", "fast"])
def test_an_impossible_sample_rate_is_malformed(rate: str) -> None:
    with pytest.raises(InvalidAudioError, match="invalid sample rate") as error:
        decode(typed("audio/pcm", speech(0.5), **{"x-sample-rate": rate}), "pcm")
    assert error.value.failure.kind == "malformed"


@pytest.mark.parametrize(("rate", "seconds"), [("4000", 3.0), ("384000", 0.03125), ("24000.0", 0.5), ("", 0.5)])
def test_a_plausible_sample_rate_is_used(rate: str, seconds: float) -> None:
    assert decode(typed("audio/pcm", speech(0.5), **{"x-sample-rate": rate}), "pcm").duration_s == seconds


def test_a_wav_has_the_same_limits_of_sample_rate() -> None:
    with pytest.raises(InvalidAudioError, match="invalid sample rate 1 Hz"):
        decode(arriving(wav_header(1, 12000) + speech(0.5), 1.0), "wav")


def test_repeated_silence_is_not_doubled_audio() -> None:
    assert decode(arriving(silence(1.0), 1.0), "pcm").duration_s == 1.0


def test_only_raw_audio_is_cheap_to_decode() -> None:
    def cheap(**options) -> bool:
        return Target(url="http://x", **options).cheap_to_decode

    assert cheap() and cheap(response_format="wav")
    assert not cheap(response_format="mp3") and not cheap(sse=True)
