"""Runs in a process of its own, without Triton's interpreter: compiles some kernels of a small checkpoint ahead for a
GPU that is not here, then looks for them as a launch does. Prints what a launch would still have compiled, and how the
attention of prompts is launched beside CUDA kernels."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from triton.compiler import ASTSource
from triton.runtime import driver

from compile_kernels import published
from oscine.kernels.primitives import BLOCK_BYTES
from oscine.model.config import read_config
from oscine.runner.backend import BackendOptions
from oscine.runner.cuda import triton_programs
from oscine.runner.cuda.triton_programs import compile_programs, distinct_programs, gpu_target, record_launches
from oscine.runner.memory_budget import plan_memory

TARGET = gpu_target(90)
KERNELS = ("norm._rms_norm", "embed._gather")  # they compile fast


def hopper_attentions() -> list[bool]:
    """Whether the output is in tiles, for each launch for prompts."""
    config = published("1b7")
    budget = plan_memory(
        config, slots=2, positions_per_slot=64, positions_total=None, element_bytes=2, available_bytes=None
    )
    launches = record_launches(config, budget, BackendOptions((1, 2), kernels="cuda"), BLOCK_BYTES[90])
    return [options["in_tiles"] for _, _, options in launches if "in_tiles" in options]


def main(folder: Path) -> None:
    config = read_config(folder)
    budget = plan_memory(
        config, slots=2, positions_per_slot=64, positions_total=None, element_bytes=2, available_bytes=None
    )
    launches = record_launches(config, budget, BackendOptions((1, 2)), BLOCK_BYTES[90])
    programs = distinct_programs(launches, TARGET)
    chosen = [program for program in programs if any(kernel in program.name.split()[0] for kernel in KERNELS)]
    failed: list[str] = []
    compile_programs(chosen, TARGET, 2, lambda compiled, done: failed.append(compiled.problem))

    missed: list[str] = []
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: TARGET, get_current_device=lambda: 0, get_current_stream=lambda device: 0
        )
    )

    def compile_again(self: ASTSource, *args: object, **kwargs: object) -> None:
        missed.append(self.fn.__name__)
        raise LookupError

    found = 0
    with (
        mock.patch.object(ASTSource, "make_ir", compile_again),
        mock.patch.object(torch.Tensor, "data_ptr", triton_programs.address_of),
    ):
        for kernel, args, kwargs in launches:
            if any(f"{kernel.fn.__module__}.{kernel.fn.__name__}".endswith(name) for name in KERNELS):
                try:
                    kernel.run(*args, grid=(1,), warmup=True, **kwargs)
                    found += 1
                except LookupError:
                    pass
    names = sorted({program.name.split()[0].removeprefix("oscine.kernels.") for program in programs})
    result = {"kernels": names, "failed": [one for one in failed if one], "missed": missed, "found": found}
    print(json.dumps(result | {"in_tiles": hopper_attentions()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
