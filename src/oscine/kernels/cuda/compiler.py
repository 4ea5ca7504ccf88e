"""Compiles kernels to machine code and keeps the results on disk.

NVRTC, a library that comes with a CUDA build of torch, compiles without a toolkit; it is used through `cuda-bindings`.
If that package or the library is missing, `nvcc` is used if it is on the path. A cubin's file name is a hash of the
source, its constants, the architecture and the compiler, so nothing needs to be deleted after an update. A hash of the
cubin follows it in the file, so damage is detected.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch

from oscine.kernels.cuda.program import Program

_log = logging.getLogger(__name__)

HOPPER = "sm_90a"
# No implicit fused multiply-adds: kernels that must agree compute the same sums.
OPTIONS = ("-std=c++17", "-fmad=false")
_DIGEST_BYTES = 32
_warning = threading.Lock()

Progress = Callable[[int, int], None]  # programs done, programs in all


class CompileError(RuntimeError):
    """A kernel did not compile, or there is no compiler."""


class Compiler(Protocol):
    @property
    def identity(self) -> str:
        """Name and version: another one may make other machine code."""

    def compile(self, program: Program, architecture: str) -> bytes: ...


def options(program: Program, architecture: str) -> list[str]:
    return [f"-arch={architecture}", *OPTIONS, *(f"-D{name}={value}" for name, value in program.defines)]


@dataclass(frozen=True)
class NvccCompiler:
    path: str

    @cached_property
    def identity(self) -> str:
        return "nvcc " + self._run(["--version"]).strip().splitlines()[-1]

    def compile(self, program: Program, architecture: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="oscine-nvcc-") as name:
            source, cubin = Path(name) / f"{program.name}.cu", Path(name) / "out.cubin"
            source.write_text(program.text, encoding="utf-8")
            self._run(["-cubin", *options(program, architecture), "-o", str(cubin), str(source)])
            return cubin.read_bytes()

    def resource_usage(self, program: Program, architecture: str) -> str:
        """Returns what ptxas reports: registers, spilled bytes, shared memory."""
        with tempfile.TemporaryDirectory(prefix="oscine-nvcc-") as name:
            source = Path(name) / f"{program.name}.cu"
            source.write_text(program.text, encoding="utf-8")
            words = ["-cubin", "-Xptxas", "-v", *options(program, architecture), "-o", os.devnull, str(source)]
            return self._run(words)

    def _run(self, words: Sequence[str]) -> str:
        done = subprocess.run([self.path, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"{self.path} {' '.join(words)}\n{done.stderr or done.stdout}")
        return done.stdout + done.stderr


@dataclass(frozen=True)
class NvrtcCompiler:
    nvrtc: Any  # the module cuda.bindings.nvrtc

    @cached_property
    def identity(self) -> str:
        major, minor = self._call(self.nvrtc.nvrtcVersion)
        return f"nvrtc {major}.{minor} {_nvrtc_package(major)}".rstrip()

    def compile(self, program: Program, architecture: str) -> bytes:
        (handle,) = self._call(
            self.nvrtc.nvrtcCreateProgram, program.text.encode(), f"{program.name}.cu".encode(), 0, [], []
        )
        words = [word.encode() for word in options(program, architecture)]
        (status,) = self.nvrtc.nvrtcCompileProgram(handle, len(words), words)
        if status:
            (size,) = self._call(self.nvrtc.nvrtcGetProgramLogSize, handle)
            log = b" " * size
            self._call(self.nvrtc.nvrtcGetProgramLog, handle, log)
            raise CompileError(f"{self.identity} refused {program}\n{log.decode(errors='replace')}")
        (size,) = self._call(self.nvrtc.nvrtcGetCUBINSize, handle)
        cubin = b" " * size
        self._call(self.nvrtc.nvrtcGetCUBIN, handle, cubin)
        self._call(self.nvrtc.nvrtcDestroyProgram, handle)
        return cubin

    def _call(self, function: Callable[..., tuple[Any, ...]], *words: Any) -> tuple[Any, ...]:
        status, *values = function(*words)
        if status:
            raise CompileError(f"{function.__name__} failed: {status}")
        return tuple(values)


def _nvrtc_package(major: int) -> str:
    """Returns the package's full version, because the library does not report its patch level; empty if the library
    came another way."""
    with contextlib.suppress(PackageNotFoundError):
        return version(f"nvidia-cuda-nvrtc{'' if major >= 13 else f'-cu{major}'}")
    return ""


def find_compiler() -> NvrtcCompiler | NvccCompiler:
    reasons = []
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        try:
            from cuda.bindings import nvrtc

            compiler = NvrtcCompiler(nvrtc)
            _ = compiler.identity  # loads the library
        except (
            ImportError,
            RuntimeError,
            OSError,
        ) as error:  # the package is installed, but the library may be missing
            reasons.append(f"cuda-bindings found no NVRTC ({error})")
        else:
            return compiler
    else:
        reasons.append("cuda-bindings is not installed")
    if path := shutil.which("nvcc"):
        return NvccCompiler(path)
    reasons.append("nvcc is not on the path")
    raise CompileError(f"no CUDA compiler: {', '.join(reasons)}; {install_hint(torch.version.cuda)}")


def install_hint(cuda: str | None) -> str:
    """Says what to install. `cuda` is torch's version of CUDA: a newer compiler's machine code might need a newer
    driver."""
    major = int((cuda or "13").partition(".")[0])
    return f"`pip install 'cuda-bindings=={major}.*' nvidia-cuda-nvrtc{'' if major >= 13 else f'-cu{major}'}`"


def default_folder() -> Path | None:
    """Returns None if the user has no home."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "oscine" / "kernels"
    except RuntimeError:
        return None


