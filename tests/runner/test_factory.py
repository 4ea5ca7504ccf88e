"""The backend and the kernels that are chosen, and that machines without Triton can do without it."""

import subprocess
import sys

import pytest
import torch

from oscine.errors import ConfigError
from oscine.model.config import ModelConfig, read_config
from oscine.runner.cpu.backend import CpuBackend
from oscine.runner.factory import KernelChoice, choose_backend, choose_kernels, choose_quantization
from oscine.runner.torch_backend import TorchBackend
from readme_figures import published
from tests.conftest import CheckpointMaker

CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_gets_the_cpu_backend(dtype):
    assert choose_backend(torch.device("cpu"), dtype) is CpuBackend


def test_a_gpu_gets_the_cuda_backend_in_bf16_where_triton_runs_and_else_the_torch_backend(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr("oscine.runner.factory.available", lambda device: False)
    assert choose_backend(cuda, torch.bfloat16) is TorchBackend
    monkeypatch.setattr("oscine.runner.factory.available", lambda device: True)
    assert choose_backend(cuda, torch.float32) is TorchBackend
    pytest.importorskip("triton")
    assert choose_backend(cuda, torch.bfloat16).name == "cuda"


def test_the_runner_does_not_import_triton_unless_the_cuda_backend_is_chosen():
    code = """
import sys, torch
sys.modules["triton"] = None
import oscine.runner.slot_runner
from oscine.runner.factory import choose_backend
for device in ("cpu", "cuda"):
    choose_backend(torch.device(device), torch.float32)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def config(small_checkpoints: CheckpointMaker) -> ModelConfig:
    return read_config(small_checkpoints("1b7", "custom_voice"))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Hopper GPU with everything that is needed; tests take away one thing."""
    pytest.importorskip("triton")
    monkeypatch.setattr("oscine.runner.factory.available", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("oscine.runner.cuda.programs.supported", lambda config: True)
    monkeypatch.setattr("oscine.runner.cuda.programs.toolchain_failure", lambda *facts, **options: None)
    return monkeypatch


@pytest.mark.parametrize(("wanted", "chosen"), [("auto", "CUDA"), ("cuda", "CUDA"), ("triton", "Triton")])
def test_hopper_gets_the_cuda_kernels_unless_the_setting_says_otherwise(hopper, config, wanted, chosen):
    assert choose_kernels(wanted, config, CUDA, torch.bfloat16, (1,)).name == f"{chosen} kernels"


@pytest.mark.parametrize("wanted", ["auto", "cuda", "triton"])
def test_fp8_runs_on_the_cuda_kernels_alone(hopper, config, wanted):
    if wanted == "triton":
        with pytest.raises(ConfigError, match=r"engine\.quantize is 'fp8', .* as engine\.kernels says"):
            choose_kernels(wanted, config, CUDA, torch.bfloat16, (1,), quantize="fp8")
    else:
        assert choose_kernels(wanted, config, CUDA, torch.bfloat16, (1,), quantize="fp8").kernels == "cuda"


@pytest.mark.parametrize(
    ("missing", "value", "reason", "warning"),
    [
        ("torch.cuda.get_device_capability", lambda device: (8, 9), "this one has 8.9", False),
        ("oscine.runner.cuda.programs.supported", lambda config: False, "shapes of the published", False),
        (
            "oscine.runner.cuda.programs.toolchain_failure",
            lambda *facts, **options: "no CUDA compiler",
            "no CUDA",
            True,
        ),
    ],
)
def test_where_something_is_missing_triton_is_chosen_and_the_reason_is_told(
    hopper, config, missing, value, reason, warning
):
    hopper.setattr(missing, value)
    choice = choose_kernels("auto", config, CUDA, torch.bfloat16, (1,))
    assert choice.kernels == "triton" and reason in choice.reason
    assert choice.warning == warning, "a warning only where the user can install something"
    with pytest.raises(ConfigError, match=f"engine.kernels is 'cuda', but .*{reason}"):
        choose_kernels("cuda", config, CUDA, torch.bfloat16, (1,))
    with pytest.raises(ConfigError, match=f"engine.quantize is 'fp8', which needs the CUDA kernels, .*{reason}"):
        choose_kernels("auto", config, CUDA, torch.bfloat16, (1,), quantize="fp8")
    assert choose_kernels("triton", config, CUDA, torch.bfloat16, (1,)).kernels == "triton"


@pytest.mark.parametrize(
    ("wanted", "device", "dtype", "integers", "chosen"),
    [
        ("auto", "cpu", "auto", True, "int8"),
        ("none", "cpu", "auto", True, "none"),
        ("auto", "cpu", "float32", True, "none"),
        ("auto", "cpu", "auto", False, "none"),
        ("auto", "cuda", "auto", True, "none"),
        ("fp8", "cuda", "auto", True, "fp8"),
    ],
)
def test_published_models_are_in_int8_on_a_cpu_that_is_fast_at_it_unless_a_dtype_is_named(
    monkeypatch, config, wanted, device, dtype, integers, chosen
):
    monkeypatch.setattr("oscine.runner.factory.has_integer_products", lambda: integers)
    large = published("0b6", "custom_voice")
    assert choose_quantization(wanted, large, torch.device(device), dtype) == chosen
    if wanted == "auto":
        assert choose_quantization(wanted, config, torch.device(device), dtype) == "none"  # a small checkpoint


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.bfloat16), ("cuda", torch.float32)])
def test_int8_is_for_cpus_in_float32(config, device, dtype):
    choose_kernels("auto", config, torch.device("cpu"), torch.float32, (1,), quantize="int8")
    with pytest.raises(ConfigError, match=r"engine\.quantize is 'int8', which is for CPUs with float32"):
        choose_kernels("auto", config, torch.device(device), dtype, (1,), quantize="int8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_backend_without_kernels_refuses_to_be_given_some(config, dtype):
    cpu = torch.device("cpu")
    assert choose_kernels("auto", config, cpu, dtype, (1,)) == KernelChoice(None, "")
    with pytest.raises(ConfigError, match=r"engine\.quantize is 'fp8', .* this engine has cpu and"):
        choose_kernels("auto", config, cpu, dtype, (1,), quantize="fp8")
    for wanted in ("triton", "cuda"):
        with pytest.raises(ConfigError, match=f"engine.kernels is '{wanted}', but kernels need an NVIDIA GPU"):
            choose_kernels(wanted, config, cpu, dtype, (1,))
