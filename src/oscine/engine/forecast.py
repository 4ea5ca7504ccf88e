"""Predicts how long a new request would wait for a slot; admission control refuses it if that is too long."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from oscine.config import EngineConfig
from oscine.engine.policy import rows_in_real_time
from oscine.engine.tick_cost import TickCost
from oscine.errors import OverloadedError, counted

_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 60.0
_MIN_QUEUE_S = 1.0
_PREDICTION_SHARE = 0.8  # of the maximum wait: real waits are up to a quarter longer than predicted


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load as another thread sees it: a slot may be taken although its stream does not run yet."""

    slots: int
    free_slots: int
    running_frames: tuple[float, ...]  # expected frames left, for each running stream
    queued_frames: tuple[float, ...]
    cost: TickCost


def max_queued_s(config: EngineConfig) -> float:
    """Returns how long a request may wait for a slot. Even one that starts at once needs a tick or two."""
    return max(config.queue_wait_s, _MIN_QUEUE_S)


class Forecast:
    """Predicts when slots become free. Later requests are added to an existing forecast, because making a new one for a
    long queue costs as much as hundreds of decisions.

    `returning_frames`: expected frames of requests refused just before. The next refusal gets a later retry time than
    theirs; if all retried together, most would be refused again.
    """

    def __init__(self, load: Load, config: EngineConfig, returning_frames: tuple[float, ...] = ()) -> None:
        self._config = config
        self._running, self._queued = len(load.running_frames), 0
        servers = rows_in_real_time(load.cost, config.pacing, load.slots)
        self._usable = min(load.free_slots, max(0, servers - self._running))
        self._tick_s = load.cost.tick_s(servers)
        ends_s = heapq.nlargest(servers, (frames * self._tick_s for frames in load.running_frames))
        self._free_s = ends_s + [0.0] * (servers - len(ends_s))  # when each slot is free, after the queue
        heapq.heapify(self._free_s)
        self._slot_wait_s = self._free_s[0]
        self._returning = list(returning_frames)
        self._free_after_retries_s: list[float] | None = (
            None  # and after refused requests that retry; None: not needed yet
        )
        for frames in load.queued_frames:
            self.queue(frames)

    @property
    def refusal(self) -> OverloadedError | None:
        """The error for a new request, or None if it can be admitted."""
        config, wait_s = self._config, self._free_s[0]
        if self._queued >= config.queue_limit + self._usable:
            reason = (
                f"{counted(self._running, 'stream')} running, {counted(self._queued, 'request')} queued (the maximum)"
            )
            retry_s = self._slot_wait_s
        elif wait_s > _PREDICTION_SHARE * config.queue_wait_s:
            worst_s = wait_s / _PREDICTION_SHARE
            reason = (
                f"a slot is free in {wait_s:.1f} to {worst_s:.1f} s (the maximum wait is {config.queue_wait_s:g} s)"
            )
            retry_s = self._retry_s(self._free_s)
        else:
            return None
        before = ""
        if self._returning and (after_s := self._retry_s(self._free_after_retries())) > retry_s:
            retry_s, count = after_s, len(self._returning)
            before = f", after {count} other request{'s' if count > 1 else ''} refused just before"
        return _overloaded(reason, retry_s, before)

    @property
    def timeout(self) -> OverloadedError:
        """The error for a request that has waited for a slot for the maximum time."""
        reason = f"no slot became free within {max_queued_s(self._config):g} s"
        return _overloaded(reason, max(self._slot_wait_s, self._retry_s(self._free_s)))

    def queue(self, frames: float) -> None:
        """Adds a request of this many expected frames that was admitted to the queue."""
        self._queued += 1
        self._add(self._free_s, frames)
        if self._free_after_retries_s:
            self._add(self._free_after_retries_s, frames)

    def refuse(self, frames: float) -> None:
        """Adds a refused request, which is likely to retry."""
        self._add(self._free_after_retries(), frames)
        self._returning.append(frames)

    def _free_after_retries(self) -> list[float]:
        """Returns when each slot is free, after the queue and the refused requests that retry."""
        if self._free_after_retries_s is None:
            self._free_after_retries_s = self._free_s.copy()
            for frames in self._returning:
                self._add(self._free_after_retries_s, frames)
        return self._free_after_retries_s

    def _add(self, free_s: list[float], frames: float) -> None:
        heapq.heapreplace(free_s, free_s[0] + frames * self._tick_s)

    def _retry_s(self, free_s: list[float]) -> float:
        """Returns the time after which a retry would not wait longer than the maximum."""
        return free_s[0] - _PREDICTION_SHARE * self._config.queue_wait_s


def _overloaded(reason: str, retry_s: float, before: str = "") -> OverloadedError:
    """`before` names what a retry waits for besides the slot."""
    retry_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, retry_s))
    return OverloadedError(f"The server is full: {reason}. Retry in {retry_s:.1f} s{before}.", retry_s)


# --- The expected length of a text's speech, learned while the engine runs: frames per text id depend on the
# checkpoint's tokenizer, the language and the voice.


_DECAY = 0.95  # per speech: the average covers about the last twenty
_FRAMES_PER_TEXT_ID = 4.0  # where neither the settings nor the checkpoint say more
_GUESSED_IDS = 10.0  # the first guess counts like a speech of so many text ids, half a sentence
_MIN_FRAMES_LEFT = 5.0


class SpeechLength:
    """Estimates the frames of a speech from its text ids. The loop adds speeches; any thread may read."""

    def __init__(self, frames_per_text_id: float | None = None) -> None:
        """Takes the first guess, which is used until speeches have ended."""
        frames_per_text_id = frames_per_text_id or _FRAMES_PER_TEXT_ID
        self._ids, self._frames = _GUESSED_IDS, _GUESSED_IDS * frames_per_text_id
        self.frames_per_text_id = frames_per_text_id

    def add(self, text_ids: int, frames: int) -> None:
        """Learns from a speech that the model itself ended."""
        self._ids = self._ids * _DECAY + text_ids
        self._frames = self._frames * _DECAY + frames
        self.frames_per_text_id = self._frames / self._ids

    def frames_left(self, text_ids: int, frames_made: int = 0) -> float:
        """Returns the expected number of further frames. A stream that has outlived its estimate is expected to end
        soon."""
        return max(_MIN_FRAMES_LEFT, text_ids * self.frames_per_text_id - frames_made)
