"""How late a Whisper model is. Each model reports words a little too late or too early, by up to a tenth of a second,
and whatever the voice. A recording with known word times (tools/alignment_reference.py) tells by how much."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import numpy as np
import soundfile

from oscine.align.timing import Times
from oscine.frames import Samples

_MAX_LATE_S = 0.2  # more is not the model's lateness, but a model that does not align


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    text: str
    samples: Samples  # 16 kHz
    times: Times


def reference_recordings() -> list[Recording]:
    folder = resources.files("oscine.align")
    samples, _ = soundfile.read(io.BytesIO((folder / "reference.ogg").read_bytes()), dtype="float32")
    found = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    return [
        Recording(one["text"], samples[one["first"] : one["last"]], [(start, end) for start, end in one["times"]])
        for one in found
    ]


def lateness_s(align: Callable[[Samples, str], Times]) -> float:
    """The median error of starts and ends. The first start and the last end are left out: there the model reports the
    ends of the audio."""
    errors = []
    for recording in reference_recordings():
        found = align(recording.samples, recording.text)
        for (start_s, end_s), (true_start_s, true_end_s) in zip(found, recording.times, strict=True):
            errors += [start_s - true_start_s] if start_s > found[0][0] else []
            errors += [end_s - true_end_s] if end_s < found[-1][1] else []
    return float(np.clip(np.median(errors), -_MAX_LATE_S, _MAX_LATE_S)) if errors else 0.0
