"""`python -m benchmarks.codec_times` gives each kernel of a step to its part."""

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.codec_launches import Step, published_codec
from benchmarks.codec_times import STACK_KERNELS, TRANSFORMER, launched_parts, parts_of
from benchmarks.report_pages import codec_table
from oscine.runner.cuda.codec import CudaCodec
from random_codec import random_codec

PARTS = [
    *("codebooks", "into stack", TRANSFORMER, "upsampling to 4 columns", "vocoder in"),
    *(f"block {block}, {part}" for block in range(4) for part in ("upsampling", "residual units")),
    "vocoder out",
]


@pytest.fixture(scope="module")
def launches() -> list:
    config = published_codec()
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("triton.runtime.jit.JITFunction.run", lambda *args, **kwargs: None)
        patch.setattr("triton.runtime.interpreter.GridExecutor.__call__", lambda *args, **kwargs: None)
        return launched_parts(Step(CudaCodec(random_codec(config, "meta"), 8, 8), config, 8, "meta"))


def test_each_launch_belongs_to_a_part(launches: list) -> None:
    assert [*dict.fromkeys(name for name, _ in launches)] == PARTS
    assert sum(name == TRANSFORMER for name, _ in launches) == 40


def test_times_of_a_part_are_those_of_its_kernels(launches: list) -> None:
    """The transformer has other kernels than Triton's, and as many as it wants."""
    spans, chain = [], [(kernel, 0.5) for kernel in STACK_KERNELS * 12]
    for name, _ in launches:
        if name != TRANSFORMER:
            spans.append(("_conv", 2.0))
        elif chain not in spans:
            spans.append(chain)
    flat = [span for one in spans for span in (one if isinstance(one, list) else [one])]
    parts = parts_of(flat, launches)
    assert (parts[TRANSFORMER].launches, parts[TRANSFORMER].us) == (48, 24.0)
    assert (parts["upsampling to 4 columns"].launches, parts["upsampling to 4 columns"].us) == (8, 16.0)
    assert all(part.limit_us > 0 for part in parts.values())
    with pytest.raises(AssertionError, match="has no kernel"):
        parts_of(flat[:-1], launches)


def test_the_table_names_the_share_of_the_limit() -> None:
    part = {"launches": 3, "us": 8.0, "limit_us": 2.0}
    rows = {count: {"step_us": 9.0, "parts": {"vocoder in": part}} for count in ("1", "128")}
    figures = {"transformer": "CUDA", "rows": rows, "bytes_per_us": 4.2e6, "flops_per_us": 8e8}
    made = {
        "command": "python -m x",
        "machine": "GPU",
        "commit": "abc",
        "date": "2026-01-01",
        "versions": {"python": "3.12"},
    }
    text = codec_table({"figures": figures, **made})
    assert "| vocoder in | 3 | 8.0 (25%) | 8.0 (25%) |" in text and "4.2 TB/s" in text and "800 TFLOP/s" in text
