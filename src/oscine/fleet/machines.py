"""What a tick costs on the machines that were measured. tests/fleet/test_machines.py compares it with docs/results."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from oscine.errors import ConfigError, unknown_choice

Table = tuple[tuple[int, float], ...]  # (rows, ms), ascending; interpolated


@dataclass(frozen=True, slots=True)
class Machine:
    """One card with one checkpoint."""

    name: str
    model: str
    slots: int
    tick_ms: Table  # of so many streams
    talker_ms: Table  # the talker's part of it: prompts add their rows to it
    packs: tuple[
        int, ...
    ]  # the rows of prompts beside a frame are padded to one of these; more are prefilled before it
    prompts_ms: Table  # added to a tick of so many streams if it runs prompts: what the host and the launch cost
    prefill_row_ms: float  # for each row that is prefilled before a frame
    request_ms: float  # the front end's work on a request, one after the other
    answer_ms: float  # from the end of a tick on the device to the client
    start_s: float  # until a server is ready, with its kernels cached
    source: str

    def tick_s(self, rows: int, prompts: Sequence[int] = ()) -> float:
        """Returns how long a tick of `rows` streams takes that runs prompts of so many rows."""
        ms, prompt_rows = _interpolated(self.tick_ms, rows), sum(prompts)
        if prompt_rows > self.packs[-1]:
            ms += _interpolated(self.prompts_ms, rows) + self.prefill_row_ms * prompt_rows
        elif prompt_rows:
            pack = next(size for size in self.packs if size >= prompt_rows)
            ms += _interpolated(self.talker_ms, rows + pack) - _interpolated(self.talker_ms, rows)
            ms += _interpolated(self.prompts_ms, rows)
        return ms / 1000


def _interpolated(table: Table, rows: int) -> float:
    at = min(max(1, bisect_left(table, (rows, 0.0))), len(table) - 1)
    (low, low_ms), (high, high_ms) = table[at - 1 : at + 1]
    return low_ms + (high_ms - low_ms) * (rows - low) / (high - low)


H200 = Machine(
    name="h200",
    model="1.7B",
    slots=128,
    tick_ms=((1, 2.26), (8, 2.54), (32, 3.71), (64, 4.56), (128, 6.58), (256, 11.10)),
    talker_ms=((1, 0.936), (8, 1.057), (32, 1.430), (64, 1.680), (128, 2.322), (256, 4.099)),
    packs=(32, 64, 128, 192, 256),
    prompts_ms=((1, 0.2), (8, 0.7), (32, 1.2), (128, 1.2)),
    prefill_row_ms=0.0075,
    request_ms=0.45,
    answer_ms=1.7,
    start_s=7.7,
    source="frame, admission, front end and start of docs/benchmarks.md, 1.7B with CUDA kernels, one NVIDIA H200",
)
MACHINES = {machine.name: machine for machine in (H200,)}


def machine_named(name: str) -> Machine:
    if (machine := MACHINES.get(name.lower())) is None:
        raise ConfigError(unknown_choice("machine", name, MACHINES))
    return machine
