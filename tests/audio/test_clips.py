"""Any clip is read as mono floats or refused with a VoiceError."""

from __future__ import annotations

import io
import math
import os
import re
import stat
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
import soxr

from oscine.audio import clips as audio
from oscine.audio.clips import Clip, check_reference, pcm16, read_clip, resample, wav_header, write_wav
from oscine.audio.decoding.wire import ANY_CLIP, MAX_FILE_BYTES, ClipLimits
from oscine.audio.pcm import Samples
from oscine.errors import OscineError, VoiceError
from tests.corpora.clips import RATE_HZ, tone
from tests.corpora.clips import with_libav as encoded_av
from tests.corpora.clips import with_soundfile as encoded


def refusal(source: Any, limits: ClipLimits = ANY_CLIP) -> str:
    with pytest.raises(VoiceError) as caught:
        read_clip(source, limits)
    assert caught.value.param == "ref_audio"
    return str(caught.value)


# Reading


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"subtype": "PCM_U8"}, 1 / 128),
        ({"subtype": "PCM_16"}, 1 / 32768),
        ({"subtype": "PCM_24"}, 1 / 2**23),
        ({"subtype": "PCM_32"}, 1e-7),
        ({"subtype": "FLOAT"}, 0),
        ({"subtype": "DOUBLE"}, 0),
        ({"subtype": "ULAW"}, 0.02),
        ({"format": "FLAC"}, 1 / 32768),
        ({"format": "AIFF"}, 1 / 32768),
        ({"format": "RF64"}, 1 / 32768),
        ({"format": "OGG", "subtype": "VORBIS"}, 0.05),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_files_are_read_at_their_own_rate(how: dict[str, Any], error: float, tmp_path: Path) -> None:
    samples = tone()
    content = encoded(samples, **how)
    path = tmp_path / "clip.bin"  # the content decides the format, not the name
    path.write_bytes(content)
    for source in (content, path, str(path)):
        clip = read_clip(source)
        assert clip.rate_hz == RATE_HZ
        assert clip.samples.dtype == np.float32
        assert clip.samples.shape[0] == pytest.approx(len(samples), abs=600)
        assert np.abs(clip.samples[: len(samples)] - samples[: len(clip.samples)]).max() <= error


@pytest.mark.parametrize(
    ("container", "codec", "sample_format", "rate_hz"),
    [
        ("mp3", "libmp3lame", "fltp", 44_100),
        ("mp4", "aac", "fltp", 44_100),
        ("adts", "aac", "fltp", 16_000),
        ("webm", "libopus", "flt", 48_000),
        ("ogg", "libopus", "flt", 48_000),
        ("matroska", "pcm_s16le", "s16", 22_050),
        ("mp4", "alac", "s16p", 48_000),
        ("mpegts", "mp2", "s16", 48_000),
    ],
)
def test_compressed_containers_are_read(container: str, codec: str, sample_format: str, rate_hz: int) -> None:
    samples = tone(1.0, rate_hz)
    clip = read_clip(encoded_av(samples, rate_hz, container, codec, sample_format))
    assert clip.rate_hz == rate_hz
    assert clip.duration_s == pytest.approx(1.0, abs=0.15)
    spectrum = np.abs(np.fft.rfft(clip.samples * np.hanning(len(clip.samples))))
    assert spectrum.argmax() * rate_hz / len(clip.samples) == pytest.approx(440, abs=2)
    assert np.abs(clip.samples[rate_hz // 4 : rate_hz // 2]).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("channels", [1, 2, 3, 6])
def test_channels_are_averaged(channels: int) -> None:
    each = np.stack([tone(hz=200.0 * (i + 1)) for i in range(channels)], axis=1)  # [n, channels]
    mean = each.mean(axis=1)
    for source in (encoded(each, subtype="FLOAT"), (each, RATE_HZ), (each.T, RATE_HZ)):
        np.testing.assert_allclose(read_clip(source).samples, mean, atol=1e-6)


def test_the_smaller_side_of_an_array_is_the_channels() -> None:
    assert len(read_clip((np.zeros((1, 9), np.float32), RATE_HZ)).samples) == 9
    assert len(read_clip((np.zeros((9, 1), np.float32), RATE_HZ)).samples) == 9
    square = np.array([[0.1, 0.3], [0.5, 0.7]], np.float32)
    np.testing.assert_allclose(read_clip((square, RATE_HZ)).samples, [0.2, 0.6], atol=1e-7)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint16])
