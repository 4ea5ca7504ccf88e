"""Compares the demo voice with its teacher on the held-out sentences and writes docs/results/demo.json.

    .venv/bin/python training/judge.py TEACHER DEMO [--log training/log.jsonl] [--trained-on "NVIDIA H200"] [--rated 40]

TEACHER and DEMO are folders that `evaluate.py teacher` and `evaluate.py model` recorded. The transcriber runs in
another environment (`make asr`; DNSMOS: tests/asr/quality.txt). Transcripts are cached in transcripts.json beside the
recordings. Exits with status 1 if the demo voice is not good enough to be shipped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import wave
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import paths
from plot import read_log
from sizes import SPEAKERS

from demo_files import DEMO, fingerprint
from oscine.audio import read_clip, resample
from oscine.frames import FRAME_RATE_HZ
from oscine_bench.record import script_result, write_result
from oscine_eval.bootstrap import difference_interval
from oscine_eval.recognizer import RATE_HZ
from oscine_eval.recording import Recording
from oscine_eval.score import FIGURES, by_take, score_all, totals
from oscine_eval.transcriber import TranscriberConfig, Transcript
from oscine_eval.transcriber_process import open_transcriber

MAX_WER_DIFFERENCE = 0.08  # above the teacher's own
_TOLD = ("wer", "truncated", "repeated", "runaway", "dnsmos", "audio_s")
_WER = next(figure for figure in FIGURES if figure.key == "wer")
_AS_USUAL = {"mode": "whole", "language": "auto", "instruct": None, "seed": 0}  # the defaults of evaluate.py

Row = dict[str, Any]


def read_recordings(folder: Path, texts: list[str]) -> list[Recording]:
    about = folder / "spoken.json"
    ends = json.loads(about.read_text(encoding="utf-8"))["ends"] if about.exists() else [None] * len(texts)
    recordings = []
    for number, (text, end) in enumerate(zip(texts, ends, strict=True)):
        with wave.open(str(folder / f"{number:03d}.wav")) as file:
            audio_s = file.getnframes() / file.getframerate()
        fields = {"number": number, "take": 0, "text": text, "seed": number, "language": "en", "audio_s": audio_s}
        recordings.append(Recording(**fields, file=f"{number:03d}.wav", finish_reason=end))
    return recordings


class TranscriptCache:
    """Transcripts by hash of the recording. Transcripts of another recognizer are not used."""

    def __init__(self, python: Path, folders: list[Path]) -> None:
        self._python, self._folders = python, folders
        self.about: Row = {}
        self._rated = 0

    def transcribe(self, texts: list[str], rated: int) -> None:
        self._rated = rated
        for dnsmos in (True, False):  # the first sentences with DNSMOS, which takes three times as long
            span = range(rated) if dnsmos else range(rated, len(texts))
            if not span:
                continue
            with open_transcriber(TranscriberConfig(dnsmos=dnsmos), self._python) as transcriber:
                if dnsmos and transcriber.about["dnsmos"] is None:
                    raise SystemExit(f"{transcriber.about['without_dnsmos']}\nor leave it out with --rated 0")
                self.about = {**transcriber.about, **{name: one for name, one in self.about.items() if one is not None}}
                for folder in self._folders:
                    known = _known(folder, transcriber.about["recognizer"])
                    for number in span:
                        path = folder / f"{number:03d}.wav"
                        key = _key(path)
                        if key not in known or (dnsmos and known[key]["dnsmos"] is None):
                            known[key] = asdict(
                                transcriber.transcribe(resample(read_clip(path), RATE_HZ).samples, "en")
                            )
                            _keep(folder, transcriber.about["recognizer"], known)
                    print(f"transcribed {folder}, {'with' if dnsmos else 'without'} DNSMOS", flush=True)

    def recordings(self, folder: Path, texts: list[str]) -> list[Recording]:
        known = _known(folder, self.about["recognizer"])
        pairs = [
            (one, Transcript(**known[_key(folder / f"{one.number:03d}.wav")])) for one in read_recordings(folder, texts)
        ]
        # Earlier runs may have rated more sentences of one of the two.
        return [
            replace(one, transcript=said.text, dnsmos=said.dnsmos if one.number < self._rated else None)
            for one, said in pairs
        ]


def _key(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _known(folder: Path, recognizer: Row) -> dict[str, Row]:
    path = folder / "transcripts.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known: dict[str, Row] = kept["transcripts"] if kept.get("recognizer") == recognizer else {}
    return known


def _keep(folder: Path, recognizer: Row, transcripts: dict[str, Row]) -> None:
    content = json.dumps({"recognizer": recognizer, "transcripts": transcripts}, indent=1)
    (folder / "transcripts.json").write_text(content, encoding="utf-8")


# --- figures ---


def side(recordings: list[Recording]) -> Row:
    figures = totals(recordings, score_all(recordings))
    return {key: figures[key] for key in _TOLD}


def misheard(recordings: list[Recording]) -> list[Row]:
    marks = score_all(recordings)
    pairs = [(one, mark) for one, mark in zip(recordings, marks, strict=True) if mark.error_rate or mark.flags]
    return [{"text": one.text, "transcript": one.transcript, "flags": list(mark.flags)} for one, mark in pairs]


def wer_difference(teacher: list[Recording], demo: list[Recording]) -> Row:
    terms = [list(by_take(_WER, each, score_all(each)).values()) for each in (teacher, demo)]
    rates = [sum(wrong for wrong, _ in each) / sum(words for _, words in each) for each in terms]
    low, high = difference_interval(*terms)
    return {"value": rates[1] - rates[0], "low": low, "high": high}


def training_summary(lines: list[Row], machine: str | None) -> Row:
    """Steps and seconds of each stage over all its runs in the log, and the last value of everything that it logged."""
    stages: dict[str, Row] = {}
    for line in lines:
        stage = stages.setdefault(line["stage"], {"steps": 0, "seconds": 0.0, "last": {}, "run": (0, 0.0)})
        if "step" in line:
            if line["step"] < stage["run"][0]:  # started again
                stage["steps"] += stage["run"][0]
                stage["seconds"] += stage["run"][1]
            stage["run"] = line["step"], line["spent_s"]
        stage["last"] |= {name: value for name, value in line.items() if isinstance(value, float)}
    for stage in stages.values():
        steps, seconds = stage.pop("run")
        stage["steps"] += steps
        stage["seconds"] += seconds
    corpus = next(line for line in lines if line["stage"] == "talker" and "utterances" in line)
    hours = corpus["frames"] / FRAME_RATE_HZ / 3600
    return {"machine": machine, "utterances": corpus["utterances"], "hours": hours, "stages": stages}


def judge(options: argparse.Namespace, texts: list[str]) -> Row:
    weights = fingerprint(options.model)
    for voice in SPEAKERS:
        spoken = json.loads((options.demo / voice / "spoken.json").read_text(encoding="utf-8"))
        if spoken["weights"] != weights:
            raise SystemExit(f"{options.demo / voice} was spoken by {spoken['weights']}, {options.model} is {weights}")
        if spoken["asked"] != _AS_USUAL:
            raise SystemExit(f"{options.demo / voice} was asked for with {spoken['asked']}, not with {_AS_USUAL}")
    transcripts = TranscriptCache(
        options.transcriber_python, [each / voice for each in (options.teacher, options.demo) for voice in SPEAKERS]
    )
    transcripts.transcribe(texts, min(options.rated, len(texts)))
    voices = {}
    for voice in SPEAKERS:
        teacher, demo = (transcripts.recordings(each / voice, texts) for each in (options.teacher, options.demo))
        ends = dict(Counter(one.finish_reason for one in demo))
        voices[voice] = {
            "teacher": side(teacher),
            "demo": side(demo) | {"ends": ends, "misheard": misheard(demo)},
            "wer_difference": wer_difference(teacher, demo),
        }
    training = training_summary(read_log(options.log), options.trained_on)
    return {
        "weights": weights,
        "sentences": len(texts),
        "transcriber": transcripts.about,
        "voices": voices,
        "training": training,
    }


def complaints(figures: Row) -> list[str]:
    found = []
    for voice, sides in figures["voices"].items():
        if sides["wer_difference"]["value"] > MAX_WER_DIFFERENCE:
            found.append(f"{voice}: word error rate {sides['wer_difference']['value']:.1%} above the teacher's")
        if set(sides["demo"]["ends"]) != {"stop"}:
            found.append(f"{voice}: not every sentence ended by itself: {sides['demo']['ends']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--log", type=Path, default=paths.TRAINING / "log.jsonl", help="log of the training")
    parser.add_argument("--model", type=Path, default=DEMO, help="the checkpoint that was recorded")
    parser.add_argument("--trained-on", help="the machine, for the card")
    parser.add_argument("--sentences", type=Path, default=paths.TRAINING / "texts" / "heldout.txt")
    parser.add_argument("--rated", type=int, default=40, help="sentences of each voice with DNSMOS")
    parser.add_argument("--transcriber-python", type=Path, default=paths.ROOT / ".venv-asr" / "bin" / "python")
    parser.add_argument("--out", type=Path, default=paths.ROOT / "docs" / "results")
    options = parser.parse_args()
    texts = options.sentences.read_text(encoding="utf-8").splitlines()
    figures = judge(options, texts)
    command = ["training/judge.py", "TEACHER", "DEMO"]  # without this machine's paths
    write_result(options.out / "demo.json", script_result("demo", command, figures))
    for complaint in (found := complaints(figures)):
        print(complaint, file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
