"""Tolerances and timing for the kernel tests."""

from collections.abc import Callable

import torch
from torch import Tensor

PEAK_GBPS = 4300  # an H200's memory bandwidth, as measured with copies
BF16_ULP = 2.0**-7  # the largest relative distance of two adjacent bf16 numbers


def assert_same_roundings(actual: Tensor, expected: Tensor, flips: float = 0.01) -> None:
    """Compares bf16 results whose fp32 sums ran in another order. An element near a rounding border may differ by one
    unit of the largest rounded value. Only a few do; a missing or misplaced rounding changes a tenth of all elements or
    more, so the bound on `flips` detects it."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype == torch.bfloat16
    assert actual.isfinite().all()
    error = (actual.float() - expected.float()).abs().max().item()
    bound = BF16_ULP * expected.float().abs().max().item()
    assert error <= bound, f"off by {error}, allowed {bound}"
    differ = (actual != expected).float().mean().item()
    assert differ <= flips, f"{differ:.2%} of the elements differ, allowed {flips:.2%}"


def graph_seconds(call: Callable[[], object], copies: int = 20) -> float:
    """Seconds of one call: the median of ten replays of a CUDA graph that holds several."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            call()
    graph.replay()
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[5] * 1e-3 / copies


def report(what: str, seconds: float, moved_bytes: int) -> None:
    rate = moved_bytes / seconds * 1e-9
    print(f"\n{what}: {seconds * 1e6:.1f} us, {rate:.0f} GB/s, {rate / PEAK_GBPS:.0%} of {PEAK_GBPS}")
