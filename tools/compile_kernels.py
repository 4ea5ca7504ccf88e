"""Compiles every Triton kernel that the CUDA backend launches for a published checkpoint, for GPUs that are not here.

    python tools/compile_kernels.py [--targets 80 86 89 90 100 120] [--sizes 1b7 0b6] [--rows 1 2 4 ...] [--out FILE]

Each distinct program is compiled to machine code for the target, and its shared memory is compared with what a block
may use there. Exits with 1 if a kernel does not compile or does not fit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

from checkpoint_shapes import published_codec_config, published_config
from oscine.config import EngineConfig
from oscine.kernels.primitives import BLOCK_BYTES
from oscine.model.config import ModelConfig, read_config
from oscine.runner.backend import BackendOptions
from oscine.runner.cuda.triton_programs import (
    Compiled,
    TritonProgram,
    compile_programs,
    distinct_programs,
    gpu_target,
    record_launches,
)
from oscine.runner.memory_budget import plan_memory
from oscine_bench.record import script_result, write_result

HOPPER = 90  # where CUDA kernels may run beside Triton's


def published(size: str) -> ModelConfig:
    """Few layers of each stack: the others launch the same kernels. Two of the talker, whose last layer of a prompt
    differs, and of the predictor, whose first one does."""
    config, codec = published_config(size, "custom_voice"), published_codec_config()
    config["talker_config"]["num_hidden_layers"] = 2
    config["talker_config"]["code_predictor_config"] |= {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    codec["decoder_config"]["num_hidden_layers"] = 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "speech_tokenizer").mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "speech_tokenizer" / "config.json").write_text(json.dumps(codec))
        return read_config(folder)


def programs(size: str, rows: list[int], capability: int) -> list[TritonProgram]:
    config = published(size)
    budget = plan_memory(
        config, slots=max(rows), positions_per_slot=2048, positions_total=None, element_bytes=2, available_bytes=None
    )
    launches = []
    for kernels in ("triton", "cuda") if capability == HOPPER else ("triton",):
        launches += record_launches(
            config, budget, BackendOptions(tuple(rows), kernels=kernels), BLOCK_BYTES[capability]
        )
    return distinct_programs(launches, gpu_target(capability))


def compile_all(capability: int, sizes: list[str], rows: list[int], every: int) -> list[Compiled]:
    distinct = {program.name: program for size in sizes for program in programs(size, rows, capability)}
    chosen = sorted(distinct.values(), key=lambda program: program.name)[::every]
    results: list[Compiled] = []

    def report(result: Compiled, done: int) -> None:
        if not result.problem and result.shared_bytes > BLOCK_BYTES[capability]:
            result = replace(result, problem=f"needs {result.shared_bytes} of {BLOCK_BYTES[capability]} bytes")
        results.append(result)
        if result.problem:
            print(f"sm_{capability}: {result.name}\n    {result.problem}", file=sys.stderr)
        print(f"\rsm_{capability}: {done} of {len(chosen)} programs", end="", file=sys.stderr, flush=True)

    compile_programs(chosen, gpu_target(capability), min(os.cpu_count() or 1, 8), report)
    print(file=sys.stderr)
    return results


def summary(capability: int, results: list[Compiled]) -> dict[str, Any]:
    largest = max(results, key=lambda result: result.shared_bytes)
    return {
        "target": f"sm_{capability}",
        "programs": len(results),
        "problems": sum(bool(result.problem) for result in results),
        "largest_shared_bytes": largest.shared_bytes,
        "largest_kernel": largest.name.split()[0].removeprefix("oscine.kernels."),
        "limit_bytes": BLOCK_BYTES[capability],
        "seconds": round(sum(result.took_s for result in results), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", default=sorted(BLOCK_BYTES))
    parser.add_argument("--sizes", nargs="+", default=["1b7", "0b6"])
    parser.add_argument("--rows", type=int, nargs="+", default=list(EngineConfig().graph_buckets))
    parser.add_argument("--every", type=int, default=1, help="compile only every n-th program")
    parser.add_argument("--out", type=Path, help="write the summaries to this JSON file")
    options = parser.parse_args()
    summaries = []
    for capability in options.targets:
        results = compile_all(capability, options.sizes, options.rows, options.every)
        summaries.append(summary(capability, results))
        print(json.dumps(summaries[-1]))
    if options.out:
        result = script_result("kernels_by_gpu", sys.argv, {"targets": summaries}, "triton")
        write_result(options.out, result)
    sys.exit(any(one["problems"] for one in summaries))


if __name__ == "__main__":
    main()
