"""Where callers' threads and the loop meet: an inbox, and the counts that decide who may still come in. One lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from oscine.config import EngineConfig
from oscine.engine.policy import Load, expected_frames, refusal
from oscine.engine.session import Session
from oscine.types import EngineError, FinishReason, OscineError, OverloadedError, Prompt


@dataclass(frozen=True, slots=True)
class PromptReady:
    """An open text has enough words for its prompt."""

    utterance_id: str
    prompt: Prompt
    text_ids: int
    text_ended: bool


@dataclass(frozen=True, slots=True)
class TextAppended:
    utterance_id: str
    text_ids: tuple[int, ...]
    spoken_ids: int  # of them, without the mark of the text's end
    ended: bool


@dataclass(frozen=True, slots=True)
class End:
    """Ends an utterance wherever it is: cancelled, or with the error that was found in its text."""

    utterance_id: str
    reason: FinishReason = "cancelled"
    error: OscineError | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """No new requests; what has not ended by `deadline_s` is cancelled."""

    deadline_s: float


Message = Session | PromptReady | TextAppended | End | Stop


class AdmissionControl:
    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._news = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._queued: dict[str, float] = {}  # id -> expected frames, of those let in that have no slot yet
        self._wordless: set[str] = set()  # open texts that wait for their first words
        self._closed: EngineError | None = None
        self._gone = False

    # --- callers ---

    def submit(self, session: Session, load: Callable[[tuple[float, ...]], Load]) -> None:
        """Queues the session, or raises: OverloadedError with the time to retry, EngineError where it is over. Who
        continues is never refused for load: his listener was let in already."""
        with self._news:
            if self._closed:
                raise EngineError(str(self._closed))
            if not session.continues:
                self._check_load(session, load)
            if session.prompt is None:
                self._wordless.add(session.utterance_id)
            else:
                self._queue(session)
            self._inbox.append(session)
            self._news.notify()

    def post(self, message: PromptReady | TextAppended | End | Stop) -> None:
        with self._news:
            if self._gone:
                return
            if isinstance(message, Stop) and not self._closed:
                self._closed = EngineError("the engine is stopping and takes no new requests")
            self._inbox.append(message)
            self._news.notify()

    @property
    def open(self) -> bool:
        return self._closed is None

    @property
    def queued(self) -> int:
        with self._news:
            return len(self._queued) + len(self._wordless)

    # --- the loop ---

    def take(self) -> Message | None:
        """One at a time: whatever goes wrong with one, the others are still here."""
        with self._news:
            return self._inbox.popleft() if self._inbox else None

    def wait(self, longest_s: float | None) -> None:
        """Until there is news."""
        with self._news:
            if not self._inbox:
                self._news.wait(longest_s)

    def words_came(self, session: Session) -> None:
        with self._news:
            self._wordless.discard(session.utterance_id)
            self._queue(session)

    def forget(self, session: Session) -> None:
        """It has a slot now, or has ended."""
        with self._news:
            self._queued.pop(session.utterance_id, None)
            self._wordless.discard(session.utterance_id)

    def close_for_good(self, error: EngineError) -> list[Session]:
        """The engine is gone; gives back the sessions that it has not even seen."""
        with self._news:
            self._closed, self._gone = error, True
            unseen = [message for message in self._inbox if isinstance(message, Session)]
            self._inbox.clear()
            self._queued.clear()
            self._wordless.clear()
        return unseen

    def _queue(self, session: Session) -> None:
        self._queued[session.utterance_id] = expected_frames(session.text_ids, 0, self._config.pacing)

    def _check_load(self, session: Session, load: Callable[[tuple[float, ...]], Load]) -> None:
        if session.prompt is None:
            if len(self._wordless) >= self._config.max_pending_texts:
                raise OverloadedError(
                    f"{len(self._wordless)} open texts wait for their first words, which is as many as may", 1.0
                )
        elif refused := refusal(load(tuple(self._queued.values())), self._config):
            reason, retry_after_s = refused
            raise OverloadedError(f"{reason}; try again in {retry_after_s:.1f} s", retry_after_s)
