"""Scheduling: which requests start and which streams run in a tick, as pure functions of small snapshots.

The goal is real time: an admitted stream never runs out of audio because of another one. A stream's deadline is the
time when its player has played everything, if no further frame is launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.config import PacingConfig
from oscine.engine.tick_cost import TickCost

FRAME_S = 1 / FRAME_RATE_HZ
_INITIAL_ROWS = 4


@dataclass(frozen=True, slots=True)
class Running:
    """A stream that holds a slot."""

    slot: int
    can_run: bool  # the text of its next frame is known and its limit is not reached
    deadline_s: float | None  # None while its player is not playing (not yet, or it ran dry)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without a slot."""

    prompt_rows: int
    continues: bool = False  # continues a speech whose first segment was admitted; it takes over that slot
    deadline_s: float | None = None  # of that speech; None while its player is not playing


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
    """Returns how many requests can start while every stream stays in real time: in the steady state (a tick of all
    streams is shorter than a frame) and now (the prefill ends before the nearest deadline). Continuations skip the
    steady-state check; they were counted when their first segment was admitted."""
    slots = snapshot.free_slots + len(snapshot.running)
    room = rows_in_real_time(cost, pacing, slots) - len(snapshot.running)
    room = max(room, sum(waiting.continues for waiting in snapshot.waiting))
    # Streams waiting for text or already underrun do not limit admission.
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
    """Returns the largest batch in real time, at most twice the largest one measured, because extrapolating further
    would admit too many."""
    known = max(_INITIAL_ROWS, 2 * cost.rows_seen)
    return min(known, cost.rows_within(pacing.real_time_share * FRAME_S, slots))


def _paced(
    runnable: Sequence[Running], admitted: Sequence[Waiting], now_s: float, cost: TickCost, pacing: PacingConfig
) -> tuple[int, ...]:
    """Returns the slots to run when slots are scarce: streams with less than the lead, then others, nearest deadline
    first, while the tick stays in real time. A batch costs little more than one row, and a stream that is left out only
    keeps its slot longer."""

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
