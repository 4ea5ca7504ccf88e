"""The choice of a device, its threads, and the warning for a machine whose GPU cannot be used."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from oscine.model import device as devices
from oscine.model.device import describe_device, missing_cuda_warning, set_own_threads, usable_cpus


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
    monkeypatch.setattr(devices, "_NVIDIA_DRIVER", file)
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
