"""The published shapes of the CUDA kernels, and what a call must move and compute at least. Without torch: the report
reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEADS, KV_HEADS, HEAD_WIDTH = 16, 8, 128
IDS, FIRST_IDS = 2048, 3072
PREDICTOR_POSITION = 9  # of the timed attention
NORM_WIDTHS = (1024, 2048)
CODEC_WIDTH, CODEC_HEADS, CODEC_WINDOW = 512, 16, 72  # of the codec's stack
_BYTES = 2  # of a bf16
_INPUT_WIDTH, _QKV_WIDTH = 1024, 4096  # of the rows that a sampler looks up

# Dense bf16 with fp32 sums, from NVIDIA's data sheets.
PEAK_TFLOPS = {"NVIDIA H200": 989.5}


@dataclass(frozen=True, slots=True)
class ProductShape:
    outputs: int
    inputs: int
    epilogue: str = "PLAIN"  # of oscine.kernels.cuda.linear.Epilogue
    norm: bool = False

    @property
    def weights(self) -> int:
        return self.outputs * self.inputs * (2 if self.epilogue == "GLU" else 1)


PRODUCT_SHAPES: Mapping[str, ProductShape] = {
    "predictor qkv": ProductShape(4096, 1024, norm=True),
    "predictor out": ProductShape(1024, 2048, "RESIDUAL"),
    "predictor gate/up": ProductShape(3072, 1024, "GLU", norm=True),
    "predictor down": ProductShape(1024, 3072, "RESIDUAL"),
    "predictor head": ProductShape(2048, 1024, norm=True),
    "narrow": ProductShape(1024, 2048, "BIAS"),
    "talker qkv": ProductShape(4096, 2048, norm=True),
    "talker out": ProductShape(2048, 2048, "RESIDUAL"),
    "talker gate/up": ProductShape(6144, 2048, "GLU", norm=True),
    "talker down": ProductShape(2048, 6144, "RESIDUAL"),
    "talker head": ProductShape(3072, 2048),
    "talker head 0.6B": ProductShape(3072, 1024),
    "codec qkv": ProductShape(3072, 512, norm=True),
    "codec out, down": ProductShape(512, 1024, "RESIDUAL"),
    "codec gate/up": ProductShape(1024, 512, "GLU", norm=True),
}
# Triton's codec runs on other products (kernels/conv.py): benchmarks.frame compares both.
CODEC_PRODUCTS = tuple(name for name in PRODUCT_SHAPES if name.startswith("codec "))
# Of layers of the talker and the predictor: those whose weights may be FP8.
LAYER_PRODUCTS = tuple(
    name
    for name in PRODUCT_SHAPES
    if name.split()[-1] in ("qkv", "out", "gate/up", "down") and name not in CODEC_PRODUCTS
)


def least_bytes(kernel: str, rows: int, context: int = 0) -> int | None:
    """Weights of a product, cached keys and values of an attention, logits and looked-up rows of a sampler, the rows of
    a norm. `context`: the positions before the first row; each further row has one more. None: not known."""
    if kernel in PRODUCT_SHAPES:
        return PRODUCT_SHAPES[kernel].weights * _BYTES
    position_bytes = 2 * KV_HEADS * HEAD_WIDTH * _BYTES
    if kernel == "talker attention":
        return (rows * context + rows * (rows - 1) // 2) * position_bytes
    if kernel == "predictor attention":
        return rows * PREDICTOR_POSITION * position_bytes
    read_and_written = 2 * _BYTES
    if kernel == "sample":
        return rows * (IDS * _BYTES + (_INPUT_WIDTH + _QKV_WIDTH) * read_and_written)
    if kernel == "sample code 0":
        return rows * (FIRST_IDS * (_BYTES + 1) + _INPUT_WIDTH * read_and_written)  # a byte: whether it was seen
    if kernel.startswith("rms_norm "):
        return rows * int(kernel.split()[1]) * read_and_written
    return None


def tflop(kernel: str, rows: int) -> float | None:
    """The work of a product; other kernels compute little."""
    return 2 * rows * PRODUCT_SHAPES[kernel].weights / 1e12 if kernel in PRODUCT_SHAPES else None
