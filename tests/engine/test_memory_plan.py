"""How the memory of a device is divided among several engines."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from oscine.config import EngineConfig, MemoryConfig
from oscine.engine import memory_sizes
from oscine.engine.memory_plan import (
    DeviceMemory,
    EngineMemory,
    PlannedEngine,
    RunningEngine,
    WantedEngine,
    cpu_threads,
    describe_plan,
    divide_memory,
)
from oscine.engine.memory_sizes import plan_engines
from oscine.errors import ConfigError
from tests.conftest import CheckpointMaker

GIB = 2**30
GPU = DeviceMemory(total_bytes=24 * GIB, free_bytes=20 * GIB)


def need(
    model: str, *, slots: int | None = None, share: float | None = None, device: str = "cuda:0", default: bool = False
) -> EngineMemory:
    """4 GiB, and a quarter of a GiB for each slot."""
    return EngineMemory(model, device, slots or 32, lambda slots: 4 * GIB + slots * GIB // 4, share, default)


def slots(planned: list[PlannedEngine]) -> dict[str, int]:
    return {one.model: one.slots for one in planned}


def test_engines_that_fit_get_what_they_want() -> None:
    planned = divide_memory([need("a", slots=16), need("b", slots=24)], {"cuda:0": GPU})
    assert slots(planned) == {"a": 16, "b": 24}
    assert [one.planned_bytes for one in planned] == [8 * GIB, 10 * GIB]


def test_engines_that_do_not_fit_together_are_refused_with_a_number_of_slots_that_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        divide_memory([need("a"), need("b")], {"cuda:0": GPU})
    message = str(caught.value)
    assert "memory of cuda:0: 'a' 12 GiB (32 slots), 'b' 12 GiB (32 slots); together 24 GiB, and 20 GiB are" in message
    assert "lower slots to 24" in message
    assert slots(divide_memory([need("a", slots=24), need("b", slots=24)], {"cuda:0": GPU})) == {"a": 24, "b": 24}
    with pytest.raises(ConfigError):
        divide_memory([need("a", slots=25), need("b", slots=25)], {"cuda:0": GPU})


def test_engines_whose_slots_nobody_configured_get_as_many_as_fit() -> None:
    default = [need("a", default=True), need("b", default=True)]
    assert slots(divide_memory(default, {"cuda:0": GPU})) == {"a": 24, "b": 24}
    configured = [need("a", slots=40), need("b", default=True), need("c", default=True, device="cuda:1")]
    assert slots(divide_memory(configured, {"cuda:0": GPU, "cuda:1": GPU})) == {"a": 40, "b": 8, "c": 32}
    with pytest.raises(ConfigError, match="'a' 19 GiB"):
        divide_memory([need("a", slots=60), need("b", default=True)], {"cuda:0": GPU})


def test_five_engines_of_which_none_has_room_for_a_slot_are_refused() -> None:
    with pytest.raises(ConfigError, match="even one slot each does not fit: put a model on another device"):
        divide_memory([need(name) for name in "abcde"], {"cuda:0": GPU})


def test_engines_on_different_devices_do_not_take_each_others_memory() -> None:
    devices = {"cuda:0": GPU, "cuda:1": GPU}
    assert slots(divide_memory([need("a"), need("b", device="cuda:1")], devices)) == {"a": 32, "b": 32}


def test_a_share_lowers_the_slots_until_the_engine_fits() -> None:
    planned = divide_memory([need("a", share=0.25), need("b", share=0.5)], {"cuda:0": GPU})
    assert slots(planned) == {"a": 8, "b": 32}  # 6 GiB hold 8 slots; 12 GiB hold all
    assert sum(one.planned_bytes for one in planned) == 18 * GIB


def test_a_share_too_small_for_one_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a' needs 4.25 GiB on cuda:0 for one slot; its memory_share of 0.1 gives"):
        divide_memory([need("a", share=0.1)], {"cuda:0": GPU})


def test_shares_of_a_device_add_up_to_one_at_most() -> None:
    with pytest.raises(ConfigError, match=r"on cuda:0 add up to 1.2, more than 1: 'a' 0.6, 'b' 0.6"):
        divide_memory([need("a", share=0.6), need("b", share=0.6)], {"cuda:0": GPU})
    devices = {"cuda:0": GPU, "cuda:1": GPU}
    divide_memory([need("a", share=0.6), need("b", share=0.6, device="cuda:1")], devices)
    with pytest.raises(ConfigError, match="together 24 GiB, and 20 GiB are free"):  # other programs hold 4 GiB
        divide_memory([need("a", share=0.5), need("b", share=0.5)], {"cuda:0": GPU})


def test_a_device_of_unknown_size_is_not_checked() -> None:
    assert slots(divide_memory([need("a", share=0.01), need("b")], {"cuda:0": None})) == {"a": 32, "b": 32}


def test_the_plan_is_described_per_device() -> None:
    planned = divide_memory(
        [need("a", slots=16), need("b", slots=8), need("a", slots=16, device="cuda:1")],
        {"cuda:0": GPU, "cuda:1": None},
    )
    first, second = describe_plan(planned).split(" | ")
    assert first == "cuda:0: 14 of 24 GiB (a 8 GiB, 16 slots; b 6 GiB, 8 slots)"
    assert second == "cuda:1: 8 GiB (a 8 GiB, 16 slots)"


def test_engines_on_the_cpu_share_its_cores() -> None:
    assert cpu_threads(1) >= cpu_threads(2) >= cpu_threads(1000) == 1


def wanted(
    folder: Path, *, slots: int = 4, share: float | None = None, prefix_cache_mib: int = 64, device: str = "cpu"
) -> WantedEngine:
    memory = MemoryConfig(positions_per_slot=1024, prefix_cache_mib=prefix_cache_mib)
    return WantedEngine(folder.name, str(folder), EngineConfig(slots=slots, memory=memory), device, "auto", share)


def test_the_needs_of_checkpoints_are_planned_before_weights_are_loaded(small_checkpoints: CheckpointMaker) -> None:
    preset, base = (small_checkpoints("0b6", kind) for kind in ("custom_voice", "base"))
    first, second = plan_engines([wanted(preset), wanted(base, share=0.9)], [])
    assert (first.device, first.slots, second.model, second.slots) == ("cpu", 4, base.name, 4)
    assert (256 + 64) * 2**20 < first.planned_bytes < GIB
    with pytest.raises(ConfigError, match=r"do not fit into the memory of cpu: .*even one slot each"):
        plan_engines([wanted(preset, prefix_cache_mib=2**30)], [])


def test_memory_that_running_engines_will_take_is_not_given_away(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_checkpoints("0b6", "custom_voice")
    (alone,) = plan_engines([wanted(folder)], [])
    monkeypatch.setattr(memory_sizes, "free_bytes", lambda device: int(1.5 * alone.planned_bytes))
    fresh = RunningEngine(wanted(folder), None, 0)
    with pytest.raises(ConfigError, match="do not fit"):
        plan_engines([wanted(folder)], [fresh])
    # This process is larger than the engine: as a worker, it would have taken all that it was planned.
    assert plan_engines([wanted(folder)], [replace(fresh, pid=os.getpid())])[0].slots == 4
