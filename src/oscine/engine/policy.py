"""Scheduling and admission decisions: pure functions of small snapshots.

The goal is real time: an admitted stream never runs out of audio because of another one. A stream's deadline is the
time when its player has played everything, if no further frame is launched.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oscine.config import EngineConfig, PacingConfig
from oscine.engine.tick_cost import TickCost
from oscine.errors import OverloadedError
from oscine.frames import FRAME_RATE_HZ

FRAME_S = 1 / FRAME_RATE_HZ
_INITIAL_ROWS = 4
_MIN_FRAMES_LEFT = 5.0
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 60.0
_MIN_QUEUE_S = 1.0
_PREDICTION_SHARE = 0.8  # of the longest wait: predicted waits turn out up to a quarter longer


@dataclass(frozen=True, slots=True)
class Running:
    """A stream that holds a slot."""

    slot: int
    can_run: bool  # the text of its next frame is known and its limit is not reached
    deadline_s: float | None  # None: its player is not playing (not yet, or it ran dry)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without a slot."""

    prompt_rows: int
    continues: bool = False  # continues a speech whose first segment was admitted; it takes over that slot
    deadline_s: float | None = None  # of that speech; None: its player is not playing


@dataclass(frozen=True, slots=True)
class Snapshot:
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]  # continuations first, then resumed ones, then the longest waiting
    free_slots: int
    prefill_rows: int = 0  # prompt rows admitted since the last launch


@dataclass(frozen=True, slots=True)
class Step:
    admit: int  # requests, in the order of the queue; they run in the next frame
    run: tuple[int, ...]  # slots


def choose_step(snapshot: Snapshot, now_s: float, cost: TickCost, pacing: PacingConfig) -> Step:
    admit = _admissions(snapshot, now_s, cost, pacing)
    runnable = [stream for stream in snapshot.running if stream.can_run]
    slots_are_scarce = len(snapshot.waiting) > admit or snapshot.free_slots == admit
    if not slots_are_scarce:
        return Step(admit, tuple(stream.slot for stream in runnable))
    return Step(admit, _paced(runnable, snapshot.waiting[:admit], now_s, cost, pacing))


def _admissions(snapshot: Snapshot, now_s: float, cost: TickCost, pacing: PacingConfig) -> int:
    """As many requests as keep every stream in real time, in the steady state (a tick of all streams is shorter than a
    frame) and now (the prefill ends before the nearest deadline). Continuations skip the steady-state check: they were
    counted when their first segment was admitted."""
    slots = snapshot.free_slots + len(snapshot.running)
    room = rows_in_real_time(cost, pacing, slots) - len(snapshot.running)
    room = max(room, sum(waiting.continues for waiting in snapshot.waiting))
    # Streams that wait for text run dry anyway, and dry ones cannot be saved: neither holds others back.
    deadlines_s = [stream.deadline_s for stream in snapshot.running if stream.can_run and stream.deadline_s is not None]
    slack_s = min(deadlines_s) - now_s if deadlines_s else float("inf")
    admitted, rows = 0, snapshot.prefill_rows
    for waiting in snapshot.waiting[: min(room, snapshot.free_slots)]:
        rows += waiting.prompt_rows
        if rows > pacing.prefill_rows_per_tick and rows > waiting.prompt_rows:  # one request always fits
            break
        # The frame in flight comes first, then the prefill, then the frame for the nearest deadline.
        busy_s = cost.tick_s(len(snapshot.running)) + cost.tick_s(len(snapshot.running) + admitted + 1, rows)
        if busy_s > slack_s:
            break
        admitted += 1
        if waiting.deadline_s is not None:
            slack_s = min(slack_s, waiting.deadline_s - now_s)
    return admitted


def rows_in_real_time(cost: TickCost, pacing: PacingConfig, slots: int) -> int:
    """At most twice the largest batch measured: an extrapolation from far below would admit too many."""
    known = max(_INITIAL_ROWS, 2 * cost.rows_seen)
    return min(known, cost.rows_within(pacing.real_time_share * FRAME_S, slots))


