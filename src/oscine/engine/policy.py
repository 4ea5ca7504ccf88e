"""Who is let in, who runs, who is refused: pure functions over small frozen snapshots.

Real time is what counts: a listener that was let in never runs dry because of another one. Everything below is in
seconds of that listener's clock: a stream's deadline is when its player has nothing left if no more frame is made.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from oscine.config import EngineConfig, PacingConfig
from oscine.engine.tick_cost import TickCost
from oscine.types import FRAME_RATE_HZ

FRAME_S = 1 / FRAME_RATE_HZ
_ROWS_AT_FIRST = 4
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A stream that holds a slot."""

    slot: int
    can_run: bool  # its next frame's text is known and its limit not reached
    deadline_s: float | None  # when its listener runs dry; None: plays nothing now (not yet, or has run dry)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that has no slot yet."""

    prompt_rows: int
    continues: bool = False  # its listener was let in with an earlier part: it takes the place which that one gave back
    deadline_s: float | None = None  # when that listener runs dry; None: plays nothing now


@dataclass(frozen=True, slots=True)
class Snapshot:
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]  # those that continue first, then the longest waiting
    free_slots: int


@dataclass(frozen=True, slots=True)
class Step:
    admit: int  # so many of the waiting ones, in their order; they run at once
    run: tuple[int, ...]  # slots


def choose_step(snapshot: Snapshot, now_s: float, cost: TickCost, pacing: PacingConfig) -> Step:
    admit = _admissions(snapshot, now_s, cost, pacing)
    runnable = [stream for stream in snapshot.running if stream.can_run]
    scarce = len(snapshot.waiting) > admit or snapshot.free_slots == admit
    if not scarce:
        return Step(admit, tuple(stream.slot for stream in runnable))
    return Step(admit, _paced(runnable, snapshot.waiting[:admit], now_s, cost, pacing))


def _admissions(snapshot: Snapshot, now_s: float, cost: TickCost, pacing: PacingConfig) -> int:
    """As many as keep everyone in real time: for good (a tick of all of them is shorter than a frame) and right now
    (their prefill is over before the next listener runs dry). For good does not hold back who continues: he was
    counted when his first part was let in, and a newcomer that took his place since must not cost him his."""
    slots = snapshot.free_slots + len(snapshot.running)
    room = _rows_in_real_time(cost, pacing, slots) - len(snapshot.running)
    room = max(room, sum(waiting.continues for waiting in snapshot.waiting))
    # Who waits for text runs dry by himself, and who is dry cannot be saved: no reason to keep others out.
    playing = [stream.deadline_s for stream in snapshot.running if stream.can_run and stream.deadline_s is not None]
    slack_s = min(playing) - now_s if playing else float("inf")
    admitted = rows = 0
    for waiting in snapshot.waiting[: min(room, snapshot.free_slots)]:
        rows += waiting.prompt_rows
        if admitted and rows > pacing.prefill_rows_per_tick:
            break
        # The frame that is in flight comes first, then the prefill, then the frame that the listener waits for.
        busy_s = cost.tick_s(len(snapshot.running)) + cost.tick_s(len(snapshot.running) + admitted + 1, rows)
        if busy_s > slack_s:
            break
        admitted += 1
        if waiting.deadline_s is not None:
            slack_s = min(slack_s, waiting.deadline_s - now_s)
    return admitted


def _rows_in_real_time(cost: TickCost, pacing: PacingConfig, slots: int) -> int:
    """At most twice the largest batch whose time is known: a guess from far below would let too many in."""
    known = max(_ROWS_AT_FIRST, 2 * cost.rows_seen)
    return min(known, cost.rows_within(pacing.real_time_share * FRAME_S, slots))


def _paced(
    runnable: Sequence[Running], admitted: Sequence[Waiting], now_s: float, cost: TickCost, pacing: PacingConfig
) -> tuple[int, ...]:
    """Slots are scarce: whoever has less than the lead runs. The rest join, nearest deadline first, as long as nobody
    hears it: a batch costs little more than one row, and left out they would only keep their slots longer."""

    def ahead_s(stream: Running) -> float:
        return 0.0 if stream.deadline_s is None else stream.deadline_s - now_s

    ordered = sorted(runnable, key=ahead_s)
    hurried = sum(ahead_s(stream) < pacing.lead_s for stream in ordered)
    # Real time for everyone in the tick, and never so long that the nearest deadline is missed.
    deadlines_s = [stream.deadline_s for stream in ordered] + [waiting.deadline_s for waiting in admitted]
    nearest_s = min((deadline_s - now_s for deadline_s in deadlines_s if deadline_s is not None), default=FRAME_S)
    tick_limit_s = min(pacing.real_time_share * FRAME_S, max(0.0, nearest_s) / 2)
    rows = len(ordered)
    while rows > max(hurried, 1) and len(admitted) + hurried > 0 and cost.tick_s(len(admitted) + rows) > tick_limit_s:
        rows -= 1
    return tuple(stream.slot for stream in ordered[:rows])


@dataclass(frozen=True, slots=True)
class Load:
    """What a new request meets, as the loop saw it after its last tick."""

    free_slots: int
    running_frames: tuple[float, ...]  # expected frames to go, for each stream that holds a slot
    queued_frames: tuple[float, ...]
    cost: TickCost


def expected_frames(text_ids: int, frames_made: int, pacing: PacingConfig) -> float:
    """Frames to go. A stream that outlived its estimate is taken to be near its end, but not at it."""
    return max(5.0, text_ids * pacing.frames_per_text_id - frames_made)


def refusal(load: Load, config: EngineConfig) -> tuple[str, float] | None:
    """Why a new request cannot be let in, and in how many seconds to try again; None: it can."""
    servers = _rows_in_real_time(load.cost, config.pacing, config.slots)
    slot_wait_s, own_wait_s = _waits_s(load, servers)
    usable = min(load.free_slots, max(0, servers - len(load.running_frames)))
    waiting = len(load.queued_frames)
    if waiting >= config.queue_limit + usable:
        reason = f"{len(load.running_frames)} streams run and {waiting} requests wait, which is as many as may"
        return reason, _retry_s(slot_wait_s)
    if own_wait_s > config.queue_wait_s:
        reason = (
            f"a slot would be free in about {own_wait_s:.1f} s, the limit is {config.queue_wait_s:g} s, as more "
            "streams at once could not be kept in real time"
        )
        return reason, _retry_s(own_wait_s - config.queue_wait_s)
    return None


def _retry_s(seconds: float) -> float:
    return min(_MAX_RETRY_S, max(_MIN_RETRY_S, seconds))


def _waits_s(load: Load, servers: int) -> tuple[float, float]:
    """Seconds until the first waiting one gets its slot, and until a new request would."""
    tick_s = load.cost.tick_s(servers)
    ends_s = [frames * tick_s for frames in load.running_frames]
    ends_s = heapq.nlargest(servers, ends_s) + [0.0] * (servers - len(ends_s))
    heapq.heapify(ends_s)
    first_s = ends_s[0]
    for frames in load.queued_frames:
        heapq.heapreplace(ends_s, ends_s[0] + frames * tick_s)
    return first_s, ends_s[0]
