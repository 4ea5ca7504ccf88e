"""Every format is readable by other programs, streams, and does not depend on how the audio was split."""

from __future__ import annotations

import gc
import hashlib
import io
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import psutil
import pytest
import soundfile
import soxr

from oscine.audio.clips import wav_header
from oscine.audio.encoders import FORMATS, Encoder, encode_whole, open_encoder, open_file_encoder, packet_bytes
from oscine.audio.formats import RATES_HZ
from oscine.errors import RequestError
from tests.conftest import require_program
from tests.file_length import assert_length

Pcm = npt.NDArray[np.int16]

RATE_HZ = 24_000
CHUNK = 1920  # samples: 80 ms, a frame of the model
CONTAINERS = {"mp3": "mp3", "opus": "ogg", "aac": "aac", "flac": "flac", "wav": "wav"}
CONTAINERS |= {name: name.partition("_")[0] for name in ("mulaw", "alaw", "g722", "wav_mulaw", "wav_alaw", "wav_g722")}
TELEPHONE = [name for name, form in FORMATS.items() if form.default_rate_hz]
OTHERS = [name for name in FORMATS if name not in TELEPHONE]
COMPRESSED = [name for name in OTHERS if FORMATS[name].codec]
# name -> samples of silence before the audio, and the frame that the end is padded to
PADDING = {"mp3": (1105, 2 * 576), "aac": (1024, 1024)}


def speech_like(n_samples: int, rate_hz: int = RATE_HZ) -> Pcm:
    """A chirp with an envelope like syllables and a little noise: no two positions are alike."""
    t = np.arange(n_samples) / rate_hz
    chirp = np.sin(2 * np.pi * (150 * t + 400 * t * t)) * (1 + 0.5 * np.sin(2 * np.pi * 4 * t))
    noise = np.random.default_rng(7).normal(0, 100, n_samples)
    return (9000 * chirp + noise).astype(np.int16)


def cut(samples: Pcm, lengths: list[int]) -> Iterator[bytes]:
    """Pieces of these lengths, repeated until the end."""
    start, number = 0, 0
    while start < len(samples):
        length = lengths[number % len(lengths)]
        yield samples[start : start + length].astype("<i2").tobytes()
        start, number = start + length, number + 1


def streamed(encoder: Encoder, samples: Pcm, lengths: list[int]) -> bytes:
    return b"".join([*map(encoder.push, cut(samples, lengths)), encoder.finish()])


def decoded(name: str, file: bytes) -> Pcm:
    if name == "pcm":
        return np.frombuffer(file, "<i2")
    to_pcm = av.AudioResampler(format="s16", layout="mono")
    with av.open(io.BytesIO(file), format=CONTAINERS[name]) as container:
        blocks = [part.to_ndarray()[0] for frame in container.decode(audio=0) for part in to_pcm.resample(frame)]
    return np.concatenate(blocks) if blocks else np.empty(0, np.int16)


def correlation(left: Pcm, right: Pcm) -> float:
    shared = min(len(left), len(right))
    return float(np.corrcoef(left[:shared].astype(float), right[:shared].astype(float))[0, 1])


def loudest_hz(samples: Pcm, rate_hz: int) -> float:
    middle = samples[len(samples) // 4 : -len(samples) // 4].astype(float)
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle)), 1 << 18))
    return float(spectrum.argmax()) * rate_hz / (1 << 18)


# Files


def test_plain_formats_pass_through_untouched() -> None:
    samples = speech_like(RATE_HZ)
    chunk = samples[:CHUNK].tobytes()
    assert open_encoder("pcm", rate_hz=RATE_HZ).push(chunk) is chunk
    assert streamed(open_encoder("pcm", rate_hz=RATE_HZ), samples, [CHUNK]) == samples.tobytes()
    assert streamed(open_encoder("wav", rate_hz=RATE_HZ), samples, [CHUNK]) == wav_header(RATE_HZ) + samples.tobytes()


