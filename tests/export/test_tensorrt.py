"""Plans by `trtexec`: a script on PATH plays its part; a real plan is compared where TensorRT is installed."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from oscine.errors import ExportError
from oscine.export.description import CodecWindow
from oscine.export.tensorrt import Precision, build_plan, has_trtexec, plan_path, trtexec_command


def window_at(path: Path) -> CodecWindow:
    return CodecWindow(
        path=path,
        left_context_frames=288,
        new_frames=8,
        exact_context_frames=580,
        samples_per_frame=1920,
        sample_rate_hz=24_000,
        codebooks=16,
        codebook_size=2048,
        max_error=2e-6,
        context_error=8e-5,
    )


def fake_trtexec(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A Python script, alone on PATH, with the arguments in `words`."""
    folder.mkdir()
    script = folder / "trtexec"
    script.write_text(f"#!{sys.executable}\nimport json, sys\nwords = sys.argv[1:]\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


SAVE = "path = next(word for word in words if word.startswith('--saveEngine=')).partition('=')[2]\n"
RECORD = SAVE + "open(path, 'w').write(json.dumps(words))"


@pytest.mark.parametrize(("precision", "flag"), [("fp16", "--fp16"), ("bf16", "--bf16"), ("fp32", "--noTF32")])
def test_a_plan_has_profiles_for_1_8_and_64_streams(precision: Precision, flag: str, tmp_path: Path) -> None:
    window = window_at(tmp_path / "codec_window.onnx")
    plan = plan_path(window, precision)
    assert plan == tmp_path / f"codec_window_{precision}.plan"
    assert trtexec_command(window, plan, precision) == [
        "trtexec",
        f"--onnx={tmp_path}/codec_window.onnx",
        f"--saveEngine={plan}",
        "--minShapes=codes:1x289x16,context_frames:1x1",
        "--optShapes=codes:8x296x16,context_frames:8x1",
        "--maxShapes=codes:64x296x16,context_frames:64x1",
        flag,
        "--skipInference",
    ]


def test_trtexec_builds_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_trtexec(tmp_path / "bin", monkeypatch, RECORD)
    window = window_at(tmp_path / "codec_window.onnx")
    plan = plan_path(window, "bf16")
    assert has_trtexec()
    build_plan(window, plan, "bf16")
    words = json.loads(plan.read_text())
    assert words[0] == f"--onnx={window.path}" and words[2:] == trtexec_command(window, plan, "bf16")[3:]
    assert sorted(os.listdir(tmp_path)) == ["bin", plan.name]


@pytest.mark.parametrize(
    "body", ["print('Unsupported SM'); sys.exit(3)", RECORD + "; print('Unsupported SM'); sys.exit(3)"]
)
def test_a_failed_build_leaves_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    fake_trtexec(tmp_path / "bin", monkeypatch, body)
    window = window_at(tmp_path / "codec_window.onnx")
    with pytest.raises(ExportError, match=r"trtexec failed \(exit status 3\)(.|\n)*Unsupported SM"):
        build_plan(window, plan_path(window, "fp16"))
    assert os.listdir(tmp_path) == ["bin"]


@pytest.mark.gpu
@pytest.mark.skipif(not has_trtexec(), reason="trtexec is not on PATH")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 2e-2)])
def test_a_plan_gives_the_samples_of_our_decoder(tmp_path: Path, precision: Precision, tolerance: float) -> None:
    """fp16 has 11 bits of mantissa; its tolerance is -34 dB of full scale, on noise."""
    trt = pytest.importorskip("tensorrt")
    torch = pytest.importorskip("torch")
    from oscine.export import export_codec_window
    from oscine.export.codec_window import random_codes
    from oscine.model.checkpoint import find_checkpoint
    from oscine.model.weights import load_model

    window = export_codec_window("demo", tmp_path / "codec_window.onnx")
    plan = plan_path(window, precision)
    build_plan(window, plan, precision)
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(plan.read_bytes())
    context = engine.create_execution_context()
    codec = load_model(find_checkpoint("demo"), device=torch.device("cpu"), parts=["codec"]).codec
    codes = random_codes(codec.config.decoder, 3, window.window_frames)
    ages = torch.tensor([[window.left_context_frames], [0], [5]])
    samples = torch.empty(3, window.new_frames * window.samples_per_frame, device="cuda")
    tensors = {"codes": codes.cuda(), "context_frames": ages.cuda(), "samples": samples}
    for name, tensor in tensors.items():
        if name != "samples":
            context.set_input_shape(name, tuple(tensor.shape))
        context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    made = samples.cpu().numpy()
    for row, age in enumerate(ages[:, 0].tolist()):
        whole, _ = codec.decode(codes[row : row + 1, : age + window.new_frames])
        np.testing.assert_allclose(made[row], whole[0, age * window.samples_per_frame :], rtol=0, atol=tolerance)
