"""Examines a reference clip: how much speech it has, noise, clipping, pauses, and whether its transcript can be
complete.

A bad clip is not refused here, because some bad clips still clone: `warnings` says what to change. No model is needed:
the levels of short blocks and their periodicity show what goes wrong in practice.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oscine.audio.clips import Clip, resample
from oscine.audio.pcm import Samples

_RATE_HZ = 16_000
_BLOCK_S = 0.02
_BLOCK = round(_BLOCK_S * _RATE_HZ)
_FLOOR_DBFS = -90.0
_VOICED_HZ = (70, 400)  # the pitch of speech
_VOICED = 0.6  # periodicity, of 1
_MAX_PERIODICITIES = 500
_ACTIVE_DB = 25.0  # speech lies within this range below the loud blocks
_PAUSE_BLOCKS = 8  # 160 ms; shorter gaps belong to words

# Limits behind the advice.
MIN_S, MAX_S = 3.0, 20.0
_MIN_VOICED_S = 0.4
_MIN_SNR_DB = 15.0
_MIN_RANGE_DB = 6.0  # a hum or a tone has less
_MAX_CLIPPED = 0.001  # of the samples
_END_S = 0.06
_CHARS_PER_S = (4.0, 40.0)  # of a transcript in letters: slow and fast speech have 8 and 25
_CHARS_OF_IDEOGRAPH = 3.0


class ClipWarning(UserWarning):
    """A defect of a reference clip that the user should fix. The clip is used as it is."""


@dataclass(frozen=True, slots=True)
class ClipReport:
    duration_s: float
    speech_s: float  # words with the short gaps between them
    voiced_s: float
    snr_db: float  # loud blocks over quiet ones
    clipped: float  # share of the samples
    ends_in_speech: bool


def examine(clip: Clip) -> ClipReport:
    """Measures a clip; ten seconds of audio take some milliseconds."""
    samples = resample(clip, _RATE_HZ).samples
    levels = block_levels(samples)
    active = _active(levels)
    speech = _bridged(active)
    every = math.ceil(len(levels) / _MAX_PERIODICITIES)  # for a long clip, every n-th block is enough
    voiced = active[::every] & (_periodicity(samples, len(levels), every) > _VOICED)
    quiet_db, loud_db = _quiet(levels), _loud(levels)
    last = levels[-round(_END_S / _BLOCK_S) :]
    return ClipReport(
        duration_s=clip.duration_s,
        speech_s=float(speech.sum()) * _BLOCK_S,
        voiced_s=float(voiced.sum()) * every * _BLOCK_S,
        snr_db=loud_db - quiet_db,
        clipped=_clipped(clip.samples),
        ends_in_speech=bool(len(last)) and float(last.min()) > max(loud_db - _ACTIVE_DB, quiet_db + _MIN_RANGE_DB),
    )


def warnings(report: ClipReport, transcript: str | None) -> tuple[str, ...]:
    """Returns what to change about a clip, addressed to its owner; empty for a good clip."""
    found = []
    if report.voiced_s < _MIN_VOICED_S or report.snr_db < _MIN_RANGE_DB:
        return ("the clip seems to hold no speech; record 3 to 20 s of one speaker",)
    if report.snr_db < _MIN_SNR_DB:
        found.append(f"the clip is noisy (speech is {report.snr_db:.0f} dB above the noise); record in a quiet room")
    elif report.speech_s < MIN_S:  # `speech_s` is too low in noise, so a noisy clip is not called short
        found.append(f"the clip has only {report.speech_s:.1f} s of speech; 3 to 20 s clone better")
    if report.clipped > _MAX_CLIPPED:
        found.append(f"the clip is clipped ({100 * report.clipped:.1f} % of it); record with less gain")
    if transcript is None:
        return tuple(found)
    if report.duration_s > MAX_S:
        found.append(f"the clip has {report.duration_s:.0f} s, which every request pays for; 3 to 20 s are enough")
    if report.ends_in_speech:
        found.append("the clip ends within speech, which the answer may repeat or go on with; end it with a pause")
    rate = _letters(transcript) / report.speech_s
    if not _CHARS_PER_S[0] <= rate <= _CHARS_PER_S[1]:
        said = f"{report.speech_s:.1f} s of speech and {len(transcript)} characters of transcript"
        found.append(f"the transcript does not seem to fit the clip ({said}); it must hold every word, and no other")
    return tuple(found)


def trim_at_pause(clip: Clip, max_s: float = MAX_S) -> Clip:
    """Removes the silence around a clip and cuts it at its last pause before `max_s`; without a pause, at its quietest
    moment in the second half of that time. 0.3 s of a pause stay on either side."""
    levels = block_levels(resample(clip, _RATE_HZ).samples)
    speech = _bridged(_active(levels))
    if not speech.any():
        return clip
    margin = round(0.3 / _BLOCK_S)
    begin = max(0, int(speech.argmax()) - margin)
    end = min(len(levels), len(levels) - int(speech[::-1].argmax()) + margin)
    limit = begin + round(max_s / _BLOCK_S)
    if end > limit:
        speech_stops = ~speech[begin + 1 : limit] & speech[begin : limit - 1]
        pauses = np.flatnonzero(speech_stops) + begin + 1
        if len(pauses):
            end = _end_of_pause(speech, int(pauses[-1]), limit, margin)
        else:
            half = begin + (limit - begin) // 2
            end = half + int(levels[half:limit].argmin())
    per_block = clip.rate_hz * _BLOCK_S
    return Clip(clip.samples[round(begin * per_block) : round(end * per_block)], clip.rate_hz)


def _end_of_pause(speech: npt.NDArray[np.bool_], start: int, limit: int, margin: int) -> int:
    after = np.flatnonzero(speech[start:limit])
    return min(start + margin, limit, start + int(after[0]) if len(after) else limit)


def block_levels(samples: Samples) -> npt.NDArray[np.float32]:
    """Returns the RMS of each block in dBFS. An incomplete last block is left out unless it is the only one."""
    if len(samples) < _BLOCK:
        samples = np.pad(samples, (0, _BLOCK - len(samples)))
    blocks = samples[: len(samples) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    power = np.einsum("ij,ij->i", blocks, blocks) / _BLOCK
    return np.maximum(_FLOOR_DBFS, 10 * np.log10(power + 1e-12)).astype(np.float32)


def _quiet(levels: npt.NDArray[np.float32]) -> float:
    return float(np.percentile(levels, 5))


def _loud(levels: npt.NDArray[np.float32]) -> float:
    return float(np.percentile(levels, 95))


def _active(levels: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Marks blocks of speech: near the loud ones, and above the noise."""
    loud_db = _loud(levels)
    above_noise_db = _quiet(levels) + min(6.0, (loud_db - _quiet(levels)) / 2)
    return levels > max(loud_db - _ACTIVE_DB, above_noise_db)


