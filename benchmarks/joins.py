"""How much the pitch, the level and the pace of the demo voice jump where two segments of a long text meet, against the
pauses between sentences inside a segment.

    python -m benchmarks.joins [--texts 20] [--segments 3]      writes docs/results/joins.json

Each text is cut as the server cuts it, and its segments are spoken with the same voice and seed. The pitch is read from
the demo voice's codes (training/codes.py), the level from the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.results import read_arguments, save
from oscine import Oscine
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.speech.events import Speech
from oscine.text.segmenter import SegmenterConfig, segment_text

TEXTS = Path(__file__).parents[1] / "training" / "texts" / "long.txt"
VOICES = ("wren", "finch")
_AROUND_S = 1.5  # compared on each side
_MIN_VOICED = 4  # frames on a side
_PHONES, _COARSE, _FINE = (1, 2, 3, 0), 7, 8  # codebooks
_SLOTS = 4  # phones in a frame
_BY_SENTENCE = SegmenterConfig(first_chars=1, segment_chars=1)

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A segment as curves with a value per frame; NaN where the frame is silent or unvoiced."""

    f0_semitones: Values
    level_db: Values
    sentence_ends: list[int]  # frames in the pauses between its sentences
    phones_per_s: float  # without pauses


def curves(speech: Speech, text: str) -> Spoken:
    codes = speech.codes.astype(np.int64)
    phones = codes[:, _PHONES].reshape(-1)
    quarters = codes[:, _COARSE] % 16 * 16 + codes[:, _FINE] // 4
    heard = (codes[:, _PHONES] > 0).all(1)
    voiced = heard & (codes[:, 10] // 4 == 15)
    f0_hz = np.maximum(quarters, 1) / 4 * FRAME_RATE_HZ
    frames = speech.audio[: len(codes) * (len(speech.audio) // len(codes))].reshape(len(codes), -1)
    level = 10 * np.log10(np.maximum((frames.astype(np.float64) ** 2).mean(1), 1e-12))
    begins = int(np.count_nonzero(np.diff(phones, prepend=0) * (phones > 0)))
    heard_s = max(1, int(np.count_nonzero(phones))) / (FRAME_RATE_HZ * _SLOTS)
    return Spoken(
        np.where(voiced, 12 * np.log2(f0_hz), np.nan),
        np.where(heard, level, np.nan),
        _longest_pauses(phones, len(segment_text(text, _BY_SENTENCE)) - 1),
        begins / heard_s,
    )


def _longest_pauses(phones: npt.NDArray[np.int64], count: int) -> list[int]:
    """The frames in the middle of the longest pauses inside a segment: those between its sentences."""
    changes = np.flatnonzero(np.diff((phones == 0).astype(int), prepend=0, append=0))
    pauses = [(end - begin, begin) for begin, end in changes.reshape(-1, 2) if begin > _SLOTS and end < len(phones)]
    return sorted(int(begin + size // 2) // _SLOTS for size, begin in sorted(pauses)[::-1][:count])


def jump(before: Values, after: Values) -> float | None:
    """The difference of the medians beside a boundary."""
    span = round(_AROUND_S * FRAME_RATE_HZ)
    sides = [side[np.isfinite(side)] for side in (before[-span:], after[:span])]
    if min(map(len, sides)) < _MIN_VOICED:
        return None
    return float(np.median(sides[1]) - np.median(sides[0]))


def measured(pairs: Iterator[tuple[Values, Values]]) -> dict[str, float]:
    found = [abs(one) for pair in pairs if (one := jump(*pair)) is not None]
    return {
        "count": len(found),
        "median": round(float(np.median(found)), 2),
        "p95": round(float(np.percentile(found, 95)), 2),
    }


def figures(texts: list[list[Spoken]]) -> dict[str, Any]:
    met = [pair for spoken in texts for pair in pairwise(spoken)]
    inside = [(one, at) for spoken in texts for one in spoken for at in one.sentence_ends]
    paces = [abs(two.phones_per_s / one.phones_per_s - 1) for one, two in met]
    row: dict[str, Any] = {"pace_percent": {"count": len(paces), "median": round(100 * float(np.median(paces)), 1)}}
    for name in ("f0_semitones", "level_db"):
        joins = ((getattr(one, name), getattr(two, name)) for one, two in met)
        pauses = ((getattr(one, name)[:at], getattr(one, name)[at:]) for one, at in inside)
        row[name] = {"joins": measured(joins), "pauses": measured(pauses)}
    return row


def main() -> None:
    options = read_arguments(__doc__, texts=20, segments=(3, "at most so many of each text"), model="demo")
    spoken: dict[str, list[list[Spoken]]] = {voice: [] for voice in VOICES}
    texts = TEXTS.read_text(encoding="utf-8").splitlines()[: options.texts]
    with Oscine(options.model, device="cpu") as tts:
        for number, text in enumerate(texts):
            voice = VOICES[number % len(VOICES)]
            segments = segment_text(text, SegmenterConfig())[: options.segments]
            speeches = [tts.speak(segment, voice=voice, seed=number) for segment in segments]
            spoken[voice].append([curves(*pair) for pair in zip(speeches, segments, strict=True)])
            print(f"{number + 1} of {len(texts)}: {len(segments)} segments", flush=True)
            rows = {voice: figures(some) for voice, some in spoken.items() if some}
            save(options.out, "joins", {"texts": number + 1, "around_s": _AROUND_S, "voices": rows})  # so far


if __name__ == "__main__":
    main()
