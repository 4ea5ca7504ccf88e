"""Compares pitch and pace of the demo voice with its teacher's, sentence by sentence.

    JUDGES/bin/python training/prosody.py TEACHER DEMO [--limit 100] [--json OUT]

TEACHER and DEMO are folders of one voice (000.wav, 001.wav, ...). Dynamic time warping on MFCCs aligns each pair of
recordings; the correlation is that of log F0 over frames that are voiced in both. Silence at the ends is trimmed. Rows
are cached in prosody.json beside the demo's recordings. The medians are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rate import JUDGED_HZ, Samples, at_judged_rate, read_wave
from wave_cache import Row, WaveCache, wave_key

PROSODY = "prosody.json"
FIGURES = ("f0_correlation", "teacher_f0_hz", "demo_f0_hz", "duration_ratio")

_HOP = JUDGED_HZ // 100  # 10 ms
_WINDOW = 1024
_F0_HZ = 60.0, 500.0
_SILENCE_DB = 40  # below the peak
_MIN_FRAMES = 30  # that are voiced in both; shorter sentences have no correlation

Values = npt.NDArray[np.float64]


def speech_of(path: Path) -> Samples:
    import librosa

    trimmed: Samples = librosa.effects.trim(at_judged_rate(*read_wave(path)), top_db=_SILENCE_DB)[0]
    return trimmed


def f0_of(samples: Samples) -> Values:
    """Hz in each frame, NaN where it is unvoiced."""
    import librosa

    low, high = _F0_HZ
    f0: Values = librosa.pyin(
        samples, fmin=low, fmax=high, sr=JUDGED_HZ, frame_length=_WINDOW, hop_length=_HOP, resolution=0.2
    )[0]
    return f0


def mfcc_of(samples: Samples) -> Values:
    """Normalized over time, without the energy: voices and levels may differ."""
    import librosa

    found: Values = librosa.feature.mfcc(y=samples, sr=JUDGED_HZ, n_mfcc=14, n_fft=_WINDOW, hop_length=_HOP)[1:]
    return (found - found.mean(1, keepdims=True)) / (found.std(1, keepdims=True) + 1e-6)


def compare(teacher: Path, demo: Path) -> Row:
    import librosa

    speech = [speech_of(path) for path in (teacher, demo)]
    f0 = [f0_of(one) for one in speech]
    _, path = librosa.sequence.dtw(*(mfcc_of(one) for one in speech))
    true, made = (np.log(hz[path[:, side]]) for side, hz in enumerate(f0))
    voiced = np.isfinite(true) & np.isfinite(made)
    enough = voiced.sum() >= _MIN_FRAMES
    teacher_hz, demo_hz = (float(np.nanmean(hz)) if np.isfinite(hz).any() else None for hz in f0)
    return {
        "f0_correlation": float(np.corrcoef(true[voiced], made[voiced])[0, 1]) if enough else None,
        "teacher_f0_hz": teacher_hz,
        "demo_f0_hz": demo_hz,
        "duration_ratio": len(speech[1]) / len(speech[0]),
    }


def compared_rows(teacher: Path, demo: Path, limit: int | None) -> list[Row]:
    cache, rows = WaveCache(demo / PROSODY, {"librosa": version("librosa")}), []
    for path in sorted(demo.glob("[0-9][0-9][0-9].wav"))[:limit]:
        row = cache[key := wave_key(teacher / path.name, path)]
        if not row:
            cache[key] = row = compare(teacher / path.name, path)
        rows.append(row)
    return rows


def medians(rows: list[Row]) -> Row:
    found = {name: [row[name] for row in rows if row[name] is not None] for name in FIGURES}
    return {"sentences": len(rows)} | {name: statistics.median(each) if each else None for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path, help="write the medians")
    options = parser.parse_args()
    found = medians(compared_rows(options.teacher, options.demo, options.limit))
    print(json.dumps({"folder": str(options.demo)} | found), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
