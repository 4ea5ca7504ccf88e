"""Makes the requests for each server. A preset knows a server's API; a Target adds address, voice and options.

Presets ask for raw PCM, streamed, so that the server is measured and not an encoder; `--format` changes that.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from oscine.errors import RequestError, unknown_choice
from oscine_bench.workload import PlannedRequest

Fields = Mapping[str, Any]
FORMATS = ("pcm", "wav", "mp3", "opus", "aac", "flac")
CHEAP_FORMATS = ("pcm", "wav")  # can be decoded while other streams run


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPreset:
    streaming: Fields = field(default_factory=dict)  # fields that make the response a stream of audio bytes
    path: str = "/v1/audio/speech"
    transport: Literal["http", "websocket", "triton"] = "http"
    has_events: bool = False  # understands `stream_format: "sse"`
    stream_is_events: bool = False  # `stream` without a format means events
    takes_seed: bool = True
    required: tuple[str, ...] = ()
    language_title_case: bool = False
    model: str | None = None
    voice: str | None = None
    pcm_rate_hz: int = 24000  # unless the response states x-sample-rate
    # Fixed length: `max_new_tokens` minus the frames it makes (None: not supported), and the fields that keep the
    # server from making or sending fewer frames.
    tokens_over_frames: int | None = 0
    fixed_length: Fields = field(default_factory=dict)


PRESETS: Mapping[str, TargetPreset] = {
    # max_new_tokens as in the official package: the last token is drawn but never spoken.
    "oscine": TargetPreset(
        streaming={"stream_format": "audio"},
        has_events=True,
        tokens_over_frames=1,
        fixed_length={"trim_silence": False},
    ),
    "oscine-ws": TargetPreset(
        path="/v1/audio/speech/stream",
        transport="websocket",
        tokens_over_frames=1,
        fixed_length={"trim_silence": False},
    ),
    # `stream` alone means SSE since 0.20; language names are capitalized.
    "vllm-omni": TargetPreset(
        streaming={"stream": True, "stream_format": "audio"},
        has_events=True,
        stream_is_events=True,
        language_title_case=True,
    ),
    # Refuses unknown fields; drops the first frame by default.
    "nari": TargetPreset(
        streaming={"stream": True}, fixed_length={"ignore_eos": True, "skip_fixed_bootstrap_audio": False}
    ),
    "sglang-omni": TargetPreset(streaming={"stream": True}, language_title_case=True, required=("model", "voice")),
    # Models of Triton Inference Server: `oscine`, or with -m `oscine_speech`.
    "triton": TargetPreset(
        transport="triton", model="oscine", tokens_over_frames=1, fixed_length={"trim_silence": False}
    ),
    # Always streams; knows neither seeds nor lengths.
    "openai": TargetPreset(
        has_events=True, takes_seed=False, model="gpt-4o-mini-tts", voice="alloy", tokens_over_frames=None
    ),
}

TRITON = "triton"  # preset, transport and scheme of Triton Inference Server's gRPC
_TRITON_PORT = 8001
_TLS_BY_SCHEME = {"http": False, "https": True, "ws": False, "wss": True, TRITON: False}
# Users paste the base URL of an OpenAI client, or a whole URL from an example.
_API_PATH = re.compile(r"(/v1(/audio/speech(/stream)?)?)?/*$")
_SENDABLE = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool
    base_path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = (parts.hostname or "").encode("idna").decode(), parts.port  # both may raise
            valid = parts.scheme in _TLS_BY_SCHEME and host and port != 0 and _SENDABLE.fullmatch(parts.path)
        except ValueError:
            valid = False
        if not valid:
            shown = url.rpartition("@")[2]  # the part before may be a password
            raise RequestError(f"{shown!r} is not a server address; use one such as http://localhost:8000", "url")
        if parts.username is not None:
            raise RequestError(
                f"the address of {parts.hostname} contains a user name or password, which the result would show; "
                "remove it and use --api-key",
                "url",
            )
        if parts.query or parts.fragment:
            mark = "?" if parts.query else "#"
            raise RequestError(f"{url!r} is more than an address; remove everything from {mark!r} on", "url")
        tls = _TLS_BY_SCHEME[parts.scheme]
        default_port = _TRITON_PORT if parts.scheme == TRITON else 443 if tls else 80
        return cls(host, port or default_port, tls, _API_PATH.sub("", parts.path))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    url: str
    preset_name: str = "oscine"
    model: str | None = None
    voice: str | None = None
    language: str | None = None
    # `extra` may override these two; afterwards they hold what the body really asks for.
    response_format: str = "pcm"
    sse: bool = False  # server-sent events with base64 audio
    frames: int | None = None  # fixed length in frames of 80 ms, whatever the text
    ref_audio: Path | None = None
    ref_text: str | None = None
    extra: Fields = field(default_factory=dict)  # overrides all other fields; None removes one
    api_key: str | None = field(default=None, repr=False)
    # The fields that all requests share, encoded once: a reference clip may be a megabyte of base64.
    _fields: dict[str, Any] = field(init=False, repr=False, compare=False)
    _fields_json: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.preset_name not in PRESETS:
            raise RequestError(unknown_choice("target", self.preset_name, PRESETS), "target")
        if self.url.startswith(f"{TRITON}://") != (self.preset_name == TRITON):
            raise RequestError(
                f"{TRITON}://host:{_TRITON_PORT} and --target {TRITON} go together; {self.url!r} is for "
                f"{self.preset_name}",
                "url",
            )
        if self.frames is not None and self.frames < 1:
            raise RequestError(f"frames must be at least 1, got {self.frames}", "frames")
        fields = self._shared_fields()
        missing = [name for name in self.preset.required if not fields.get(name)]
        if missing:
            options = " and ".join({"model": "-m", "voice": "--voice"}[name] for name in missing)
            raise RequestError(f"{self.preset_name} needs a {' and a '.join(missing)}; add {options}", missing[0])
        object.__setattr__(self, "response_format", _requested_format(fields))
        if self.preset.transport == TRITON and self.response_format != "pcm":
            raise RequestError(f"Triton sends samples, not {self.response_format}; remove --format", "format")
        object.__setattr__(self, "sse", self._requests_events(fields))
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_fields_json", json.dumps(fields, ensure_ascii=False).encode())

    @property
    def preset(self) -> TargetPreset:
        return PRESETS[self.preset_name]

    @property
    def address(self) -> Address:
        return Address.parse(self.url)

    @property
    def path(self) -> str:
        return self.address.base_path + self.preset.path

    @property
    def served_model(self) -> str:
        return str(self._fields.get("model", ""))

    @property
    def cheap_to_decode(self) -> bool:
        return self.response_format in CHEAP_FORMATS and not self.sse

    def body(self, request: PlannedRequest) -> bytes:
        """Returns the JSON body of one HTTP request."""
        head = json.dumps({"input": request.text, **self._seed(request)}, ensure_ascii=False).encode()
        return head if not self._fields else head[:-1] + b", " + self._fields_json[1:]

    def session(self, request: PlannedRequest) -> dict[str, Any]:
        """Returns the `session.config` message of the WebSocket."""
        return {"type": "session.config", "events": ["session.ready"], **self._seed(request), **self._fields}

    def described(self) -> dict[str, Any]:
        """Returns the target as the result shows it: no key, and only the file name of a clip."""
        sent = {name: value for name, value in self._fields.items() if name != "ref_audio"}
        clip = {"ref_audio": self.ref_audio.name} if self.ref_audio else {}
        return {"preset": self.preset_name, "transport": self.preset.transport, "fields": {**sent, **clip}}

    def _seed(self, request: PlannedRequest) -> dict[str, int]:
        return {"seed": request.seed} if self.preset.takes_seed and "seed" not in self.extra else {}

    def _shared_fields(self) -> dict[str, Any]:
        preset = self.preset
        fields: dict[str, Any] = {
            "model": self.model or preset.model,
            "voice": self.voice or preset.voice,
            "language": self.language.title() if self.language and preset.language_title_case else self.language,
            "response_format": self.response_format,
            **(preset.streaming if not self.sse else {"stream_format": "sse"}),
            **self._length_fields(),
            "ref_audio": _data_url(self.ref_audio) if self.ref_audio else None,
            "ref_text": self.ref_text,
            **self.extra,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _length_fields(self) -> dict[str, Any]:
        if self.frames is None:
            return {}
        if self.preset.tokens_over_frames is None:
            raise RequestError(f"{self.preset_name} does not support a fixed length; remove --frames", "frames")
        return {"max_new_tokens": self.frames + self.preset.tokens_over_frames, **self.preset.fixed_length}

    def _requests_events(self, fields: Fields) -> bool:
        stream_format = fields.get("stream_format")
        if stream_format == "sse" and not self.preset.has_events:
            supported = ", ".join(name for name, preset in PRESETS.items() if preset.has_events)
            raise RequestError(f"{self.preset_name} does not support events; remove --sse ({supported} do)", "sse")
        alone = self.preset.stream_is_events and fields.get("stream") is True and stream_format is None
        return alone or stream_format == "sse"


def _requested_format(fields: Fields) -> str:
    if "response_format" not in fields:
        raise RequestError("--extra must not remove response_format; use --format to change it", "extra")
    name = str(fields["response_format"])
    if name not in FORMATS:
        raise RequestError(unknown_choice("format", name, FORMATS), "format")
    return name


def _data_url(path: Path) -> str:
    try:
        encoded = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise RequestError(f"cannot read the clip {str(path)!r}: {error}", "ref_audio") from None
    kind = {".mp3": "mpeg", ".flac": "flac", ".ogg": "ogg", ".opus": "ogg", ".m4a": "mp4"}.get(path.suffix, "wav")
    return f"data:audio/{kind};base64,{encoded}"
