"""Uploads through small buffers give the same tensors."""

import pytest
import torch

from oscine.model.device import PinnedUpload

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (16,), (7, 9), (3, 100, 2)])
def test_an_uploaded_tensor_equals_its_source(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    upload = PinnedUpload(torch.device(device), buffer_bytes=64)
    sources = [(torch.randn(shape) * 100).to(dtype) for _ in range(5)]
    uploaded = [upload(source) for source in sources]
    for source, copy in zip(sources, uploaded, strict=True):
        assert copy.dtype == dtype and copy.device.type == device and torch.equal(copy.cpu(), source)


def test_a_tensor_that_is_not_contiguous_keeps_its_values() -> None:
    source = torch.arange(12).view(3, 4).t()
    assert torch.equal(PinnedUpload(torch.device("cpu"), buffer_bytes=8)(source), source)