def test_integers_are_scaled_by_their_range(dtype: type[np.integer[Any]]) -> None:
    limits = np.iinfo(dtype)
    middle = 0 if limits.min < 0 else (limits.max + 1) // 2
    clip = read_clip((np.array([limits.min, middle, limits.max], dtype), RATE_HZ))
    np.testing.assert_allclose(clip.samples, [-1, 0, 1], atol=1 / 100 if limits.bits == 8 else 1 / 10_000)
    assert clip.samples[0] == -1
    assert clip.samples[1] == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", ">i2"])
def test_array_types_give_float32(dtype: str) -> None:
    scale = 1 if np.dtype(dtype).kind == "f" else 32768
    clip = read_clip(((tone() * scale).astype(dtype), np.int64(RATE_HZ)))  # type: ignore[arg-type]
    assert clip.samples.dtype == np.float32
    assert type(clip.rate_hz) is int
    np.testing.assert_allclose(clip.samples, tone(), atol=1e-3)


def test_a_clip_can_be_read_again() -> None:
    clip = read_clip((tone(), RATE_HZ))
    again = read_clip(clip)
    np.testing.assert_array_equal(again.samples, clip.samples)
    assert again.duration_s == 0.5


def test_wav_with_a_streaming_header_is_read() -> None:
    streamed = wav_header(RATE_HZ) + pcm16(tone()).tobytes()
    np.testing.assert_allclose(read_clip(streamed).samples, tone(), atol=1 / 16384)


def test_float_files_may_peak_above_one() -> None:
    assert np.abs(read_clip(encoded(tone(peak=2.0), subtype="FLOAT")).samples).max() == pytest.approx(2.0, abs=1e-3)
    assert "32768 for 16-bit" in refusal(encoded(tone(peak=20_000), subtype="FLOAT"))


# Refusing


def test_paths_without_a_regular_file_are_refused(tmp_path: Path) -> None:
    assert "there is no audio file" in refusal(tmp_path / "absent.wav")
    assert "is a folder" in refusal(tmp_path)
    (tmp_path / "empty.wav").touch()
    assert "is empty (0 bytes)" in refusal(str(tmp_path / "empty.wav"))
    assert "there is no audio file" in refusal("a\0b.wav")
    assert "cannot read" in refusal("x" * 5000)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.wav"
    path.write_bytes(encoded(tone()))
    path.chmod(0)
    assert "Permission denied" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        b"This is a letter, not a recording.\n" * 50,
        b"\x00" * 5000,
        b"RIFF",
        b"\x89PNG\r\n\x1a\n" + b"\x00" * 200,
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
        bytes(np.random.default_rng(1).integers(0, 256, 20_000, np.uint8)),
        encoded(tone())[:30],
        encoded(tone(), format="FLAC")[:60],
        encoded(tone(), format="OGG", subtype="VORBIS")[:60],
        encoded_av(tone(), RATE_HZ, "mp4", "aac", "fltp")[:2000],  # its index is at the end
    ],
    ids=["prose", "zeros", "riff", "png", "playlist", "concat", "noise", "cut-wav", "cut-flac", "cut-ogg", "cut-m4a"],
)
def test_content_that_is_not_audio_is_refused(content: bytes) -> None:
    refusal(content)


def test_a_playlist_opens_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner.wav").write_bytes(encoded(tone()))
    monkeypatch.chdir(tmp_path)
    playlist = b"ffconcat version 1.0\nfile inner.wav\n"
    with av.open(io.BytesIO(playlist)) as container:  # FFmpeg itself would follow it
        assert container.format.name == "concat"
    refusal(playlist)


def test_a_damaged_file_raises_nothing_but_voice_errors() -> None:
    rng = np.random.default_rng(5)
    whole = [
        encoded(tone(0.2)),
        encoded(tone(0.2), format="FLAC"),
        encoded(tone(0.2), format="OGG", subtype="VORBIS"),
        encoded_av(tone(0.2, 44_100), 44_100, "mp3", "libmp3lame", "fltp"),
        encoded_av(tone(0.2, 48_000), 48_000, "webm", "libopus", "flt"),
        encoded_av(tone(0.2, 44_100), 44_100, "mp4", "aac", "fltp"),
    ]
    for content in whole:
        for _ in range(25):
            damaged = bytearray(content)
            for at in rng.integers(0, min(len(damaged), 400), 4):
                damaged[at] = rng.integers(0, 256)
            try:
                clip = read_clip(bytes(damaged[: rng.integers(1, len(damaged) + 1)]))
            except VoiceError:
                continue
            assert np.isfinite(clip.samples).all()


