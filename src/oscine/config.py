"""Settings of the engine, its worker process and the server: frozen, with working defaults, checked when they are made.

Each setting carries its bounds and its description; serving/settings.py reads them from files, environment variables
and flags. Values learned at startup (blocks that fit, captured graphs, tick times) never go in here. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from oscine.audio.formats import FormatName
from oscine.audio.pcm import FRAME_RATE_HZ

_MAX_SLOTS = 4096
DEFAULT_SLOTS = 32
_MANY = 2**31
_DAY_S = 86400.0


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):  # pydantic would read `slots = true` as 1
        raise ValueError("must be a number")
    return value


def _split(value: object) -> object:
    """Lists may be written as `a,b` or as a JSON list, in flags and environment variables."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [item.strip() for item in value.split(",") if item.strip()]


def _split_pairs(value: object) -> object:
    """A mapping may be written as `a=b,c=d` or as a JSON object, in flags and environment variables."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return json.loads(value)
    pairs = [item.partition("=") for item in value.split(",") if item.strip()]
    if wrong := next((name for name, equals, _ in pairs if not equals), None):
        raise ValueError(f"must be name=value pairs, such as a=b,c=d; {wrong.strip()!r} has no =")
    return {name.strip(): named.strip() for name, _, named in pairs}


def _check_aliases(aliases: dict[str, str]) -> dict[str, str]:
    """Puts aliases in lower case, as voices are compared."""
    lower = {alias.strip().lower(): voice.strip().lower() for alias, voice in aliases.items()}
    for alias, voice in lower.items():
        if not alias or not voice or alias in (voice, "default"):
            message = f"{alias!r} cannot stand for {voice!r}; name two, and leave 'default' alone"
            raise PydanticCustomError("alias", "{message}", {"message": message})
    return lower


def _check_text(value: str) -> str:
    # Bytes of a command line that are not UTF-8 arrive as lone surrogates; no response or file could hold them.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("must be valid Unicode text")
    return value


def _check_host(value: str) -> str:
    if not value.strip():  # the system would listen on every address
        raise ValueError("must not be empty; use 127.0.0.1 for this machine only, 0.0.0.0 for every network")
    return value


Int = Annotated[int, BeforeValidator(_refuse_bool)]
Float = Annotated[float, BeforeValidator(_refuse_bool)]
Text = Annotated[str, AfterValidator(_check_text)]
Strings = Annotated[tuple[Text, ...], BeforeValidator(_split)]
Ints = Annotated[tuple[int, ...], BeforeValidator(_split)]
VoiceAliases = Annotated[dict[Text, Text], AfterValidator(_check_aliases), BeforeValidator(_split_pairs)]


def _number(default: float | None, low: float, high: float, description: str) -> Any:
    return Field(default, ge=low, le=high, description=description)


# Deferred: a worker gets checked settings, and needs no validators, which take time to build.
_STRICT = ConfigDict(extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ChunkConfig:
    """Audio chunks: how many frames (80 ms each) a chunk carries. Chunks grow with the listener's buffer."""

    first_chunk_frames: Int = _number(1, 1, 1000, "Frames in the first chunk; small, because the listener is waiting.")
    steady_chunk_frames: Int = _number(8, 1, 1000, "Frames in a chunk once the listener's buffer is full.")
    buffer_share: Float = _number(0.5, 0, 1, "Largest share of the listener's unplayed audio that one chunk may hold.")
    first_chunk_ticks: Float = _number(
        3.0, 0, 100, "Ticks that the first chunk must last, so that no gap follows it on a slow machine."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.steady_chunk_frames < self.first_chunk_frames:
            raise ValueError(f"steady_chunk_frames must not be below first_chunk_frames ({self.first_chunk_frames})")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PacingConfig:
    """Scheduling when slots are scarce."""

    lead_s: Float = _number(1.0, 0, 60, "Streams with more unplayed audio than this may skip a tick.")
    real_time_share: Float = _number(
        0.8, 0.05, 1, "Share of a frame's 80 ms that a tick of all streams may last; admission stops beyond it."
    )
    prefill_rows_per_tick: Int = _number(
        2048, 1, _MANY, "Prompt rows admitted between two frames; one request always fits."
    )
    launch_margin_s: Float = _number(
        0.0002, 0, 1, "How long before the device ends a frame the next one is launched; large: as early as possible."
    )
    frames_per_text_id: Float | None = _number(
        None,
        0.1,
        1000,
        "Expected frames per text token, to predict when slots free up, until speeches have ended. Default: what the "
        "checkpoint's config.json states as oscine_frames_per_text_token, or 4.",
    )


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TrimConfig:
    """Trimming of the silence before the first sound."""

    enabled: bool = Field(default=True, description="Trim leading silence unless a request says otherwise.")
    threshold_dbfs: Float = _number(-55.0, -96, -20, "A sample above this level is sound.")
    keep_ms: Float = _number(10.0, 0, 80, "Silence kept before the onset, so that no consonant is cut.")
    max_frames: Int = _number(10, 0, 1000, "Frames that may be dropped at most.")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class EchoConfig:
    """Trimming of an echo of the reference clip at the start of speech with in-context cloning."""

    enabled: bool = Field(
        default=False,
        description="Trim echoes, unless a request says otherwise; streams start later then.",
    )
    min_agreement: Float = _number(5.0, 2, 100, "Frames that agree with the end of the reference, less what does not.")
    probe_frames: Int = _number(16, 2, 100, "Audible frames after which speech that hardly agrees is sent.")
    max_frames: Int = _number(40, 8, 200, "Frames that are held back at most.")
    silence_dbfs: Float = _number(-45.0, -96, -20, "A frame above this level is audible.")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class RunawayConfig:
    """Runaway detection: ends speech that the model would not end."""

    enabled: bool = Field(default=True, description="Detect runaways.")
    budget_frames: Int = _number(36, 1, _MANY, "Frame budget of a request without max_new_tokens: the constant part.")
    budget_frames_per_text_id: Float = _number(10.0, 0, 10_000, "Frame budget: frames per text token.")
    room_tone_s: Float = _number(5.0, 0.5, 3600, "Room tone: seconds of it that end a stream.")
    room_tone_dbfs: Float = _number(-40.0, -96, 0, "Room tone: its highest level.")
    room_tone_drop_db: Float = _number(20.0, 0, 96, "Room tone: how far it lies below the loudest frame.")
    room_tone_spread_db: Float = _number(12.0, 0, 96, "Room tone: largest difference between its frames.")
    monotony_s: Float = _number(2.0, 0.5, 3600, "Monotony: seconds of audible frames that end a stream after its text.")
    monotony_codes: Int = _number(5, 0, 1000, "Monotony: most different first codes in that time; 0 turns it off.")
    monotony_frames: Int = _number(20, 0, 1000, "Monotony: most different frames in that time.")
    repetition_s: Float = _number(6.0, 0.5, 3600, "Repetition: seconds of it that end a stream.")
    repetition_period_frames: Int = _number(25, 1, 1000, "Repetition: longest sequence of codes that repeats.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        frames = self.repetition_s * FRAME_RATE_HZ
        if self.repetition_period_frames >= frames:
            raise ValueError(f"repetition_period_frames must be shorter than repetition_s ({frames:g} frames)")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MemoryConfig:
    """Device memory of the runner."""

    positions_per_slot: Int = _number(4096, 16, _MANY, "Longest prompt plus speech; a frame is one position.")
    positions_total: Int | None = _number(
        None, 16, 2**40, "Positions over all slots. Default: half of slots x positions_per_slot."
    )
    prefix_cache_mib: Int = _number(256, 0, _MANY, "Size of the prefix cache in MiB.")
    text_ids_per_slot: Int = _number(4096, 1, _MANY, "Text tokens that one streaming request may have.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.positions_total is not None and self.positions_total < self.positions_per_slot:
            raise ValueError(
                f"positions_total must not be below positions_per_slot ({self.positions_per_slot}): "
                "the longest request could never run"
            )
        return self


Kernels = Literal["auto", "triton", "cuda"]
Quantize = Literal["auto", "none", "fp8", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class EngineConfig:
    """The engine."""

    slots: Int | None = _number(
        None,
        1,
        _MAX_SLOTS,
        f"Streams that run at once. Default: {DEFAULT_SLOTS}, or as many as fit into the device's memory. A number "
        "that is set and does not fit is refused.",
    )
    queue_limit: Int = _number(
        1024, 0, 1_000_000, "Requests that may wait for a slot, however short their wait; further ones are refused."
    )
    queue_wait_s: Float = _number(3.0, 0, 3600, "Longest wait for a slot; what would wait longer is refused at once.")
    max_pending_texts: Int = _number(256, 0, 1_000_000, "Streaming texts that may wait for their first words.")
    text_wait_s: Float = _number(60.0, 0.1, _DAY_S, "A streaming text without new words for this long is ended.")
    max_new_tokens: Int = _number(8192, 2, _MANY, "Upper limit of a request's max_new_tokens.")
    stuck_s: Float = _number(10.0, 0.1, _DAY_S, "A tick that lasts longer means that the device hangs.")
    kernels: Kernels = Field(
        default="auto",
        description="Kernels of frames on a GPU. auto: cuda on Hopper, if the checkpoint has published shapes and a "
        "compiler (NVRTC or nvcc) is there; triton elsewhere.",
    )
    quantize: Quantize = Field(
        default="none",
        description="Weights of the talker and the predictor in 8 bits, a scale per row. fp8: e4m3, of the layers; "
        "needs the CUDA kernels. int8: for CPUs; inputs are rounded to 8 bits too. Codes differ from those of the "
        "checkpoint. auto: int8 for a published model on an x86 CPU with VNNI, unless a dtype is named; else none.",
    )
    graphs: bool = Field(default=True, description="Capture CUDA graphs.")
    graph_buckets: Ints = Field(
        default=(1, 2, 4, 8, 16, 32, 48, 64, 96, 128), description="Batch sizes to capture, ascending."
    )
    chunks: ChunkConfig = Field(default_factory=ChunkConfig)
    pacing: PacingConfig = Field(default_factory=PacingConfig)
    trim_silence: TrimConfig = Field(default_factory=TrimConfig)
    trim_echo: EchoConfig = Field(default_factory=EchoConfig)
    runaway: RunawayConfig = Field(default_factory=RunawayConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)

    @model_validator(mode="after")
    def _check(self) -> Self:
        sizes = self.graph_buckets
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > _MAX_SLOTS:
            raise ValueError(f"graph_buckets must be ascending batch sizes from 1 to {_MAX_SLOTS}, each once")
        return self

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes worth capturing: up to the first that holds every slot."""
        slots = self.wanted_slots
        smaller = tuple(size for size in self.graph_buckets if size < slots)
        return (*smaller, next((size for size in self.graph_buckets if size >= slots), slots))

    @property
    def wanted_slots(self) -> int:
        """The slots to plan for. If `slots` is not set, the engine may get fewer."""
        return DEFAULT_SLOTS if self.slots is None else self.slots


Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CheckpointConfig:
    """One of several models. What is not set here is taken from the settings for all of them."""

    path: Text = Field(description="A checkpoint folder, a hub id, or 'demo'.")
    name: Text | None = Field(
        default=None, description="Name that the model is served under. Default: the last part of `path`."
    )
    devices: Strings | None = Field(default=None, description="Devices, one engine on each. Default: `devices`.")
    dtype: Dtype | None = Field(default=None, description="Default: `dtype`.")
    slots: Int | None = _number(None, 1, _MAX_SLOTS, "Streams that run at once, per device. Default: `engine.slots`.")
    memory_share: Float | None = _number(
        None, 0.01, 1, "Largest share of a device's memory; the model gets as many of its slots as fit."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.devices is not None:
            check_devices(self.devices)
        return self

    @property
    def served_name(self) -> str:
        return self.name or Path(self.path).name or self.path


def check_devices(devices: tuple[str, ...]) -> None:
    if not devices or len(set(devices)) != len(devices):
        raise ValueError(f"devices must name each device once, got {list(devices)}")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class WorkerConfig:
    """The worker process of an engine, as the front end supervises it."""

    heartbeat_s: Float = _number(10.0, 0.01, _DAY_S, "A worker that does not answer for this long is restarted.")
    start_s: Float = _number(900.0, 0.01, _DAY_S, "The same while the engine is being built.")
    submit_s: Float = _number(10.0, 0.01, _DAY_S, "Longest wait for the answer to a request.")
    clone_s: Float = _number(60.0, 0.01, _DAY_S, "Longest wait for a cloned voice.")
    terminate_s: Float = _number(5.0, 0.01, _DAY_S, "Time between asking a worker to stop, SIGTERM and SIGKILL.")
    backoff_s: Float = _number(0.5, 0, _DAY_S, "Wait before the first restart; doubles with each further one.")
    max_backoff_s: Float = _number(30.0, 0, _DAY_S, "Longest wait before a restart.")
    max_restarts: Int = _number(
        5, 0, 1000, "Restarts within the window; after one more failure it counts as failed, and is still tried."
    )
    restarts_window_s: Float = _number(600.0, 0, 365 * _DAY_S, "Window for max_restarts.")


def _check_api_key(key: object) -> object:
    if key == "(hidden)":
        raise ValueError("'(hidden)' is a placeholder, not a key; write the key itself")
    if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("an API key is printable ASCII without spaces, and not empty")
    return key


ApiKeyList = Annotated[tuple[Annotated[str, BeforeValidator(_check_api_key)], ...], BeforeValidator(_split)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ServerConfig:
    """HTTP and WebSocket front end."""

    host: Annotated[Text, AfterValidator(_check_host)] = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 accepts connections from other machines."
    )
    port: Int = _number(8000, 0, 65535, "Port; 0 takes any free one.")
    tls_cert: Text | None = Field(
        default=None, description="PEM file of a certificate, with its chain: serve HTTPS instead of HTTP."
    )
    tls_key: Text | None = Field(default=None, description="PEM file of its key. Default: the key is in tls_cert.")
    api_keys: ApiKeyList = Field(default=(), repr=False, description="Accepted API keys; none: no key is needed.")
    admin_keys: ApiKeyList = Field(
        default=(),
        repr=False,
        description="Keys that may add and remove models, and all that API keys may. None: nobody may.",
    )
    keys_file: Text | None = Field(
        default=None,
        description="JSON file of named API keys with roles and limits, which `oscine keys` writes. It may change "
        "while the server runs. Every client needs a key then.",
    )
    usage_file: Text | None = Field(
        default=None,
        description="JSON file of what each API key has used by month. Default: beside keys_file, keys.usage.json for "
        "keys.json. Without either, months begin at zero with each start.",
    )
    allowed_models: Strings = Field(
        default=(),
        description="Checkpoints that may be added while the server runs: absolute folders with all below them, hub "
        "ids with * for any characters. Those of the configuration are always allowed.",
    )
    streams_per_key: Int | None = _number(
        None, 1, _MANY, "Streams that one key may run at once, if it has no limit of its own."
    )
    max_connections: Int = _number(4096, 1, 1_000_000, "Open connections; further ones are refused.")
    connections_per_address: Int = _number(1024, 1, 1_000_000, "The same per client address (IPv6: per /64 network).")
    max_text_chars: Int = _number(
        200_000, 1, _MANY, "Characters of one request; 200,000 are some three hours of speech."
    )
    max_body_bytes: Int = _number(32 * 2**20, 1024, 2**40, "Size of a request body.")
    max_bytes_in_flight: Int = _number(
        128 * 2**20,
        2**20,
        2**40,
        "Size of all large request bodies (above 64 KiB) together, and of all large answers that are not read yet.",
    )
    max_collected_bytes: Int = _number(
        384 * 2**20, 2**20, 2**40, "Size of all audio that is collected into whole files and not sent yet."
    )
    collected_bytes_per_key: Int = _number(256 * 2**20, 2**20, 2**40, "The same per API key.")
    phrase_cache_bytes: Int = _number(
        0, 0, 2**40, "Size of the phrases that are remembered, in memory; 67108864 are 23 minutes of speech. 0: none."
    )
    bytes_per_key: Int | None = _number(
        None, 2**20, 2**40, "Bytes of each kind (docs/reliability.md) that one API key may hold. None: no limit."
    )
    bytes_per_address: Int | None = _number(
        None,
        2**20,
        2**40,
        "The same per client address (IPv6: per /64 network). None: three quarters of the limit of all clients. Behind "
        "a proxy, set forwarded_allow_ips, or all clients have the proxy's address.",
    )
    jobs_per_key: Int | None = _number(
        None, 1, _MANY, "Jobs of each kind (docs/reliability.md) that one API key may have. None: no limit."
    )
    jobs_per_address: Int | None = _number(
        None, 1, _MANY, "The same per client address. None: three quarters of the limit of all clients."
    )
    max_clip_bytes: Int = _number(10 * 2**20, 1024, 2**40, "Size of a reference clip.")
    max_batch_items: Int = _number(32, 1, _MANY, "Items of a batch request.")
    segment_chars: Int = _number(400, 50, 10_000, "Long texts are split into segments of about this many characters.")
    text_level: Literal["raw", "clean", "spoken"] | None = Field(
        default=None,
        description="How far texts are rewritten unless a request says otherwise: not at all, without markup, or "
        "also in words. None: what the checkpoint needs.",
    )
    normalize: bool = Field(default=False, description='The same as text_level = "spoken".')
    paragraph_pause_s: Float = _number(0.0, 0, 10, "Silence between paragraphs, in seconds, by default.")
    voices_dir: Text | None = Field(
        default=None, description="Folder of uploaded voices. None: they are lost at shutdown."
    )
    max_voices: Int = _number(1000, 1, _MANY, "Uploaded voices that are kept, and as many recordings of consent.")
    max_consent_bytes: Int = _number(2**30, 0, 2**50, "Size of all recordings of consent, in the folder of the voices.")
    ref_urls: bool = Field(default=False, description="Fetch reference clips from URLs at public addresses.")
    ref_hosts: Strings = Field(
        default=(),
        description="Hosts that reference clips are fetched from, such as media.example.com or *.example.com, even "
        "without ref_urls and at private addresses. At ports 80 and 443 unless one is named: media.example.com:9000, "
        "or :* for any.",
    )
    ref_files_below: Text | None = Field(
        default=None,
        description="Read reference clips from files below this folder, named by file: URLs or by their paths.",
    )
    aligner: Text | None = Field(
        default=None,
        description="Folder of a Whisper model in CTranslate2's format, for word timestamps. None: there are none.",
    )
    aligner_threads: Int = _number(1, 1, 256, "CPU threads of the aligner.")
    aligner_wait_s: Float = _number(
        5.0,
        0,
        _DAY_S,
        "How long the end of a response waits for the times of its words, beside a quarter of the length of its audio.",
    )
    allowed_hosts: Strings = Field(
        default=(),
        description="Names of the server that requests may use on any port, such as speech.example.com, *.example.com "
        "or, on one port only, speech.example.com:8443; '*': any. Always allowed: localhost, addresses and `host`; by "
        "default any name if there are API keys.",
    )
    forwarded_allow_ips: Strings = Field(
        default=(),
        description="Addresses of proxies, such as 127.0.0.1 or 10.0.0.0/8, whose X-Forwarded-For and "
        "X-Forwarded-Proto are believed; '*': any.",
    )
    strict: bool = Field(
        default=False,
        description="Refuse requests with unknown fields. Otherwise they are ignored, and the response names them.",
    )
    default_format: FormatName | None = Field(
        default=None,
        description="response_format of requests without one. Default: mp3 over HTTP, as OpenAI has it; over "
        "WebSockets pcm, or wav for a client of vLLM-Omni. ElevenLabs' and nari's paths keep their own.",
    )
    model_aliases: Strings = Field(
        default=("qwen3-tts",),
        description="Other names that requests may use as model: a name for any served model, or name=model.",
    )
    voice_aliases: VoiceAliases = Field(
        default_factory=dict,
        description="Other names that requests may use as voice, for presets or uploaded voices. They go before those "
        "of OpenAI, Qwen's cloud, Kokoro and Orpheus, which stand for presets by themselves.",
    )
    stream_events: bool = Field(
        default=False,
        description="`stream: true` alone means events (SSE), as in newer vLLM-Omni, instead of the audio's bytes.",
    )
    stream_wav: bool = Field(
        default=False,
        description="Send WAV and FLAC as they are generated, with placeholders for the length, also where the request "
        "does not ask for streaming.",
    )
    public_url: Text | None = Field(
        default=None,
        description="Address under which clients reach the server, such as https://speech.example.com, for URLs in its "
        "answers. Default: the Host header of each request.",
    )
    kept_files_s: Float = _number(600.0, 1, _DAY_S, "How long the URL of a finished file works (DashScope over HTTP).")
    kept_files_bytes: Int = _number(
        96 * 2**20, 0, 2**40, "Size of all such files, in memory; 0: none are kept, and the URLs are data: URLs."
    )
    kept_files_bytes_per_key: Int = _number(64 * 2**20, 0, 2**40, "The same per API key.")
    cors_origins: Strings = Field(default=(), description="Origins of web pages that may call the API.")
    live_protocol: Literal["vllm-omni", "sglang-omni"] = Field(
        default="vllm-omni",
        description="Whose protocol a client of /v1/audio/speech/stream speaks if its first message does not tell. "
        "sglang-omni: over HTTP, the event of an error is called `error`, not `speech.audio.error`.",
    )
    live_idle_s: Float = _number(60.0, 1, _DAY_S, "A WebSocket without traffic for this long is closed.")
    live_pause_s: Float = _number(
        1.0, 0.1, _DAY_S, "On a full server, a WebSocket text that pauses this long gives its slot back."
    )
    stalled_s: Float = _number(300.0, 1, _DAY_S, "A response that the client does not read for this long is aborted.")
    drain_s: Float = _number(30.0, 0, _DAY_S, "After SIGTERM, how long running streams may continue.")
    exit_on_failure: bool = Field(
        default=False, description="End with status 1 when the engine has failed (worker.max_restarts)."
    )
    playground: bool = Field(default=True, description="Serve the playground at /.")
    log_format: Literal["console", "json"] = Field(default="console", description="Log format.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Log level.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key needs a certificate; name it with tls_cert (--tls-cert)")
        if self.public_url is not None and not self.public_url.startswith(("http://", "https://")):
            raise ValueError("public_url must begin with http:// or https://, such as https://speech.example.com")
        return self

    @property
    def needs_key(self) -> bool:
        return bool(self.api_keys or self.keys_file)

    @property
    def http_format(self) -> FormatName:
        """The format of an HTTP request without a response_format."""
        return self.default_format or "mp3"
