# ruff: noqa: E501
"""What one order of sums for any number of rows costs on a GPU: the time of a codec step with other parts of the sums,
and whether a row's samples then depend on the number of rows. Random weights, the transformer on CUDA's kernels.

    python -m benchmarks.codec_orders --out .cache/results [--rows 1 8 32 64 128 256] [--variants by_rows chosen ...]

`by_rows` has the fastest parts for each number of rows, `chosen` is kernels/conv_tiles.py. `two_launches`: residual
units are never one launch.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.codec_launches import FULL_WINDOW, STEP_ROWS, Step, compile_recorded, published_codec
from benchmarks.results import read_arguments, save
from benchmarks.timing import captured, replay_us
from oscine.kernels import conv_tiles
from oscine.kernels.conv_tiles import UNITS, Shape, Tile
from oscine.kernels.cuda.operations import CudaOperations
from oscine.model.codec import Codec
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.programs import HOPPER
from oscine.runner.cuda.triton_programs import recorded
from random_codec import random_codec

_REPLAYS = 31
_FRAMES = 2  # whose samples are compared
Four = tuple[tuple[Any, ...], ...]

IN, NARROW, DOWN, UP2 = (3, 512, 512), (1, 1024, 512), (1, 4096, 1024), (1, 1024, 2048)
VOCODER, BLOCK0, UNIT0, UNIT1, UNIT2 = (7, 1024, 1536), (2, 1536, 6144), (7, 768, 768), (7, 384, 384), (7, 192, 192)
# fmt: off
BY_ROWS: dict[Shape, Four] = {  # the fastest for each number of rows; their parts differ
    IN: ((16, 16, 0, 128, 2, 4, 4), (16, 32, 0, 128, 4, 4, 4), (32, 16, 0, 128, 4, 4, 4), (64, 32, 0, 64, 4, 4, 4)),
    NARROW: ((16, 16, 0, 128, 2, 4, 4), (16, 32, 0, 256, 4, 4, 2), (32, 16, 0, 256, 4, 4, 2), (64, 32, 0, 64, 4, 4, 4)),
    DOWN: ((16, 32, 0, 128, 4, 4, 4), (32, 32, 0, 128, 4, 4, 4), (64, 64, 0, 128, 4, 4, 4), (64, 64, 0, 64, 2, 4, 4)),
    UP2: ((16, 32, 0, 128, 2, 4, 4), (16, 32, 0, 128, 1, 4, 4), (64, 32, 0, 128, 2, 4, 4), (64, 64, 0, 64, 1, 4, 6)),
    VOCODER: ((16, 32, 0, 128, 8, 4, 4), (32, 32, 0, 128, 8, 4, 4), (64, 128, 0, 64, 4, 4, 5), (64, 64, 0, 64, 2, 4, 4)),
    BLOCK0: ((16, 64, 0, 128, 2, 4, 3), (32, 32, 0, 128, 2, 4, 4), (64, 64, 0, 64, 2, 4, 4), (128, 256, 0, 64, 1, 8, 3)),
    UNIT0: ((16, 64, 0, 128, 4, 4, 3), (64, 32, 0, 64, 4, 4, 4), (64, 64, 0, 64, 2, 4, 4), (128, 128, 0, 64, 1, 8, 3)),
    UNIT1: ((32, 64, 0, 64, 4, 4, 4), (64, 64, 0, 64, 2, 4, 4), (128, 128, 0, 64, 1, 8, 4), (256, 128, 0, 64, 1, 8, 3)),
    UNIT2: ((64, 32, 0, 64, 2, 4, 4), (128, 64, 0, 64, 1, 4, 4), (128, 64, 0, 64, 1, 4, 4), (128, 128, 64, 64, 1, 8, 3)),
}
VARIANTS: dict[str, dict[Shape, Four]] = {
    "by_rows": BY_ROWS,
    "chosen": {},
    "two_launches": {},
}
# fmt: on


def compile_all(variants: Sequence[str], row_counts: Sequence[int], config: Any) -> None:
    slots = max(*row_counts, max(STEP_ROWS))
    recordings: list[Any] = []
    codec = CudaCodec(random_codec(config, "meta"), slots, slots)
    with recorded(recordings), torch.inference_mode():
        for name, rows in itertools.product(variants, row_counts):
            with using_variant(name):
                step = Step(codec, config, rows, "meta")
                step.run()
                step.run(torch.empty(rows, config.samples_per_frame, device="meta"))
    compile_recorded(recordings, 90, len(os.sched_getaffinity(0)))


@contextmanager
def using_variant(name: str) -> Iterator[None]:
    tiles = {shape: tuple(Tile(*tile) for tile in four) for shape, four in VARIANTS[name].items()}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(conv_tiles.TILES, tiles))
        if name == "two_launches":
            stack.enter_context(mock.patch.dict(conv_tiles.UNITS, dict.fromkeys(UNITS, (None,) * 4)))
        yield


def samples(codec: CudaCodec, codes: torch.Tensor, first: int, rows: int) -> torch.Tensor:
    """Samples of streams `first` .. from their start."""
    slots = torch.arange(first, first + rows, dtype=torch.int32, device="cuda")
    for slot in slots.tolist():
        codec.reset(slot)
    made = torch.empty(_FRAMES, rows, 1920, device="cuda")
    for frame, out in enumerate(made):
        pcm = torch.empty(out.shape, dtype=torch.int16, device="cuda")
        codec.run(codes[first : first + rows, frame].contiguous(), slots, pcm, out)
    return made


def different_rows(codec: CudaCodec, row_counts: Sequence[int], slots: int) -> dict[str, int]:
    """Counts for each batch size how many of all rows have other samples than in the smallest batches."""
    generator = torch.Generator("cuda").manual_seed(0)
    size = codec._tables.shape[0] // 16
    codes = torch.randint(0, size, (slots, _FRAMES, 16), generator=generator, device="cuda")

    def whole(rows: int) -> torch.Tensor:
        return torch.cat([samples(codec, codes, first, rows) for first in range(0, slots - rows + 1, rows)], 1)

    smallest = whole(row_counts[0])
    found = {}
    for rows in row_counts[1:]:
        batches = whole(rows)
        found[str(rows)] = int((batches != smallest[:, : batches.shape[1]]).any(2).any(0).sum())
    return found


@torch.inference_mode()
def time_variant(name: str, config: Any, codec: Codec, row_counts: Sequence[int]) -> dict[str, Any]:
    slots = max(*row_counts, max(STEP_ROWS))
    chain = torch.cuda.get_device_capability() == HOPPER
    with using_variant(name):
        runner = CudaCodec(codec, slots, slots, make_operations=CudaOperations if chain else None)
        different = different_rows(runner, row_counts, slots)
        runner.state.frames.fill_(FULL_WINDOW)
        steps = {
            str(rows): replay_us(captured(Step(runner, config, rows, "cuda").run), _REPLAYS) for rows in row_counts
        }
    return {"step_us": steps, "rows_that_differ": different}


def shown(name: str, figures: Mapping[str, Any], base: Mapping[str, float] | None) -> str:
    times = [f"{us:8.1f}" + (f" ({us - base[rows]:+6.1f})" if base else "") for rows, us in figures["step_us"].items()]
    return f"{name:20} {' '.join(times)}   rows that differ: {figures['rows_that_differ']}"


def main() -> None:
    options = read_arguments(
        __doc__, out=Path(".cache/results"), rows=list(STEP_ROWS),
        variants={"nargs": "+", "choices": list(VARIANTS), "default": list(VARIANTS)}, compile_only=False,
    )  # fmt: skip
    config = published_codec()
    compile_all(options.variants, options.rows, config)
    if options.compile_only:
        return
    codec = random_codec(config, "cuda")
    figures: dict[str, Any] = {}
    base = None
    for name in options.variants:
        try:
            figures[name] = time_variant(name, config, codec, options.rows)
        except Exception as error:  # a tile that does not run is a result; the other variants still run
            figures[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(f"{name}: {figures[name]['error']}", flush=True)
            continue
        print(shown(name, figures[name], base), flush=True)
        base = base or figures[name]["step_us"]
        save(options.out, "codec-orders", figures)


if __name__ == "__main__":
    main()
