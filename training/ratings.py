"""Figures of the judges' environment for judge.py: runs rate.py and prosody.py there, and reads what they cached beside
the recordings."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import paths
from wave_cache import Row, WaveCache, wave_key

from oscine_eval.bootstrap import interval
from oscine_eval.recording import Recording
from oscine_eval.score import score_all, totals

RATINGS = "ratings.json"  # as in rate.py, which imports libraries of its own


class JudgesProcess:
    def __init__(self, python: Path, whisper: Path) -> None:
        self._python, self._whisper = python, whisper

    def rate(self, folders: list[Path], sentences: Path, *options: str) -> Row:
        """Rates what is not cached yet. Returns the versions of the judges, and the hash of Whisper's weights."""
        fixed = ["--whisper", str(self._whisper), "--texts", str(sentences), *options]
        self._run("rate.py", *map(str, folders), *fixed)
        first = next(iter(sorted(folders[0].glob("[0-9][0-9][0-9].wav"))))
        return WaveCache(folders[0] / RATINGS).about | {"whisper": rating_of(first)["whisper"]}

    def compare_prosody(self, teacher: Path, demo: Path, limit: int) -> Row:
        """Medians of pitch and pace."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "medians.json"
            self._run("prosody.py", str(teacher), str(demo), "--limit", str(limit), "--json", str(out))
            medians: Row = json.loads(out.read_text(encoding="utf-8"))
        return medians

    def _run(self, script: str, *options: str) -> None:
        subprocess.run([self._python, paths.TRAINING / script, *options], check=True)


def rating_of(path: Path) -> Row:
    return WaveCache(path.parent / RATINGS)[wave_key(path)]


def rated_side(folder: Path, recordings: list[Recording]) -> tuple[Row, list[Recording]]:
    """WER, DNSMOS and DistillMOS with 95 % intervals, and the recordings with the transcripts of Whisper base."""
    cache = WaveCache(folder / RATINGS)
    rows = [cache[wave_key(folder / f"{one.number:03d}.wav")] for one in recordings]
    transcribed = [
        replace(one, transcript=row["transcript"], dnsmos=None) for one, row in zip(recordings, rows, strict=True)
    ]
    wer = totals(transcribed, score_all(transcribed))["wer"]
    means = {name: _mean([row["whole"][name] for row in rows]) for name in ("dnsmos", "distillmos")}
    return {"wer": wer} | means, transcribed


def _mean(values: list[float]) -> Row:
    low, high = interval([(value, 1.0) for value in values])
    return {"value": sum(values) / len(values), "low": low, "high": high, "count": sum(values), "of": len(values)}