def _bridged(active: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Fills short gaps."""
    edges = np.flatnonzero(active)
    filled = active.copy()
    for before, after in itertools.pairwise(edges):
        if 1 < after - before <= _PAUSE_BLOCKS:
            filled[before:after] = True
    return filled


def _periodicity(samples: Samples, blocks: int, every: int) -> npt.NDArray[np.float32]:
    """Returns for every n-th block the largest normalized autocorrelation at a lag of speech, over the three blocks
    around it."""
    window = 3 * _BLOCK
    padded = np.pad(samples, (_BLOCK, 3 * _BLOCK))
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)[: blocks * _BLOCK : every * _BLOCK].astype(
        np.float32
    )
    windows = windows - windows.mean(axis=1, keepdims=True)
    size = 2 * window
    spectrum = np.fft.rfft(windows, size)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, size)[:, :window]
    low, high = (math.ceil(_RATE_HZ / hz) for hz in reversed(_VOICED_HZ))
    # A longer lag overlaps less: without this, low voices would count as less periodic.
    overlap = 1 - np.arange(window) / window
    best = (correlation[:, low : high + 1] / overlap[low : high + 1]).max(axis=1)
    return (best / np.maximum(correlation[:, 0], 1e-9)).astype(np.float32)


def _clipped(samples: Samples) -> float:
    """Returns the share of samples in runs of three or more at the clip's own peak, because a limiter may have left any
    peak."""
    level = np.abs(samples)
    peak = float(level.max(initial=0.0))
    at_peak = level >= 0.999 * peak
    runs = at_peak[2:] & at_peak[1:-1] & at_peak[:-2] if len(level) > 2 else np.zeros(0, bool)
    return float(3 * runs.sum()) / max(1, len(level)) if peak > 0 else 0.0


def _letters(transcript: str) -> float:
    """Counts spoken characters; an ideograph counts as the letters of a syllable."""
    count = 0.0
    for character in transcript:
        if character.isalnum():
            wide = unicodedata.east_asian_width(character) in "WF"
            count += _CHARS_OF_IDEOGRAPH if wide else 1.0
    return count
