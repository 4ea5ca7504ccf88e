"""Both kinds of kernels, for tests on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oscine.runner.backend import Kernels, Quantization
from tests.reference.speaker import ReferenceSpeaker
from tests.runner.wide_model import wide_model

_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
needs_hopper = pytest.mark.skipif(not _HOPPER, reason="needs a Hopper GPU")
KERNELS = ("triton", pytest.param("cuda", marks=needs_hopper))


class KernelSpeaker(ReferenceSpeaker):
    """A tiny model for Triton's kernels, and a model of the published widths for CUDA's, which have no other shapes."""

    def __init__(
        self,
        folder: Path,
        kernels: Kernels,
        size: str,
        dtype: torch.dtype = torch.bfloat16,
        quantize: Quantization = "none",
    ) -> None:
        super().__init__(folder, "cuda", dtype)
        self.kernels, self.quantize = kernels, quantize
        if kernels == "cuda":
            self.model = wide_model(self.model.config, size, dtype, self.model.codec)
