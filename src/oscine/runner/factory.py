"""Chooses the backend for a device and a dtype."""

from __future__ import annotations

import torch

from oscine.kernels import available
from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import DEFAULT_OPTIONS, Backend, BackendOptions
from oscine.runner.memory_budget import MemoryBudget


def choose_backend(device: torch.device, dtype: torch.dtype) -> type[Backend]:
    """The fastest backend for weights of this dtype on this device."""
    # Imported here: the CUDA backend needs Triton, which a machine without a GPU may not have.
    if available(device) and dtype == torch.bfloat16:
        from oscine.runner.cuda.backend import CudaBackend

        return CudaBackend
    if device.type == "cpu":
        from oscine.runner.cpu.backend import CpuBackend

        return CpuBackend
    from oscine.runner.torch.backend import TorchBackend

    return TorchBackend


def make_backend(model: SpeechModel, budget: MemoryBudget, options: BackendOptions = DEFAULT_OPTIONS) -> Backend:
    return choose_backend(model.device, model.talker.dtype)(model, budget, options)
