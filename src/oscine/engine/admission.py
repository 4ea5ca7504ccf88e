"""Admission control: the inbox between callers' threads and the loop, and the counts that decide on new requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from oscine.config import EngineConfig
from oscine.engine.forecast import Forecast, Load, SpeechLength
from oscine.engine.session import Session
from oscine.errors import EngineError, OscineError, OverloadedError
from oscine.types import FinishReason, Prompt


@dataclass(frozen=True, slots=True)
class PromptReady:
    """Says that a streaming text has enough tokens for its prompt."""

    utterance_id: str
    prompt: Prompt
    text_ids: int
    text_ended: bool


@dataclass(frozen=True, slots=True)
class TextAppended:
    utterance_id: str
    text_ids: tuple[int, ...]
    spoken_ids: int  # without the mark of the text's end
    ended: bool


@dataclass(frozen=True, slots=True)
class EndSession:
    """Cancels an utterance, or ends it with an error in its text."""

    utterance_id: str
    reason: FinishReason = "cancelled"
    error: OscineError | None = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Refuses new requests, and cancels those that have not ended at `deadline_s`."""

    deadline_s: float


SessionMessage = PromptReady | TextAppended | EndSession


_BURST_S = 1.0
_MAX_REFUSED = 1024
_FORECAST_S = 0.01  # maximum age of a forecast: frames made since then make it wrong
_SHORT_QUEUE = 32  # requests: behind a longer queue, a free slot goes to a queued request


class AdmissionControl:
    def __init__(self, config: EngineConfig, lengths: SpeechLength, clock: Callable[[], float]) -> None:
        self._config, self._lengths, self._clock = config, lengths, clock
        self._refused: deque[tuple[float, float]] = deque(maxlen=_MAX_REFUSED)  # (time, expected frames)
        self._changed = threading.Condition()
        self._inbox: deque[Session | SessionMessage | Shutdown] = deque()
        self._queued: dict[str, float] = {}  # id -> expected frames, of admitted requests without a slot
        self._forecast: Forecast | None = None  # None after a slot has changed
        self._forecast_at_s = 0.0
        self._pending_texts: set[str] = set()  # streaming texts without a prompt
        self._closed: EngineError | None = None
        self._dead = False

    # --- callers ---

    def submit(self, session: Session, load: Callable[[tuple[float, ...]], Load]) -> None:
        """Queues the session. Raises OverloadedError, except for continuations, or EngineError after a shutdown."""
        with self._changed:
            if self._closed:
                raise EngineError(str(self._closed))
            if not session.continues:
                self._check_load(session, load)
            if session.prompt is None:
                self._pending_texts.add(session.utterance_id)
            else:
                self._count(session)
            self._inbox.append(session)
            self._changed.notify()

    def post(self, message: SessionMessage | Shutdown) -> None:
        with self._changed:
            if self._dead:
                return
            if isinstance(message, Shutdown) and not self._closed:
                self._closed = EngineError("the engine is stopping and takes no new requests")
            self._inbox.append(message)
            self._changed.notify()

    @property
    def open(self) -> bool:
        return self._closed is None

    @property
    def queued(self) -> int:
        with self._changed:
            return len(self._queued) + len(self._pending_texts)

    @property
    def queued_frames(self) -> tuple[float, ...]:
        """Expected frames of each request in the queue."""
        with self._changed:
            return tuple(self._queued.values())

    def _check_load(self, session: Session, load: Callable[[tuple[float, ...]], Load]) -> None:
        if session.prompt is None:
            if len(self._pending_texts) >= self._config.max_pending_texts:
                raise OverloadedError(
                    f"The server is full: {len(self._pending_texts)} streaming texts wait for their first words (the "
                    "maximum). Retry in 1.0 s.",
                    1.0,
                )
        elif refused := (forecast := self._current_forecast(load)).refusal:
            frames = self._lengths.frames_left(session.text_ids)
            self._refused.append((self._clock(), frames))
            forecast.refuse(frames)
            raise refused

    def _current_forecast(self, load: Callable[[tuple[float, ...]], Load]) -> Forecast:
        now_s = self._clock()
        if self._forecast is None or now_s - self._forecast_at_s > _FORECAST_S:
            self._forecast = Forecast(load(tuple(self._queued.values())), self._config, self._returning_frames())
            self._forecast_at_s = now_s
        return self._forecast

    def _returning_frames(self) -> tuple[float, ...]:
        """Returns the expected frames of requests refused in this burst. Older ones may never retry, so they are
        dropped."""
        since_s = self._clock() - _BURST_S
        while self._refused and self._refused[0][0] < since_s:
            self._refused.popleft()
        return tuple(frames for _, frames in self._refused)

    def _count(self, session: Session) -> None:
        self._queued[session.utterance_id] = frames = self._lengths.frames_left(session.text_ids)
        if self._forecast:
            self._forecast.queue(frames)

    # --- the loop ---

    def take(self) -> Session | SessionMessage | Shutdown | None:
        """Returns the next message, if any. The loop takes one at a time, so that an error loses no other."""
        with self._changed:
            return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout_s: float | None) -> bool:
        """Waits for a message. Returns whether there is one."""
        with self._changed:
            if not self._inbox:
                self._changed.wait(timeout_s)
            return bool(self._inbox)

    def prompt_ready(self, session: Session) -> None:
        with self._changed:
            self._pending_texts.discard(session.utterance_id)
            self._count(session)

    def forget(self, session: Session) -> None:
        """Stops counting a session that has a slot or has ended."""
        with self._changed:
            self._queued.pop(session.utterance_id, None)
            if len(self._queued) < _SHORT_QUEUE:
                self._forecast = None
            self._pending_texts.discard(session.utterance_id)

    def die(self, error: EngineError) -> list[Session]:
        """Closes admission after a failure of the engine. Returns the sessions that the loop has not taken."""
        with self._changed:
            self._closed, self._dead = error, True
            sessions = [message for message in self._inbox if isinstance(message, Session)]
            for messages in (self._inbox, self._queued, self._pending_texts):
                messages.clear()
        return sessions
