"""Plots the log of a training (SVG) and the ratings of all runs (runs.json).

python training/plot.py --log WORK/log.jsonl [--out docs/images/training]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import paths

from oscine_bench.plots import Series, line_plot

# Plot name -> (title, label of the y axis, [(stage, value, name in the legend)])
_PLOTS: dict[str, tuple[str, str, list[tuple[str, str, str]]]] = {
    "decoder": (
        "Decoder: distances to the teacher's speech",
        "loss",
        [
            ("codec", "mel", "mel"), ("codec", "phase", "phases of low harmonics"),
            ("codec", "heads", "phases, heads"), ("codec", "spectrum", "spectrum, head"),
            ("codec", "recognized", "phones in the audio"), ("codec", "recognized_true", "phones, teacher's audio"),
        ],
    ),
    "talker": (
        "Talker and predictor: cross-entropy",
        "nats",
        [
            ("talker", "first", "code 0"), ("talker", "watched_first", "code 0, validation"),
            ("talker", "rest", "codes 1 to 15"), ("talker", "watched_rest", "codes 1 to 15, validation"),
            ("talker", "watched_next_phone", "next phone, validation"),
            ("talker", "watched_second_next", "the phone after it, validation"),
        ],
    ),
    "reading": (
        "Talker: share of validation frames",
        "share",
        [
            ("talker", "watched_looked_right", "attends to the spoken word"),
            ("talker", "watched_first_right", "code 0 correct"),
        ],
    ),
}  # fmt: skip
_SIDES = {"decoder": "decoder on the teacher's codes", "voice": "whole voice"}
_JUDGES = {  # plot name -> key in runs.json, title, label of the y axis, factor
    "recognition": ("wer", "Word error rate of each run (Whisper base)", "word error rate, %", 100),
    "naturalness": ("distillmos", "DistillMOS of each run", "DistillMOS", 1),
}


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def series(lines: list[dict[str, Any]], stage: str, value: str, name: str) -> Series:
    """A run that was started again (--again) continues the previous curve."""
    points: list[tuple[float, float]] = []
    before = last = 0
    for line in lines:
        if line["stage"] == stage and "step" in line:
            before, last = before + last * (line["step"] < last), line["step"]
            if value in line:
                points.append((float(before + last), float(line[value])))
    return Series(name, tuple(points))


def runs_plot(runs: list[dict[str, Any]], key: str, title: str, y_name: str, factor: float) -> str:
    """Means of both voices."""
    drawn = [
        Series(name, tuple((float(run["run"]), factor * sum(run[side][key]) / 2) for run in runs if side in run))
        for side, name in _SIDES.items()
    ]
    return line_plot(title, "run", y_name, drawn, log_x=False, log_y=key == "wer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True, help="of the run, in its work folder")
    parser.add_argument("--runs", type=Path, default=paths.TRAINING / "runs.json")
    parser.add_argument("--out", type=Path, default=paths.ROOT / "docs" / "images" / "training")
    options = parser.parse_args()
    lines = read_log(options.log)
    runs = json.loads(options.runs.read_text(encoding="utf-8"))
    plots = {name: runs_plot(runs, *judge) for name, judge in _JUDGES.items()}
    for name, (title, y_name, wanted) in _PLOTS.items():
        # A curve needs two points.
        drawn = [one for one in (series(lines, *entry) for entry in wanted) if len(one.points) > 1]
        if drawn:
            plots[name] = line_plot(title, "step", y_name, drawn, log_x=False)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, svg in plots.items():
        (options.out / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
