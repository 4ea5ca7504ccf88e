"""Chooses the backend for a device and a dtype, and the kernels of its frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from oscine.errors import ConfigError
from oscine.kernels import available
from oscine.model.config import ModelConfig
from oscine.model.int8 import has_integer_products
from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import DEFAULT_OPTIONS, Backend, BackendOptions, Kernels, Quantization
from oscine.runner.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True)
class KernelChoice:
    kernels: Kernels | None  # None: the backend has no kernels
    reason: str
    warning: bool = False  # the user can install what is missing

    @property
    def name(self) -> str:
        """A name such as "CUDA kernels"."""
        return {"cuda": "CUDA kernels", "triton": "Triton kernels", None: ""}[self.kernels]


def choose_backend(device: torch.device, dtype: torch.dtype) -> type[Backend]:
    """Returns the fastest backend for weights of this dtype on this device."""
    # Imported here: the CUDA backend needs Triton, which a machine without a GPU may not have.
    if available(device) and dtype == torch.bfloat16:
        from oscine.runner.cuda.backend import CudaBackend

        return CudaBackend
    if device.type == "cpu":
        from oscine.runner.cpu.backend import CpuBackend

        return CpuBackend
    from oscine.runner.torch_backend import TorchBackend

    return TorchBackend


def make_backend(model: SpeechModel, budget: MemoryBudget, options: BackendOptions = DEFAULT_OPTIONS) -> Backend:
    return choose_backend(model.device, model.talker.dtype)(model, budget, options)


def choose_quantization(
    wanted: Literal["auto"] | Quantization, config: ModelConfig, device: torch.device, dtype: str
) -> Quantization:
    """ "auto": int8 for a large checkpoint on a CPU with fast products of integers, unless a dtype is named."""
    if wanted != "auto":
        return wanted
    if device.type != "cpu" or dtype != "auto" or not has_integer_products():
        return "none"
    from oscine.runner.cpu.expectation import is_large

    return "int8" if is_large(config) else "none"


def compiling_kernels(
    config: ModelConfig,
    budget: MemoryBudget,
    device: torch.device,
    dtype: torch.dtype,
    options: BackendOptions,
    progress: Callable[[int, int], None],
) -> AbstractContextManager[None]:
    """Compiles the backend's Triton kernels while the body runs, if it has any that are not cached."""
    if not available(device) or dtype != torch.bfloat16:
        return nullcontext()
    from oscine.runner.cuda.precompile import Job, compiling

    major, minor = torch.cuda.get_device_capability(device)
    return compiling(Job(config, budget, options, 10 * major + minor), progress)


def choose_kernels(
    wanted: Literal["auto", "triton", "cuda"],
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sequence[int],
    progress: Callable[[int, int], None] = lambda done, total: None,
    quantize: Quantization = "none",
) -> KernelChoice:
    """Chooses the kernels of frames of these batch sizes. "auto": the fastest ones that can run. CUDA kernels are
    compiled, unless they are cached; `progress` gets their number. Raises ConfigError if the wanted ones cannot run."""
    choice = _choose_kernels(wanted, config, device, dtype, sizes, progress, quantize)
    given = f"this engine has {device.type} and {str(dtype).removeprefix('torch.')}"
    if quantize == "int8" and (device.type != "cpu" or dtype != torch.float32):
        raise ConfigError(f"engine.quantize is 'int8', which is for CPUs with float32 activations; {given}")
    if quantize == "fp8" and choice.kernels != "cuda":
        reason = choice.reason or given
        raise ConfigError(f"engine.quantize is 'fp8', which needs the CUDA kernels, and they do not run here: {reason}")
    return choice


def _choose_kernels(
    wanted: Literal["auto", "triton", "cuda"],
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sequence[int],
    progress: Callable[[int, int], None],
    quantize: Quantization,
) -> KernelChoice:
    if choose_backend(device, dtype).name != "cuda":
        if wanted == "auto":
            return KernelChoice(None, "")
        raise ConfigError(
            f"engine.kernels is {wanted!r}, but kernels need an NVIDIA GPU (Ampere or later), Triton and bfloat16, and "
            f"this engine has {device.type} and {str(dtype).removeprefix('torch.')}; use engine.kernels = 'auto'"
        )
    if wanted == "triton":
        return KernelChoice("triton", "as engine.kernels says")
    from oscine.runner.cuda.programs import missing_on, toolchain_failure

    unsupported = missing_on(device, config)
    problem = unsupported or toolchain_failure(config, device, sizes, progress, fp8=quantize == "fp8")
    if problem is None:
        return KernelChoice("cuda", "this GPU and this checkpoint have them")
    if wanted == "cuda":
        raise ConfigError(f"engine.kernels is 'cuda', but {problem}; or use engine.kernels = 'auto' or 'triton'")
    return KernelChoice("triton", problem, warning=unsupported is None)
