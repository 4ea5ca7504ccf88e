"""Matrices of 8-bit integers: how exact they are, and that a row has the same bits in any batch."""

from pathlib import Path

import pytest
import torch

from oscine.model import int8
from oscine.model.int8 import Int8Linear, int8_product, quantized
from oscine.model.weights import load_model, weight_bytes
from tests.conftest import CheckpointMaker


def random_linear(outputs: int = 96, inputs: int = 3072) -> tuple[torch.Tensor, Int8Linear]:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    return weight, Int8Linear.of(weight)


def test_a_weight_is_rounded_to_the_nearest_of_255_steps_of_its_row() -> None:
    weight, _ = random_linear()
    weight[3] *= 1000
    values, scale = quantized(weight)
    torch.testing.assert_close(scale, weight.abs().amax(1) / 127)
    assert int(values.abs().max()) == 127
    assert bool(((values * scale[:, None] - weight).abs() <= 0.501 * scale[:, None]).all())


def test_a_product_is_within_the_rounding_of_both_sides() -> None:
    weight, linear = random_linear()
    x = torch.randn(5, 3072)
    exact = x @ weight.T
    assert float((linear(x) - exact).norm() / exact.norm()) < 0.02


@pytest.mark.skipif(not int8.has_integer_products(), reason="this processor has no exact products of 8-bit integers")
def test_sums_are_exact_at_the_extremes() -> None:
    row = torch.full((3, 6144), 127, dtype=torch.int8)
    assert int8_product(row, -row).unique().tolist() == [-6144 * 127 * 127]


@pytest.mark.parametrize("integer_products", [False, True])
def test_a_row_alone_has_the_bits_of_the_row_in_a_batch(
    integer_products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not integer_products:
        monkeypatch.setattr(int8, "has_integer_products", lambda: False)
    _, linear = random_linear()
    x = torch.randn(8, 3072) * torch.logspace(-3, 3, 8)[:, None]
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in range(1, 9):
        assert torch.equal(linear(x[:rows]), alone[:rows])


def test_other_processors_compute_the_same_within_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    _, linear = random_linear()
    x = torch.randn(2, 3072)
    expected = linear(x)
    monkeypatch.setattr(int8, "has_integer_products", lambda: False)
    torch.testing.assert_close(linear(x), expected, rtol=2**-8, atol=1e-5)


def test_rows_of_zeros_stay_zeros_and_broken_rows_break_no_other() -> None:
    _, linear = random_linear()
    x = torch.randn(4, 3072)
    good = linear(x[3:])
    x[0], x[1, 7], x[2, 7] = 0, float("nan"), float("inf")
    out = linear(x)
    assert not out[0].any() and not out[1:3].isfinite().any() and torch.equal(out[3:], good)


@pytest.mark.slow
def test_a_checkpoint_in_int8_has_the_planned_size_and_maps_its_largest_table(
    small_checkpoints: CheckpointMaker,
) -> None:
    folder: Path = small_checkpoints("1b7", "custom_voice")
    model = load_model(folder, device=torch.device("cpu"), int8=True)
    plain = load_model(folder, device=torch.device("cpu"))
    assert isinstance(model.predictor.narrow, Int8Linear) and model.predictor.narrow.bias is not None
    matrices = [module for module in model.modules() if isinstance(module, Int8Linear)]
    parts = [
        *model.parameters(),
        *(part for matrix in matrices for part in (matrix.values, matrix.bias) if part is not None),
    ]
    saved = sum(part.nbytes for part in plain.parameters()) - sum(part.nbytes for part in parts)
    planned = [weight_bytes(plain.config, torch.float32, int8=int8) for int8 in (False, True)]
    assert saved == planned[0] - planned[1]
    ids = torch.arange(5)
    rows, expected = model.talker.text_rows(ids), plain.talker.text_rows(ids)
    assert float((rows - expected).norm() / expected.norm()) < 0.03
