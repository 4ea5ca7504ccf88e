"""Files that are sent when they are complete: other programs read their true length, and skip what the codec added."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
import soundfile

from oscine.audio.encoders import FORMATS, encode_whole, open_encoder, open_file_encoder
from tests.audio.test_encoders import CHUNK, RATE_HZ, correlation, cut, decoded, speech_like, streamed
from tests.conftest import require_program
from tests.file_length import assert_length

KNOWN_LENGTH = ("wav", "flac", "mp3", "opus")
LENGTHS = (1152, 24_203, 24_232, 48_777)  # with 24,203 samples, two frames of MP3 are padding


def whole(name: str, n_samples: int, rate_hz: int = RATE_HZ) -> bytes:
    return encode_whole(name, speech_like(n_samples, rate_hz).tobytes(), rate_hz=rate_hz)


@pytest.mark.parametrize("n_samples", LENGTHS)
@pytest.mark.parametrize("name", KNOWN_LENGTH)
def test_libsndfile_and_libav_read_every_sample_and_no_more(name: str, n_samples: int) -> None:
    """Chromium reads these formats with libav, too."""
    file, samples = whole(name, n_samples), speech_like(n_samples)
    assert_length(file, n_samples, RATE_HZ)
    assert correlation(soundfile.read(io.BytesIO(file), dtype="int16")[0], samples) > 0.98
    times = 2 if name == "opus" else 1  # libav always decodes opus to 48 kHz
    received = decoded(name, file)
    assert len(received) == times * n_samples and correlation(received[::times], samples) > 0.98


@pytest.mark.parametrize("name", ["wav", "flac", "mp3"])
def test_soxi_reads_the_length(name: str, tmp_path: Path) -> None:
    program = require_program("soxi", "sox libsox-fmt-mp3")
    path = tmp_path / f"speech.{name}"
    path.write_bytes(whole(name, 48_777))
    samples = int(subprocess.run([program, "-s", path], capture_output=True, text=True, check=True).stdout)
    # Of an MP3 it counts frames, with those that players skip: the delays, the padding, and the frame of the header.
    assert 0 <= samples - 48_777 <= (1105 + 3 * 576 if name == "mp3" else 0)


@pytest.mark.parametrize("rate_hz", FORMATS["mp3"].rates_hz)
def test_an_mp3_says_what_players_skip_at_every_rate(rate_hz: int) -> None:
    for n_samples in (rate_hz, rate_hz + 203, rate_hz + 577, 2 * rate_hz + 777):
        file = whole("mp3", n_samples, rate_hz)
        assert len(decoded("mp3", file)) == soundfile.info(io.BytesIO(file)).frames == n_samples


def test_an_mp3_states_its_frames_bytes_delay_and_padding() -> None:
    file = whole("mp3", RATE_HZ)
    tag = file.index(b"Info")
    assert tag == 13 and file[tag + 120 : tag + 124] == b"LAME"
    frames, size = int.from_bytes(file[tag + 8 : tag + 12], "big"), int.from_bytes(file[tag + 12 : tag + 16], "big")
    skipped = int.from_bytes(file[tag + 141 : tag + 144], "big")
    delay, padding = skipped >> 12, skipped & 0xFFF
    assert (frames + 1) * 288 == size == len(file)  # 96 kbit/s
    assert delay == 576 and frames * 576 == delay + RATE_HZ + padding


def test_an_mp3_is_the_streamed_one_behind_a_silent_frame() -> None:
    file, samples = whole("mp3", RATE_HZ), speech_like(RATE_HZ)
    assert file[288:] == streamed(open_encoder("mp3", rate_hz=RATE_HZ), samples, [CHUNK])
    assert file[:4] == file[288:292]


def test_flac_states_its_blocks_and_frames() -> None:
    file = whole("flac", RATE_HZ + 5)
    blocks = int.from_bytes(file[8:10], "big"), int.from_bytes(file[10:12], "big")
    smallest, largest = int.from_bytes(file[12:15], "big"), int.from_bytes(file[15:18], "big")
    assert blocks == (960, 960) and 0 < smallest < largest
    assert int.from_bytes(file[18:26], "big") & (1 << 36) - 1 == RATE_HZ + 5


@pytest.mark.parametrize("name", KNOWN_LENGTH)
def test_the_file_does_not_depend_on_how_the_audio_was_split(name: str) -> None:
    samples = speech_like(7_001)
    encoder = open_file_encoder(name, rate_hz=RATE_HZ, out_rate_hz=16_000, speed=1.3)
    pieces = [encoder.push(piece) for piece in cut(samples, [CHUNK])]
    file = b"".join([*pieces, encoder.finish()])
    assert file == encode_whole(name, samples.tobytes(), rate_hz=RATE_HZ, out_rate_hz=16_000, speed=1.3)
