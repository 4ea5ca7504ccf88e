"""The choice of a device, its context and threads, and the warning for a machine whose GPU cannot be used."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from oscine.model import device as devices
from oscine.model.device import (
    PinnedUpload,
    begin_context,
    describe_device,
    missing_cuda_warning,
    set_own_threads,
    usable_cpus,
)


def test_the_cpu_is_described_with_its_threads() -> None:
    threads = torch.get_num_threads()
    assert describe_device(torch.device("cpu")) == f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def test_a_thread_changes_its_own_number_of_threads_and_no_other() -> None:
    here = torch.get_num_threads()

    def change() -> int:
        set_own_threads(here + 1)
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as before:
        assert before.submit(torch.get_num_threads).result() == here
        with ThreadPoolExecutor(1) as changed:
            assert changed.submit(change).result() == here + 1
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == here
        assert before.submit(torch.get_num_threads).result() == torch.get_num_threads() == here


def test_cpus_that_the_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda process: {0, 5}, raising=False)
    assert usable_cpus() == 2
    monkeypatch.delattr(devices.os, "sched_getaffinity")  # not on every system
    assert usable_cpus() == 8


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a usable GPU; the file stands for its NVIDIA driver."""
    file = tmp_path / "version"
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", file)
    monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return file


def test_a_machine_without_a_gpu_gets_no_warning(driver: Path) -> None:
    assert missing_cuda_warning() is None


def test_a_gpu_with_a_cpu_build_of_torch_gets_a_warning_that_says_how_to_fix_it(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.write_text("NVRM version")
    monkeypatch.setattr(torch.version, "cuda", None)
    warning = missing_cuda_warning()
    assert warning is not None and "is a CPU build" in warning and "make install TORCH=cuda" in warning


def test_a_gpu_that_torch_cannot_reach_gets_a_warning(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.write_text("NVRM version")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    warning = missing_cuda_warning()
    assert warning is not None and "driver may be too old for CUDA 13.0" in warning


class FakeDriver:
    """Counts contexts by the number of their device."""

    def __init__(self, devices: int) -> None:
        self.devices, self.contexts = devices, []

    def cuInit(self, flags: int) -> int:  # noqa: N802 (the driver's name)
        return 0 if self.devices else 100

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0 if index < self.devices else 101

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:  # noqa: N802
        self.contexts.append(device.value)
        return 0


def contexts(monkeypatch: pytest.MonkeyPatch, name: str, *, devices: int = 2, cuda: str | None = "13.0") -> list[int]:
    driver, before = FakeDriver(devices), set(threading.enumerate())
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    begin_context(name)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    return driver.contexts


@pytest.mark.parametrize(("name", "expected"), [("auto", [0]), ("cuda", [0]), ("cuda:1", [1]), ("cpu", [])])
def test_the_context_of_the_engines_device_is_created(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: list[int]
) -> None:
    assert contexts(monkeypatch, name) == expected


def test_no_context_is_created_where_torch_cannot_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contexts(monkeypatch, "cuda:7") == contexts(monkeypatch, "auto", devices=0) == []
    assert contexts(monkeypatch, "auto", cuda=None) == []


# --- pinned uploads ---

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (16,), (7, 9), (3, 100, 2)])
def test_an_uploaded_tensor_equals_its_source(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    upload = PinnedUpload(torch.device(device), buffer_bytes=64)
    sources = [(torch.randn(shape) * 100).to(dtype) for _ in range(5)]
    uploaded = [upload(source) for source in sources]
    for source, copy in zip(sources, uploaded, strict=True):
        assert copy.dtype == dtype and copy.device.type == device and torch.equal(copy.cpu(), source)


def test_a_tensor_that_is_not_contiguous_keeps_its_values() -> None:
    source = torch.arange(12).view(3, 4).t()
    assert torch.equal(PinnedUpload(torch.device("cpu"), buffer_bytes=8)(source), source)
