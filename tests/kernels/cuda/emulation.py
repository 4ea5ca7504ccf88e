"""Compiles a CUDA kernel for the CPU, with emulator.h in place of device.cuh, and launches it on numpy arrays."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from oscine.kernels.cuda.program import SOURCES, Launch, Program

HERE = Path(__file__).parent


class EmulatedLaunch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("grid_x", "grid_y", "grid_z", "threads", "cluster", "shared_bytes")),
        ("seed", ctypes.c_int),
        ("late_count", ctypes.c_int),
        ("late_to", ctypes.c_void_p),
        ("late_from", ctypes.c_void_p),
        ("late_bytes", ctypes.c_void_p),
    ]


class Emulation:
    """One kernel with its constants, compiled into `folder`."""

    def __init__(self, program: Program, folder: Path) -> None:
        words = [f"-D{name}={value}" for name, value in program.defines]
        texts = [*sorted(SOURCES.glob("*.cu*")), HERE / "emulator.h"]
        key = hashlib.sha256(b"".join(path.read_bytes() for path in texts) + " ".join(words).encode()).hexdigest()[:16]
        library = folder / f"{program.name}-{key}.so"
        if not library.exists():
            source, header = SOURCES / f"{program.name}.cu", _precompiled_header(folder)
            _compile(library, "-shared", "-x", "c++", *words, "-include", str(header), "-I", str(SOURCES), str(source))
        self._library = ctypes.CDLL(str(library))
        self._library.emulate.restype = ctypes.c_char_p

    def run(self, launch: Launch, arguments: ctypes.Structure, late: Sequence[np.ndarray], seed: int) -> None:
        assert self._library.threads_of_block() == launch.threads, launch
        assert launch.grid[0] % launch.cluster == 0, launch
        made = [array.copy() for array in late]
        for array in late:
            array.view(np.uint8)[:] = 0xFF
        count = max(1, len(late))
        addresses = (ctypes.c_void_p * count)(*(array.ctypes.data for array in late))
        sources = (ctypes.c_void_p * count)(*(array.ctypes.data for array in made))
        sizes = (ctypes.c_uint64 * count)(*(array.nbytes for array in late))
        words = EmulatedLaunch(
            *launch.grid, launch.threads, launch.cluster, launch.shared_bytes, seed, len(late),
            *(ctypes.cast(values, ctypes.c_void_p) for values in (addresses, sources, sizes)),
        )  # fmt: skip
        failure = self._library.emulate(ctypes.byref(arguments), ctypes.byref(words))
        assert failure is None, failure.decode()


@cache
def _precompiled_header(folder: Path) -> Path:
    """Returns a copy of emulator.h next to its precompiled form, so that it is not parsed again for every kernel."""
    header, made = folder / "emulator.h", folder / "emulator.h.gch"
    if not made.exists():
        part = header.with_name(f"emulator.h.{os.getpid()}")
        shutil.copyfile(HERE / "emulator.h", part)
        part.replace(header)
        _compile(made, "-x", "c++-header", str(header))
    return header


def _compile(to: Path, *words: str) -> None:
    """Compiles a kernel. Another process may do the same at this time; each writes a whole file and renames it."""
    part = to.with_name(f"{to.name}.{os.getpid()}")
    command = ["g++", "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-w", *words, "-o", str(part)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    part.replace(to)


@cache
def _emulation(program: Program, folder: Path) -> Emulation:
    return Emulation(program, folder)


def emulate(
    launch: Launch, arguments: ctypes.Structure, folder: Path, *, late: Sequence[np.ndarray] = (), seed: int = 0
) -> None:
    """Runs a launch. `late` arrays are NaN until the kernel waits for the one before it. `seed` orders threads."""
    _emulation(launch.program, folder).run(launch, arguments, late, seed)


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 16 bytes, as on a GPU."""
    room = np.empty(values.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    copy = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def bf16_bits(x: torch.Tensor) -> np.ndarray:
    return aligned(x.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16))


def of_bits(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
