"""How exact word timestamps are, and what they cost: aligned words against the word times of speech synthesizers.

    python -m benchmarks.alignment FOLDER [FOLDER ...]     writes docs/results/alignment.json

FOLDER is a Whisper model in CTranslate2's format; this Python has `oscine[align]`. The sentences are the held-out ones
of the demo voice. labelled_speech.py says which synthesizers to install.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.labelled_speech import ESPEAK, VOICES, LabelledSpeech, synthesize
from benchmarks.labelled_speech import version as synthesizer_version
from benchmarks.results import read_arguments, save
from oscine.align.whisper import Whisper

TEXTS = Path(__file__).parents[1] / "training" / "texts" / "heldout.txt"
SENTENCES = 60


def errors_ms(found_s: Sequence[float], true_s: Sequence[float]) -> dict[str, float]:
    errors = 1000 * (np.array(found_s) - np.array(true_s))
    size = np.abs(errors)
    return {
        "median": round(float(np.median(size))),
        "p95": round(float(np.percentile(size, 95))),
        "bias": round(float(np.median(errors))),
    }


def measure(whisper: Whisper, speeches: Sequence[LabelledSpeech]) -> dict[str, Any]:
    begun_s = time.process_time()
    found = [whisper.align(speech.clip, speech.text, "english") for speech in speeches]
    cpu_s = time.process_time() - begun_s
    audio_s = sum(speech.clip.duration_s for speech in speeches)
    starts = [start_s for times in found for start_s, _ in times]
    ends = [end_s for times in found for _, end_s in times]
    true_ends = [time_s for speech in speeches for time_s in speech.ends_s]
    return {
        "sentences": len(speeches),
        "words": len(starts),
        "audio_s": round(audio_s, 1),
        "cpu_s_per_audio_s": round(cpu_s / audio_s, 4),
        "start_ms": errors_ms(starts, [time_s for speech in speeches for time_s in speech.starts_s]),
        "end_ms": errors_ms(ends, true_ends) if true_ends else None,
    }


def main() -> None:
    options = read_arguments(__doc__, positional=["folders"], folders={"nargs": "+", "type": Path})
    texts = TEXTS.read_text(encoding="utf-8").splitlines()[:SENTENCES]
    speeches = {voice: synthesize(voice, texts) for voice in (*VOICES, ESPEAK)}
    models = {}
    for folder in options.folders:
        whisper = Whisper(folder, threads=1)
        voices = {voice: measure(whisper, some) for voice, some in speeches.items()}
        models[folder.name] = {"late_ms": round(1000 * whisper.late_s), "voices": voices}
        print(folder.name, models[folder.name])
    versions = {voice: synthesizer_version(voice) for voice in speeches}
    save(options.out, "alignment", {"synthesizers": versions, "models": models}, "ctranslate2", "numpy")


if __name__ == "__main__":
    main()
