"""The CUDA kernels on a GPU: the checks of the benchmark, on the published shapes."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: nothing to compare with")
if not (torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from benchmarks.cuda_kernels import Report, run_checks
from oscine.kernels.cuda.operations import CudaOperations

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_rows_have_the_stated_roundings_and_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.json", limit_s=600)
    with torch.inference_mode():
        run_checks(report, CudaOperations)
    assert not report.figures["failures"] and not report.figures["skipped"]