@pytest.mark.parametrize("name", ["wav", "pcm", "flac"])
def test_lossless_formats_give_every_sample_back(name: str) -> None:
    samples = np.concatenate([speech_like(9_999), np.array([32767, -32768, 0], np.int16)])
    file = streamed(open_encoder(name, rate_hz=RATE_HZ), samples, [CHUNK])
    np.testing.assert_array_equal(decoded(name, file), samples)
    if name == "wav":  # a second reader, which is not libav
        np.testing.assert_array_equal(soundfile.read(io.BytesIO(file), dtype="int16")[0], samples)


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("name", ["mp3", "aac"])
def test_mp3_and_aac_add_only_their_known_silence(name: str, rate_hz: int) -> None:
    samples = speech_like(rate_hz // 2 + 77, rate_hz)
    received = decoded(name, streamed(open_encoder(name, rate_hz=rate_hz), samples, [CHUNK]))
    before, frame = PADDING[name]
    if name == "mp3" and rate_hz >= 32_000:
        frame *= 2
    assert 0 <= len(received) - before - len(samples) < frame
    assert correlation(received[before:], samples) > 0.99


@pytest.mark.parametrize("rate_hz", FORMATS["opus"].rates_hz)
def test_opus_has_the_exact_length(rate_hz: int) -> None:
    for n_samples in (rate_hz // 2 + 77, rate_hz // 50, 1):
        samples = speech_like(n_samples, rate_hz)
        file = streamed(open_encoder("opus", rate_hz=rate_hz), samples, [CHUNK])
        received = decoded("opus", file)  # always at 48 kHz
        assert len(received) == n_samples * 48_000 // rate_hz
        assert soundfile.info(io.BytesIO(file)).frames == n_samples  # a second reader, which is not libav
        assert n_samples < 1000 or correlation(received[:: 48_000 // rate_hz], samples) > 0.98


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("speed", [1.0, 1.3])
def test_the_bytes_do_not_depend_on_how_the_audio_was_split(name: str, speed: float) -> None:
    samples = speech_like(7_001)
    whole, frames, odd = (
        streamed(open_encoder(name, rate_hz=RATE_HZ, out_rate_hz=16_000, speed=speed), samples, lengths)
        for lengths in ([len(samples)], [CHUNK], [1, 0, 1001, 479])
    )
    assert whole == frames == odd


def test_a_streamed_mp3_starts_with_audio_and_not_with_tags() -> None:
    file = streamed(open_encoder("mp3", rate_hz=RATE_HZ), speech_like(CHUNK), [CHUNK])
    assert file[:2] == b"\xff\xf3"  # sync word, MPEG-2 layer 3
    assert b"Xing" not in file and b"Info" not in file and b"LAME" not in file[:200]


def test_opus_pages_are_short() -> None:
    file = encode_whole("opus", speech_like(RATE_HZ).tobytes(), rate_hz=RATE_HZ)
    starts = [start for start in range(len(file) - 14) if file[start : start + 4] == b"OggS"]
    granules = [struct.unpack_from("<q", file, start + 6)[0] for start in starts]  # samples at 48 kHz
    assert granules[:3] == [0, 0, 960] and max(np.diff(granules)) == 960


def test_the_header_of_a_whole_file_states_its_length() -> None:
    samples = speech_like(12_345)
    pcm = samples.tobytes()
    assert encode_whole("wav", pcm, rate_hz=RATE_HZ) == wav_header(RATE_HZ, 12_345) + pcm
    flac = encode_whole("flac", pcm, rate_hz=RATE_HZ)
    assert soundfile.info(io.BytesIO(flac)).frames == 12_345
    assert flac[26:42] == hashlib.md5(pcm).digest()  # STREAMINFO ends with it
    np.testing.assert_array_equal(decoded("flac", flac), samples)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "mp3" and not FORMATS[name].needs_length])
def test_other_whole_files_equal_the_streamed_ones(name: str) -> None:
    samples = speech_like(5_000)
    assert encode_whole(name, samples.tobytes(), rate_hz=RATE_HZ) == streamed(
        open_encoder(name, rate_hz=RATE_HZ), samples, [CHUNK]
    )


@pytest.mark.parametrize("speed", [1.0, 0.25, 4.0])
@pytest.mark.parametrize("name", FORMATS)
def test_empty_audio_and_single_samples_work(name: str, speed: float) -> None:
    empty = open_encoder(name, rate_hz=RATE_HZ, speed=speed)
    file = empty.push(b"") + empty.finish()
    if name in ("wav", "flac"):
        assert len(decoded(name, file)) == 0
    encode_whole(name, b"", rate_hz=RATE_HZ, out_rate_hz=16_000, speed=speed)
    one = encode_whole(name, b"\1\0", rate_hz=RATE_HZ, speed=speed)
    if name in ("wav", "pcm", "flac"):
        assert len(decoded(name, one)) == round(1 / speed)


# Latency


@pytest.mark.parametrize("name", COMPRESSED)
def test_audio_leaves_by_the_second_push_and_the_delay_does_not_grow(name: str) -> None:
    samples = speech_like(25 * CHUNK)
    encoder = open_encoder(name, rate_hz=RATE_HZ)
    sent = bytearray(encoder.push(b""))
    held_back = []
    for number, chunk in enumerate(cut(samples, [CHUNK]), start=1):
        piece = encoder.push(chunk)
        sent += piece
        assert piece or number == 1, number
        if number in (5, 15, 25):
            out = len(decoded(name, bytes(sent))) // (2 if name == "opus" else 1) - PADDING.get(name, (0,))[0]
            held_back.append(number * CHUNK - out)
    encoder.close()
    assert max(held_back) <= 0.13 * RATE_HZ, held_back
    assert abs(held_back[-1] - held_back[0]) < 1152, held_back  # chunk and frame borders differ by up to a frame


@pytest.mark.parametrize("speed", [0.25, 0.8, 1.25, 2.0])
def test_audio_at_another_speed_leaves_with_the_first_push(speed: float) -> None:
    samples = speech_like(10 * CHUNK)
    encoder = open_encoder("pcm", rate_hz=RATE_HZ, speed=speed)
    sent_samples = 0
    for number, chunk in enumerate(cut(samples, [CHUNK]), start=1):
        sent_samples += len(encoder.push(chunk)) // 2
        held_back_s = (number * CHUNK - sent_samples * speed) / RATE_HZ
        assert sent_samples and 0 <= held_back_s < 0.1


# Other rates and speeds


@pytest.mark.parametrize("out_rate_hz", [rate_hz for rate_hz in RATES_HZ if rate_hz != RATE_HZ])
def test_resampling_in_pieces_equals_resampling_the_whole(out_rate_hz: int) -> None:
    samples = speech_like(RATE_HZ + 77)
    sent = streamed(open_encoder("pcm", rate_hz=RATE_HZ, out_rate_hz=out_rate_hz), samples, [CHUNK])
    whole = soxr.resample(samples.astype(np.float32), RATE_HZ, out_rate_hz)
    np.testing.assert_array_equal(decoded("pcm", sent), np.rint(whole))


def test_resampling_clips_and_does_not_wrap_around() -> None:
    square = np.where(np.arange(RATE_HZ // 4) // 60 % 2, 32767, -32768).astype(np.int16)
    sent = decoded("pcm", encode_whole("pcm", square.tobytes(), rate_hz=RATE_HZ, out_rate_hz=48_000))
    assert sent.max() == 32767 and sent.min() == -32768
    assert correlation(sent[::2], square) > 0.95


@pytest.mark.parametrize("speed", [0.25, 0.4, 0.8, 1.25, 2.0, 3.0, 4.0])
def test_speed_changes_the_length_exactly_and_keeps_the_pitch(speed: float) -> None:
    tone = (9000 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.int16)
    sent = decoded("pcm", encode_whole("pcm", tone.tobytes(), rate_hz=RATE_HZ, speed=speed))
    assert len(sent) == round(len(tone) / speed)
    assert loudest_hz(sent, RATE_HZ) == pytest.approx(440, abs=2)
    assert sent.astype(float).std() == pytest.approx(tone.astype(float).std(), rel=0.05)


@pytest.mark.parametrize("volume", [0.0, 0.5, 4.0])
def test_volume_is_a_factor_and_what_is_too_loud_is_clipped(volume: float) -> None:
    samples = speech_like(RATE_HZ // 4)
    expected = np.rint(samples * volume).clip(-32768, 32767)
    sent = streamed(open_encoder("pcm", rate_hz=RATE_HZ, volume=volume), samples, [CHUNK, 7])
    np.testing.assert_array_equal(decoded("pcm", sent), expected)
    np.testing.assert_array_equal(decoded("flac", encode_whole("flac", sent, rate_hz=RATE_HZ)), expected)


def test_every_format_supports_speed_and_rate_together() -> None:
    tone = (9000 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.int16)
    for name in OTHERS:
        encoder = open_encoder(name, rate_hz=RATE_HZ, out_rate_hz=48_000, speed=0.8)
        received = decoded(name, streamed(encoder, tone, [CHUNK]))
        before, frame = PADDING.get(name, (0, 1))
        assert 0 <= len(received) - before - 60_000 < 2 * frame, name
        assert loudest_hz(received, 48_000) == pytest.approx(440, abs=2), name


# Telephones


@pytest.mark.parametrize("name", TELEPHONE)
@pytest.mark.parametrize("whole", [True, False])
def test_telephone_formats_have_their_own_rate_and_every_sample(name: str, whole: bool) -> None:
    rate_hz = FORMATS[name].default_rate_hz
    assert rate_hz
    samples = speech_like(RATE_HZ)
    encoder = (open_file_encoder if whole else open_encoder)(name, rate_hz=RATE_HZ)
    received = decoded(name, streamed(encoder, samples, [CHUNK]))
    expected = soxr.resample(samples.astype(np.float32), RATE_HZ, rate_hz)
    assert len(received) == rate_hz
    delay = 22 if "g722" in name else 0  # of its filters
    assert correlation(received[delay:], np.rint(expected).astype(np.int16)) > 0.99


@pytest.mark.parametrize("name", TELEPHONE)
def test_telephone_formats_have_nothing_above_half_their_rate(name: str) -> None:
    """A tone of 11 kHz would come back as one of 3 or 5 kHz."""
    tone = (9000 * np.sin(2 * np.pi * 11_000 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.int16)
    received = decoded(name, encode_whole(name, tone.tobytes(), rate_hz=RATE_HZ))
    assert received[1000:-1000].astype(float).std() < 20


@pytest.mark.parametrize("name", ["mulaw", "alaw", "g722"])
def test_telephone_audio_leaves_with_each_packet(name: str) -> None:
    rate_hz = FORMATS[name].default_rate_hz
    encoder = open_encoder(name, rate_hz=rate_hz or 0)
    pieces = [encoder.push(packet) for packet in cut(speech_like(10 * 320), [(rate_hz or 0) // 50])]
    assert {len(piece) for piece in pieces} == {160}  # 64 kbit/s, 20 ms


@pytest.mark.parametrize("name", ["wav_mulaw", "wav_alaw"])
def test_other_readers_know_the_length_of_telephone_files(name: str) -> None:
    file = encode_whole(name, speech_like(RATE_HZ).tobytes(), rate_hz=RATE_HZ)
    assert soundfile.info(io.BytesIO(file)).frames == 8_000


@pytest.mark.parametrize(
    ("name", "rate_hz", "packet_ms", "size"),
    [("mulaw", 8000, 20, 160), ("alaw", 16_000, 30, 480), ("g722", 16_000, 20, 160), ("pcm", 24_000, 10, 480)],
)
def test_packets_have_the_bytes_of_their_time(name: str, rate_hz: int, packet_ms: int, size: int) -> None:
    assert packet_bytes(FORMATS[name], rate_hz, packet_ms) == size


@pytest.mark.parametrize(
    ("name", "rate_hz", "words"), [("mp3", 24_000, "possible: pcm, mulaw, alaw, g722"), ("pcm", 22_050, "whole number")]
)
def test_packets_that_cannot_be_are_refused(name: str, rate_hz: int, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        packet_bytes(FORMATS[name], rate_hz, 5)
    assert refused.value.param == "packet_ms"


# Refusals


@pytest.mark.parametrize(
    ("name", "how", "param", "words"),
    [
        ("opus", {"out_rate_hz": 44_100}, "sample_rate", "opus does not support 44100 Hz (possible: 8000, 12000, "),
        ("opus", {"out_rate_hz": 22_050}, "sample_rate", "supported by mp3, wav, pcm, aac, flac"),
        ("mp3", {"out_rate_hz": 96_000}, "sample_rate", "44100, 48000)"),
        ("ogg", {}, "response_format", "unknown response_format 'ogg'"),
        ("pcm", {"speed": 4.5}, "speed", "speed must be between 0.25 and 4, got 4.5"),
        ("pcm", {"speed": float("nan")}, "speed", "got nan"),
    ],
)
def test_unsupported_settings_are_refused_before_any_audio(
    name: str, how: dict[str, float], param: str, words: str
) -> None:
    for make in (
        lambda: open_encoder(name, rate_hz=RATE_HZ, **how),
        lambda: encode_whole(name, b"", rate_hz=RATE_HZ, **how),
    ):
        with pytest.raises(RequestError) as caught:
            make()
        assert caught.value.param == param
        assert words in str(caught.value)


# Disconnected clients


@pytest.mark.parametrize("name", FORMATS)
def test_close_works_at_any_time_and_repeatedly(name: str) -> None:
    chunk = speech_like(CHUNK).tobytes()
    for pushes in (0, 1, 3):
        encoder = open_encoder(name, rate_hz=RATE_HZ, out_rate_hz=16_000, speed=1.5)
        for _ in range(pushes):
            encoder.push(chunk)
        encoder.close()
        encoder.close()
        with pytest.raises(AssertionError):
            encoder.push(chunk)
    finished = open_encoder(name, rate_hz=RATE_HZ)
    finished.finish()
    finished.close()


def test_dropped_encoders_free_memory_and_files_at_once() -> None:
    process = psutil.Process()
    chunk = speech_like(CHUNK).tobytes()

    def drop(encoders: int, *, close: bool) -> None:
        for number in range(encoders):
            name = COMPRESSED[number % len(COMPRESSED)]
            encoder = open_encoder(name, rate_hz=RATE_HZ, out_rate_hz=16_000, speed=0.4 if number % 3 else 1.0)
            encoder.push(chunk)
            if close:
                encoder.close()

    drop(60, close=False)
    gc.collect()
    gc.disable()  # dropped encoders must not wait for a collection
    try:
        files, memory_bytes = process.num_fds(), process.memory_info().rss
        drop(200, close=False)
        drop(100, close=True)
        assert process.num_fds() == files
        assert process.memory_info().rss - memory_bytes < 8 * 2**20
    finally:
        gc.enable()


# --- whole files ---

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
