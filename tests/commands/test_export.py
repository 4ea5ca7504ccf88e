"""`oscine export`: its arguments, its table and what it does without TensorRT. tests/export runs the exports."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oscine.commands.main import app
from oscine.errors import RequestError
from oscine.export import parts
from oscine.export.description import ExportedFile
from tests.export.test_tensorrt import RECORD, fake_trtexec

FACTS = {
    "left_context_frames": 60,
    "new_frames": 8,
    "exact_context_frames": 154,
    "samples_per_frame": 1920,
    "sample_rate_hz": 24_000,
    "codebooks": 16,
    "codebook_size": 2048,
    "context_error": 1.5e-3,
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What the command asks of export_parts, which exports nothing here."""
    made: list[tuple[object, ...]] = []

    def export_parts(model: str, output: Path, *, only: list[str] | None, **options: object) -> list[ExportedFile]:
        made.append((model, output, only))
        errors = {"1 x 1 frames": 1.2e-7, "3 x 8 frames": 4.5e-7}
        return [ExportedFile("codec-window", output / "codec_window.onnx", FACTS, errors, 3e-5, "in -1..1")]

    monkeypatch.setattr(parts, "export_parts", export_parts)
    return made


def export(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, ["export", *map(str, words)])


def test_the_errors_of_every_check_are_printed(calls: list[tuple[object, ...]], tmp_path: Path) -> None:
    result = export("demo", "--output", tmp_path, "--only", "codec-window")
    assert result.exit_code == 0, result.output
    assert calls == [("demo", tmp_path, ["codec-window"])]
    for text in ("1 x 1 frames", "1.2e-07", "4.5e-07", "3.0e-05", "60 frames of left context", "1.5e-03", "154 frames"):
        assert text in result.output


def test_trtexec_is_run_where_it_is_installed(
    calls: list[tuple[object, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_trtexec(tmp_path / "bin", monkeypatch, RECORD)
    result = export("demo", "-o", tmp_path, "--tensorrt", "--precision", "bf16")
    assert result.exit_code == 0, result.output
    plan = tmp_path / "codec_window_bf16.plan"
    assert str(plan) in result.output and '"--bf16"' in plan.read_text()


def test_without_trtexec_the_exact_command_is_printed(
    calls: list[tuple[object, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = export("demo", "-o", tmp_path, "--tensorrt")
    assert result.exit_code == 0, result.output
    assert (
        f"trtexec --onnx={tmp_path}/codec_window.onnx --saveEngine={tmp_path}/codec_window_fp16.plan" in result.stdout
    )
    assert "--optShapes=codes:8x68x16,context_frames:8x1" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "codec"], "unknown part 'codec'; did you mean 'codec-step'"),
        (["--precision", "int8"], "unknown precision 'int8'"),
        (["--tensorrt", "--only", "codec-step"], "add it to --only"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(
    calls: list[tuple[object, ...]], tmp_path: Path, words: list[str], message: str
) -> None:
    result = export("demo", "-o", tmp_path, *words)
    assert isinstance(result.exception, RequestError) and message in str(result.exception)
    assert not calls
