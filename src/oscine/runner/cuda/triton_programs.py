"""Lists the Triton programs that a backend launches, and compiles them in parallel. Neither needs a GPU.

The backend runs on torch's `meta` device, which allocates nothing, and its launches are recorded instead of executed.
Recording replaces a method of Triton for the whole process, so it belongs in a process that launches nothing.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from oscine.kernels import primitives
from oscine.kernels.cuda.compiler import CubinCache, NvccCompiler
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Launch as CudaLaunch
from oscine.model.config import ModelConfig
from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import BackendOptions
from oscine.runner.cuda import backend as cuda_backend
from oscine.runner.cuda.programs import codec_supported
from oscine.runner.memory_budget import MemoryBudget

_WARP_THREADS = 32
Launch = tuple[JITFunction[Any], tuple[Any, ...], dict[str, Any]]  # kernel, arguments, keyword arguments


@dataclass(frozen=True, slots=True)
class TritonProgram:
    """One kernel with its constants and the properties of its arguments."""

    name: str
    source: ASTSource
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compiled:
    name: str
    shared_bytes: int
    problem: str  # empty if it compiles
    took_s: float


def gpu_target(capability: int) -> GPUTarget:
    """Returns the target of a compute capability: 90 for 9.0."""
    return GPUTarget("cuda", capability, _WARP_THREADS)


def record_launches(
    config: ModelConfig, budget: MemoryBudget, options: BackendOptions, block_bytes: int
) -> list[Launch]:
    """Returns all launches of a backend's frames and admissions on a GPU whose blocks have this much shared memory."""
    launches: list[Launch] = []
    with (
        recorded(launches),
        mock.patch.object(primitives, "block_bytes", return_value=block_bytes),
        mock.patch.object(cuda_backend, "make_cuda_operations", return_value=_CheckedOperations),
        mock.patch.object(cuda_backend, "make_codec_operations", _make_codec_operations),
        torch.device("meta"),
        torch.inference_mode(),
    ):
        model = SpeechModel(config).to(torch.bfloat16)
        for module in list(model.modules()):
            if prepare := getattr(module, "prepare", None):
                prepare()
        cuda_backend.CudaBackend(model, budget, replace(options, graphs=False)).run_every_size()
    return launches


def distinct_programs(launches: Sequence[Launch], target: GPUTarget) -> list[TritonProgram]:
    """Returns what Triton would compile for these launches."""
    backend = make_backend(target)
    binders: dict[JITFunction[Any], Any] = {}
    found: dict[str, TritonProgram] = {}
    with mock.patch.object(Tensor, "data_ptr", address_of):
        for kernel, args, kwargs in launches:
            if kernel not in binders:
                binders[kernel] = create_function_from_signature(kernel.signature, kernel.params, backend)
            kwargs = kwargs | {"debug": False, "instrumentation_mode": ""}
            bound, specialization, options = binders[kernel](*args, **kwargs)
            options, signature, constants, attributes = kernel._pack_args(
                backend, kwargs, bound, specialization, options
            )
            values = " ".join(f"{name}={bound[name]}" for name in bound if name in kwargs)
            name = f"{kernel.fn.__module__}.{kernel.fn.__name__} {values} {sorted(signature.items())} {attributes}"
            name += f" warps={options.num_warps} stages={options.num_stages} registers={options.maxnreg}"
            if name not in found:
                source = ASTSource(kernel, signature, constants, attributes)
                found[name] = TritonProgram(name, source, options.__dict__)
    return sorted(found.values(), key=lambda program: program.name)


def compile_programs(
    programs: Sequence[TritonProgram], target: GPUTarget, processes: int, report: Callable[[Compiled, int], None]
) -> None:
    """Compiles into Triton's cache on disk. `report` gets each result, and how many there are so far."""
    _work[:] = [(program, target) for program in programs]
    context = multiprocessing.get_context("fork")  # kernels cannot be pickled
    with ProcessPoolExecutor(max(1, min(processes, len(programs))), context) as pool:
        jobs = [pool.submit(_compile_one, number) for number in range(len(_work))]
        for done, job in enumerate(as_completed(jobs), start=1):
            report(job.result(), done)


_work: list[tuple[TritonProgram, GPUTarget]] = []  # for forked processes


def _compile_one(number: int) -> Compiled:
    program, target = _work[number]
    begun_s = time.perf_counter()
    try:
        shared_bytes = triton.compile(program.source, target=target, options=program.options).metadata.shared
        problem = ""
    except Exception as error:  # the compiler's own errors have no common type
        shared_bytes, problem = 0, f"{type(error).__name__}: {str(error)[:300]}"
    return Compiled(program.name, shared_bytes, problem, time.perf_counter() - begun_s)


@contextmanager
def recorded(launches: list[Launch]) -> Iterator[None]:
    """Appends the launches of the body to the list instead of executing them."""

    def record(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append((self, args, kwargs))

    with mock.patch.object(JITFunction, "run", record), mock.patch.object(Tensor, "data_ptr", address_of):
        yield


def address_of(tensor: Tensor) -> int:
    """Returns an address for a tensor without memory: distinct for each storage, aligned as a GPU's allocator
    aligns."""
    return tensor.untyped_storage()._cdata * 512 + tensor.storage_offset() * tensor.element_size()


class _CheckedOperations(CudaOperations):
    """Stands for the CUDA C++ kernels, which are compiled elsewhere: checks the operands and launches nothing."""

    def __init__(self, normed: Tensor) -> None:
        super().__init__(normed, CubinCache(None, NvccCompiler("")))

    def prepare(self, weight: Tensor) -> Tensor:
        return weight

    def launch(self, launch: CudaLaunch, arguments: ctypes.Structure, device: torch.device) -> None: ...


def _make_codec_operations(config: ModelConfig, sizes: Sequence[int]) -> type[_CheckedOperations] | None:
    return _CheckedOperations if codec_supported(config.codec.decoder.stack) else None
