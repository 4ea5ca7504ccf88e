"""The choice of a device, and the warning for a machine whose GPU cannot be used."""

from pathlib import Path

import pytest
import torch

from oscine.model import device as devices
from oscine.model.device import describe_device, missing_cuda_warning


def test_the_cpu_is_described_with_its_threads() -> None:
    threads = torch.get_num_threads()
    assert describe_device(torch.device("cpu")) == f"CPU, {threads} thread{'s' if threads > 1 else ''}"


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
