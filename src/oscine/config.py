"""Settings of engine and server: frozen, defaults that work, checked whole before any weight is loaded. No torch here.

What is learnt at start (pages that fit, graphs that were captured, tick times) lives elsewhere, never in here.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, get_type_hints

from oscine.types import FRAME_RATE_HZ, ConfigError, unknown_choice


class Section:
    """A group of settings. `from_mapping` reads one from parsed TOML or command-line options."""

    __slots__ = ()
    PATH = ""  # where it stands in a file of settings: messages name a setting as people write it

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Missing keys keep their defaults; a key that does not exist is refused, and the nearest one named."""
        if not isinstance(values, Mapping):
            raise no_table(cls.PATH.rstrip(".") or "the settings", values)
        types = get_type_hints(cls)
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name not in types:
                possible = [f"{cls.PATH}{key}" for key in types]
                raise ConfigError(unknown_choice("setting", f"{cls.PATH}{name}", possible))
            kind = types[name]
            if isinstance(kind, type) and issubclass(kind, Section):
                value = kind.from_mapping(value)
            elif isinstance(value, list):
                value = tuple(value)
            given[name] = value
        return cls(**given)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            _check_type(f"{self.PATH}{name}", getattr(self, name), kind)
        self._check()

    def _check(self) -> None:
        raise NotImplementedError

    def _between(self, least: float, most: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise self._refusal(name, f"must be between {least:g} and {most:g}, got {reprlib.repr(value)}")

    def _refusal(self, name: str, reason: str) -> ConfigError:
        return ConfigError(f"{self.PATH}{name} {reason}")


def no_table(where: str, value: object) -> ConfigError:
    return ConfigError(f"{where} must be a table of names to values, got {reprlib.repr(value)}")


def _check_type(where: str, value: object, kind: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = number and isinstance(value, int)
    items = value if isinstance(value, tuple) else (None,)
    wanted = {
        int: (whole, "a whole number"),
        int | None: (value is None or whole, "a whole number"),
        float: (number, "a number"),
        bool: (isinstance(value, bool), "true or false"),
        str: (_is_text(value), "text"),
        str | None: (value is None or _is_text(value), "text"),
        tuple[int, ...]: (all(type(item) is int for item in items), "a list of whole numbers"),
        tuple[str, ...]: (all(_is_text(item) for item in items), "a list of texts"),
    }
    right, words = wanted.get(kind, (True, ""))
    if not right:
        raise ConfigError(f"{where} must be {words}, got {reprlib.repr(value)}")


def _is_text(value: object) -> bool:
    # Bytes of the command line that are no UTF-8 come as lone surrogates: no answer and no file could hold them.
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


_MANY = 2**31
_MAX_SLOTS = 4096
_DAY_S = 86400.0
_LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ChunkConfig(Section):
    """How many frames (80 ms each) a chunk on the wire carries: one at first, more as the listener's buffer grows."""

    PATH = "engine.chunks."

    first_chunk_frames: int = 1  # small: the listener is waiting
    steady_chunk_frames: int = 8  # large: fewer messages once the buffer is full
    buffer_share: float = 0.5  # a chunk holds at most this share of the listener's unplayed audio
    first_chunk_ticks: float = 3.0  # the first chunk lasts at least so many ticks, or a gap would follow it

    def _check(self) -> None:
        self._between(1, 1000, "first_chunk_frames", "steady_chunk_frames")
        self._between(0.0, 1.0, "buffer_share")
        self._between(0.0, 100.0, "first_chunk_ticks")
        if self.steady_chunk_frames < self.first_chunk_frames:
            reason = f"must not be below first_chunk_frames ({self.first_chunk_frames})"
            raise self._refusal("steady_chunk_frames", f"({self.steady_chunk_frames}) {reason}")


@dataclass(frozen=True, slots=True)
class PacingConfig(Section):
    """Who runs when slots are scarce (engine/policy.py)."""

    PATH = "engine.pacing."

    lead_s: float = 1.0  # streams with more unplayed audio than this may be left out of a tick
    real_time_share: float = 0.8  # of a frame's 80 ms, what a tick of everyone may last before nobody more is let in
    prefill_rows_per_tick: int = 512  # prompt rows let in between two frames; one request always fits
    frames_per_text_id: float = 4.0  # how long speech usually is, to say when a slot will be free

    def _check(self) -> None:
        self._between(0.0, 60.0, "lead_s")
        self._between(0.05, 1.0, "real_time_share")
        self._between(1, _MANY, "prefill_rows_per_tick")
        self._between(0.1, 1000.0, "frames_per_text_id")


@dataclass(frozen=True, slots=True)
class TrimConfig(Section):
    """Silence before the first sound is not sent (engine/silence_trimming.py)."""

    PATH = "engine.trim_silence."

    enabled: bool = True
    threshold_dbfs: float = -55.0  # a sample above this is sound
    keep_ms: float = 10.0  # before the onset, so that no consonant is cut
    max_frames: int = 10  # at most so many are dropped, whatever they hold

    def _check(self) -> None:
        self._between(-96.0, -20.0, "threshold_dbfs")
        self._between(0.0, 80.0, "keep_ms")
        self._between(0, 1000, "max_frames")


@dataclass(frozen=True, slots=True)
class RunawayConfig(Section):
    """When speech is ended because the model would not (engine/runaway.py)."""

    PATH = "engine.guard."

    enabled: bool = True
    # The frame budget, for requests that do not set max_new_tokens: seconds, not minutes, for short texts.
    budget_frames: int = 36
    budget_frames_per_text_id: float = 10.0
    # Room tone: so long, so quiet, so much below the speech before it, and so even.
    room_tone_s: float = 5.0
    room_tone_dbfs: float = -40.0
    room_tone_drop_db: float = 20.0
    room_tone_spread_db: float = 12.0
    # Repetition: a sequence of code 0 of at most this length, again and again for so long.
    repetition_s: float = 6.0
    repetition_period_frames: int = 25

    def _check(self) -> None:
        self._between(1, _MANY, "budget_frames")
        self._between(0.0, 10_000.0, "budget_frames_per_text_id")
        self._between(0.5, 3600.0, "room_tone_s", "repetition_s")
        self._between(-96.0, 0.0, "room_tone_dbfs")
        self._between(0.0, 96.0, "room_tone_drop_db", "room_tone_spread_db")
        self._between(1, 1000, "repetition_period_frames")
        if self.repetition_period_frames >= self.repetition_s * FRAME_RATE_HZ:
            raise self._refusal(
                "repetition_period_frames",
                f"({self.repetition_period_frames}) must be shorter than repetition_s "
                f"({self.repetition_s:g} s, {self.repetition_s * FRAME_RATE_HZ:g} frames)",
            )


@dataclass(frozen=True, slots=True)
class MemoryConfig(Section):
    """What the runner may hold (runner/memory_budget.py divides it)."""

    PATH = "engine.memory."

    positions_per_slot: int = 4096  # the longest prompt plus speech; a frame is one position
    positions_total: int | None = None  # over all slots; None: half of what would let every slot be as long as it may
    prefix_cache_mib: int = 256
    text_ids_per_slot: int = 4096  # streamed text of one request

    def _check(self) -> None:
        self._between(16, _MANY, "positions_per_slot")
        self._between(16, 2**40, "positions_total")
        self._between(0, _MANY, "prefix_cache_mib")
        self._between(1, _MANY, "text_ids_per_slot")
        if self.positions_total is not None and self.positions_total < self.positions_per_slot:
            raise self._refusal(
                "positions_total",
                f"({self.positions_total}) must not be below positions_per_slot ({self.positions_per_slot}): "
                "the longest request could never run",
            )


@dataclass(frozen=True, slots=True)
class EngineConfig(Section):
    PATH = "engine."

    slots: int = 32  # streams that run at once
    queue_limit: int = 64  # requests that may wait for a slot; the next one is refused
    queue_wait_s: float = 3.0  # a request that would wait longer than this is refused at once
    max_pending_texts: int = 256  # open texts without a word yet: they hold no slot and are not in the queue
    text_wait_s: float = 60.0  # a stream whose text stays open without any for so long is ended
    max_new_tokens: int = 8192  # no request gets more, whatever it asks for
    stuck_s: float = 10.0  # a turn of the loop that lasts longer is a device that hangs: the engine is not ready then
    graphs: bool = True
    graph_buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    pacing: PacingConfig = field(default_factory=PacingConfig)
    trim_silence: TrimConfig = field(default_factory=TrimConfig)
    guard: RunawayConfig = field(default_factory=RunawayConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def _check(self) -> None:
        self._between(1, _MAX_SLOTS, "slots")
        self._between(0, 1_000_000, "queue_limit", "max_pending_texts")
        self._between(0.0, 3600.0, "queue_wait_s")
        self._between(0.1, _DAY_S, "text_wait_s", "stuck_s")
        self._between(2, _MANY, "max_new_tokens")
        sizes = self.graph_buckets
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > _MAX_SLOTS:
            wanted = f"must be ascending batch sizes from 1 to {_MAX_SLOTS}, each once"
            raise self._refusal("graph_buckets", f"{wanted}, got {reprlib.repr(list(sizes))}")

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes worth capturing: up to the one that holds every slot."""
        smaller = tuple(size for size in self.graph_buckets if size < self.slots)
        return (*smaller, next((size for size in self.graph_buckets if size >= self.slots), self.slots))

    def as_mapping(self) -> dict[str, Any]:
        """What `from_mapping` reads: to be printed at start, or sent to another process."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class WorkerConfig(Section):
    """How a front end treats an engine in a process of its own (engine/remote/client.py)."""

    PATH = "process."

    heartbeat_s: float = 10.0  # an engine that does not answer for this long is taken for dead
    start_s: float = 900.0  # the same while it is being built: loading and capturing report as they go
    submit_s: float = 10.0  # the longest wait for an answer to a request
    clone_s: float = 60.0  # the same for a voice; they are made one after the other
    terminate_s: float = 5.0  # between asking to end, terminating and killing
    backoff_s: float = 0.5  # before the first restart; doubles with each restart within the window
    max_backoff_s: float = 30.0
    max_restarts: int = 5  # within the window; one more failure is final
    restarts_window_s: float = 600.0
    delivery_threads: int = 2  # a listener whose `deliver` is slow holds one of them

    def _check(self) -> None:
        self._between(0.01, _DAY_S, "heartbeat_s", "start_s", "submit_s", "clone_s", "terminate_s")
        self._between(0.0, _DAY_S, "backoff_s", "max_backoff_s")
        self._between(0, 1000, "max_restarts")  # the wait doubles with each: more would be no number
        self._between(0.0, 365 * _DAY_S, "restarts_window_s")
        self._between(1, 1000, "delivery_threads")


@dataclass(frozen=True, slots=True)
class ServerConfig(Section):
    """The door to the network (server/)."""

    PATH = "server."

    host: str = "127.0.0.1"  # this machine alone, unless told otherwise
    port: int = 8000
    api_keys: tuple[str, ...] = ()  # none: whoever reaches the port may speak
    streams_per_key: int | None = None
    max_text_chars: int = 200_000  # of one request; some three hours of speech
    max_body_bytes: int = 32 * 2**20
    max_clip_bytes: int = 10 * 2**20
    max_batch_items: int = 32
    segment_chars: int = 400  # long texts are spoken in parts of about this length; see sentences.py
    voices_dir: str | None = None  # None: uploaded voices are forgotten at the end; `oscine serve` names a folder
    max_voices: int = 1000
    ref_urls: bool = False  # fetch clips from the network; never from private addresses
    ref_files_below: str | None = None  # read clips from files below this folder
    cors_origins: tuple[str, ...] = ()  # web pages of other origins that may call
    live_idle_s: float = 60.0  # a WebSocket that says nothing and hears nothing for so long is closed
    stalled_s: float = 300.0  # so is an answer that nobody reads
    drain_s: float = 30.0  # after SIGTERM, how long running streams may go on
    playground: bool = True
    log_format: str = "console"  # or json
    log_level: str = "info"

    def _check(self) -> None:
        self._between(0, 65535, "port")
        self._between(1, _MANY, "streams_per_key", "max_text_chars", "max_batch_items", "max_voices")
        self._between(1024, 2**40, "max_body_bytes", "max_clip_bytes")
        self._between(50, 10_000, "segment_chars")
        self._between(1.0, _DAY_S, "live_idle_s", "stalled_s")
        self._between(0.0, _DAY_S, "drain_s")
        for name, possible in (("log_format", ("console", "json")), ("log_level", _LOG_LEVELS)):
            if getattr(self, name) not in possible:
                raise ConfigError(unknown_choice(f"{self.PATH}{name}", getattr(self, name), possible))
        if not self.host.strip():  # the system would take it for every address
            raise self._refusal("host", "is empty; 127.0.0.1 is this machine alone, 0.0.0.0 is every network it is in")
        for key in self.api_keys:
            if key == "(hidden)":
                raise self._refusal("api_keys", "holds '(hidden)', which stands for a key and is none; write the key")
            # What cannot stand in a header could never be shown.
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError("an API key is printable ASCII without spaces, and not empty")
