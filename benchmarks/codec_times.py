"""Times the parts of one codec step on a GPU, with random weights, beside what the hardware would need for them.

    python -m benchmarks.codec_times --out docs/results [--rows 1 8 32 128]

A part's time is from the start of its first launch to that of the next part. Its limit: the bytes that each launch must
read and write once at the bandwidth of a copy, or its products at 800 TFLOP/s, whichever takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import codec_launches as launched
from benchmarks.results import read_arguments, save
from benchmarks.timing import captured, replay_us
from oscine.kernels.cuda.operations import CudaOperations
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.programs import HOPPER
from oscine.runner.cuda.triton_programs import recorded
from random_codec import random_codec

STACK_KERNELS = ("linear_few", "linear_tiled", "rms_norm", "window_attention")  # CUDA's, of the transformer
TRANSFORMER = "transformer"


@dataclass
class Part:
    launches: int = 0
    us: float = 0.0
    limit_us: float = 0.0


def part_of(name: str) -> str:
    """`name`: of a layer or a launch (`layer_names`)."""
    words = name.split()
    if words[0] in ("stack", "attend"):
        return TRANSFORMER
    if words[0] in ("upsampling", "depthwise_norm"):
        return "upsampling to 4 columns"
    if words[0] == "block":
        return f"block {words[1]}, {'upsampling' if words[2] == 'upsample' else 'residual units'}"
    return {"dequantize": "codebooks", "last_conv": "vocoder out"}.get(words[0], name)


def launched_parts(step: launched.Step) -> list[tuple[str, launched.Launch]]:
    names = launched.layer_names(step.codec)
    launches = step.launches()
    return [(part_of(names.get(id(one.layer or one.unit), one.wrapper)), one) for one in launches]


def parts_of(spans: Sequence[tuple[str, float]], launches: Iterable[tuple[str, launched.Launch]]) -> dict[str, Part]:
    """`spans`: kernels in their order, with times until the next one. `launches`: those of a codec that runs on
    Triton's kernels alone."""
    parts: dict[str, Part] = {}
    for name, launch in launches:
        parts.setdefault(name, Part()).limit_us += launch.floor_us
    in_chain = any(kernel.startswith(STACK_KERNELS) for kernel, _ in spans)
    others = iter([name for name, _ in launches if not (in_chain and name == TRANSFORMER)])
    for kernel, us in spans:
        part = parts[TRANSFORMER if kernel.startswith(STACK_KERNELS) else next(others)]
        part.launches += 1
        part.us += us
    assert next(others, None) is None, "a launch has no kernel"
    return parts


@torch.inference_mode()
def measure(row_counts: Sequence[int]) -> dict[str, Any]:
    config, slots = launched.published_codec(), max(row_counts)
    chain = torch.cuda.get_device_capability() == HOPPER
    codec = CudaCodec(random_codec(config, "cuda"), slots, slots, make_operations=CudaOperations if chain else None)
    codec.state.frames.fill_(launched.FULL_WINDOW)
    plain = CudaCodec(random_codec(config, "meta"), slots, slots)
    figures: dict[str, Any] = {"transformer": "CUDA" if chain else "Triton", "rows": {}}
    figures |= {"bytes_per_us": launched.BYTES_PER_US, "flops_per_us": launched.FLOPS_PER_US}
    for rows in row_counts:
        graph = captured(launched.Step(codec, config, rows, "cuda").run)
        spans = launched.kernel_spans_us(graph, (*launched.KERNELS, *STACK_KERNELS))
        with recorded([]):
            launches = launched_parts(launched.Step(plain, config, rows, "meta"))
        parts = parts_of(spans, launches)
        figures["rows"][str(rows)] = {
            "step_us": replay_us(graph, 15),
            "parts": {name: vars(part) for name, part in parts.items()},
        }
        print(rows, figures["rows"][str(rows)], flush=True)
    return figures


def main() -> None:
    options = read_arguments(__doc__, rows=[1, 8, 32, 128])
    print(save(options.out, "codec-times", measure(options.rows)))


if __name__ == "__main__":
    main()
