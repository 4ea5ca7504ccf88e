"""Bytes become seconds of sound: how much could be played after each arrival, and the samples themselves.

Raw PCM and WAV are counted; for encoded formats the container's packets tell which byte ends which moment. Server-sent
events are unpacked first. All of it happens after the answer has ended, so that it costs no stream anything.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oscine.audio import pcm16, read_clip
from oscine.bench.client import error_message
from oscine.bench.exchange import Exchange, Failure
from oscine.types import VoiceError

Pcm = npt.NDArray[np.int16]
Counts = npt.NDArray[np.int64]

CHEAP_FORMATS = ("pcm", "wav")  # can be judged while other streams run
MIN_RATE_HZ, MAX_RATE_HZ = 4000, 384000
# What a content type says of its body. Any other audio/... is taken for what was asked: raw samples have many names.
_UNSAID = ("", "application/octet-stream", "binary/octet-stream")
_EVENTS = ("text/event-stream", "text/plain")
_TYPES = {
    "wav": ("audio/wav", "audio/wave", "audio/x-wav", "audio/vnd.wave"),
    "mp3": ("audio/mpeg", "audio/mp3", "audio/x-mp3", "audio/mpeg3", "audio/x-mpeg"),
    "opus": ("audio/ogg", "audio/opus", "application/ogg", "audio/webm"),
    "aac": ("audio/aac", "audio/x-aac", "audio/aacp", "audio/mp4", "audio/m4a", "audio/x-m4a"),
    "flac": ("audio/flac", "audio/x-flac"),
}
_FORMATS = {stated: name for name, types in _TYPES.items() for stated in types}
_OPEN_LENGTH = 0x7FFFFF00  # a WAV that claims so much is a stream whose length was not known


class BadSoundError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message)


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    pcm: Pcm  # mono
    rate_hz: int
    heard_s: tuple[float, ...]  # seconds that could be played after each arrival

    @property
    def duration_s(self) -> float:
        return len(self.pcm) / self.rate_hz


def hear(exchange: Exchange, response_format: str, *, sse: bool = False, pcm_rate_hz: int = 24000) -> Sound:
    """Raises BadSoundError where the answer is no whole sound."""
    file = b"".join(exchange.body)
    _check_type(exchange.headers.get("content-type", ""), file, "events" if sse else response_format)
    received = np.frombuffer(exchange.body_bytes, np.int64)
    if sse:
        file, received = _unpack_events(file, received)
    if not file:
        raise BadSoundError("empty", "the answer has no sound")
    if response_format == "pcm":
        sound = _sound(file, received, _pcm_rate(exchange, pcm_rate_hz))
    elif response_format == "wav":
        sound = _hear_wav(file, received)
    else:
        sound = _hear_packets(file, received)
    if _is_doubled(sound):
        raise BadSoundError("doubled", f"the same {sound.duration_s / 2:.2f} s of sound came twice")
    return sound


def _check_type(content_type: str, file: bytes, asked: str) -> None:
    stated = content_type.split(";")[0].strip().lower()
    if stated in _UNSAID or (asked == "events" and stated in _EVENTS):
        return
    if asked != "events" and _FORMATS.get(stated, asked if stated.startswith("audio/") else "") == asked:
        return
    said = f": {error_message(file)}" if stated == "application/json" else ""
    raise BadSoundError("malformed", f"answered {stated}, asked for {asked}{said}")


def _pcm_rate(exchange: Exchange, usual_hz: int) -> int:
    stated = exchange.headers.get("x-sample-rate", "").strip()
    try:
        return round(float(stated)) if stated else usual_hz
    except (ValueError, OverflowError):
        raise BadSoundError("malformed", f"a sample rate of {stated[:20]!r}") from None


def _sound(samples: bytes, whole: Counts, rate_hz: int, channels: int = 1) -> Sound:
    """`whole`: bytes of samples after each arrival."""
    step = 2 * channels
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise BadSoundError(
            "malformed", f"a sample rate of {rate_hz} Hz; {MIN_RATE_HZ} to {MAX_RATE_HZ} can be measured"
        )
    if len(samples) % step:
        raise BadSoundError("malformed", f"{len(samples)} bytes of sound end within a sample of {step} bytes")
    if not samples:
        raise BadSoundError("empty", "the answer has no sound")
    pcm = np.frombuffer(samples, "<i2").astype(np.int16, copy=False)
    mono = pcm if channels == 1 else pcm.reshape(-1, channels).mean(axis=1).astype(np.int16)
    return Sound(mono, rate_hz, tuple((whole // step / rate_hz).tolist()))


def _hear_wav(file: bytes, received: Counts) -> Sound:
    if file[:4] != b"RIFF" or file[8:12] != b"WAVE":
        raise BadSoundError("malformed", f"not a WAV: it begins with {file[:12]!r}")
    at, rate_hz, channels = 12, 0, 0
    while at + 8 <= len(file):
        name, size = struct.unpack_from("<4sI", file, at)
        at += 8
        if name == b"fmt " and at + 16 <= len(file):
            kind, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", file, at)
            if kind not in (1, 0xFFFE) or bits != 16 or not channels or not rate_hz:
                raise BadSoundError("malformed", f"a WAV of kind {kind} with {bits} bits; 16-bit PCM can be measured")
        if name == b"data":
            break
        at += size + size % 2
    else:
        raise BadSoundError("malformed", f"a WAV without sound: no data within {len(file)} bytes")
    if not rate_hz:
        raise BadSoundError("malformed", "a WAV that does not state its format before its sound")
    samples = file[at:]
    if 0 < size < _OPEN_LENGTH:
        if len(samples) < size:
            raise BadSoundError("cut", f"a WAV of {size} bytes of sound ended after {len(samples)}")
        samples = samples[:size]
    return _sound(samples, np.clip(received - at, 0, len(samples)), rate_hz, channels)


def _hear_packets(file: bytes, received: Counts) -> Sound:
    try:
        clip = read_clip(file)
        starts = _packets(file)
    except (VoiceError, ValueError) as error:
        raise BadSoundError("malformed", str(error)) from None
    # A packet can be played once the first byte of the next one is here, or the file has ended.
    ends = np.append(starts[1:, 0], len(file))
    until_s = np.append(starts[1:, 1], clip.duration_s)
    playable = np.searchsorted(ends, received, side="right")
    heard_s = np.minimum(np.append(0.0, until_s)[playable], clip.duration_s)
    return Sound(pcm16(clip.samples), clip.rate_hz, tuple(heard_s.tolist()))


def _packets(file: bytes) -> npt.NDArray[np.float64]:
    """[packets, 2]: first byte, start in seconds from the first; packets that share a byte (a page) are one."""
    import av

    found: dict[int, float] = {}
    first_s: float | None = None
    with av.open(io.BytesIO(file), "r") as container:
        for packet in container.demux(audio=0):
            if packet.pos is None or packet.pts is None or packet.time_base is None:
                continue
            at_s = float(packet.pts * packet.time_base)
            first_s = at_s if first_s is None else first_s
            found.setdefault(packet.pos, at_s - first_s)
    if not found:
        raise ValueError("no packets of sound")
    return np.array(sorted(found.items()))


def _unpack_events(stream: bytes, received: Counts) -> tuple[bytes, Counts]:
    """The file inside, and how much of it had come with each arrival: events count once they are whole."""
    pieces: list[bytes] = []
    ends, totals = [0], [0]
    at, ended = 0, False
    for event in _events(stream):
        at += len(event)
        kind, sound = _read_event(event)
        ended = ended or kind in ("speech.audio.done", "[DONE]")
        if sound:
            pieces.append(sound)
            ends.append(at)
            totals.append(totals[-1] + len(sound))
    if not ended:
        raise BadSoundError("cut", "the events ended without speech.audio.done")
    places = np.searchsorted(np.array(ends), received, side="right") - 1
    return b"".join(pieces), np.array(totals, np.int64)[places]


def _events(stream: bytes) -> Sequence[bytes]:
    """With their ends, so that lengths add up to places in the stream."""
    separator = b"\r\n\r\n" if b"\r\n\r\n" in stream else b"\n\n"
    return [event + separator for event in stream.split(separator)]


def _read_event(event: bytes) -> tuple[str, bytes]:
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    if not lines:
        return "", b""
    joined = b"\n".join(lines)
    if joined == b"[DONE]":
        return "[DONE]", b""
    try:
        message = json.loads(joined)
        kind = str(message.get("type", ""))
        if kind.endswith("error"):
            raise BadSoundError("reported", error_message(joined))
        sound = base64.b64decode(message.get("audio") or message.get("delta") or "", validate=True)
    except (ValueError, AttributeError, TypeError, binascii.Error) as error:
        raise BadSoundError("malformed", f"an event that cannot be read: {error}") from None
    return kind, sound


def _is_doubled(sound: Sound) -> bool:
    """A server once sent every utterance in pieces and then again as a whole, and looked twice as fast for it."""
    half, odd = divmod(len(sound.pcm), 2)
    if odd or half < sound.rate_hz // 5:
        return False
    first = sound.pcm[:half]
    return bool(first.any()) and np.array_equal(first, sound.pcm[half:])
