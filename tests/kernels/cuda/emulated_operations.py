"""The CUDA operations whose launches go to the emulator."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from oscine.kernels.cuda.compiler import CubinCache
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Launch, Program
from tests.kernels.cuda.emulation import emulate
from tests.kernels.cuda.test_compiler import CountingCompiler


class EmulatedOperations(CudaOperations):
    def __init__(self, normed: Tensor, folder: Path, *, fp8: bool = False) -> None:
        super().__init__(normed, CubinCache(None, CountingCompiler()), fp8=fp8)
        self._folder = folder
        self.launched: list[Program] = []

    def launch(self, launch: Launch, arguments: ctypes.Structure, device: torch.device) -> None:
        self.launched.append(launch.program)
        emulate(launch, arguments, self._folder, seed=len(self.launched) % 3)
