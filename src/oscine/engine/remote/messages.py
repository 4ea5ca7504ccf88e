"""What a front end and an engine process say to each other: one struct per sentence, msgpack on the wire.

Nothing is checked here that the engine checks: a wrong value travels as it is, so that both ways of running an engine
answer with the same error. No torch, no sockets.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

import msgspec
import numpy as np

from oscine import types
from oscine.audio import Clip
from oscine.types import (
    CODEBOOKS,
    AppendText,
    AudioChunk,
    Cancel,
    Command,
    EndText,
    EngineError,
    EngineStatus,
    FinishReason,
    OscineError,
    OverloadedError,
    RequestError,
    SpeechRequest,
    Usage,
)
from oscine.voice import Voice

# Text travels as bytes: half a surrogate pair is no UTF-8, and the engine refuses it in its own words.
Scalar = bytes | bool | int | float | None


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class VoiceArrays(msgspec.Struct, frozen=True, array_like=True):
    speaker: bytes  # float32 [talker width]
    reference_codes: bytes | None  # int64 [frames, 16]
    transcript: bytes | None


class ErrorReport(msgspec.Struct, frozen=True, array_like=True):
    """An error of our tree: its class, text and the one value that the class carries."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


# From the front end.


class Submit(_Message, frozen=True):
    utterance_id: str
    values: dict[str, Scalar]  # the request's fields, less a cloned voice
    voice: VoiceArrays | None
    streaming_text: bool


class Tell(_Message, frozen=True):
    utterance_id: str
    command: Literal["append", "end", "cancel"]
    text: bytes = b""


class Clone(_Message, frozen=True):
    clone_id: str
    samples: bytes  # float32, mono
    rate_hz: int
    transcript: Scalar


class Ping(_Message, frozen=True):
    pass


class Stop(_Message, frozen=True):
    drain_s: float


# From the engine.


class Progress(_Message, frozen=True):
    """The engine is being built; also its first sign of life."""

    stage: str
    done: int
    total: int


class Ready(_Message, frozen=True):
    status: EngineStatus


class Failed(_Message, frozen=True):
    """The engine could not be built; the process ends."""

    error: ErrorReport


class Accepted(_Message, frozen=True):
    utterance_id: str


class Refused(_Message, frozen=True):
    utterance_id: str
    error: ErrorReport


class Chunk(_Message, frozen=True):
    utterance_id: str
    pcm: bytes
    first_sample: int
    finish_reason: FinishReason | None
    error: ErrorReport | None
    seed: int
    usage: Usage | None = None


class Cloned(_Message, frozen=True):
    clone_id: str
    voice: VoiceArrays | None
    error: ErrorReport | None = None


class Pong(_Message, frozen=True):
    """Alive, and how it is doing: no other message asks for the status."""

    status: EngineStatus


ToEngine = Submit | Tell | Clone | Ping | Stop
ToFrontEnd = Progress | Ready | Failed | Accepted | Refused | Chunk | Cloned | Pong

encode = msgspec.msgpack.Encoder().encode
decode_for_engine = msgspec.msgpack.Decoder[ToEngine](ToEngine).decode
decode_for_front_end = msgspec.msgpack.Decoder[ToFrontEnd](ToFrontEnd).decode


def submit_message(utterance_id: str, request: SpeechRequest, streaming_text: bool) -> Submit:
    values = {field.name: getattr(request, field.name) for field in fields(SpeechRequest)}
    voice = None
    if isinstance(request.voice, Voice):
        del values["voice"]
        voice = _arrays(request.voice)
    return Submit(utterance_id, {name: _scalar(name, value) for name, value in values.items()}, voice, streaming_text)


def request_of(message: Submit) -> SpeechRequest:
    values: dict[str, Any] = {
        name: _text(value) if isinstance(value, bytes) else value for name, value in message.values.items()
    }
    if message.voice is not None:
        values["voice"] = _voice(message.voice)
    return SpeechRequest(**values)


def clone_message(clone_id: str, clip: Clip, transcript: str | None) -> Clone:
    return Clone(clone_id, clip.samples.tobytes(), clip.rate_hz, _scalar("ref_text", transcript))


