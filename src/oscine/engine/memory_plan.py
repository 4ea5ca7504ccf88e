"""Divides the memory of devices among several engines before any weights are loaded. No torch here.

The plan, per device:

1. An engine needs its weights, its KV cache, codec state, prefix cache and working memory (runner/memory_budget.py),
   and what its process takes by itself.
2. `memory_share` limits an engine to a share of the device's whole memory: it gets as many slots as fit, at most those
   that are configured.
3. The needs of all engines must fit into the free memory. Otherwise, engines without configured slots get fewer:
   one number for all of them, the largest that fits. Nothing that was configured is reduced: the start is refused, with
   the sums and a number of slots that would fit.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from oscine.config import EngineConfig
from oscine.errors import ConfigError, EngineError
from oscine.process.child import Child, read_message, write_message

_GiB = 2**30
_TIMEOUT_S = 300.0  # ample: importing torch takes seconds


@dataclass(frozen=True, slots=True)
class WantedEngine:
    """An engine to plan for."""

    model: str  # the served name
    folder: str
    config: EngineConfig
    device: str  # as configured: auto, cpu, cuda, cuda:1
    dtype: str
    memory_share: float | None = None


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that may still take memory that looks free."""

    engine: WantedEngine
    pid: int | None
    memory_bytes: int  # as EngineStatus reports it


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The memory that an engine needs on a device, as a function of its slots."""

    model: str
    device: str  # such as cpu or cuda:0
    slots: int  # wanted
    bytes_for: Callable[[int], int]  # number of slots -> memory of the engine
    share: float | None = None  # of the device's whole memory, at most
    slots_are_default: bool = False  # it may get fewer


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    model: str
    device: str
    slots: int
    planned_bytes: int
    device_bytes: int | None  # the device's whole memory; None if the system does not report it


def divide_memory(needs: Sequence[EngineMemory], devices: Mapping[str, DeviceMemory | None]) -> list[PlannedEngine]:
    """Returns one PlannedEngine for each need, in order. A device that maps to None is not checked. Raises
    ConfigError."""
    planned: list[PlannedEngine] = []
    for need in needs:
        memory = devices[need.device]
        slots = _slots_within_share(need, memory) if need.share is not None and memory else need.slots
        total = memory.total_bytes if memory else None
        planned.append(PlannedEngine(need.model, need.device, slots, need.bytes_for(slots), total))
    for device, memory in devices.items():
        if memory is not None:
            here = [(need, one) for need, one in zip(needs, planned, strict=True) if need.device == device]
            _check_shares(device, [need for need, _ in here])
            fewer = iter(_fitting(device, here, memory))
            planned = [next(fewer) if need.device == device else one for need, one in zip(needs, planned, strict=True)]
    return planned


def _fitting(
    device: str, here: Sequence[tuple[EngineMemory, PlannedEngine]], memory: DeviceMemory
) -> list[PlannedEngine]:
    """Reduces the slots of engines that have the default number until all fit. Raises ConfigError."""

    def limited(limit: int) -> list[PlannedEngine]:
        slots = [min(limit, one.slots) if need.slots_are_default else one.slots for need, one in here]
        return [
            replace(one, slots=count, planned_bytes=need.bytes_for(count))
            for count, (need, one) in zip(slots, here, strict=True)
        ]

    def fits(limit: int) -> bool:
        return sum(one.planned_bytes for one in limited(limit)) <= memory.free_bytes

    limit = _largest(max(one.slots for _, one in here), fits)
    if not limit:
        raise _does_not_fit(device, here, memory)
    return limited(limit)


def _slots_within_share(need: EngineMemory, memory: DeviceMemory) -> int:
    assert need.share is not None
    limit = int(need.share * memory.total_bytes)
    slots = _largest(need.slots, lambda slots: need.bytes_for(slots) <= limit)
    if not slots:
        raise ConfigError(
            f"model {need.model!r} needs {_gib(need.bytes_for(1))} on {need.device} for one slot; its memory_share of "
            f"{need.share:g} gives it {_gib(limit)} of {_gib(memory.total_bytes)}; raise memory_share, or lower "
            "engine.memory.positions_per_slot or engine.memory.prefix_cache_mib"
        )
    return slots


def _check_shares(device: str, needs: Sequence[EngineMemory]) -> None:
    total = sum(need.share for need in needs if need.share is not None)
    if total > 1 + 1e-9:
        listed = ", ".join(f"{need.model!r} {need.share:g}" for need in needs if need.share is not None)
        raise ConfigError(f"the memory_share of the models on {device} add up to {total:g}, more than 1: {listed}")


def _does_not_fit(device: str, here: Sequence[tuple[EngineMemory, PlannedEngine]], memory: DeviceMemory) -> ConfigError:
    listed = ", ".join(f"{one.model!r} {_gib(one.planned_bytes)} ({one.slots} slots)" for _, one in here)
    needed = _gib(sum(one.planned_bytes for _, one in here))
    slots = _largest(
        max(one.slots for _, one in here),
        lambda slots: sum(need.bytes_for(min(slots, one.slots)) for need, one in here) <= memory.free_bytes,
    )
    advice = f"lower slots to {slots}, " if slots else "even one slot each does not fit: "
    return ConfigError(
        f"the models do not fit into the memory of {device}: {listed}; together {needed}, and "
        f"{_gib(memory.free_bytes)} are free; {advice}put a model on another device, or serve fewer"
    )


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Finds by bisection the largest number up to `limit` that fits; 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _gib(count: int) -> str:
    return f"{count / _GiB:.3g} GiB"


def describe_plan(planned: Sequence[PlannedEngine]) -> str:
    """Formats a plan, such as "cuda:0: 21.3 of 139 GiB (preset 12.1 GiB, 64 slots; clone 9.2 GiB, 32 slots)"."""
    parts = []
    for device in dict.fromkeys(one.device for one in planned):
        here = [one for one in planned if one.device == device]
        total = sum(one.planned_bytes for one in here) / _GiB
        whole = here[0].device_bytes
        engines = "; ".join(f"{one.model} {_gib(one.planned_bytes)}, {one.slots} slots" for one in here)
        parts.append(f"{device}: {total:.3g}{f' of {whole / _GiB:.3g}' if whole else ''} GiB ({engines})")
    return " | ".join(parts)


def plan_memory_of(wanted: Sequence[WantedEngine], running: Sequence[RunningEngine] = ()) -> list[PlannedEngine]:
    """Plans in a process of its own, which loads torch and queries the devices. Raises ConfigError or EngineError."""
    try:
        with Child("oscine.engine.memory_sizes") as child:
            child.connection.settimeout(_TIMEOUT_S)
            write_message(child.pipe, {}, pickle.dumps((list(wanted), list(running))))
            answer, planned = read_message(child.pipe)
    except (EOFError, OSError) as error:
        raise EngineError(f"the memory of the models could not be planned: {error}; see above") from error
    if "error" in answer:
        raise ConfigError(answer["error"])
    engines: list[PlannedEngine] = pickle.loads(planned)
    return engines


def cpu_threads(engines: int) -> int:
    """Returns the threads of one of several engines on the CPU: one core stays free for the server, the others are
    divided."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, ((usable or 1) - 1) // engines)
