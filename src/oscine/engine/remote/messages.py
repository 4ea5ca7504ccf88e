"""Messages between a front end and its worker: one struct each, encoded as msgpack.

Requests are not validated here. A wrong value travels as it is, so that an engine in this process and one in a worker
refuse it with the same error. No torch here.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from oscine import errors
from oscine.audio.pcm import CODEBOOKS, Codes
from oscine.errors import OscineError, RequestError
from oscine.request import SpeechRequest
from oscine.types import AppendText, AudioChunk, Cancel, Command, EndText, EngineStatus
from oscine.voice import Voice

_COMMANDS: dict[str, type[Command]] = {cls.__name__: cls for cls in (AppendText, EndText, Cancel)}
_REQUEST_FIELDS = tuple((field.name, field.default) for field in fields(SpeechRequest))
_ERRORS: dict[str, type[OscineError]] = {
    name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, OscineError)
}


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# --- from the front end ---


class Submit(_Message, frozen=True):
    utterance_id: str
    fields: dict[str, Any]  # of the SpeechRequest, packed; defaults are left out
    streaming_text: bool

    @classmethod
    def of(cls, utterance_id: str, request: SpeechRequest, streaming_text: bool) -> Submit:
        values = {
            name: pack(name, value)
            for name, default in _REQUEST_FIELDS
            if (value := getattr(request, name)) is not default
        }
        return cls(utterance_id, values, streaming_text)

    def request(self) -> SpeechRequest:
        return SpeechRequest(**{name: unpack(value) for name, value in self.fields.items()})


class SendCommand(_Message, frozen=True):
    utterance_id: str
    kind: str
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, utterance_id: str, command: Command) -> SendCommand:
        if isinstance(command, AppendText) and not isinstance(command.text, str):
            # `send` has no answer, so this is refused here, with the engine's error text.
            raise RequestError(f"text must be a string, got {type(command.text).__name__}", "text")
        arguments = tuple(pack(field.name, getattr(command, field.name)) for field in fields(command))
        return cls(utterance_id, type(command).__name__, arguments)

    def command(self) -> Command:
        return _COMMANDS[self.kind](*map(unpack, self.arguments))


class Clone(_Message, frozen=True):
    clone_id: str
    samples: bytes  # float32, mono
    rate_hz: int
    transcript: Any  # packed


class Preset(_Message, frozen=True):
    """Asks for the vector of a preset voice, which a CloneResult brings."""

    clone_id: str
    name: str


class Ping(_Message, frozen=True):
    pass


class StopWorker(_Message, frozen=True):
    drain_s: float


# --- from the worker ---


class BuildProgress(_Message, frozen=True):
    """Reports a step of the build. The first report shows that the process has started."""

    stage: str
    done: int
    total: int


class Ready(_Message, frozen=True):
    status: EngineStatus


class BuildFailed(_Message, frozen=True):
    error: OscineError


class SubmitResult(_Message, frozen=True):
    utterance_id: str
    error: OscineError | None = None


class Chunk(_Message, frozen=True):
    utterance_id: str
    chunk: AudioChunk


class CloneResult(_Message, frozen=True):
    clone_id: str
    voice: Any = None  # packed
    error: OscineError | None = None


class Pong(_Message, frozen=True):
    status: EngineStatus


ToWorker = Submit | SendCommand | Clone | Preset | Ping | StopWorker
FromWorker = BuildProgress | Ready | BuildFailed | SubmitResult | Chunk | CloneResult | Pong


def pack(name: str, value: object) -> Any:
    """Converts a value to msgpack's types. Raises RequestError for other types.

    Strings travel as bytes, because a lone surrogate is not valid UTF-8; the engine refuses it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, Voice):
        return value.speaker, value.reference_codes, pack("voice", value.transcript)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise RequestError(f"{name} must fit 64 bits, got {value}", name)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise RequestError(f"{name} cannot be a {type(value).__name__}", name)


def unpack(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="surrogatepass")
    if isinstance(value, list):
        speaker, codes, transcript = value
        return Voice(np.frombuffer(speaker, np.float32), None if codes is None else _codes(codes), unpack(transcript))
    return value


def _codes(packed: bytes) -> Codes:
    return np.frombuffer(packed, np.int64).reshape(-1, CODEBOOKS)


def _encode(value: object) -> object:
    """Encodes arrays as bytes, and errors as class, text and attributes. A class that is not in oscine.errors travels
    as its nearest parent there."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, OscineError):
        kind = next(cls.__name__ for cls in type(value).__mro__ if _ERRORS.get(cls.__name__) is cls)
        attributes = {name: getattr(value, name) for name in ("param", "code", "retry_after_s") if hasattr(value, name)}
        return kind, str(value).encode(errors="backslashreplace").decode(), attributes
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def _decode(kind: type, value: Any) -> Codes | OscineError:
    if kind is not OscineError:
        return _codes(value)
    name, text, attributes = value
    return _ERRORS[name](text, **attributes)


encode = msgspec.msgpack.Encoder(enc_hook=_encode).encode
decode_to_worker = msgspec.msgpack.Decoder[ToWorker](ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder[FromWorker](FromWorker, dec_hook=_decode).decode
