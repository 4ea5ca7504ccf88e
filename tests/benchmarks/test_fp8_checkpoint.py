"""A checkpoint with FP8 weights: only matrices of layers differ, by e4m3's rounding."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.fp8_checkpoint import is_quantized, write_fp8_checkpoint
from oscine.model.checkpoint import find_checkpoint


def test_only_matrices_of_layers_are_rounded(tmp_path: Path) -> None:
    demo, out = find_checkpoint("demo"), tmp_path / "fp8"
    count = write_fp8_checkpoint(demo, out)
    before, after = load_file(demo / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys() and count == sum(map(is_quantized, before)) == 7 * (6 + 1)  # 6 and 1 layers
    for name, weight in before.items():
        exact, rounded = weight.float(), after[name].float()
        if not is_quantized(name):
            assert torch.equal(exact, rounded), name
            continue
        step = exact.abs().amax(dim=1, keepdim=True) / 448 * 2**-9  # the smallest of e4m3
        error = (rounded - exact).abs()
        assert not torch.equal(exact, rounded) and (error <= exact.abs() * 2**-4 + step).all(), name
    assert (out / "speech_tokenizer" / "model.safetensors").exists()
