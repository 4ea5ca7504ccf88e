"""Compares the demo voice with its teacher on the held-out sentences and writes docs/results/demo.json.

    .venv/bin/python training/judge.py TEACHER DEMO [--log training/log.jsonl] [--trained-on "NVIDIA H200"] [--rated 40]
        [--judges-python PYTHON --whisper FOLDER [--long LONG]] [--previous docs/results/demo.json]

TEACHER and DEMO are folders that `evaluate.py teacher` and `evaluate.py model` recorded. The transcriber runs in
another environment (`make asr`; DNSMOS: tests/asr/quality.txt). Transcripts are cached in transcripts.json beside the
recordings. With --judges-python all sentences are also rated in a third environment (rate.py, prosody.py), and so is
LONG, the output of `evaluate.py model --alternate`. Prints which targets are met (targets.py). Exits with status 1 if
the demo voice is not good enough to be shipped, or worse than the one of --previous by any judge.
"""

from __future__ import annotations

import argparse
import json
import sys
import wave
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import paths
from long_texts import long_figures
from plot import read_log
from ratings import JudgesProcess, rated_side
from sizes import SPEAKERS
from targets import find_regressions, find_targets
from wave_cache import wave_key

from demo_files import DEMO, fingerprint
from oscine.audio.clips import read_clip, resample
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine_bench.record import script_result, write_result
from oscine_eval.bootstrap import difference_interval
from oscine_eval.recognizer import RATE_HZ
from oscine_eval.recording import Recording
from oscine_eval.score import FIGURES, by_take, score_all, totals
from oscine_eval.transcriber import TranscriberConfig, Transcript
from oscine_eval.transcriber_process import open_transcriber

MAX_WER_DIFFERENCE = 0.08  # above the teacher's own, by Whisper tiny.en: the minimum; targets.py has the targets
_RATED = 40  # sentences with DNSMOS, if the judges' environment does not rate all of them
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
                        key = wave_key(path)
                        if key not in known or (dnsmos and known[key]["dnsmos"] is None):
                            known[key] = asdict(
                                transcriber.transcribe(resample(read_clip(path), RATE_HZ).samples, "en")
                            )
                            _keep(folder, transcriber.about["recognizer"], known)
                    print(f"transcribed {folder}, {'with' if dnsmos else 'without'} DNSMOS", flush=True)

    def recordings(self, folder: Path, texts: list[str]) -> list[Recording]:
        known = _known(folder, self.about["recognizer"])
        pairs = [
            (one, Transcript(**known[wave_key(folder / f"{one.number:03d}.wav")]))
            for one in read_recordings(folder, texts)
        ]
        # Earlier runs may have rated more sentences of one of the two.
        return [
            replace(one, transcript=said.text, dnsmos=said.dnsmos if one.number < self._rated else None)
            for one, said in pairs
        ]


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
    """Speech, steps and seconds over all runs in the log, and the last value of everything that was logged."""
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
    read = [line for line in lines if line["stage"] == "talker" and line.get("begun")]
    return {
        "machine": machine,
        "utterances": sum(line["utterances"] for line in read),
        "hours": sum(line["frames"] for line in read) / FRAME_RATE_HZ / 3600,
        "audio_hours": _audio_hours(lines),
        "stages": stages,
    }


def _audio_hours(lines: list[Row]) -> float:
    """Hours of the decoder's runs together. The speech of a run may grow."""
    hours: list[float] = []
    for line in lines:
        if line["stage"] != "codec" or "hours" not in line:
            continue
        if line.get("begun"):
            hours.append(line["hours"])
        else:
            hours[-1] = line["hours"]
    return sum(hours)


def check_recordings(folder: Path, model: Path, weights: str) -> None:
    for voice in SPEAKERS:
        spoken = json.loads((folder / voice / "spoken.json").read_text(encoding="utf-8"))
        if spoken["weights"] != weights:
            raise SystemExit(f"{folder / voice} was spoken by {spoken['weights']}, {model} is {weights}")
        if spoken["asked"] != _AS_USUAL:
            raise SystemExit(f"{folder / voice} was asked for with {spoken['asked']}, not with {_AS_USUAL}")


def add_ratings(options: argparse.Namespace, texts: list[str], figures: Row) -> None:
    """Adds the figures of the judges' environment."""
    judges = JudgesProcess(options.judges_python, options.whisper)
    sides = {"demo": options.demo, "teacher": options.teacher}
    folders = [folder / voice for folder in sides.values() for voice in SPEAKERS]
    figures["judges"] = judges.rate(folders, options.sentences, "--limit", str(len(texts)))
    for voice in SPEAKERS:
        rated = {
            name: rated_side(folder / voice, read_recordings(folder / voice, texts)) for name, folder in sides.items()
        }
        figures["voices"][voice]["ratings"] = {
            **{name: one for name, (one, _) in rated.items()},
            "wer_difference": wer_difference(rated["teacher"][1], rated["demo"][1]),
            "prosody": judges.compare_prosody(options.teacher / voice, options.demo / voice, len(texts)),
        }
    if options.long:
        judges.rate([options.long / voice for voice in SPEAKERS], options.long_texts, "--thirds")
        figures["long"] = long_figures(options.long, options.long_texts.read_text(encoding="utf-8").splitlines())


def judge(options: argparse.Namespace, texts: list[str]) -> Row:
    weights = fingerprint(options.model)
    for folder in (options.demo, options.long) if options.long else (options.demo,):
        check_recordings(folder, options.model, weights)
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
    figures = {
        "weights": weights,
        "sentences": len(texts),
        "transcriber": transcripts.about,
        "voices": voices,
        "training": training,
    }
    if options.judges_python:
        add_ratings(options, texts, figures)
    return figures


def complaints(figures: Row, previous: Row | None) -> list[str]:
    """Reasons not to ship the voice."""
    found = list(find_regressions(figures, previous)) if previous else []
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
    rated = f"sentences of each voice with DNSMOS; default: {_RATED}, or none if the judges rate all"
    parser.add_argument("--rated", type=int, help=rated)
    parser.add_argument("--judges-python", type=Path, help="Python of the environment of rate.py and prosody.py")
    parser.add_argument("--whisper", type=Path, help="Whisper base for CTranslate2; required by --judges-python")
    parser.add_argument("--long", type=Path, help="recordings of long texts")
    parser.add_argument("--long-texts", type=Path, default=paths.TRAINING / "texts" / "long.txt")
    parser.add_argument("--previous", type=Path, help="results that must not become worse")
    parser.add_argument("--transcriber-python", type=Path, default=paths.ROOT / ".venv-asr" / "bin" / "python")
    parser.add_argument("--out", type=Path, default=paths.ROOT / "docs" / "results")
    options = parser.parse_args()
    if bool(options.judges_python) != bool(options.whisper) or (options.long and not options.judges_python):
        parser.error("--judges-python and --whisper need each other, and --long needs both")
    if options.rated is None:
        options.rated = 0 if options.judges_python else _RATED
    # Now: it may be the file that is written.
    previous = json.loads(options.previous.read_text(encoding="utf-8"))["figures"] if options.previous else None
    texts = options.sentences.read_text(encoding="utf-8").splitlines()
    figures = judge(options, texts)
    command = ["training/judge.py", "TEACHER", "DEMO"]  # without this machine's paths
    write_result(options.out / "demo.json", script_result("demo", command, figures))
    for target in find_targets(figures):
        print(target)
    for complaint in (found := complaints(figures, previous)):
        print(complaint, file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
