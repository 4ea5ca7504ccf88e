"""Finished speech: save it, play it, or show it in a notebook. No torch here."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oscine.audio.clips import pcm16, write_audio_file
from oscine.audio.pcm import Codes, Samples
from oscine.errors import OscineError, RequestError, unknown_choice
from oscine.types import FinishReason


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Speech:
    """A finished speech. A notebook shows it as a player."""

    audio: Samples  # float32, -1..1, mono
    sample_rate: int  # Hz
    codes: Codes  # [frames, 16]: what the model generated, before speed and sample_rate
    finish_reason: FinishReason  # "stop": the end; "length": max_new_tokens; "runaway": ended by runaway detection
    seed: int  # repeats the speech

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.audio) / self.sample_rate

    def __repr__(self) -> str:
        return f"Speech({self.duration_s:.2f} s at {self.sample_rate} Hz, {self.finish_reason}, seed={self.seed})"

    def encode(self, format_name: str = "wav") -> bytes:
        """The bytes of an audio file: wav, mp3, opus, flac, aac, or raw pcm (16-bit, mono); mulaw, alaw or
        g722 for telephones."""
        from oscine.audio.encoders import encode_whole  # here: codecs take time to load

        return encode_whole(format_name, pcm16(self.audio).astype("<i2").tobytes(), rate_hz=self.sample_rate)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file atomically; its suffix selects the format."""
        write_audio_file(path, self.encode(format_of(path)))

    def play(self) -> None:
        """Plays on the default output device and waits until the end. Needs `pip install 'oscine[play]'`."""
        device = sound_device()
        device.play(self.audio, self.sample_rate)
        device.wait()

    def _repr_html_(self) -> str:
        content = base64.b64encode(self.encode("mp3")).decode()
        return f'<audio controls src="data:audio/mpeg;base64,{content}"></audio><br>{self!r}'


def format_of(path: str | os.PathLike[str]) -> str:
    """The audio format of a file name's suffix; without a suffix, wav."""
    return format_named(Path(path).suffix.lower().removeprefix(".") or "wav", f"{str(path)!r}")


def format_named(name: str, source: str) -> str:
    """The audio format of this name, which `source` gave: an option, or a file. Raises RequestError."""
    from oscine.audio.encoders import FORMATS

    known = {"ogg": "opus", "raw": "pcm", "ulaw": "mulaw"}.get(name.lower(), name.lower())
    if known not in FORMATS:
        raise RequestError(f"{source}: {unknown_choice('audio format', name, FORMATS)}", "output")
    return known


def sound_device() -> Any:
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: the PortAudio library is missing
        raise OscineError(
            f"cannot play audio: {error}; install it with `pip install 'oscine[play]'` (on Linux also libportaudio2)"
        ) from None
    return sounddevice
