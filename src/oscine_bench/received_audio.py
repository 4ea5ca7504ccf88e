"""Decodes a response: its samples, and how many seconds were playable after each arrival.

PCM and WAV are counted by bytes; in encoded formats the container's packets map bytes to time. Server-sent events are
unpacked first. All of this happens after the response has ended, so it delays no stream.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oscine.audio.clips import pcm16, read_clip
from oscine.errors import VoiceError
from oscine_bench.exchange import Exchange, RequestFailure, error_message
from oscine_bench.targets import Target

Pcm = npt.NDArray[np.int16]
Counts = npt.NDArray[np.int64]

MIN_RATE_HZ, MAX_RATE_HZ = 4000, 384000
# Content types and the format they state. Other audio/... types are accepted for any format: raw PCM has many names.
_UNSPECIFIED = ("", "application/octet-stream", "binary/octet-stream")
_EVENTS = ("text/event-stream", "text/plain")
_TYPES = {
    "wav": ("audio/wav", "audio/wave", "audio/x-wav", "audio/vnd.wave"),
    "mp3": ("audio/mpeg", "audio/mp3", "audio/x-mp3", "audio/mpeg3", "audio/x-mpeg"),
    "opus": ("audio/ogg", "audio/opus", "application/ogg", "audio/webm"),
    "aac": ("audio/aac", "audio/x-aac", "audio/aacp", "audio/mp4", "audio/m4a", "audio/x-m4a"),
    "flac": ("audio/flac", "audio/x-flac"),
}
_FORMATS = {stated: name for name, types in _TYPES.items() for stated in types}
_UNKNOWN_LENGTH = 0x7FFFFF00  # streamed WAVs state at least this length


class InvalidAudioError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.failure = RequestFailure(kind, message)


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedAudio:
    pcm: Pcm  # mono
    rate_hz: int
    playable_s: tuple[float, ...]  # seconds that could be played after each arrival

    @property
    def duration_s(self) -> float:
        return len(self.pcm) / self.rate_hz


def decode_audio(exchange: Exchange, target: Target) -> ReceivedAudio:
    """Raises InvalidAudioError unless the response is complete audio of the requested format."""
    file = b"".join(exchange.body)
    _check_type(exchange.headers.get("content-type", ""), file, "events" if target.sse else target.response_format)
    received = np.frombuffer(exchange.body_bytes, np.int64)
    if target.sse:
        file, received = _unpack_events(file, received)
    if not file:
        raise InvalidAudioError("empty", "the response has no audio")
    if target.response_format == "pcm":
        audio = _from_samples(file, received, _pcm_rate(exchange, target.preset.pcm_rate_hz))
    elif target.response_format == "wav":
        audio = _from_wav(file, received)
    else:
        audio = _from_packets(file, received)
    if _is_doubled(audio):
        raise InvalidAudioError("doubled", f"the same {audio.duration_s / 2:.2f} s of audio came twice")
    return audio


def _check_type(content_type: str, file: bytes, expected: str) -> None:
    stated = content_type.split(";")[0].strip().lower()
    if stated in _UNSPECIFIED or (expected == "events" and stated in _EVENTS):
        return
    if expected != "events" and _FORMATS.get(stated, expected if stated.startswith("audio/") else "") == expected:
        return
    message = f": {error_message(file)}" if stated == "application/json" else ""
    raise InvalidAudioError("malformed", f"expected {expected}, got {stated}{message}")


def _pcm_rate(exchange: Exchange, default_hz: int) -> int:
    stated = exchange.headers.get("x-sample-rate", "").strip()
    try:
        return round(float(stated)) if stated else default_hz
    except (ValueError, OverflowError):
        raise InvalidAudioError("malformed", f"invalid sample rate {stated[:20]!r}") from None


def _from_samples(samples: bytes, received: Counts, rate_hz: int, channels: int = 1) -> ReceivedAudio:
    """`received`: bytes of samples after each arrival."""
    step = 2 * channels
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        limits = f"{MIN_RATE_HZ} to {MAX_RATE_HZ}"
        raise InvalidAudioError("malformed", f"invalid sample rate {rate_hz} Hz (supported: {limits})")
    if len(samples) % step:
        raise InvalidAudioError("malformed", f"{len(samples)} bytes of audio are not a multiple of {step}")
    if not samples:
        raise InvalidAudioError("empty", "the response has no audio")
    pcm = np.frombuffer(samples, "<i2").astype(np.int16, copy=False)
    mono = pcm if channels == 1 else pcm.reshape(-1, channels).mean(axis=1).astype(np.int16)
    return ReceivedAudio(mono, rate_hz, tuple((received // step / rate_hz).tolist()))


def _from_wav(file: bytes, received: Counts) -> ReceivedAudio:
    if file[:4] != b"RIFF" or file[8:12] != b"WAVE":
        raise InvalidAudioError("malformed", f"not a WAV: it starts with {file[:12]!r}")
    at, rate_hz, channels = 12, 0, 0
    while at + 8 <= len(file):
        name, size = struct.unpack_from("<4sI", file, at)
        at += 8
        if name == b"fmt " and at + 16 <= len(file):
            kind, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", file, at)
            if kind not in (1, 0xFFFE) or bits != 16 or not channels or not rate_hz:
                raise InvalidAudioError("malformed", f"WAV of kind {kind}, {bits} bits; only 16-bit PCM is supported")
        if name == b"data":
            break
        at += size + size % 2
    else:
        raise InvalidAudioError("malformed", f"a WAV of {len(file)} bytes without a data chunk")
    if not rate_hz:
        raise InvalidAudioError("malformed", "a WAV without a format chunk before its data")
    samples = file[at:]
    if 0 < size < _UNKNOWN_LENGTH:
        if len(samples) < size:
            raise InvalidAudioError("cut", f"a WAV with {size} bytes of audio ended after {len(samples)}")
        samples = samples[:size]
    return _from_samples(samples, np.clip(received - at, 0, len(samples)), rate_hz, channels)


def _from_packets(file: bytes, received: Counts) -> ReceivedAudio:
    try:
        clip = read_clip(file)
        starts = _packet_starts(file)
    except (VoiceError, ValueError) as error:
        raise InvalidAudioError("malformed", str(error)) from None
    # A packet is playable once the first byte of the next one has arrived, or the file has ended.
    ends = np.append(starts[1:, 0], len(file))
    until_s = np.append(starts[1:, 1], clip.duration_s)
    packets = np.searchsorted(ends, received, side="right")
    playable_s = np.minimum(np.append(0.0, until_s)[packets], clip.duration_s)
    return ReceivedAudio(pcm16(clip.samples), clip.rate_hz, tuple(playable_s.tolist()))


def _packet_starts(file: bytes) -> npt.NDArray[np.float64]:
    """Returns [packets, 2]: first byte, and time in seconds since the first packet. Packets of one page count as
    one."""
    import av

    starts: dict[int, float] = {}
    first_s: float | None = None
    with av.open(io.BytesIO(file), "r") as container:
        for packet in container.demux(audio=0):
            if packet.pos is None or packet.pts is None or packet.time_base is None:
                continue
            at_s = float(packet.pts * packet.time_base)
            first_s = at_s if first_s is None else first_s
            starts.setdefault(packet.pos, at_s - first_s)
    if not starts:
        raise ValueError("no audio packets")
    return np.array(sorted(starts.items()))


def _unpack_events(stream: bytes, received: Counts) -> tuple[bytes, Counts]:
    """Returns the audio inside, and how much of it had arrived after each read. An event counts once it is complete."""
    separator = b"\r\n\r\n" if b"\r\n\r\n" in stream else b"\n\n"
    pieces: list[bytes] = []
    ends, totals = [0], [0]
    at, ended = 0, False
    for event in stream.split(separator):
        at += len(event) + len(separator)
        kind, audio = _read_event(event)
        ended = ended or kind in ("speech.audio.done", "[DONE]")
        if audio:
            pieces.append(audio)
            ends.append(at)
            totals.append(totals[-1] + len(audio))
    if not ended:
        raise InvalidAudioError("cut", "the events ended without speech.audio.done")
    events = np.searchsorted(np.array(ends), received, side="right") - 1
    return b"".join(pieces), np.array(totals, np.int64)[events]


def _read_event(event: bytes) -> tuple[str, bytes]:
    """Returns an event's type and its audio."""
    data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
    if not data or data == b"[DONE]":
        return data.decode(), b""
    try:
        message = json.loads(data)
        kind = str(message.get("type", ""))
        if kind.endswith("error"):
            raise InvalidAudioError("reported", error_message(data))
        return kind, base64.b64decode(message.get("audio") or message.get("delta") or "", validate=True)
    except (ValueError, AttributeError, TypeError, binascii.Error) as error:
        raise InvalidAudioError("malformed", f"an event cannot be read: {error}") from None


def _is_doubled(audio: ReceivedAudio) -> bool:
    """Whether the audio is sent twice: one server sent every utterance in chunks and then again as a whole, and looked
    twice as fast."""
    half, odd = divmod(len(audio.pcm), 2)
    if odd or half < audio.rate_hz // 5:
        return False
    first = audio.pcm[:half]
    return bool(first.any()) and np.array_equal(first, audio.pcm[half:])
