"""Every file is compared with its module before it gets its name."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from oscine.errors import ExportError
from oscine.export import description, read_file
from oscine.export.onnx_file import Graph, write_onnx

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of weights."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(b"any")
    return folder


def graph(error: float) -> Graph:
    """One layer, and a check that finds this error besides the real one."""
    layer = nn.Linear(3, 2)
    clip = torch.ones(5, 3)

    def check(run: object) -> float:
        made = run({"x": clip.numpy()})["y"]  # type: ignore[operator]
        return float(np.abs(made - layer(clip).detach().numpy()).max()) + error

    return Graph(
        part="codec-step",
        module=layer,
        arguments=(torch.zeros(2, 3),),
        dynamic=({0: torch.export.Dim("batch")},),
        inputs={"x": "float32 [batch, 3]"},
        outputs={"y": "float32 [batch, 2]"},
        checks={"5 rows": check},
        error_unit="absolute",
        tolerance=1e-4,
        facts={"answer": 42},
    )


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_a_wrong_file_is_not_written_and_an_older_one_stays(tmp_path: Path, source: Path, error: float) -> None:
    path = tmp_path / "out" / "part.onnx"
    path.parent.mkdir()
    path.write_text("an older export")
    with pytest.raises(ExportError, match=r"differs from our own module by (0\.5|nan) \(5 rows\); allowed is 0\.0001"):
        write_onnx(graph(error), path, source)
    assert path.read_text() == "an older export"
    assert list(path.parent.iterdir()) == [path]


def test_a_right_file_holds_its_facts_and_its_error(tmp_path: Path, source: Path) -> None:
    written = write_onnx(graph(1e-5), tmp_path / "new" / "part.onnx", source)
    assert written.facts == {"answer": 42} and 1e-5 <= written.max_error < 2e-5
    assert read_file(written.path) == written


def test_an_export_that_fails_says_which_part_and_why(tmp_path: Path, source: Path) -> None:
    class Unknown(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x  # depends on data, which a graph cannot

    with pytest.raises(ExportError, match=r"torch \S+ cannot export the codec-step: "):
        write_onnx(replace(graph(0), module=Unknown()), tmp_path / "part.onnx", source)


def test_other_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(ExportError, match="cannot be read as an ONNX file"):
        read_file(tmp_path / "noise.onnx")
    with pytest.raises(ExportError, match="cannot be read as an ONNX file"):
        read_file(tmp_path / "missing.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ExportError, match="was not written by `oscine export`"):
        read_file(tmp_path / "empty.onnx")


def test_a_missing_library_gives_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(description, "LIBRARIES", ("onnx", "no_such_library"))
    with pytest.raises(ExportError, match=r"needs no_such_library, .* run: pip install 'oscine\[export\]'"):
        read_file(tmp_path / "any.onnx")
