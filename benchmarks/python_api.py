"""Times the Python API with random weights of a published size: one request alone, and a batch on all slots.

python -m benchmarks.python_api --out docs/results [--size 1b7] [--slots 8] [--frames 56] [--model demo]
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

from benchmarks.checkpoints import random_weights
from benchmarks.results import SCRATCH, read_arguments, save
from oscine import Oscine, SpeechRequest
from oscine.api import offline_config
from oscine.config import RunawayConfig

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of a tree."


def measure(tts: Oscine, slots: int, frames: int, repeats: int) -> dict[str, Any]:
    request = SpeechRequest(text=TEXT, max_new_tokens=frames + 1, seed=1)
    first_ms, alone = [], []
    for _ in range(repeats):
        begun_s, first_s = time.perf_counter(), None
        samples = 0
        for piece in tts.stream(request.text, max_new_tokens=frames + 1, seed=1):
            first_s = first_s or time.perf_counter()
            samples += len(piece)
        assert first_s is not None
        first_ms.append(1000 * (first_s - begun_s))
        alone.append(samples / tts.sample_rate / (time.perf_counter() - begun_s))
    begun_s = time.perf_counter()
    speeches = tts.speak_batch([request] * slots)
    together = sum(speech.duration_s for speech in speeches) / (time.perf_counter() - begun_s)
    return {
        "first_piece_ms": round(statistics.median(first_ms), 2),
        "x_real_time_alone": round(statistics.median(alone), 2),
        "x_real_time_batch": round(together, 2),
    }


def main() -> None:
    options = read_arguments(
        __doc__, scratch=SCRATCH, size="1b7", model=(str, "measure this checkpoint instead of random weights"), slots=8,
        frames=56, repeats=10,
    )  # fmt: skip
    model = options.model or random_weights(options.scratch, options.size)
    config = replace(offline_config(options.slots), runaway=RunawayConfig(enabled=False))
    with Oscine(model, config=config) as tts:
        figures = measure(tts, options.slots, options.frames, options.repeats)
    figures |= {"slots": options.slots, "frames": options.frames, "model": options.model or options.size}
    print(figures)
    print(save(options.out, "python-api", figures))


if __name__ == "__main__":
    main()
