"""The count of leading codes that agree, and a whole run of the plain path beside itself."""

import numpy as np
import torch

from benchmarks.agreement import budget_for, figures_of, leading_equal, no_worse, request, speak
from benchmarks.loaded_checkpoint import LoadedCheckpoint
from oscine.runner.backend import BackendOptions
from oscine.runner.torch_backend import TorchBackend
from tests.conftest import CheckpointMaker


def test_codes_after_the_first_difference_do_not_count() -> None:
    reference = np.arange(96).reshape(3, 2, 16)
    codes = reference.copy()
    codes[0, 0, 3] = codes[2, 1, 15] = -1
    equal = leading_equal(codes, reference)
    assert equal.tolist() == [3, 32, 31]
    assert figures_of(equal, 32)["agree_to_the_end"] == 1


def test_much_shorter_agreement_is_worse_and_noise_is_not() -> None:
    triton = np.random.default_rng(0).integers(10, 60, 100)
    noise = np.random.default_rng(1).integers(-5, 6, 100)
    assert no_worse(triton + noise, triton) and no_worse(triton + 10, triton)
    assert not no_worse(triton - 5 + noise, triton)


def test_the_same_path_agrees_to_the_end(small_checkpoints: CheckpointMaker) -> None:
    loaded = LoadedCheckpoint.load(small_checkpoints("0b6", "custom_voice"), torch.device("cpu"), torch.float32)
    assert request(0, 2).text != request(1, 2).text
    codes = [
        speak(loaded, TorchBackend(loaded.model, budget_for(loaded, 2, 2), BackendOptions(codec=False)), 2, 2)
        for _ in range(2)
    ]
    assert codes[0].shape == (2, 2, 16) and not np.array_equal(codes[0][0], codes[0][1])
    assert leading_equal(*codes).tolist() == [32, 32]
