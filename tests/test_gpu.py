"""The engine's plain path gives the same codes on a GPU as on a CPU, in fp32."""

import numpy as np
import pytest
import torch

from oscine.request import SpeechRequest
from oscine.runner.factory import make_backend
from oscine.runner.memory_budget import plan_memory
from oscine.runner.slot_runner import SlotRunner
from tests.reference.speaker import ReferenceSpeaker

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

FRAMES = 39


def speak(folder, device: str, requests: list[SpeechRequest]) -> tuple[np.ndarray, np.ndarray]:
    """Codes [frames, rows, 16] and PCM; ends are ignored."""
    speaker = ReferenceSpeaker(folder, device)
    sizes = {"slots": len(requests), "positions_per_slot": 256, "positions_total": 256 * len(requests)}
    budget = plan_memory(speaker.config, element_bytes=4, available_bytes=None, **sizes)
    runner = SlotRunner(make_backend(speaker.model, budget))
    for slot, request in enumerate(requests):
        runner.admit(speaker.assignment(slot, request))
    outputs = [runner.collect(runner.launch(range(len(requests)))) for _ in range(FRAMES)]
    return np.stack([o.codes for o in outputs]), np.stack([o.pcm for o in outputs])


@pytest.mark.parametrize("size", ["1b7", "0b6"])
def test_cpu_and_gpu_draw_the_same_codes_in_fp32(small_checkpoints, size):
    requests = [
        SpeechRequest(text=text, voice="ryan", greedy=greedy, seed=5, text_mode=mode, max_new_tokens=40)
        for text in ("Hello there.", "A second, somewhat longer text with 12 numbers.")
        for greedy in (True, None)
        for mode in ("whole", "streaming")
    ]
    folder = small_checkpoints(size, "custom_voice")
    (cpu_codes, cpu_pcm), (gpu_codes, gpu_pcm) = (speak(folder, device, requests) for device in ("cpu", "cuda"))
    np.testing.assert_array_equal(cpu_codes, gpu_codes)
    # Sums run in another order; fp32 convolutions do not use TF32 (model/weights.py). 1e-4 of full scale.
    assert np.abs(cpu_pcm.astype(int) - gpu_pcm).max() <= 4
