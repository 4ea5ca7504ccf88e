"""Estimates how fast a large checkpoint will speak on this CPU, before its weights are loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from oscine.audio.pcm import CODEBOOKS, FRAME_RATE_HZ
from oscine.model.config import ModelConfig
from oscine.model.device import has_bf16_products, set_own_threads
from oscine.model.int8 import int8_product
from oscine.model.speech_model import SpeechModel
from oscine.runner.cpu.codec import divide_threads

_LARGE = 200_000_000  # parameters read per frame; less is faster than a person speaks on any CPU
WIDTH = 4096
BYTES = 64 * 2**20  # more than most caches hold
_CODEC_FLOP = 5.0e9  # of a frame, published shapes
_REPEATS = 3


def expected_speed(config: ModelConfig, *, int8: bool) -> float | None:
    """Measures this machine's products for some 0.1 s and returns the expected seconds of audio per second, for one
    stream. Returns None for small checkpoints."""
    if not is_large(config):
        return None
    parameters = _parameters_per_frame(config)
    threads, codec_threads = divide_threads()
    with ThreadPoolExecutor(1) as other:  # its threads are set without an effect on this one
        codes_s = other.submit(seconds_per_parameter, threads, int8).result() * parameters
    with ThreadPoolExecutor(1) as other:
        bf16 = int8 and has_bf16_products()
        codec_s = other.submit(seconds_per_flop, codec_threads or threads, bf16).result() * _CODEC_FLOP
    frame_s = max(codes_s, codec_s) if codec_threads else codes_s + codec_s
    return 1 / FRAME_RATE_HZ / frame_s


def is_large(config: ModelConfig) -> bool:
    """Whether reading the weights takes most of a frame's time, as for every published checkpoint."""
    return _parameters_per_frame(config) >= _LARGE


def _parameters_per_frame(config: ModelConfig) -> int:
    with torch.device("meta"):
        model = SpeechModel(config)
    once = sum(p.numel() for part in (model.talker.stack, model.talker.head) for p in part.parameters())
    each_pass = sum(p.numel() for p in model.predictor.stack.parameters())
    return once + model.predictor.heads.numel() + (CODEBOOKS - 1) * each_pass


def seconds_per_parameter(threads: int, int8: bool) -> float:
    """Times a product of one row with matrices that are not in a cache."""
    set_own_threads(threads)
    dtype = torch.int8 if int8 else torch.float32
    count = BYTES // (WIDTH**2 * dtype.itemsize)
    weights = [torch.ones(WIDTH, WIDTH, dtype=dtype) for _ in range(count)]
    row = torch.ones(1, WIDTH, dtype=dtype)
    product = int8_product if int8 else torch.nn.functional.linear
    return _least_s(lambda: [product(row, weight) for weight in weights]) / (count * WIDTH**2)


def seconds_per_flop(threads: int, bf16: bool) -> float:
    """Times a product of the shape of the codec's middle convolutions."""
    set_own_threads(threads)
    dtype = torch.bfloat16 if bf16 else torch.float32
    weight, columns = torch.ones(384, 2688, dtype=dtype), torch.ones(2688, 160, dtype=dtype)
    return _least_s(lambda: torch.mm(weight, columns)) / (2 * 384 * 2688 * 160)


def _least_s(call: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_REPEATS):
        begun_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)
