"""Exports random weights of the published shapes and the demo voice; times the files, and measures left contexts.

python -m benchmarks.export [--out docs/results/export] [--scratch .cache/export] [--shapes published demo]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from benchmarks.checkpoints import random_weights
from benchmarks.results import read_arguments, save
from oscine.export import ExportedFile, export_parts
from oscine.export.codec_step import start_states
from oscine.export.codec_window import context_error, exact_context_frames, random_codes, vocoder_context_frames
from oscine.model.checkpoint import find_checkpoint
from oscine.model.codec import Codec
from oscine.model.weights import load_model

NEW_FRAMES = 8
ROWS = (1, 4)
CONTEXTS = (25, 72, 144, 288)


def best_ms(run: Callable[[], object], repeats: int = 3) -> float:
    """CPU time of the fastest run, after one to warm up. Other processes hardly change it, unlike wall time."""
    run()
    times_s = []
    for _ in range(repeats):
        begun_s = time.process_time()
        run()
        times_s.append(time.process_time() - begun_s)
    return 1000 * min(times_s)


def inputs_of(file: ExportedFile, codec: Codec, rows: int) -> dict[str, np.ndarray]:
    """One call of the codec for this many streams, `NEW_FRAMES` new frames each."""
    facts, config = file.facts, codec.config.decoder
    if file.part == "codec-step":
        return {"codes": random_codes(config, rows, NEW_FRAMES).numpy(), **start_states(facts["states"], rows)}
    context = facts["left_context_frames"]
    codes = random_codes(config, rows, context + NEW_FRAMES).numpy()
    return {"codes": codes, "context_frames": np.full((rows, 1), context)}


def call_ms(file: ExportedFile, codec: Codec) -> dict[str, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.path, options, providers=["CPUExecutionProvider"])
    made = {}
    for rows in ROWS:
        inputs = inputs_of(file, codec, rows)
        made[str(rows)] = best_ms(partial(session.run, None, inputs))
    return made


def own_decoder_ms(codec: Codec) -> dict[str, float]:
    """Our streaming decoder in PyTorch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = {}
    for rows in ROWS:
        codes = random_codes(codec.config.decoder, rows, NEW_FRAMES)
        made[str(rows)] = best_ms(partial(codec.decode, codes, codec.start(rows, torch.device("cpu"))))
    torch.set_num_threads(threads)
    return made


def measure(model: Path | str, output: Path) -> dict[str, Any]:
    codec = load_model(find_checkpoint(model), device=torch.device("cpu"), parts=["codec"]).codec
    begun_s: list[float] = []
    files = export_parts(model, output, progress=lambda part: begun_s.append(time.process_time()))
    ends_s = [*begun_s[1:], time.process_time()]
    figures: dict[str, Any] = {"parts": {}}
    for file, start_s, end_s in zip(files, begun_s, ends_s, strict=True):
        one = figures["parts"][file.part] = {
            "export_cpu_s": end_s - start_s,  # with the comparison
            "megabytes": file.path.stat().st_size / 1e6,
            "errors": file.errors,
            "tolerance": file.tolerance,
            "error_unit": file.error_unit,
        }
        if file.part in ("codec-window", "codec-step"):
            one["call_cpu_ms"] = call_ms(file, codec)
    exact = exact_context_frames(codec.config.decoder)
    contexts = [vocoder_context_frames(codec.config.decoder), *(one for one in CONTEXTS if one < exact), exact]
    return figures | {
        "own_decoder_cpu_ms": own_decoder_ms(codec),
        "context_errors": {str(context): context_error(codec, context, NEW_FRAMES) for context in contexts},
        "default_context": files[0].facts["left_context_frames"],
    }


def main() -> None:
    options = read_arguments(
        __doc__, out=Path("docs/results/export"), scratch=Path(".cache/export"),
        shapes={"nargs": "+", "choices": ["published", "demo"], "default": ["published", "demo"]},
    )  # fmt: skip
    figures: dict[str, Any] = {"new_frames": NEW_FRAMES}
    for shapes in options.shapes:
        model = "demo" if shapes == "demo" else random_weights(options.scratch, "0b6", "clone", endless=False)
        figures[shapes] = measure(model, options.scratch / shapes)
    print(save(options.out, "export", figures, "onnx", "onnxscript", "onnxruntime"))


if __name__ == "__main__":
    main()
