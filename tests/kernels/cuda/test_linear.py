"""The CUDA products and the norm on a CPU: roundings, the order of sums, and memory that is read too early."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from oscine.kernels.cuda.launches import NormArguments, norm_launch
from oscine.kernels.cuda.linear import (
    Epilogue,
    Few,
    LinearArguments,
    Plan,
    Product,
    Tiled,
    linear_launch,
)
from oscine.kernels.cuda.program import from_tiles, in_tiles
from oscine.kernels.operations import dequantized, quantize
from tests.kernels.cuda.emulation import aligned, bf16_bits, emulate, of_bits
from tests.kernels.measures import assert_same_roundings

pytestmark = pytest.mark.slow

EPSILON = 1e-6
INPUTS, OUTPUTS, SEGMENTS_HERE = 512, 64, 8
LONG = 8 * 384  # segments of three ring slots


class Case:
    """Random operands of a product."""

    def __init__(self, rows: int, product: Product, folder: Path, segments: int = SEGMENTS_HERE) -> None:
        rng = torch.Generator().manual_seed(0)

        def random(*shape: int, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
            return (torch.randn(*shape, generator=rng) * scale + shift).bfloat16()

        self.product, self.folder, self.segments = product, folder, segments
        self.x = random(rows, product.inputs, scale=3.0)
        self.weight = random(product.outputs * product.columns_per_output, product.inputs, scale=product.inputs**-0.5)
        self.residual = random(rows, product.outputs)
        self.bias = random(product.outputs)
        self.scale = random(product.inputs, scale=0.2, shift=1.0)

    def run(self, plan: Plan, rows: slice = slice(None), seed: int = 0) -> torch.Tensor:
        product = self.product
        x, out = bf16_bits(self.x[rows]), bf16_bits(self.residual[rows])
        if product.norm and not isinstance(plan, Few):
            x, product = self.normed(x), replace(product, norm=False)
        count, x_stride, out_stride = len(x), x.shape[1], out.shape[1]
        tiled_out = isinstance(plan, Tiled) and product.epilogue == Epilogue.GLU
        if isinstance(plan, Tiled):
            x = bf16_bits(in_tiles(of_bits(x)))
            x_stride = x[0].size
        if tiled_out:
            out = bf16_bits(in_tiles(of_bits(out)))
            out_stride = out[0].size
        bias, scale = bf16_bits(self.bias), bf16_bits(self.scale)
        quantized = quantize(self.weight)
        weight_scale = aligned(quantized.scale.numpy())
        fp8_bits = aligned(quantized.values.view(torch.uint8).numpy())
        weight = fp8_bits if product.fp8 else bf16_bits(self.weight)
        arguments = LinearArguments(
            x=x.ctypes.data, weight=weight.ctypes.data, out=out.ctypes.data, residual=out.ctypes.data,
            bias=bias.ctypes.data, scale=scale.ctypes.data, weight_scale=weight_scale.ctypes.data,
            rows=count, outputs=product.outputs,
            x_stride=x_stride, out_stride=out_stride, residual_stride=out_stride, epsilon=EPSILON,
        )  # fmt: skip
        launch = linear_launch(product, count, plan, self.segments)
        emulate(launch, arguments, self.folder, late=[x, out], seed=seed)
        return from_tiles(of_bits(out), count) if tiled_out else of_bits(out)

    def normed(self, x: np.ndarray) -> np.ndarray:
        out, scale = np.full_like(x, 0xFFFF), bf16_bits(self.scale)
        arguments = NormArguments(
            x=x.ctypes.data, scale=scale.ctypes.data, out=out.ctypes.data, rows=len(x),
            x_stride=x.shape[1], out_stride=out.shape[1], epsilon=EPSILON,
        )  # fmt: skip
        launch = norm_launch(x.shape[1], len(x), tiles=False, segments=self.segments)
        emulate(launch, arguments, self.folder, late=[x])
        return out

    def reference(self) -> torch.Tensor:
        """The plain modules' roundings; sums in fp64."""
        x = self.x
        if self.product.norm:
            x32 = x.double()
            x = (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + EPSILON)).float().bfloat16() * self.scale
        weight, weight_scale = dequantized(quantize(self.weight)) if self.product.fp8 else (self.weight, torch.ones(()))
        y = (x.double() @ weight.double().T) * weight_scale.double()
        if self.product.epilogue == Epilogue.BIAS:
            y = y + self.bias.double()
        y = y.float().bfloat16()
        if self.product.epilogue == Epilogue.GLU:
            gate, up = y.chunk(2, dim=-1)
            y = torch.nn.functional.silu(gate) * up
        return self.residual + y if self.product.epilogue == Epilogue.RESIDUAL else y


FEW = Few(2)


@pytest.mark.parametrize("epilogue", Epilogue)
@pytest.mark.parametrize("rows", [1, 8, 13])
def test_few_rows_have_the_roundings_of_the_modules(epilogue: Epilogue, rows: int, folder: Path) -> None:
    case = Case(rows, Product(OUTPUTS, INPUTS, epilogue, norm=epilogue != Epilogue.RESIDUAL), folder)
    assert_same_roundings(case.run(FEW), case.reference(), flips=0.015)


@pytest.mark.parametrize("rows", [1, 16])
def test_long_segments_pass_through_the_ring(rows: int, folder: Path) -> None:
    case = Case(rows, Product(16, LONG, Epilogue.RESIDUAL), folder)
    few = case.run(Few(1))
    assert_same_roundings(few, case.reference(), flips=0.05)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_threads_does_not_matter(seed: int, folder: Path) -> None:
    case = Case(11, Product(OUTPUTS, INPUTS, Epilogue.GLU, norm=True), folder)
    assert torch.equal(case.run(FEW, seed=seed), case.run(FEW))
