"""What benchmarks.sanitize makes of the tool's reports. The tool itself needs a GPU: here a script takes its place."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

pytest.importorskip("triton")

from benchmarks import cuda_kernels, sanitize
from benchmarks.cuda_frame import published
from benchmarks.cuda_kernels import FP8_PRODUCTS
from benchmarks.sanitize import PARTS, TOOLS, programs_of, read_report, result_name
from oscine.kernels.cuda.compiler import CubinCache
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Program
from oscine.runner.cuda.programs import stack_products
from tests.kernels.cuda.test_compiler import CountingCompiler

CLEAN = {
    "memcheck": "========= COMPUTE-SANITIZER\nlaunched 66 kernels\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "launched 66 kernels\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}


@pytest.mark.parametrize("tool", CLEAN)
def test_a_run_is_clean_only_with_a_summary_of_zero_and_launches(tool: str) -> None:
    assert read_report(tool, CLEAN[tool], 0, 1.0).clean
    dirty = CLEAN[tool].replace("0 errors\n", "3 errors\n").replace("0 hazards", "3 hazards")
    assert not read_report(tool, dirty, 0, 1.0).clean
    assert not read_report(tool, CLEAN[tool].replace("launched 66 kernels\n", ""), 0, 1.0).clean
    assert not read_report(tool, "launched 66 kernels\n", 0, 1.0).clean, "no summary"
    assert not read_report(tool, CLEAN[tool], "timeout", 1.0).clean


def test_a_run_of_one_tool_does_not_replace_the_result_of_all() -> None:
    assert (result_name(TOOLS), result_name(["memcheck"])) == ("sanitize", "sanitize-memcheck")


def test_findings_are_counted() -> None:
    assert read_report("memcheck", "========= ERROR SUMMARY: 12 errors\n", 9, 1.0).findings == 12
    assert read_report("memcheck", "========= ERROR SUMMARY: 1 error\n", 9, 1.0).findings == 1
    hazards = "========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)\n"
    assert read_report("racecheck", hazards, 9, 1.0).findings == 2


def test_without_the_tool_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitize, "TOOLKIT", ())
    monkeypatch.setattr(sys, "argv", ["sanitize"])
    with pytest.raises(SystemExit, match="compute-sanitizer is not on the PATH"):
        sanitize.main()


@pytest.mark.parametrize(("finds", "status"), [(True, 0), (False, "memcheck did not find the planted error")])
def test_a_tool_that_misses_the_planted_error_is_a_failure(
    finds: bool, status: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "compute-sanitizer"
    count = "case $* in *planted*) n=2;; *) n=0;; esac" if finds else "n=0"
    tool.write_text(f"#!/bin/sh\n{count}\necho launched 66 kernels\necho =========  ERROR SUMMARY: $n errors\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sanitize, "default_cache", lambda: CubinCache(tmp_path / "cubins", CountingCompiler()))
    monkeypatch.setattr(sanitize, "warm_up", lambda parts: None)
    monkeypatch.setattr(sys, "argv", ["sanitize", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        sanitize.main()
    assert ended.value.code == status
    figures = json.loads((tmp_path / "sanitize.json").read_text())["figures"]
    assert figures["racecheck"]["findings"] == 0 and figures["planted"]["findings"] == (2 if finds else 0)
    assert {"linear_few", "linear_tiled", "tile_rows", "sample"} <= set(figures["kernels"])
    assert figures["memcheck, frames"]["launches"] == 66 and "racecheck, frames" in figures


class RecordingOperations(CudaOperations):
    """Launches nothing."""

    launched: ClassVar[list[Program]] = []

    def __init__(self, normed, *, fp8: bool = False) -> None:
        super().__init__(normed, CubinCache(None, CountingCompiler()), fp8=fp8)

    def launch(self, launch, arguments, device) -> None:
        self.launched.append(launch.program)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a CPU")
@pytest.mark.parametrize("part", PARTS)
def test_all_that_is_launched_under_the_tool_is_compiled_ahead(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingOperations, "launched", [])
    monkeypatch.setattr(cuda_kernels, "DEVICE", "cpu")
    # The weights are filled afterwards; those of the codec, which is not run, take longest.
    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", lambda tensor, **options: tensor)
    PARTS[part](RecordingOperations, *(["cpu"] if part == "frames" else []))
    launched = set(RecordingOperations.launched)
    assert launched <= set(programs_of([part]))
    fp8 = {(program.name, dict(program.defines).get("FP8")) for program in launched}
    assert {(name, fp8) for name in ("linear_few", "linear_tiled") for fp8 in (0, 1)} <= fp8
    expected = {"rms_norm", "tile_rows", "talker_attention", "predictor_attention", "sample"}
    assert expected | ({"window_attention"} if part == "kernels" else set()) <= {name for name, _ in fp8}


@pytest.mark.parametrize("size", ["1b7", "0b6"])
def test_every_product_of_a_layer_is_launched_with_fp8_weights(size: str) -> None:
    config = published(size)
    for product in (*stack_products(config.talker.stack), *stack_products(config.predictor.stack)):
        assert replace(product, fp8=True) in FP8_PRODUCTS.values()
