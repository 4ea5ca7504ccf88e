"""Decides when to launch the next frame: as late as the device allows, so that requests that arrive meanwhile join it.

A frame that is launched at once waits behind the frame in flight, and a request that arrives then waits for both. But
the device must never idle, so the launch is due before the frame in flight can end, earlier by the host's own time and
a margin. The earliest possible end is the last time at which the frame had not begun, plus the time that a frame takes.
Prompts in the same launch add time that can only be guessed: from the frame's earliest end on, the timer polls whether
the device is free. (A frame "ends" here when the device can begin the next one; its audio may still be in progress.)

On a CPU, the "device" is the codec's thread, and the host's own time is that of the frame's codes.
"""

from __future__ import annotations

from oscine.runner.runner import Ticket

_POLL_S = 0.0005  # while prefills run before the frame, or prompts with it
_MAX_PREFILLS_S = 1.0  # maximum before a frame: only a launch and the wait after it notice a device that hangs
_HOST_DECAY = 0.9  # per launch, applied to the longest time that a launch took
_LATE_STEP_S = 0.0005  # added to the margin after a late launch, and doubled by each further one
_LATE_DECAY = 0.98
_SMOOTHING = 0.2


class LaunchTimer:
    def __init__(self, margin_s: float) -> None:
        self._margin_s = margin_s
        self._late_s = self._host_s = self._frame_s = self._not_begun_s = 0.0
        self._could_begin_s = 0.0  # from then on, only its own prefills delay the last launch
        self.held_back = False  # the next launch has been delayed on purpose
        self._too_late = False  # the device became free before the next launch
        self._ticket: Ticket | None = None  # of the last launch
        self._prompts_s = 0.0  # added to a frame by prompts
        self._previous_end_s: float | None = None  # expected end of the previous launch, if prompts run in it
        self._guessed_s = 0.0  # part of the last launch's frame: `_prompts_s`, or 0

    def launched(
        self,
        ticket: Ticket,
        began_s: float,
        now_s: float,
        frame_s: float,
        *,
        admits: bool = False,
        follows: bool = True,
    ) -> None:
        """Records a launch that the host worked on since `began_s`; its frame will take `frame_s`. `admits`: it has new
        requests, so the host's time says nothing about other launches. `follows`: the previous frame is still in
        flight."""
        self._host_s = max(0.0 if admits else now_s - began_s, _HOST_DECAY * self._host_s)
        self.held_back = False
        after_prompts = follows and self._ticket is not None and self._ticket.with_prompts
        self._previous_end_s = self._not_begun_s + self._frame_s + self._guessed_s if after_prompts else None
        self._ticket, self._frame_s, self._could_begin_s, self._not_begun_s = ticket, frame_s, now_s, now_s
        self._guessed_s = min(self._prompts_s, frame_s) if ticket.with_prompts else 0.0

    def device_freed(self, now_s: float, *, waited: bool) -> None:
        """Records that the previous frame let the last one begin. If the host `waited` for that, the frame begins
        now."""
        if not self._too_late:
            self._late_s *= _LATE_DECAY
        elif self._previous_end_s is None:
            self._late_s = min(2 * self._late_s + _LATE_STEP_S, self._frame_s)
        else:  # the guess was too high
            self._prompts_s /= 2
        self._could_begin_s = now_s
        if waited:
            self._not_begun_s = now_s
            if self._previous_end_s is not None:
                error_s = now_s - self._previous_end_s
                self._prompts_s = min(max(0.0, self._prompts_s + error_s * _SMOOTHING), self._frame_s)
        self._previous_end_s, self._too_late = None, False  # they do not apply to a frame without a successor

    def is_due(self, now_s: float) -> bool:
        """Whether to launch the next frame, while the last one is in flight."""
        self._too_late = self._ticket is not None and self._ticket.device_free()
        due = self._too_late or self.due_s(now_s) <= now_s
        self.held_back |= not due
        return due

    def due_s(self, now_s: float) -> float:
        if self._ticket is not None and not self._ticket.begun():
            self._not_begun_s = min(now_s, self._could_begin_s + _MAX_PREFILLS_S)
        frame_s = self._frame_s + self._guessed_s
        return self._not_begun_s + frame_s - self._host_s - self._late_s - self._margin_s

    def wake_s(self, now_s: float) -> float:
        """Returns when to look again: at once if prompts took less time than expected."""
        if self._guessed_s > 0.0 and self._ticket is not None and self._ticket.device_free():
            return now_s
        due_s = self.due_s(now_s)
        if self._not_begun_s == now_s:
            return min(due_s, now_s + _POLL_S)
        return min(due_s, max(due_s - self._guessed_s, now_s + _POLL_S))