def _paced(
    runnable: Sequence[Running], admitted: Sequence[Waiting], now_s: float, cost: TickCost, pacing: PacingConfig
) -> tuple[int, ...]:
    """The slots to run when slots are scarce: streams with less than the lead, then others, nearest deadline first,
    while the tick stays in real time. A batch costs little more than one row, and a stream that is left out only keeps
    its slot longer."""

    def ahead_s(stream: Running) -> float:
        return 0.0 if stream.deadline_s is None else stream.deadline_s - now_s

    ordered = sorted(runnable, key=ahead_s)
    urgent = sum(ahead_s(stream) < pacing.lead_s for stream in ordered)
    deadlines_s = [stream.deadline_s for stream in ordered] + [waiting.deadline_s for waiting in admitted]
    nearest_s = min((deadline_s - now_s for deadline_s in deadlines_s if deadline_s is not None), default=FRAME_S)
    tick_limit_s = min(pacing.real_time_share * FRAME_S, max(0.0, nearest_s) / 2)
    rows = len(ordered)
    while rows > max(urgent, 1) and len(admitted) + urgent > 0 and cost.tick_s(len(admitted) + rows) > tick_limit_s:
        rows -= 1
    return tuple(stream.slot for stream in ordered[:rows])


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load when a request arrives."""

    free_slots: int
    running_frames: tuple[float, ...]  # expected frames left, for each running stream
    queued_frames: tuple[float, ...]
    cost: TickCost


def expected_frames(text_ids: int, frames_made: int, pacing: PacingConfig) -> float:
    """Frames left. A stream that has outlived its estimate is expected to end soon."""
    return max(_MIN_FRAMES_LEFT, text_ids * pacing.frames_per_text_id - frames_made)


def refusal(load: Load, config: EngineConfig, returning_frames: tuple[float, ...] = ()) -> OverloadedError | None:
    """Why a new request cannot be admitted; None if it can. `returning_frames`: of requests that were refused just
    before. This one is told to come after them, because together most of them would be refused again."""
    servers = rows_in_real_time(load.cost, config.pacing, config.slots)
    slot_wait_s, own_wait_s = _waits_s(load, servers)
    running, queued = len(load.running_frames), len(load.queued_frames)
    usable = min(load.free_slots, max(0, servers - running))
    if queued >= config.queue_limit + usable:
        reason, retry_s = f"{running} streams are running and {queued} requests are queued (the maximum)", slot_wait_s
    elif own_wait_s > _PREDICTION_SHARE * config.queue_wait_s:
        reason = f"a slot is free in about {own_wait_s:.1f} s (the maximum wait is {config.queue_wait_s:g} s)"
        retry_s = own_wait_s - _PREDICTION_SHARE * config.queue_wait_s
    else:
        return None
    if returning_frames:
        later = replace(load, queued_frames=(*load.queued_frames, *returning_frames))
        retry_s = max(retry_s, _waits_s(later, servers)[1] - _PREDICTION_SHARE * config.queue_wait_s)
    return _overloaded(reason, retry_s)


def queue_timeout(load: Load, config: EngineConfig) -> OverloadedError:
    """For a request that has waited for a slot as long as it may."""
    slot_wait_s, own_wait_s = _waits_s(load, rows_in_real_time(load.cost, config.pacing, config.slots))
    reason = f"no slot became free within {queue_limit_s(config):g} s"
    return _overloaded(reason, max(slot_wait_s, own_wait_s - _PREDICTION_SHARE * config.queue_wait_s))


def queue_limit_s(config: EngineConfig) -> float:
    """How long a request may wait for a slot. Also a request that should start at once needs a tick or two."""
    return max(config.queue_wait_s, _MIN_QUEUE_S)


def _overloaded(reason: str, retry_s: float) -> OverloadedError:
    retry_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, retry_s))
    return OverloadedError(f"The server is full: {reason}. Retry in {retry_s:.1f} s.", retry_s)


def _waits_s(load: Load, servers: int) -> tuple[float, float]:
    """Seconds until the first queued request gets a slot, and until a new one would."""
    tick_s = load.cost.tick_s(servers)
    ends_s = [frames * tick_s for frames in load.running_frames]
    ends_s = heapq.nlargest(servers, ends_s) + [0.0] * (servers - len(ends_s))
    heapq.heapify(ends_s)
    first_s = ends_s[0]
    for frames in load.queued_frames:
        heapq.heapreplace(ends_s, ends_s[0] + frames * tick_s)
    return first_s, ends_s[0]
