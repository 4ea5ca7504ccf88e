"""Which backend is chosen, and that machines without Triton can do without it."""

import subprocess
import sys

import pytest
import torch

from oscine.runner.cpu.backend import CpuBackend
from oscine.runner.factory import choose_backend
from oscine.runner.torch.backend import TorchBackend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_gets_the_cpu_backend(dtype):
    assert choose_backend(torch.device("cpu"), dtype) is CpuBackend


def test_a_gpu_gets_the_cuda_backend_in_bf16_where_triton_runs_and_else_the_torch_backend(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr("oscine.runner.factory.available", lambda device: False)
    assert choose_backend(cuda, torch.bfloat16) is TorchBackend
    monkeypatch.setattr("oscine.runner.factory.available", lambda device: True)
    assert choose_backend(cuda, torch.float32) is TorchBackend
    pytest.importorskip("triton")
    assert choose_backend(cuda, torch.bfloat16).name == "cuda"


def test_the_runner_does_not_import_triton_unless_the_cuda_backend_is_chosen():
    code = """
import sys, torch
sys.modules["triton"] = None
import oscine.runner.slot_runner
from oscine.runner.factory import choose_backend
for device in ("cpu", "cuda"):
    choose_backend(torch.device(device), torch.float32)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