@dataclass(frozen=True)
class CubinCache:
    """Cubins of one architecture in a folder, which several processes may share. Without a folder, or if it cannot be
    written, they are kept in memory only."""

    folder: Path | None
    compiler: Compiler
    architecture: str = HOPPER
    _held: dict[Program, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def key(self, program: Program) -> str:
        parts = (program.name, *options(program, self.architecture), self.compiler.identity, program.text)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def cubin(self, program: Program) -> bytes:
        cubin = self.find(program)
        if cubin is None:
            cubin = self._held[program] = self.compiler.compile(program, self.architecture)
            self._keep(program, cubin)
        return cubin

    def build(self, programs: Iterable[Program], progress: Progress, workers: int | None = None) -> None:
        """Compiles missing programs in parallel and raises the first error. Reports no progress if nothing is
        missing."""
        missing = [program for program in dict.fromkeys(programs) if self.find(program) is None]
        if not missing:
            return
        progress(0, len(missing))
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            futures = [pool.submit(self.cubin, program) for program in missing]
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                progress(done, len(missing))

    def _path(self, folder: Path, program: Program) -> Path:
        return folder / f"{program.name}-{self.key(program)}.cubin"

    def find(self, program: Program) -> bytes | None:
        """Returns None for a missing, damaged or unreadable file."""
        if program not in self._held and self.folder is not None:
            with contextlib.suppress(OSError):
                stored = self._path(self.folder, program).read_bytes()
                cubin, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
                if hashlib.sha256(cubin).digest() == digest:
                    self._held[program] = cubin
        return self._held.get(program)

    def _keep(self, program: Program, cubin: bytes) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Renamed when complete: a process that dies must not leave half a file.
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix="new-", delete=False) as file:
                try:
                    file.write(cubin + hashlib.sha256(cubin).digest())
                    file.close()
                    os.replace(file.name, self._path(self.folder, program))
                except OSError:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            with _warning:  # `cache` alone lets two threads call at once
                _warn_once(self.folder, error.strerror or str(error))


@cache
def default_cache() -> CubinCache:
    """Returns the cache of this process. Raises CompileError if there is no compiler."""
    return CubinCache(default_folder(), find_compiler())


@cache
def _warn_once(folder: Path, reason: str) -> None:
    _log.warning("compiled kernels cannot be kept in %s, so every start compiles them: %s", folder, reason)
