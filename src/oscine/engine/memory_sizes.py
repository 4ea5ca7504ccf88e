"""Computes the memory that engines need on this machine's devices. memory_plan.py runs this module in a process of its
own."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from oscine.config import EngineConfig
from oscine.engine.build import plan_slots
from oscine.engine.memory_plan import (
    DeviceMemory,
    EngineMemory,
    PlannedEngine,
    RunningEngine,
    WantedEngine,
    divide_memory,
)
from oscine.errors import OscineError
from oscine.model.config import ModelConfig, read_config
from oscine.model.device import choose_device, choose_dtype, free_bytes, total_bytes
from oscine.model.weights import weight_bytes
from oscine.process.child import as_pipe, connection_to_parent, read_message, write_message
from oscine.runner.factory import choose_quantization
from oscine.runner.memory_budget import MemoryBudget

# Memory of a worker besides its plan. On the CPU: Python, torch and this package, measured as 244 MiB. On a GPU: the
# context; with the reserve of the CUDA backend it covers the 1.3 GiB that a server used beyond its counted sizes.
_PROCESS_BYTES = {"cpu": 256 * 2**20, "cuda": 512 * 2**20}


def plan_engines(wanted: Sequence[WantedEngine], running: Sequence[RunningEngine]) -> list[PlannedEngine]:
    sizes = [EngineSizes.of(one) for one in wanted]
    reserved: Counter[str] = Counter()
    for one in running:
        size = EngineSizes.of(one.engine)
        reserved[size.device_name] += size.unclaimed_bytes(one)
    devices = {size.device_name: _memory(size.device, reserved[size.device_name]) for size in sizes}
    needs = [
        EngineMemory(
            one.model,
            size.device_name,
            one.config.wanted_slots,
            size.bytes_for,
            one.memory_share,
            one.config.slots is None,
        )
        for one, size in zip(wanted, sizes, strict=True)
    ]
    return divide_memory(needs, devices)


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """The memory of one engine as a function of its slots."""

    model_config: ModelConfig
    config: EngineConfig
    device: torch.device
    dtype: torch.dtype
    weight_bytes: int

    @staticmethod
    def of(wanted: WantedEngine) -> EngineSizes:
        device = choose_device(wanted.device)
        dtype = choose_dtype(wanted.dtype, device)
        model_config = read_config(Path(wanted.folder))
        quantize = choose_quantization(wanted.config.quantize, model_config, device, wanted.dtype)
        weights = weight_bytes(model_config, dtype, int8=quantize == "int8")
        return EngineSizes(model_config, wanted.config, device, dtype, weights)

    @property
    def device_name(self) -> str:
        return f"cuda:{self.device.index or 0}" if self.device.type == "cuda" else self.device.type

    def bytes_for(self, slots: int) -> int:
        return self.weight_bytes + self._budget(slots).total_bytes + _PROCESS_BYTES[self.device.type]

    def unclaimed_bytes(self, running: RunningEngine) -> int:
        """Returns the planned memory that it has not allocated yet: the prefix cache fills up, and on the CPU the
        system provides pages only when they are written."""
        slots = self.config.wanted_slots
        if self.device.type == "cuda":  # memory that is not counted there was allocated when the graphs were captured
            return max(0, self.weight_bytes + self._budget(slots).tensor_bytes - running.memory_bytes)
        return max(0, self.bytes_for(slots) - _resident_bytes(running.pid))

    def _budget(self, slots: int) -> MemoryBudget:
        return plan_slots(self.model_config, self.config, self.device, self.dtype, slots=slots)


def _resident_bytes(pid: int | None) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # the process has ended
        return 0


def _memory(device: torch.device, reserved: int) -> DeviceMemory | None:
    free, total = free_bytes(device), total_bytes(device)
    return None if free is None or total is None else DeviceMemory(total, max(0, free - reserved))


def main(connection: str) -> None:
    """Reads the arguments of `plan_engines` and answers with its result, or with the text of its error."""
    pipe = as_pipe(connection_to_parent(connection))
    wanted, running = pickle.loads(read_message(pipe)[1])
    try:
        planned = plan_engines(wanted, running)
    except OscineError as error:
        write_message(pipe, {"error": str(error)})
    else:
        write_message(pipe, {}, pickle.dumps(planned))
