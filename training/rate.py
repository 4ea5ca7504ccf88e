"""Rates folders of recordings (000.wav, 001.wav, ...): DNSMOS, DistillMOS, and word error rate with Whisper base.

    JUDGES/bin/python training/rate.py WAVS [WAVS ...] [--whisper FOLDER] [--thirds] [--reference WAVS] [--json OUT]

README.md says how to make the environment JUDGES; nothing is downloaded at run time. Ratings are cached in ratings.json
beside the recordings. With --thirds (long texts) DNSMOS and DistillMOS rate the first and the last third of each
recording. With --reference (a folder of time-aligned recordings of the same sentences) it also prints mel and STFT
distances.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import statistics
import sys
import types
import warnings
import wave
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths
from dnsmos import DnsmosJudge
from wave_cache import Row, WaveCache, wave_key

from oscine_eval.word_error_rate import align, normalize

JUDGED_HZ = 16000
RATINGS = "ratings.json"
MEANS = ("dnsmos", "distillmos")
Samples = npt.NDArray[np.float32]


def read_wave(path: Path) -> tuple[Samples, int]:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
        return samples, file.getframerate()


def at_judged_rate(samples: Samples, rate_hz: int) -> Samples:
    import librosa

    resampled: Samples = librosa.resample(samples, orig_sr=rate_hz, target_sr=JUDGED_HZ)
    return resampled


class Judges:
    """Models are loaded when a recording needs them."""

    def __init__(self, whisper: Path | None) -> None:
        self._folder = whisper
        self._sha256 = hashlib.sha256((whisper / "model.bin").read_bytes()).hexdigest()[:16] if whisper else None
        self.about = {name: version(name) for name in ("speechmos", "distillmos", "faster-whisper")}

    @cached_property
    def _dnsmos(self) -> DnsmosJudge:
        return DnsmosJudge()

    @cached_property
    def _distillmos(self) -> Any:
        # DistillMOS needs torchaudio only for its command line.
        sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))
        from distillmos import ConvTransformerSQAModel

        with contextlib.redirect_stdout(io.StringIO()):  # it prints where its weights are
            return ConvTransformerSQAModel().eval()

    @cached_property
    def _whisper(self) -> Any:
        from faster_whisper import WhisperModel

        return WhisperModel(str(self._folder), device="cpu", compute_type="int8")

    def rate(self, path: Path, known: Row, *, thirds: bool) -> Row:
        """The row of a recording: `known`, and what it lacks."""
        row = dict(known)
        parts = ("first_third", "last_third") if thirds else ("whole",)
        if all(part in row for part in parts) and self._sha256 in (None, row.get("whisper")):
            return row
        samples = at_judged_rate(*read_wave(path))
        spans = {
            "whole": samples,
            "first_third": samples[: len(samples) // 3],
            "last_third": samples[-len(samples) // 3 :],
        }
        for part in parts:
            if part not in row:
                row[part] = self._rate(spans[part])
        if self._sha256 not in (None, row.get("whisper")):
            row |= {"whisper": self._sha256, "transcript": self._transcribe(samples)}
        return row

    def _rate(self, samples: Samples) -> Row:
        import torch

        with torch.inference_mode():
            distilled = float(self._distillmos(torch.from_numpy(samples)[None]))
        return {"dnsmos": self._dnsmos.rate(samples), "distillmos": distilled}

    def _transcribe(self, samples: Samples) -> str:
        segments, _ = self._whisper.transcribe(samples, language="en", beam_size=5, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in segments)


def rated_rows(judges: Judges, folder: Path, texts: list[str], limit: int | None, *, thirds: bool) -> list[Row]:
    """One row per recording, with means over its rated parts, and errors if it was transcribed."""
    cache, rows = WaveCache(folder / RATINGS, judges.about), []
    for path in sorted(folder.glob("[0-9][0-9][0-9].wav"))[:limit]:
        known = cache[key := wave_key(path)]
        if (row := judges.rate(path, known, thirds=thirds)) != known:
            cache[key] = row
        parts = [row[part] for part in (("first_third", "last_third") if thirds else ("whole",))]
        row = {"wav": path.name} | row | {name: statistics.mean(part[name] for part in parts) for name in MEANS}
        if "transcript" in row:
            wanted = normalize(texts[int(path.stem)])
            row |= {"errors": align(wanted, normalize(row["transcript"])).errors, "words": len(wanted)}
        rows.append(row)
    if not rows:
        raise SystemExit(f"{folder} holds no recordings 000.wav, 001.wav, ...")
    return rows


def distances(path: Path, reference: Path) -> Row:
    import torch
    from losses import MelLoss, stft_distance

    made, true = (torch.from_numpy(read_wave(one)[0])[None] for one in (path, reference))
    span = min(made.shape[1], true.shape[1])
    made, true = made[:, :span], true[:, :span]
    return {"mel": float(MelLoss()(made, true)), "stft": float(stft_distance(made, true))}


def summary(rows: list[Row]) -> Row:
    means = {
        name: round(statistics.mean(row[name] for row in rows), 3)
        for name in (*MEANS, "mel", "stft")
        if name in rows[0]
    }
    if "errors" in rows[0]:
        means["wer"] = round(sum(row["errors"] for row in rows) / sum(row["words"] for row in rows), 4)
    return {"sentences": len(rows)} | means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--whisper", type=Path, help="Whisper base for CTranslate2; without it no word error rate")
    parser.add_argument("--texts", type=Path, default=paths.TRAINING / "texts" / "heldout.txt")
    parser.add_argument("--thirds", action="store_true", help="rate the first and the last third")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path, help="write all rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    judges, everything = Judges(options.whisper), {}
    for folder in options.folders:
        rows = rated_rows(judges, folder, texts, options.limit, thirds=options.thirds)
        for row in rows if options.reference else ():
            row |= distances(folder / row["wav"], options.reference / row["wav"])
        everything[str(folder)] = rows
        print(json.dumps({"folder": str(folder)} | summary(rows)), flush=True)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