def test_clips_without_samples_are_refused() -> None:
    assert "0 samples" in refusal(encoded(np.zeros(0, np.float32)))
    for shape in [(0,), (0, 2), (2, 0)]:
        assert "0 samples" in refusal((np.zeros(shape, np.float32), RATE_HZ))


def test_a_video_without_audio_is_refused() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        stream = out.add_stream("mpeg4", rate=10, width=16, height=16, pix_fmt="yuv420p")
        out.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
        out.mux(stream.encode(None))
    assert "no audio stream" in refusal(file.getvalue())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused(bad: float) -> None:
    samples = tone()
    samples[12_000 - 1] = bad
    assert "at 0.500 s" in refusal((samples, RATE_HZ))
    assert f"has a {bad} sample at 0.500 s" in refusal(encoded(samples, subtype="FLOAT"))
    assert "has a inf sample at 0.000 s" in refusal((np.full(10, 1e300), RATE_HZ))


@pytest.mark.parametrize("rate_hz", [0, -8000, 999, 768_001, 24_000.5, math.nan, math.inf, True, "24000", None])
def test_rates_out_of_range_are_refused(rate_hz: Any) -> None:
    assert "1000 to 768000" in refusal((tone(), rate_hz))


def test_a_file_with_a_rate_out_of_range_is_refused() -> None:
    assert "100 Hz" in refusal(encoded(tone(), 100))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((np.zeros((2, 2, 2), np.float32), RATE_HZ), "got shape ("),
        ((np.float32(0.5), RATE_HZ), "numpy array"),
        ((np.array(0.5), RATE_HZ), "got shape ("),
        (([0.1, 0.2], RATE_HZ), "numpy.asarray"),
        ((np.zeros(9, np.int64), RATE_HZ), "int64"),
        ((np.zeros(9, np.bool_), RATE_HZ), "bool"),
        ((np.zeros(9, np.complex64), RATE_HZ), "complex64"),
        ((np.array(["a"]), RATE_HZ), "<U1"),
        ((np.array([None]), RATE_HZ), "object"),
        ((32768 * tone(), RATE_HZ), "32768 for 16-bit"),
        ((tone(), RATE_HZ, 1), "tuple of 3"),
        (tone(), "an array without its rate"),
        (None, "got NoneType"),
        (17, "got int"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused(source: Any, message: str) -> None:
    assert message in refusal(source)


def test_huge_clips_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "huge.wav").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "the limit is 256 MiB" in refusal(tmp_path / "huge.wav")
    monkeypatch.setattr(audio, "MAX_VALUES", 10_000)
    assert "million samples" in refusal((tone(), RATE_HZ))


@pytest.mark.parametrize(
    "source", [encoded(tone(), format="FLAC"), encoded_av(tone(), 48_000, "webm", "libopus", "flt")]
)
def test_a_file_is_decoded_no_further_than_the_limits(source: bytes) -> None:
    assert "more than 0.01 million samples per channel" in refusal(source, ClipLimits(max_samples=10_000))
    assert re.search(r"has (0\.5|more than 0\.1) s, the maximum is 0\.1 s", refusal(source, ClipLimits(max_s=0.1)))


# Resampling


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 44_100, 44_101, 48_000, 96_000, 192_000])
@pytest.mark.parametrize("n", [1, 7, 30_001])
def test_resampling_has_the_length_and_numbers_of_librosa(rate_hz: int, n: int) -> None:
    samples = np.random.default_rng(n).normal(0, 0.2, n).astype(np.float32)
    clip = resample(Clip(samples, rate_hz), RATE_HZ)
    assert clip.rate_hz == RATE_HZ
    assert clip.samples.dtype == np.float32
    assert len(clip.samples) == math.ceil(n * (RATE_HZ / rate_hz))
    # librosa.resample(res_type="soxr_hq") is this call, padded or cut to that length; librosa 0.11 gives equal bits.
    expected = soxr.resample(samples, rate_hz, RATE_HZ, quality="soxr_hq")[: len(clip.samples)]
    np.testing.assert_allclose(clip.samples[: len(expected)], expected, atol=1e-6)
    assert not clip.samples[len(expected) :].any()


def test_resampling_to_the_same_rate_changes_nothing() -> None:
    clip = Clip(tone(), RATE_HZ)
    assert resample(clip, RATE_HZ) is clip


def test_resampling_keeps_the_waveform() -> None:
    up = resample(Clip(tone(rate_hz=16_000), 16_000), RATE_HZ)
    inner = slice(1000, -1000)
    np.testing.assert_allclose(up.samples[inner], tone()[inner], atol=1e-3)


# Checking a reference clip


