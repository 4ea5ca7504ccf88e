"""Runaway detection on recorded codes: when a stream would end, with and without the detection of monotony.

python -m benchmarks.runaways FOLDER [--demo]
FOLDER has the codes of published weights: NAME_codes.npy [frames, 16] and NAME_ids.npy or NAME_text_ids.npy. Levels are
not known, so all frames count as audible. --demo adds monotonous sentences of the demo voice, with their levels.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from oscine.audio.pcm import FRAME_RATE_HZ, Codes, rms_dbfs
from oscine.config import RunawayConfig
from oscine.engine.runaway import RunawayDetector

_NOW = RunawayConfig()
_BEFORE = replace(_NOW, monotony_codes=0)
_SECONDS = 25  # frames that the counts are taken over
DEMO = [
    "No no no no no no no no no no no no.", "One one one one, one one one one, one one one one.",
    "Ha ha ha ha ha ha ha ha ha ha ha ha ha!", "La la la la la la la la la la la la.", "Hmm, hmm, hmm, hmm, hmm, hmm.",
    "Well... ... ... ... I do not know.", "Eleven eleven eleven eleven eleven eleven eleven.",
    "The quick brown fox jumps over the lazy dog, and the port works perfectly.",
]  # fmt: skip


def ended_s(codes: Codes, levels: list[float], text_ids: int, config: RunawayConfig) -> float | None:
    detector = RunawayDetector(config)
    for made, (frame, level) in enumerate(zip(codes, levels, strict=True), 1):
        if detector.push(frame, level, text_spoken=made >= text_ids):
            return made / FRAME_RATE_HZ
    return None


def least(values: list[object]) -> str:
    windows = [len(set(values[end - _SECONDS : end])) for end in range(_SECONDS, len(values) + 1)]
    return str(min(windows, default="-"))


def show(name: str, codes: Codes, levels: list[float], text_ids: int) -> None:
    ends = [ended_s(codes, levels, text_ids, config) for config in (_BEFORE, _NOW)]
    counts = [least([*codes[:, 0].tolist()]), least([frame.tobytes() for frame in codes])]
    times = ["never" if end is None else f"{end:.1f} s" for end in ends]
    print("|", " | ".join([name, f"{len(codes) / FRAME_RATE_HZ:.1f} s", *counts, *times]), "|", flush=True)


def demo_speeches() -> None:
    from oscine.api import Oscine

    with Oscine("demo") as tts:
        for text in DEMO:
            speech = tts.speak(text, seed=1, trim_silence=False)
            frames = (speech.audio * 32767).astype(np.int16)
            frames = frames[: len(speech.codes) * 1920].reshape(-1, 1920)
            codes = np.ascontiguousarray(speech.codes[: len(frames)])
            show(f'demo: "{text[:24]}..."', codes, [*map(float, rms_dbfs(frames))], text_ids=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--demo", action="store_true")
    asked = parser.parse_args()
    print("| stream | length | least first codes in 2 s | least frames in 2 s | ended before | now |\n|" + "---|" * 6)
    for path in sorted(asked.folder.glob("*_codes*.npy")):
        stem = path.name.split("_codes")[0].removesuffix("_cpu").replace("_mixed_cpu", "_mixed")
        ids = next(
            p for end in ("_text_ids", "_ids") if (p := asked.folder / f"{stem.removesuffix('_cpu')}{end}.npy").exists()
        )
        codes = np.load(path)
        show(path.stem, codes, [-20.0] * len(codes), np.load(ids).size)
    if asked.demo:
        demo_speeches()


if __name__ == "__main__":
    main()
