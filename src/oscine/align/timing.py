"""Turns the times of tokens into the times of words: pure functions over characters, tokens and samples."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt
import soundfile

from oscine.align.word_split import Word
from oscine.audio.pcm import Samples

Span = tuple[int, int]  # of characters
Times = list[tuple[float, float]]  # start and end of each word, in seconds

_BLOCK_S = 0.01
_PAUSE_S = 0.06  # shorter silences are the closure of a plosive
_PAUSE_DB = -40.0  # a pause is this far below the loudest block


def token_starts(path: Sequence[tuple[int, int]], count: int, frame_s: float) -> list[float]:
    """Returns when each of `count` tokens begins and when the last one ends. `path`: pairs (token, frame)."""
    starts = [0.0] * (count + 1)
    seen = -1
    for token, frame in path:
        if token > seen:
            starts[token] = frame * frame_s
            seen = token
    return starts


def word_times(words: Sequence[Word], spans: Sequence[Span], starts: Sequence[float]) -> Times:
    """Returns the times of the words from the times of tokens. `spans`: the characters of each token, not counting
    white space; several tokens of one character have the same. A mark without a word takes no time. Within a token,
    time is spread evenly over its characters."""
    reach = np.array([end for _, end in spans])
    times, at_s = [], starts[0]
    for word in words:
        if word.spoken is None:
            times.append((at_s, at_s))
            continue
        first, last = word.spoken
        begin_s, at_s = (_time_at(place, spans, starts, reach, ends) for place, ends in ((first, False), (last, True)))
        times.append((begin_s, at_s))
    return times


def _time_at(
    char: int, spans: Sequence[Span], starts: Sequence[float], reach: npt.NDArray[np.int64], ends: bool
) -> float:
    """Returns when this character begins, or with `ends` when the one before it ends."""
    token = int(np.searchsorted(reach, char, side="left" if ends else "right"))
    if token >= len(spans):
        return starts[-1]
    begin, end = spans[token]
    following = token + 1
    while following < len(spans) and spans[following] == spans[token]:
        following += 1
    share = min(1.0, max(0.0, (char - begin) / max(1, end - begin)))
    return starts[token] + share * (starts[following] - starts[token])


def settle(times: Times, samples: Samples, rate_hz: int) -> Times:
    """Moves starts and ends out of the pauses around each word, orders all times, and keeps them within the audio."""
    duration_s = len(samples) / rate_hz
    pauses = _pauses(samples, rate_hz)
    settled: Times = []
    earliest_s = 0.0
    for start_s, end_s in times:
        if end_s > start_s:
            start_s, end_s = _out_of_pauses(start_s, end_s, pauses)
        start_s = min(max(start_s, earliest_s), duration_s)
        earliest_s = min(max(end_s, start_s), duration_s)
        settled.append((start_s, earliest_s))
    return settled


def _out_of_pauses(start_s: float, end_s: float, pauses: Sequence[tuple[float, float]]) -> tuple[float, float]:
    middle_s = (start_s + end_s) / 2
    for pause_start_s, pause_end_s in pauses:
        if pause_start_s <= start_s < pause_end_s:
            start_s = pause_end_s
        if pause_start_s < end_s <= pause_end_s:
            end_s = pause_start_s
    return (start_s, end_s) if start_s < end_s else (middle_s, middle_s)


def _pauses(samples: Samples, rate_hz: int) -> list[tuple[float, float]]:
    """Finds the silences, in seconds."""
    size = round(_BLOCK_S * rate_hz)
    blocks = samples[: len(samples) // size * size].reshape(-1, size)
    power = np.square(blocks).mean(axis=1) if len(blocks) else np.zeros(0, np.float32)
    quiet = power <= power.max(initial=0.0) * 10 ** (_PAUSE_DB / 10)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    pauses = (edges.reshape(-1, 2) * _BLOCK_S).tolist()
    return [(start_s, end_s) for start_s, end_s in pauses if end_s - start_s >= _PAUSE_S]


# --- The lateness of a Whisper model. Each model reports words up to a tenth of a second too late or too early,
# whatever the voice. A recording with known word times (tools/alignment_reference.py) shows by how much.


_MAX_LATE_S = 0.2  # a larger error means that the model cannot align


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceRecording:
    text: str
    samples: Samples  # 16 kHz
    times: Times


def reference_recordings() -> list[ReferenceRecording]:
    folder = resources.files("oscine.align")
    samples, _ = soundfile.read(io.BytesIO((folder / "reference.ogg").read_bytes()), dtype="float32")
    found = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    return [
        ReferenceRecording(
            one["text"], samples[one["first"] : one["last"]], [(start, end) for start, end in one["times"]]
        )
        for one in found
    ]


def lateness_s(align: Callable[[Samples, str], Times]) -> float:
    """Returns the median error of starts and ends. The first start and the last end are left out: there the model
    reports the ends of the audio."""
    errors = []
    for recording in reference_recordings():
        found = align(recording.samples, recording.text)
        for (start_s, end_s), (true_start_s, true_end_s) in zip(found, recording.times, strict=True):
            errors += [start_s - true_start_s] if start_s > found[0][0] else []
            errors += [end_s - true_end_s] if end_s < found[-1][1] else []
    return float(np.clip(np.median(errors), -_MAX_LATE_S, _MAX_LATE_S)) if errors else 0.0
