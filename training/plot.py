"""The log of a training as plots (SVG), with recognition scores where recognise.py has written them.

python training/plot.py LOG OUT [--recognition FILE ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import paths  # noqa: F401

from oscine.bench.plots import Series, line_plot

# Plot name -> (title, [(stage, value, name in the legend)])
_PLOTS: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "codec": (
        "Codec: distance to the teacher's speech",
        [("codec", "mel", "mel"), ("polish", "mel", "mel, decoder alone"), ("codec", "phones", "phones from code 0")],
    ),
    "judges": (
        "Codec: judges",
        [("codec", "judging", "judging"), ("codec", "made", "made"), ("codec", "features", "features")],
    ),
    "talker": (
        "Talker and predictor: cross-entropy, nats",
        [
            ("talker", "first", "code 0"), ("talker", "watched_first", "code 0, not trained on"),
            ("talker", "rest", "codes 1 to 15"), ("talker", "watched_rest", "codes 1 to 15, not trained on"),
            ("talker", "end", "end of speech"),
        ],
    ),
}  # fmt: skip


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def series(lines: list[dict[str, Any]], stage: str, value: str, name: str) -> Series:
    points = [(line["step"], line[value]) for line in lines if line["stage"] == stage and value in line]
    return Series(name, tuple((float(step), float(y)) for step, y in points))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recognition", type=Path, nargs="*", default=[], help="what recognise.py --json wrote")
    options = parser.parse_args()
    lines = read_log(options.log)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, (title, wanted) in _PLOTS.items():
        drawn = [one for one in (series(lines, *entry) for entry in wanted) if one.points]
        if drawn:
            (options.out / f"{name}.svg").write_text(line_plot(title, "step", "loss", drawn), encoding="utf-8")
    for path in options.recognition:
        for result in json.loads(path.read_text(encoding="utf-8")):
            print(f"{result['folder']}: WER {result['wer']:.1%}, {result['words']} words")


if __name__ == "__main__":
    main()
