"""What must hold on a GPU as it does on a CPU. The path is the reference's, in fp32."""

import numpy as np
import pytest
import torch

from oscine import Oscine, SpeechRequest

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


@pytest.mark.parametrize("size", ["1b7", "0b6"])
def test_cpu_and_gpu_draw_the_same_codes_in_fp32(small_checkpoints, size):
    folder = small_checkpoints(size, "custom_voice")
    requests = [
        SpeechRequest(text=text, voice="ryan", greedy=greedy, seed=5, text_mode=mode, max_new_tokens=40)
        for text in ("Hello there.", "A second, somewhat longer text with 12 numbers.")
        for greedy in (True, None)
        for mode in ("whole", "streaming")
    ]
    cpu, gpu = (Oscine(folder, device=device, dtype="float32").speak_batch(requests) for device in ("cpu", "cuda"))
    for ours, theirs in zip(cpu, gpu, strict=True):
        assert np.array_equal(ours.codes, theirs.codes)
        # Summation order differs; fp32 convolutions are kept out of TF32 (model/weights.py).
        assert np.abs(ours.audio - theirs.audio).max() < 1e-4
