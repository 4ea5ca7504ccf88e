"""PCM16, WAV headers and atomic writes."""

import io
import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from oscine.audio.clips import pcm16, read_clip, wav_header, write_wav
from oscine.audio.pcm import Samples
from oscine.errors import OscineError

RATE_HZ = 24_000


def tone() -> Samples:
    """Half a second."""
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
    soundfile.write(file, tone(), RATE_HZ, format="WAV")
    assert wav_header(RATE_HZ, len(tone())) == file.getvalue()[:44]


def test_an_open_header_states_the_largest_sizes() -> None:
    header = wav_header(RATE_HZ)
    assert len(header) == 44
    assert struct.unpack_from("<I", header, 4) == struct.unpack_from("<I", header, 40) == (0xFFFFFFFF,)
    assert wav_header(RATE_HZ, 2**31) == header  # more than the format can state
    assert header[8:40] == wav_header(RATE_HZ, 5)[8:40]


def test_a_written_wav_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"an older file")
    write_wav(path, tone(), RATE_HZ)
    back, rate_hz = soundfile.read(path, dtype="int16")
    assert rate_hz == RATE_HZ
    np.testing.assert_array_equal(back, pcm16(tone()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["speech.wav"]


def test_a_new_wav_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_wav(str(tmp_path / "speech.wav"), tone(), RATE_HZ)
    modes = {stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_crash_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_wav(path, tone(), RATE_HZ)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["speech.wav"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.wav").write_bytes(b"old")
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    write_wav(tmp_path / "link.wav", tone(), RATE_HZ)
    assert (tmp_path / "link.wav").is_symlink()
    assert read_clip(tmp_path / "real.wav").duration_s == 0.5


def test_a_device_is_written_and_not_replaced() -> None:
    write_wav("/dev/null", tone(), RATE_HZ)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OscineError, match="there is no folder"):
        write_wav(tmp_path / "absent" / "speech.wav", tone(), RATE_HZ)
    with pytest.raises(OscineError, match="it is a folder"):
        write_wav(tmp_path, tone(), RATE_HZ)
    (tmp_path / "circle.wav").symlink_to("circle.wav")
    with pytest.raises(OscineError, match="leads back to itself"):
        write_wav(tmp_path / "circle.wav", tone(), RATE_HZ)
    with pytest.raises(OscineError, match="cannot write"):
        write_wav("a\0b.wav", tone(), RATE_HZ)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OscineError, match="Permission denied"):
        write_wav(tmp_path / "speech.wav", tone(), RATE_HZ)
    tmp_path.chmod(0o700)
