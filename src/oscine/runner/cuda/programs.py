"""The CUDA kernels of frames, prefills and the codec's stack: where they can run, and which programs a checkpoint
launches.

All programs are compiled at the start, in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.errors import ConfigError
from oscine.kernels.cuda import linear
from oscine.kernels.cuda.compiler import CompileError, Progress, default_cache
from oscine.kernels.cuda.driver import DriverError, Kernel
from oscine.kernels.cuda.launches import (
    WINDOW_DIM,
    norm_launch,
    predictor_launch,
    sample_launch,
    supports_attention,
    talker_launch,
    window_launch,
)
from oscine.kernels.cuda.linear import Epilogue, Product, linear_launch, reads_tiles
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Launch, Program, tile_launch
from oscine.model.config import DecoderStackConfig, ModelConfig, StackConfig
from oscine.runner.cuda.decode_step import QKV_TABLE_ROWS
from oscine.runner.cuda.prefill_packs import MIXED_SIZES, PACK_SIZES

HOPPER = (9, 0)  # compute capability


def stack_products(stack: StackConfig) -> list[Product]:
    """Returns the products of a layer: queries, keys and values; output; gate and up; down."""
    mixed = stack.heads * stack.head_dim
    return [
        Product(mixed + 2 * stack.kv_heads * stack.head_dim, stack.width, norm=True),
        Product(stack.width, mixed, Epilogue.RESIDUAL),
        Product(stack.inner, stack.width, Epilogue.GLU, norm=True),
        Product(stack.width, stack.inner, Epilogue.RESIDUAL),
    ]


def supported(config: ModelConfig) -> bool:
    """Whether the CUDA kernels have plans for the checkpoint's shapes, as they have for all published ones."""
    products = [product for product, _ in _products(config, 1)]
    stacks = (config.talker.stack, config.predictor.stack)
    heads = all(supports_attention(stack.heads, stack.kv_heads, stack.head_dim) for stack in stacks)
    return heads and all(map(linear.supports, products))


def codec_supported(stack: DecoderStackConfig) -> bool:
    """Whether the CUDA kernels have plans for the codec's stack."""
    whole = stack.heads == stack.kv_heads and stack.head_dim == WINDOW_DIM
    return whole and all(map(linear.supports, stack_products(stack)))


def all_programs(config: ModelConfig, sizes: Sequence[int], *, fp8: bool = False) -> list[Program]:
    """Returns the distinct programs of prefills, frames of these batch sizes, and their audio."""
    codec = codec_programs(config.codec.decoder.stack, sizes)
    return list(dict.fromkeys((*decode_programs(config, sizes, fp8=fp8), *codec)))


def codec_programs(stack: DecoderStackConfig, sizes: Sequence[int]) -> list[Program]:
    """Returns the programs of the codec's stack, if it runs on CUDA kernels."""
    if not codec_supported(stack):
        return []
    launches: list[Launch] = []
    for size in sizes:
        for product in stack_products(stack):
            launches += _product_launches(product, size)
        launches.append(window_launch(stack.heads, stack.window, size, tiles=reads_tiles(size)))
    return list(dict.fromkeys(launch.program for launch in launches))


def decode_programs(config: ModelConfig, sizes: Sequence[int], *, fp8: bool = False) -> list[Program]:
    """Returns the distinct programs of prefills, and of frames of these batch sizes."""
    launches = [launch for size in sizes for launch in _launches(config, size, fp8)]
    for rows in PACK_SIZES:
        for product in _of_layers(config.talker.stack, fp8):
            launches += _product_launches(product, rows)
    talker = config.talker.stack
    launches += [talker_launch(talker.heads, talker.kv_heads, rows, tiles=True) for rows in MIXED_SIZES]
    return list(dict.fromkeys(launch.program for launch in launches))


def missing_on(device: torch.device, config: ModelConfig) -> str | None:
    """Returns why the CUDA kernels cannot run there, or None. Does not look for a compiler."""
    if (capability := torch.cuda.get_device_capability(device)) != HOPPER:
        found = ".".join(map(str, capability))
        return f"the CUDA kernels are for Hopper GPUs (compute capability 9.0), and this one has {found}"
    if not supported(config):
        return "the CUDA kernels are made for the shapes of the published checkpoints, and this one has others"
    return None


