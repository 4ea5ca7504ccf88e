"""The targets of the demo voice, and whether measured figures (docs/results/demo.json) meet them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MIN_DNSMOS = 3.2
MIN_DISTILLMOS = 4.0
MAX_WER = 0.03  # Whisper base
MAX_WER_DIFFERENCE = 0.015  # above the teacher's
# "Recognisably the teacher's":
MIN_F0_CORRELATION = 0.6
MAX_F0_CHANGE = 0.1  # of the mean, as a share of the teacher's
MAX_PACE_CHANGE = 0.1  # of the duration, as a share of the teacher's
# "No drift", from the first to the last third of a long text:
MAX_WER_DRIFT = 0.015
MAX_DNSMOS_DRIFT = 0.1
MAX_DISTILLMOS_DRIFT = 0.2

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    value: str
    bar: str
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'NOT MET':8}{self.name}: {self.value} (target: {self.bar})"


def _at_least(name: str, value: float, bar: float) -> Target:
    return Target(name, f"{value:.2f}", f"at least {bar:.2f}", value >= bar)


def _points(name: str, value: float, bar: float) -> Target:
    return Target(name, f"{100 * value:.1f} points", f"at most {100 * bar:.1f}", value <= bar)


def _near(name: str, ratio: float, change: float) -> Target:
    bar = f"{1 - change:.2f} to {1 + change:.2f}"
    return Target(name, f"{ratio:.2f} of the teacher's", bar, abs(ratio - 1) <= change)


def _ends(name: str, ends: dict[str, int]) -> Target:
    return Target(
        f"{name} ended by themselves", f"{ends.get('stop', 0)} of {sum(ends.values())}", "all", set(ends) == {"stop"}
    )


def find_targets(figures: Row) -> Iterator[Target]:
    """Yields targets for what was measured."""
    for voice, sides in figures["voices"].items():
        yield _ends(f"{voice}: sentences", sides["demo"]["ends"])
        if ratings := sides.get("ratings"):
            yield from _rating_targets(voice, ratings)
    if long := figures.get("long"):
        yield from _long_targets(long)


def _rating_targets(voice: str, ratings: Row) -> Iterator[Target]:
    demo, prosody = ratings["demo"], ratings["prosody"]
    wer = demo["wer"]["value"]
    yield _at_least(f"{voice}: DNSMOS", demo["dnsmos"]["value"], MIN_DNSMOS)
    yield _at_least(f"{voice}: DistillMOS", demo["distillmos"]["value"], MIN_DISTILLMOS)
    yield Target(f"{voice}: word error rate", f"{wer:.1%}", f"at most {MAX_WER:.1%}", wer <= MAX_WER)
    yield _points(
        f"{voice}: word error rate above the teacher's", ratings["wer_difference"]["value"], MAX_WER_DIFFERENCE
    )
    if prosody["f0_correlation"] is not None:
        f0_ratio = prosody["demo_f0_hz"] / prosody["teacher_f0_hz"]
        yield _at_least(f"{voice}: F0 correlation", prosody["f0_correlation"], MIN_F0_CORRELATION)
        yield _near(f"{voice}: mean F0", f0_ratio, MAX_F0_CHANGE)
    yield _near(f"{voice}: duration", prosody["duration_ratio"], MAX_PACE_CHANGE)


def _long_targets(long: Row) -> Iterator[Target]:
    dropped = len(long["dropped"])
    yield _ends("long texts", long["ends"])
    yield Target("long texts: dropped sentences", f"{dropped} of {long['sentences']}", "none", not dropped)
    yield _points(
        "long texts: drift of the word error rate", long["wer_last_third"] - long["wer_first_third"], MAX_WER_DRIFT
    )
    for judge, title, bar in (
        ("dnsmos", "DNSMOS", MAX_DNSMOS_DRIFT),
        ("distillmos", "DistillMOS", MAX_DISTILLMOS_DRIFT),
    ):
        loss = long[f"{judge}_first_third"] - long[f"{judge}_last_third"]
        yield Target(f"long texts: loss of {title}", f"{loss:.2f}", f"at most {bar:.2f}", loss <= bar)


# --- against earlier figures ---


def _judged(sides: Row) -> dict[str, tuple[Row, str]]:
    """The demo voice's figures by judge, and the end of their intervals at which the voice is worst."""
    demo, ratings = sides["demo"], sides.get("ratings", {}).get("demo", {})
    found = {
        "word error rate (Whisper tiny.en)": (demo["wer"], "high"),
        "word error rate (Whisper base)": (ratings.get("wer"), "high"),
        "DNSMOS": (ratings.get("dnsmos") or demo["dnsmos"], "low"),
        "DistillMOS": (ratings.get("distillmos"), "low"),
    }
    return {name: (figure, worst) for name, (figure, worst) in found.items() if figure}


def find_regressions(figures: Row, previous: Row) -> Iterator[str]:
    """Judges by which a voice is worse than in earlier figures, by more than their 95 % interval: another choice of
    sentences would change them as much."""
    for voice in figures["voices"].keys() & previous["voices"].keys():
        now, before = (_judged(each["voices"][voice]) for each in (figures, previous))
        for name in now.keys() & before.keys():
            (figure, worst), (earlier, _) = now[name], before[name]
            value, bound = figure["value"], earlier[worst]
            if value > bound if worst == "high" else value < bound:
                yield f"{voice}: {name} {value:.4g} is worse than before ({earlier['value']:.4g}, {worst}: {bound:.4g})"