def test_a_good_reference_passes() -> None:
    check_reference(Clip(tone(3.0), RATE_HZ))
    check_reference(Clip(tone(0.4), RATE_HZ))
    check_reference(Clip(tone(3.0, peak=0.002), RATE_HZ))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (tone(0.2), "has 0.20 s, the minimum is 0.4 s"),
        (tone(61.0), "has 61.0 s, the maximum is 60 s"),
        (np.zeros(RATE_HZ, np.float32), "-inf dBFS, the minimum is -60"),
        (tone(1.0, peak=0.0001), "-80 dBFS, the minimum is -60"),
    ],
    ids=["short", "long", "silent", "faint"],
)
def test_a_reference_that_cannot_be_cloned_is_refused(samples: Samples, message: str) -> None:
    with pytest.raises(VoiceError) as caught:
        check_reference(Clip(samples, RATE_HZ))
    assert message in str(caught.value)
    assert caught.value.param == "ref_audio"


def test_the_limits_are_parameters() -> None:
    check_reference(Clip(tone(0.1, peak=1e-4), RATE_HZ), min_s=0.05, silence_dbfs=-90)
    with pytest.raises(VoiceError, match="the maximum is 2 s"):
        check_reference(Clip(tone(3.0), RATE_HZ), max_s=2)


# --- writing ---


def half_second() -> Samples:
    """Half a second of a tone."""
    return (0.5 * np.sin(2 * np.pi * 440 / RATE_HZ * np.arange(RATE_HZ // 2))).astype(np.float32)


def test_pcm16_clips_and_rounds_to_nearest() -> None:
    step = 1 / 32767
    samples = np.array([0, 1, -1, 1.5, -7, 0.4 * step, 0.6 * step, -0.6 * step, 2.6 * step], np.float32)
    assert pcm16(samples).tolist() == [0, 32767, -32767, 32767, -32767, 0, 1, -1, 3]
    assert pcm16(samples).dtype == np.int16
    assert pcm16(np.zeros(0, np.float32)).tolist() == []


def test_pcm16_survives_the_round_trip() -> None:
    every_value = np.arange(-32767, 32768).astype(np.int16)
    np.testing.assert_array_equal(pcm16(every_value.astype(np.float32) / np.float32(32767)), every_value)


def test_the_header_is_what_libsndfile_writes() -> None:
    file = io.BytesIO()
    soundfile.write(file, half_second(), RATE_HZ, format="WAV")
    assert wav_header(RATE_HZ, len(half_second())) == file.getvalue()[:44]


def test_an_open_header_states_the_largest_sizes() -> None:
    header = wav_header(RATE_HZ)
    assert len(header) == 44
    assert struct.unpack_from("<I", header, 4) == struct.unpack_from("<I", header, 40) == (0xFFFFFFFF,)
    assert wav_header(RATE_HZ, 2**31) == header  # more than the format can state
    assert header[8:40] == wav_header(RATE_HZ, 5)[8:40]


def test_a_written_wav_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"an older file")
    write_wav(path, half_second(), RATE_HZ)
    back, rate_hz = soundfile.read(path, dtype="int16")
    assert rate_hz == RATE_HZ
    np.testing.assert_array_equal(back, pcm16(half_second()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["speech.wav"]


def test_a_new_wav_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_wav(str(tmp_path / "speech.wav"), half_second(), RATE_HZ)
    modes = {stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_crash_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_wav(path, half_second(), RATE_HZ)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["speech.wav"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.wav").write_bytes(b"old")
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    write_wav(tmp_path / "link.wav", half_second(), RATE_HZ)
    assert (tmp_path / "link.wav").is_symlink()
    assert read_clip(tmp_path / "real.wav").duration_s == 0.5


def test_a_device_is_written_and_not_replaced() -> None:
    write_wav("/dev/null", half_second(), RATE_HZ)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OscineError, match="there is no folder"):
        write_wav(tmp_path / "absent" / "speech.wav", half_second(), RATE_HZ)
    with pytest.raises(OscineError, match="it is a folder"):
        write_wav(tmp_path, half_second(), RATE_HZ)
    (tmp_path / "circle.wav").symlink_to("circle.wav")
    with pytest.raises(OscineError, match="leads back to itself"):
        write_wav(tmp_path / "circle.wav", half_second(), RATE_HZ)
    with pytest.raises(OscineError, match="cannot write"):
        write_wav("a\0b.wav", half_second(), RATE_HZ)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OscineError, match="Permission denied"):
        write_wav(tmp_path / "speech.wav", half_second(), RATE_HZ)
    tmp_path.chmod(0o700)
