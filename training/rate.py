"""Rates folders of recordings (000.wav, 001.wav, ...): DNSMOS, DistillMOS, and word error rate with Whisper base.

    JUDGES/bin/python training/rate.py WAVS [WAVS ...] [--whisper FOLDER] [--reference WAVS] [--json OUT]

README.md says how to make the environment JUDGES; nothing is downloaded at run time. With --reference (a folder of
time-aligned recordings of the same sentences) it also prints mel and STFT distances.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import types
import warnings
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths

from oscine_eval.word_error_rate import align, normalize

_JUDGED_HZ = 16000
Samples = npt.NDArray[np.float32]


def read_wave(path: Path) -> tuple[Samples, int]:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
        return samples, file.getframerate()


def at_judged_rate(samples: Samples, rate_hz: int) -> Samples:
    import librosa

    resampled: Samples = librosa.resample(samples, orig_sr=rate_hz, target_sr=_JUDGED_HZ)
    return resampled


class Judges:
    def __init__(self, whisper: Path | None) -> None:
        import torch
        from faster_whisper import WhisperModel
        from speechmos import dnsmos

        # DistillMOS needs torchaudio only for its command line.
        sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))
        from distillmos import ConvTransformerSQAModel

        self._torch, self._dnsmos = torch, dnsmos
        self._distillmos = ConvTransformerSQAModel().eval()
        self._whisper = WhisperModel(str(whisper), device="cpu", compute_type="int8") if whisper else None

    def rate(self, path: Path, text: str) -> dict[str, Any]:
        samples = at_judged_rate(*read_wave(path))
        with self._torch.inference_mode():
            distilled = float(self._distillmos(self._torch.from_numpy(samples)[None]))
        rated = self._dnsmos.run(samples.clip(-1, 1), sr=_JUDGED_HZ)["ovrl_mos"]
        row: dict[str, Any] = {"dnsmos": float(rated), "distillmos": distilled}
        if self._whisper is None:
            return row
        segments, _ = self._whisper.transcribe(samples, language="en", beam_size=5, condition_on_previous_text=False)
        transcript = " ".join(segment.text.strip() for segment in segments)
        wanted = normalize(text)
        return row | {
            "transcript": transcript,
            "errors": align(wanted, normalize(transcript)).errors,
            "words": len(wanted),
        }


def distances(path: Path, reference: Path) -> dict[str, float]:
    import torch
    from losses import MelLoss, stft_distance

    made, true = (torch.from_numpy(read_wave(one)[0])[None] for one in (path, reference))
    span = min(made.shape[1], true.shape[1])
    made, true = made[:, :span], true[:, :span]
    return {"mel": float(MelLoss()(made, true)), "stft": float(stft_distance(made, true))}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    means = {
        name: round(statistics.mean(row[name] for row in rows), 3)
        for name in ("dnsmos", "distillmos", "mel", "stft")
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
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path, help="write all rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    judges, everything = Judges(options.whisper), {}
    for folder in options.folders:
        rows = []
        for path in sorted(folder.glob("[0-9][0-9][0-9].wav"))[: options.limit]:
            row = {"wav": path.name} | judges.rate(path, texts[int(path.stem)])
            if options.reference:
                row |= distances(path, options.reference / path.name)
            rows.append(row)
        if not rows:
            raise SystemExit(f"{folder} holds no recordings 000.wav, 001.wav, ...")
        everything[str(folder)] = rows
        print(json.dumps({"folder": str(folder)} | summary(rows)), flush=True)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
