"""Chooses the device and the dtype of a model, reports memory and threads, and uploads tensors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from oscine.errors import OscineError

Device = Literal["auto", "cpu", "cuda"] | str
Dtype = Literal["auto", "float32", "bfloat16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_MEMINFO = Path("/proc/meminfo")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise OscineError(f"unknown device {name!r} (possible: auto, cpu, cuda, cuda:0, ...)") from None
    if device.type not in ("cpu", "cuda"):
        raise OscineError(f"device {name!r} is not supported (possible: auto, cpu, cuda, cuda:0, ...)")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OscineError(f"device {name!r} is not on this machine ({torch.cuda.device_count()} CUDA devices); use cpu")
    return device


def begin_context(name: str) -> None:
    """Creates the context of a CUDA device on another thread; otherwise torch's first call would wait for it. The
    driver's calls do not need Python's lock. Errors are left to torch, which makes the same calls."""
    if name != "cpu" and torch.version.cuda is not None:
        index = name.removeprefix("cuda:")
        threading.Thread(target=_create_context, args=(int(index) if index.isdecimal() else 0,), daemon=True).start()


def _create_context(index: int) -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if not isinstance(name, str) or name not in _DTYPES:
        raise OscineError(f"unknown dtype {name!r} (possible: auto, {', '.join(_DTYPES)})")
    return _DTYPES[name]


def free_bytes(device: torch.device) -> int | None:
    """Returns None if the system does not report it."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _meminfo("MemAvailable")


def total_bytes(device: torch.device) -> int | None:
    """Returns None if the system does not report it."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else _meminfo("MemTotal")


def _meminfo(name: str) -> int | None:
    if not _MEMINFO.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(lines[name].removesuffix("kB")) * 1024


def usable_cpus() -> int:
    """Returns the number of CPUs that this process may use. A quota of CPU time does not reduce it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_bf16_products() -> bool:
    """Whether products of bf16 are faster than those of fp32 on this CPU: x86 with AVX-512 BF16 or AMX."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def set_own_threads(count: int) -> None:
    """Sets torch's number of threads for the calling thread alone. `torch.set_num_threads` also changes the default for
    threads that start later, such as a user's own; so another thread sets the default back."""
    if count == torch.get_num_threads():
        return
    with ThreadPoolExecutor(1) as other:
        default = other.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        other.submit(torch.set_num_threads, default).result()


def describe_device(device: torch.device) -> str:
    """Returns a description such as "NVIDIA H200" or "CPU, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def missing_cuda_warning() -> str | None:
    """Returns a warning if the machine has an NVIDIA GPU that this build of PyTorch cannot use."""
    if torch.cuda.is_available() or not (NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi")):
        return None
    if torch.version.cuda is None:
        return (
            f"this machine has an NVIDIA GPU, but PyTorch {torch.__version__} is a CPU build; install one with CUDA: "
            "`make install TORCH=cuda` in a checkout, else `pip install --force-reinstall torch`"
        )
    return (
        f"this machine has an NVIDIA GPU, but PyTorch {torch.__version__} cannot use it; the driver may be too old "
        f"for CUDA {torch.version.cuda}"
    )


# --- Uploads from mapped files to a GPU through pinned memory: one buffer is filled while the other is copied.


_BUFFER_BYTES = 32 * 2**20


class PinnedUpload:
    """Copies tensors to a device. A direct copy of pageable memory would run on one core; all cores fill a pinned
    buffer. With a CPU as `device` it works the same, without pinned memory."""

    def __init__(self, device: torch.device, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._device, self._buffer_bytes = device, buffer_bytes
        cuda = device.type == "cuda"
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
        self._sent = [torch.cuda.Event() if cuda else None for _ in self._buffers]
        self._pieces = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        """Returns the tensor on the device, in its own dtype. Only the current stream may use it at once."""
        uploaded = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        sources = tensor.contiguous().flatten().view(torch.uint8).split(self._buffer_bytes)
        targets = uploaded.flatten().view(torch.uint8).split(self._buffer_bytes)
        for source, target in zip(sources, targets, strict=True):
            buffer, sent = self._buffers[self._pieces % 2], self._sent[self._pieces % 2]
            self._pieces += 1
            if sent is not None:
                sent.synchronize()
            buffer[: len(source)].copy_(source)
            target.copy_(buffer[: len(source)], non_blocking=True)
            if sent is not None:
                sent.record()
        return uploaded
