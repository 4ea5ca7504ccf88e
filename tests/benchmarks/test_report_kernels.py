"""The table of kernels says what share of the hardware's limits each call reaches."""

import copy
import json

import pytest

from benchmarks.kernel_shapes import HEAD_WIDTH, KV_HEADS, LAYER_PRODUCTS, PRODUCT_SHAPES, least_bytes, tflop
from benchmarks.report import RESULTS
from benchmarks.report_pages import kernel_tables

CHAIN, FRAME = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("cuda-chain", "frame"))


def cell(text: str, kernel: str, column: int) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {kernel} |")).split(" | ")[column]


def measured(us: float, **changed: object) -> dict:
    """One time of each kind, all the same."""
    result = copy.deepcopy(CHAIN)
    time = {"cuda_us": us, "triton_us": 2 * us}
    kinds = ("talker qkv 128", "talker attention 128 at 512", "sample 128", "rms_norm 2048 128", "other 128")
    result["figures"]["times"] = {"exit": 0, "copy_bandwidth_tb_s": 4.0, **{f"time {kind}": time for kind in kinds}}
    return result | changed


def test_shares_follow_from_shapes() -> None:
    text = kernel_tables(measured(10.0))
    assert cell(text, "talker qkv", 1) == "10.0 / 20.0 (42%, 22%) |"  # 16.8 MB of 40, 2.1 GFLOP of 9.9
    assert cell(text, "talker attention at 512", 1) == "10.0 / 20.0 (754%) |"
    assert cell(text, "rms_norm 2048", 1) == "10.0 / 20.0 (3%) |" and cell(text, "other", 1) == "10.0 / 20.0 |"
    assert "4.00 TB/s" in text and "989.5 TFLOP/s" in text


def test_a_result_without_a_bandwidth_takes_that_of_the_frame_or_shows_no_share() -> None:
    old = measured(10.0)
    del old["figures"]["times"]["copy_bandwidth_tb_s"]
    assert cell(kernel_tables(old, FRAME), "rms_norm 2048", 1) == "10.0 / 20.0 (2%) |"
    assert cell(kernel_tables(old), "rms_norm 2048", 1) == "10.0 / 20.0 |"
    assert cell(kernel_tables(old), "talker qkv", 1) == "10.0 / 20.0 (22%) |"


def test_the_peak_of_an_unknown_gpu_is_not_guessed() -> None:
    text = kernel_tables(measured(10.0, machine="NVIDIA X"))
    assert cell(text, "talker qkv", 1) == "10.0 / 20.0 (42%) |" and "TFLOP/s" not in text


def test_no_committed_time_is_below_what_the_hardware_allows() -> None:
    """A share above 100 % would mean that bytes are counted which nobody reads, or that L2 answered."""
    for line in kernel_tables(CHAIN, FRAME).splitlines():
        for share in line.split("(")[1:] if line.startswith("| ") else []:
            assert all(int(one.strip().removesuffix("%")) <= 100 for one in share.split(")")[0].split(","))


def test_rows_of_an_attention_have_one_position_more_each() -> None:
    position_bytes = 2 * KV_HEADS * HEAD_WIDTH * 2
    assert least_bytes("talker attention", 1, 64) == 64 * position_bytes
    assert least_bytes("talker attention", 3, 64) == (64 + 65 + 66) * position_bytes
    assert least_bytes("unknown", 8) is None and tflop("sample", 8) is None


@pytest.mark.parametrize("name", PRODUCT_SHAPES)
def test_the_shapes_are_those_of_the_launched_products(name: str) -> None:
    pytest.importorskip("triton")
    from benchmarks.cuda_kernels import FP8_PRODUCTS, PRODUCTS
    from oscine.kernels.cuda.launches import DIM

    product = PRODUCTS[name]
    assert product.outputs * product.columns_per_output * product.inputs == PRODUCT_SHAPES[name].weights
    assert (f"{name}, FP8" in FP8_PRODUCTS) == (name in LAYER_PRODUCTS) and DIM == HEAD_WIDTH
