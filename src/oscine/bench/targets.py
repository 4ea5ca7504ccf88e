"""How each server wants to be asked. A preset knows a server's quirks; a Target is a preset with address and voice.

Presets ask for raw PCM as it is made, which every one of these servers can send: what is measured is then the server,
not an encoder. `--format` and `--extra` change that.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from oscine.bench.workload import Utterance
from oscine.types import RequestError, unknown_choice

Fields = Mapping[str, Any]
FORMATS = ("pcm", "wav", "mp3", "opus", "aac", "flac")


@dataclass(frozen=True, slots=True)
class Preset:
    streaming: Fields = field(default_factory=dict)  # what makes the answer come as bytes, in pieces
    path: str = "/v1/audio/speech"
    transport: Literal["http", "websocket"] = "http"
    has_events: bool = False  # whether `stream_format: "sse"` is understood
    stream_is_events: bool = False  # whether `stream` without a format means events
    takes_seed: bool = True
    needs: tuple[str, ...] = ()  # what it refuses to speak without
    language_title_case: bool = False
    model: str | None = None  # where the server insists on one
    voice: str | None = None
    pcm_rate_hz: int = 24000  # of raw PCM, unless the answer's x-sample-rate says otherwise
    # Fixed length: `max_new_tokens` above the number of frames, and what else it takes for all of them to be made and
    # sent. None: the server cannot be told.
    tokens_over_frames: int | None = 0
    fixed: Fields = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # The official meaning of max_new_tokens: the last token is drawn but never spoken. Silence at the beginning is
        # left out unless told otherwise, and would be missing from the length.
        "oscine": Preset(
            streaming={"stream_format": "audio"},
            has_events=True,
            stream_is_events=True,
            tokens_over_frames=1,
            fixed={"trim_silence": False},
        ),
        "oscine-ws": Preset(
            path="/v1/audio/speech/stream",
            transport="websocket",
            tokens_over_frames=1,
            fixed={"trim_silence": False},
        ),
        # `stream` alone is SSE since 0.20; languages are compared as "English".
        "vllm-omni": Preset(
            streaming={"stream": True, "stream_format": "audio"},
            has_events=True,
            stream_is_events=True,
            language_title_case=True,
        ),
        # Refuses fields that it does not know; has a switch against the end of speech, and drops the first frame unless
        # told otherwise.
        "nari": Preset(streaming={"stream": True}, fixed={"ignore_eos": True, "skip_fixed_bootstrap_audio": False}),
        "sglang-omni": Preset(streaming={"stream": True}, language_title_case=True, needs=("model", "voice")),
        # Streams without being asked; knows neither seeds nor lengths.
        "openai": Preset(
            has_events=True, takes_seed=False, model="gpt-4o-mini-tts", voice="alloy", tokens_over_frames=None
        ),
    }
)


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise RequestError(unknown_choice("target", name, PRESETS), "target")
    return PRESETS[name]


_SCHEMES = {"http": False, "https": True, "ws": False, "wss": True}  # with TLS or without
# People paste the base URL of an OpenAI client, or the whole one out of an example.
_PASTED_PATH = re.compile(r"(/v1(/audio/speech(/stream)?)?)?/*$")
_SENDABLE = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool
    base_path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = _split(url)
        if parts.username is not None:
            raise RequestError(
                f"the address of {parts.hostname} has a name or a password in it, which would stand in the result; "
                "leave them out, and give a key with --api-key",
                "url",
            )
        if parts.query or parts.fragment:
            mark = "?" if parts.query else "#"
            raise RequestError(f"{url!r} is more than an address; leave out what comes from {mark!r} on", "url")
        tls = _SCHEMES[parts.scheme]
        host = str(parts.hostname).encode("idna").decode()
        return cls(host, parts.port or (443 if tls else 80), tls, _PASTED_PATH.sub("", parts.path))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def _split(url: str) -> SplitResult:
    """With a scheme, a host and a port that can be used."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host = (parts.hostname or "").encode("idna")  # refuses what no name server would be asked for
        usable = parts.scheme in _SCHEMES and host and parts.port != 0 and _SENDABLE.fullmatch(parts.path)
    except ValueError:
        usable = False
    if not usable:
        shown = url.rpartition("@")[2]  # what stands before may be a password
        raise RequestError(f"{shown!r} is no address of a server; give one such as http://localhost:8000", "url")
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    url: str
    preset_name: str = "oscine"
    model: str | None = None
    voice: str | None = None
    language: str | None = None
    # These two are what is asked for in the end, whether by option or within `extra`.
    response_format: str = "pcm"
    sse: bool = False  # events with base64 instead of bytes
    frames: int | None = None  # fixed length: so many frames of 80 ms, whatever the text
    ref_audio: Path | None = None
    ref_text: str | None = None
    extra: Fields = field(default_factory=dict)  # goes over everything else; None removes a field
    api_key: str | None = field(default=None, repr=False)
    # Computed once: a reference clip may be a megabyte of base64.
    _static: dict[str, Any] = field(init=False, repr=False, compare=False)
    _static_json: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.frames is not None and self.frames < 1:
            raise RequestError(f"frames must be at least 1, got {self.frames}", "frames")
        fields = self._static_fields()
        object.__setattr__(self, "response_format", self._format_of(fields))
        object.__setattr__(self, "sse", self._has_events(fields))
        self._check_needs(fields)
        object.__setattr__(self, "_static", fields)
        object.__setattr__(self, "_static_json", json.dumps(self._static, ensure_ascii=False).encode())

    @property
    def preset(self) -> Preset:
        return find_preset(self.preset_name)

    @property
    def address(self) -> Address:
        return Address.parse(self.url)

    @property
    def path(self) -> str:
        return self.address.base_path + self.preset.path

    def body(self, utterance: Utterance) -> bytes:
        """The JSON of one HTTP request."""
        changing: dict[str, Any] = {"input": utterance.text}
        if self._seeded:
            changing["seed"] = utterance.seed
        head = json.dumps(changing, ensure_ascii=False).encode()
        return head if not self._static else head[:-1] + b", " + self._static_json[1:]

    def session(self, utterance: Utterance) -> dict[str, Any]:
        """The WebSocket's `session.config`."""
        seed = {"seed": utterance.seed} if self._seeded else {}
        return {"type": "session.config", **seed, **self._static}

    @property
    def _seeded(self) -> bool:
        return self.preset.takes_seed and "seed" not in self.extra

    def _static_fields(self) -> dict[str, Any]:
        preset = self.preset
        language = self.language.title() if self.language and preset.language_title_case else self.language
        fields: dict[str, Any] = {
            "model": self.model or preset.model,
            "voice": self.voice or preset.voice,
            "language": language,
            "response_format": self.response_format,
            **(preset.streaming if not self.sse else {"stream_format": "sse"}),
            **self._length_fields(preset),
            "ref_audio": _data_url(self.ref_audio) if self.ref_audio else None,
            "ref_text": self.ref_text,
            **self.extra,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _format_of(self, fields: Fields) -> str:
        if "response_format" not in fields:
            raise RequestError(
                "--extra removes response_format, and what the server then sends is not known; give --format instead",
                "extra",
            )
        name = str(fields["response_format"])
        if name not in FORMATS:
            raise RequestError(unknown_choice("format", name, FORMATS), "format")
        return name

    def _has_events(self, fields: Fields) -> bool:
        stream_format = fields.get("stream_format")
        alone = self.preset.stream_is_events and fields.get("stream") is True and stream_format is None
        if stream_format == "sse" and not self.preset.has_events:
            having = ", ".join(name for name, preset in PRESETS.items() if preset.has_events)
            raise RequestError(f"{self.preset_name} sends no events; leave --sse out (it goes with {having})", "sse")
        return alone or stream_format == "sse"

    def _check_needs(self, fields: Fields) -> None:
        options = {"model": "-m", "voice": "--voice"}
        missing = [name for name in self.preset.needs if not fields.get(name)]
        if missing:
            raise RequestError(
                f"{self.preset_name} speaks only with a {' and a '.join(missing)}; "
                f"give {' and '.join(options[name] for name in missing)}",
                missing[0],
            )

    def _length_fields(self, preset: Preset) -> dict[str, Any]:
        if self.frames is None:
            return {}
        if preset.tokens_over_frames is None:
            raise RequestError(f"{self.preset_name} cannot be told how long to speak; leave --frames out", "frames")
        return {"max_new_tokens": self.frames + preset.tokens_over_frames, **preset.fixed}

    def described(self) -> dict[str, Any]:
        """For the result: what was asked of whom. No key, and of a clip only that there was one."""
        sent = {name: value for name, value in self._static.items() if name != "ref_audio"}
        clip = {"ref_audio": self.ref_audio.name} if self.ref_audio else {}
        return {"preset": self.preset_name, "transport": self.preset.transport, "fields": {**sent, **clip}}


def _data_url(path: Path) -> str:
    try:
        encoded = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise RequestError(f"the clip {str(path)!r} cannot be read: {error}", "ref_audio") from None
    kind = {".mp3": "mpeg", ".flac": "flac", ".ogg": "ogg", ".opus": "ogg", ".m4a": "mp4"}.get(path.suffix, "wav")
    return f"data:audio/{kind};base64,{encoded}"
