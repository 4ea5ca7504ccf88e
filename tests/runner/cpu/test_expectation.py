"""What a CPU is expected to do with a checkpoint, from its shapes and the measured speed of products."""

import pytest
import torch

from oscine.model.config import read_config
from oscine.runner.cpu import expectation
from oscine.runner.cpu.expectation import expected_speed
from readme_figures import published
from tests.conftest import CheckpointMaker


def test_speed_follows_from_the_parameters_that_a_frame_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    config = published("0b6", "custom_voice")
    monkeypatch.setattr(expectation, "seconds_per_parameter", lambda threads, int8: 1e-10)
    monkeypatch.setattr(expectation, "seconds_per_flop", lambda threads, bf16: 1e-11)
    parameters = 440_466_432 + 3_145_728 + 31_457_280 + 15 * 78_654_720  # and the last norms
    monkeypatch.setattr(expectation, "divide_threads", lambda: (1, 1))
    assert expected_speed(config, int8=True) == pytest.approx(0.08 / (parameters * 1e-10), rel=1e-3)
    monkeypatch.setattr(expectation, "divide_threads", lambda: (1, 0))
    assert expected_speed(config, int8=True) == pytest.approx(0.08 / (parameters * 1e-10 + 0.05), rel=1e-3)


@pytest.mark.parametrize("int8", [False, True])
def test_products_are_measured_on_a_few_bytes(monkeypatch: pytest.MonkeyPatch, int8: bool) -> None:
    monkeypatch.setattr(expectation, "WIDTH", 64)
    monkeypatch.setattr(expectation, "BYTES", 2**16)
    threads = torch.get_num_threads()
    speed = expected_speed(published("1b7", "custom_voice"), int8=int8)
    assert speed is not None and speed > 0
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_nothing_is_measured_for_small_checkpoints(small_checkpoints: CheckpointMaker) -> None:
    assert expected_speed(read_config(small_checkpoints("0b6", "custom_voice")), int8=False) is None