def toolchain_failure(
    config: ModelConfig, device: torch.device, sizes: Sequence[int], progress: Progress, *, fp8: bool = False
) -> str | None:
    """Compiles `all_programs` and loads one. Returns what failed and what to install, or None."""
    try:
        cubins, programs = default_cache(), all_programs(config, sizes, fp8=fp8)
        cubins.build(programs, progress)
        torch.zeros(1, device=device)  # makes the context in which kernels are loaded
        Kernel(cubins.cubin(programs[0]), programs[0].name)
    except (CompileError, DriverError) as error:
        return str(error).splitlines()[0]
    return None


def make_cuda_operations(
    config: ModelConfig, sizes: Sequence[int], *, fp8: bool = False
) -> Callable[[Tensor], CudaOperations]:
    """Returns what DecodeStep calls with a buffer for normed rows; compiles what is not in the cache."""

    def make(normed: Tensor) -> CudaOperations:
        if problem := missing_on(normed.device, config):
            raise ConfigError(f"{problem}; use engine.kernels = 'triton'")
        cubins = default_cache()
        cubins.build(decode_programs(config, sizes, fp8=fp8), lambda done, total: None)
        return CudaOperations(normed, cubins, fp8=fp8)

    return make


def make_codec_operations(config: ModelConfig, sizes: Sequence[int]) -> Callable[[Tensor], CudaOperations] | None:
    """Same as `make_cuda_operations`, for the codec's stack. Returns None for shapes without plans, which run on
    Triton."""
    stack = config.codec.decoder.stack
    if not codec_supported(stack):
        return None

    def make(normed: Tensor) -> CudaOperations:
        cubins = default_cache()
        cubins.build(codec_programs(stack, sizes), lambda done, total: None)
        return CudaOperations(normed, cubins)

    return make


def _of_layers(stack: StackConfig, fp8: bool) -> list[Product]:
    return [replace(product, fp8=fp8) for product in stack_products(stack)]


def _products(config: ModelConfig, size: int, fp8: bool = False) -> Iterator[tuple[Product, int]]:
    """Yields the products of a frame with their numbers of rows. Only those of layers are FP8."""
    talker, predictor = config.talker, config.predictor
    for product in _of_layers(talker.stack, fp8):
        yield product, size
    yield Product(talker.code_vocab, talker.stack.width), size
    width = predictor.stack.width
    if predictor.talker_width != width:
        yield Product(width, predictor.talker_width, Epilogue.BIAS), size
    for product in _of_layers(predictor.stack, fp8):
        yield product, size
        yield product, 2 * size  # of the first pass
    table_rows = (CODEBOOKS - 2) * predictor.vocab
    for rows in {min(table_rows, QKV_TABLE_ROWS), table_rows % QKV_TABLE_ROWS} - {0}:
        yield _of_layers(predictor.stack, fp8)[0], rows
    yield Product(predictor.vocab, width, norm=True), size


def _product_launches(product: Product, rows: int) -> Iterator[Launch]:
    if product.norm and reads_tiles(rows):
        yield norm_launch(product.inputs, rows, tiles=True)
        product = replace(product, norm=False)
    yield linear_launch(product, rows)


def _launches(config: ModelConfig, size: int, fp8: bool) -> Iterator[Launch]:
    for product, rows in _products(config, size, fp8):
        yield from _product_launches(product, rows)
    talker, stack = config.talker.stack, config.predictor.stack
    yield norm_launch(talker.width, size, tiles=False)
    if reads_tiles(size):
        yield tile_launch(talker.width, size)  # of the hidden states
    yield talker_launch(talker.heads, talker.kv_heads, size, tiles=reads_tiles(size))
    for new in (1, 2):
        yield predictor_launch(stack.heads, stack.kv_heads, size, new, tiles=reads_tiles(size * new))
    yield sample_launch(config.talker.code_vocab, stack.width, 0, size, first=True)
    for widths in ((stack.width, stack_products(stack)[0].outputs), (0, 0)):
        yield sample_launch(config.predictor.vocab, *widths, size)