def clip_of(message: Clone) -> tuple[Clip, str | None]:
    transcript: Any = message.transcript
    clip = Clip(np.frombuffer(message.samples, np.float32), message.rate_hz)
    return clip, _text(transcript) if isinstance(transcript, bytes) else transcript


def cloned_message(clone_id: str, outcome: Voice | BaseException) -> Cloned:
    if isinstance(outcome, Voice):
        return Cloned(clone_id, _arrays(outcome))
    return Cloned(clone_id, None, report_of(outcome))


def outcome_of(message: Cloned) -> Voice | OscineError:
    if message.voice is not None:
        return _voice(message.voice)
    assert message.error is not None, message.clone_id
    return error_of(message.error)


def _arrays(voice: Voice) -> VoiceArrays:
    codes, transcript = voice.reference_codes, voice.transcript
    return VoiceArrays(
        voice.speaker.tobytes(),
        None if codes is None else codes.tobytes(),
        None if transcript is None else _packed(transcript),
    )


def _voice(arrays: VoiceArrays) -> Voice:
    codes = arrays.reference_codes
    return Voice(
        np.frombuffer(arrays.speaker, np.float32),
        None if codes is None else np.frombuffer(codes, np.int64).reshape(-1, CODEBOOKS),
        None if arrays.transcript is None else _text(arrays.transcript),
    )


def tell_message(utterance_id: str, command: Command) -> Tell:
    match command:
        case AppendText(text):
            if not isinstance(text, str):  # a piece has no answer, so this one is told here, in the engine's words
                raise RequestError(f"text must be a string, got {type(text).__name__}", "text")
            return Tell(utterance_id, "append", _packed(text))
        case EndText():
            return Tell(utterance_id, "end")
        case Cancel():
            return Tell(utterance_id, "cancel")


def command_of(message: Tell) -> Command:
    if message.command == "append":
        return AppendText(_text(message.text))
    return EndText() if message.command == "end" else Cancel()


def chunk_message(utterance_id: str, chunk: AudioChunk) -> Chunk:
    error = None if chunk.error is None else report_of(chunk.error)
    return Chunk(utterance_id, chunk.pcm, chunk.first_sample, chunk.finish_reason, error, chunk.seed, chunk.usage)


def chunk_of(message: Chunk) -> AudioChunk:
    error = None if message.error is None else error_of(message.error)
    return AudioChunk(message.pcm, message.first_sample, message.finish_reason, error, message.seed, message.usage)


_KINDS: dict[str, type[OscineError]] = {
    cls.__name__: cls
    for cls in (
        types.OscineError,
        types.CheckpointError,
        types.ConfigError,
        types.OverloadedError,
        types.EngineError,
        types.RequestError,
        types.VoiceError,
        types.TooLongError,
    )
}


def report_of(error: BaseException) -> ErrorReport:
    """Any error as one of our tree: a subclass as its nearest known parent, a stranger as an EngineError."""
    message = str(error)
    kind = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _KINDS), None)
    if kind is None:
        kind, message = "EngineError", f"{type(error).__name__}: {message}" if message else type(error).__name__
    return ErrorReport(
        kind,
        message.encode(errors="backslashreplace").decode(),
        error.param if isinstance(error, RequestError) else None,
        error.retry_after_s if isinstance(error, OverloadedError) else None,
    )


def error_of(report: ErrorReport) -> OscineError:
    cls = _KINDS.get(report.kind, EngineError)
    if issubclass(cls, RequestError):
        return cls(report.message, report.param)
    if issubclass(cls, OverloadedError):
        return cls(report.message, report.retry_after_s or 0.0)
    return cls(report.message)


def _scalar(name: str, value: object) -> Scalar:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return _packed(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise RequestError(f"{name} must fit 64 bits, got {value}", name)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise RequestError(f"{name} cannot be a {type(value).__name__}", name)


def _packed(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(packed: bytes) -> str:
    return packed.decode(errors="surrogatepass")
