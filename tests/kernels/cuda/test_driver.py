"""The driver's structures, and what a launch passes to it; the driver itself is replaced."""

import ctypes
from typing import Any

import pytest

from oscine.kernels.cuda import driver
from oscine.kernels.cuda.driver import DriverError, Kernel, LaunchAttribute, LaunchConfig
from oscine.kernels.cuda.launches import SampleArguments, sample_launch
from oscine.kernels.cuda.program import Launch, Program


def test_structures_have_the_layout_of_cuda_h() -> None:
    """The layout is that of a C compiler for CUlaunchConfig and CUlaunchAttribute of CUDA 13."""
    assert ctypes.sizeof(LaunchConfig) == 56 and LaunchConfig.shared_bytes.offset == 24
    assert (LaunchConfig.stream.offset, LaunchConfig.attributes.offset) == (32, 40)
    assert LaunchConfig.attribute_count.offset == 48
    assert ctypes.sizeof(LaunchAttribute) == 72 and LaunchAttribute.value.offset == 8


class FakeDriver:
    def __init__(self) -> None:
        self.allowed: list[int] = []
        self.launches: list[dict[str, Any]] = []
        self.status = 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:  # noqa: N802
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        return 0 if name == b"sample" else 500

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:  # noqa: N802
        assert attribute == 8  # the most dynamic shared memory
        self.allowed.append(value)
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"named symbol not found"
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: Any, extra: None) -> int:  # noqa: N802
        got = config._obj
        attributes = got.attributes[: got.attribute_count]
        arguments = ctypes.cast(pointers[0], ctypes.POINTER(SampleArguments)).contents
        self.launches.append(
            {
                "grid": tuple(got.grid),
                "block": tuple(got.block),
                "stream": got.stream,
                "attributes": {one.id: (one.value.flag, tuple(one.value.cluster)) for one in attributes},
                "code_stride": arguments.code_stride,
            }
        )
        return self.status


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: fake)
    return fake


def test_a_programmatic_launch_says_so(fake: FakeDriver) -> None:
    Kernel(b"", "sample").launch(sample_launch(2048, 64, 128, 5), SampleArguments(code_stride=16), stream=77)
    (launched,) = fake.launches
    assert launched["grid"] == (5, 1, 1) and launched["block"] == (256, 1, 1) and launched["stream"] == 77
    assert launched["attributes"].keys() == {6} and launched["attributes"][6][0] == 1
    assert launched["code_stride"] == 16 and fake.allowed == []


def test_a_cluster_has_its_shape_and_a_plain_launch_no_attribute(fake: FakeDriver) -> None:
    kernel, program = Kernel(b"", "sample"), Program.of("sample")
    kernel.launch(Launch(program, (4, 8, 2), 32, cluster=4), SampleArguments(), stream=0)
    kernel.launch(Launch(program, (4, 8, 2), 32, programmatic=False), SampleArguments(), stream=0)
    clustered, plain = fake.launches
    assert clustered["attributes"][4][1] == (4, 1, 1) and 6 in clustered["attributes"]
    assert plain["attributes"] == {}


def test_more_than_48_kib_of_shared_memory_is_asked_for_once(fake: FakeDriver) -> None:
    kernel, program = Kernel(b"", "sample"), Program.of("sample")
    for kib in (40, 100, 90, 120):
        kernel.launch(Launch(program, (1, 1, 1), 32, kib << 10), SampleArguments(), stream=0)
    assert fake.allowed == [100 << 10, 120 << 10]


def test_an_error_names_the_call_and_the_reason(fake: FakeDriver) -> None:
    with pytest.raises(DriverError, match="finding other failed with 500: named symbol not found"):
        Kernel(b"", "other")
    fake.status = 1
    with pytest.raises(DriverError, match="launching sample with Launch"):
        Kernel(b"", "sample").launch(sample_launch(2048, 64, 128, 5), SampleArguments(), stream=0)
