"""Compiles every Triton kernel that the CUDA backend launches for a published checkpoint, for GPUs that are not here.

    python tools/compile_kernels.py [--targets 80 86 89 90 100 120] [--sizes 1b7 0b6] [--rows 1 2 4 ...] [--out FILE]

The backend runs on torch's `meta` device, which allocates nothing, and its launches are recorded instead of executed.
Each distinct launch is then compiled to machine code for the target, and its shared memory is compared with what a
block may use there. Exits with 1 if a kernel does not compile or does not fit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from checkpoint_shapes import published_codec_config, published_config
from oscine.kernels import shared_memory
from oscine.kernels.shared_memory import BLOCK_BYTES
from oscine.model.config import ModelConfig, read_config
from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import DEFAULT_OPTIONS, BackendOptions
from oscine.runner.cuda.backend import CudaBackend
from oscine.runner.memory_budget import plan_memory

Launch = tuple[JITFunction[Any], tuple[Any, ...], dict[str, Any]]  # kernel, arguments, keyword arguments


def published(size: str) -> ModelConfig:
    """One layer of each stack: the others launch the same kernels. Two of the predictor, whose first layer differs."""
    config, codec = published_config(size, "custom_voice"), published_codec_config()
    config["talker_config"]["num_hidden_layers"] = 1
    config["talker_config"]["code_predictor_config"] |= {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    codec["decoder_config"]["num_hidden_layers"] = 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "speech_tokenizer").mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "speech_tokenizer" / "config.json").write_text(json.dumps(codec))
        return read_config(folder)


def _address(tensor: torch.Tensor) -> int:
    """An address for a tensor without memory: distinct for each storage, aligned as a GPU's allocator aligns."""
    return tensor.untyped_storage()._cdata * 512 + tensor.storage_offset() * tensor.element_size()


@contextmanager
def _recorded(launches: list[Launch]) -> Iterator[None]:
    def record(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append((self, args, kwargs))

    with mock.patch.object(JITFunction, "run", record), mock.patch.object(torch.Tensor, "data_ptr", _address):
        yield


def record_launches(size: str, rows: list[int], block_bytes: int) -> list[Launch]:
    """All launches of the frames and prefills of a backend on a GPU whose blocks have this much shared memory."""
    config = published(size)
    budget = plan_memory(
        config, slots=max(rows), positions_per_slot=2048, positions_total=None, element_bytes=2, available_bytes=None
    )
    launches: list[Launch] = []
    with (
        _recorded(launches),
        mock.patch.object(shared_memory, "block_bytes", return_value=block_bytes),
        torch.device("meta"),
        torch.inference_mode(),
    ):
        model = SpeechModel(config).to(torch.bfloat16)
        for module in list(model.modules()):
            if prepare := getattr(module, "prepare", None):
                prepare()
        options = BackendOptions(DEFAULT_OPTIONS.frame_sizes, graphs=False)
        backend = CudaBackend(model, budget, options)
        for count in rows:
            backend._run_frame(count)
        for count in backend._prefill._graphs.sizes:
            backend._prefill._run(count)
    return launches


def sources(launches: list[Launch], target: GPUTarget) -> dict[str, tuple[ASTSource, dict[str, Any]]]:
    """The distinct programs among the launches, by a description that names their tile."""
    backend = make_backend(target)
    found: dict[str, tuple[ASTSource, dict[str, Any]]] = {}
    with mock.patch.object(torch.Tensor, "data_ptr", _address):
        for kernel, args, kwargs in launches:
            binder = create_function_from_signature(kernel.signature, kernel.params, backend)
            kwargs = kwargs | {"debug": False, "instrumentation_mode": ""}
            bound, specialization, options = binder(*args, **kwargs)
            options, signature, constants, attributes = kernel._pack_args(
                backend, kwargs, bound, specialization, options
            )
            values = " ".join(f"{name}={bound[name]}" for name in bound if name in kwargs)
            known = f"{kernel.fn.__module__}.{kernel.fn.__name__} {values} {sorted(signature.items())} {attributes}"
            known += f" warps={options.num_warps} stages={options.num_stages}"
            found[known] = (ASTSource(kernel, signature, constants, attributes), options.__dict__)
    return found


_work: list[tuple[str, ASTSource, dict[str, Any], GPUTarget]] = []  # for forked processes: kernels cannot be pickled


def compile_one(number: int) -> dict[str, Any]:
    name, source, options, target = _work[number]
    begun = time.perf_counter()
    try:
        shared = triton.compile(source, target=target, options=options).metadata.shared
        problem = "" if shared <= BLOCK_BYTES[target.arch] else f"needs {shared} of {BLOCK_BYTES[target.arch]} bytes"
    except Exception as error:  # the compiler's own errors have no common type
        shared, problem = 0, f"{type(error).__name__}: {str(error)[:300]}"
    kernel = name.split()[0].removeprefix("oscine.kernels.")
    return {"kernel": kernel, "program": name, "shared": shared, "problem": problem, "s": time.perf_counter() - begun}


def compile_all(target: GPUTarget, sizes: list[str], rows: list[int], every: int) -> list[dict[str, Any]]:
    launches = list(
        itertools.chain.from_iterable(record_launches(size, rows, BLOCK_BYTES[target.arch]) for size in sizes)
    )
    programs = sorted(sources(launches, target).items())[::every]
    _work[:] = [(name, source, options, target) for name, (source, options) in programs]
    results = []
    with multiprocessing.get_context("fork").Pool(min(os.cpu_count() or 1, 8)) as pool:
        for number, result in enumerate(pool.imap_unordered(compile_one, range(len(_work))), start=1):
            results.append(result)
            if result["problem"]:
                print(f"sm_{target.arch}: {result['program']}\n    {result['problem']}", file=sys.stderr)
            print(f"\rsm_{target.arch}: {number} of {len(_work)} programs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def summary(target: GPUTarget, results: list[dict[str, Any]]) -> dict[str, Any]:
    largest = max(results, key=lambda result: result["shared"])
    return {
        "target": f"sm_{target.arch}",
        "programs": len(results),
        "problems": sum(bool(result["problem"]) for result in results),
        "largest_shared_bytes": largest["shared"],
        "largest_kernel": largest["kernel"],
        "limit_bytes": BLOCK_BYTES[target.arch],
        "seconds": round(sum(result["s"] for result in results), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", default=sorted(BLOCK_BYTES))
    parser.add_argument("--sizes", nargs="+", default=["1b7", "0b6"])
    parser.add_argument("--rows", type=int, nargs="+", default=list(DEFAULT_OPTIONS.frame_sizes))
    parser.add_argument("--every", type=int, default=1, help="compile only every n-th program")
    parser.add_argument("--out", type=Path, help="write the summaries to this JSON file")
    options = parser.parse_args()
    summaries = []
    for arch in options.targets:
        target = GPUTarget("cuda", arch, 32)
        summaries.append(summary(target, compile_all(target, options.sizes, options.rows, options.every)))
        print(json.dumps(summaries[-1]))
    if options.out:
        options.out.write_text(json.dumps({"triton": triton.__version__, "targets": summaries}, indent=1) + "\n")
    sys.exit(any(one["problems"] for one in summaries))


if __name__ == "__main__":
    main()
