"""Sections about the demo voice, in docs/benchmarks.md and its card: quality and speed, from docs/results/demo.json
(training/judge.py), eval-demo.json (oscine eval) and listeners-demo.json (benchmarks.listeners --model demo)."""

from __future__ import annotations

from benchmarks.report_engine import listeners_table
from benchmarks.report_table import Result, Row, origin, paragraph, table
from oscine_eval.score import FIGURES, Figure, shown, shown_range

_PAIRS = ("truncated", "repeated", "DNSMOS")
_FIGURES = {figure.key: figure for figure in FIGURES}


def demo_quality_section(result: Result) -> str:
    return "\n\n".join(["## How well the demo voice speaks", *quality_parts(result)])


def demo_speed_section(result: Result) -> str:
    figures = result["figures"]
    how = """Real sentences, spoken by an engine in its own process with the server's settings. All listeners start at
    once; each requests several sentences one after the other and plays each from its first chunk on. The engine refuses
    streams that it cannot sustain."""
    parts = [paragraph(how), origin(result), paragraph(speed_words(figures)), listeners_table(figures)]
    return "\n\n".join(["## How fast the demo voice is", *parts])


def demo_load_section(result: Result) -> str:
    """Of `oscine eval compare`: sequential requests against concurrent ones."""
    figures = result["figures"]
    counts = " and ".join(map(str, figures["settings"]["concurrency"]))
    how = f"""`oscine eval run` twice, with {counts} requests at once: the built-in English texts, which were not
    written for this voice, with the same seeds. docs/eval.md defines the terms; 95 % intervals in brackets.
    {figures["equal_recordings"]} of {figures["recordings"]} recordings are equal: no sample differs by more than one
    step of 16 bits."""
    rows = [_compared(_FIGURES[key], found) for key, found in figures["differences"].items()]
    shown_table = table(["", *figures["names"], "difference", "verdict"], rows)
    return "\n\n".join(["## The demo voice under load", paragraph(how), origin(result), shown_table])


def _compared(figure: Figure, found: Row) -> list[str]:
    by = shown(figure, found["by"], signed=True)
    spread = shown_range(figure, found["low"], found["high"], signed=True)
    verdict = "none beyond noise" if found["verdict"] == "none" else found["verdict"]
    return [figure.title, *(shown(figure, found[side]) for side in ("first", "second")), f"{by} ({spread})", verdict]


# --- quality ---


def quality_parts(result: Result) -> list[str]:
    figures = result["figures"]
    recognizer = figures["transcriber"]["recognizer"]
    rated = next(iter(figures["voices"].values()))["demo"]["dnsmos"]
    naturalness = f" DNSMOS is the overall score of the first {rated['of']:.0f} of them." if rated else ""
    how = f"""{figures["sentences"]} held-out sentences, each once with each voice, sampled with the checkpoint's own
    settings (its temperature was chosen on the same sentences) and transcribed by {recognizer["name"]} (weights
    {recognizer["sha256"]}: Whisper tiny.en, which makes errors on the teacher, too).{naturalness} docs/eval.md defines
    the terms; 95 % intervals in brackets."""
    return [paragraph(how), origin(result), _quality_table(figures), paragraph(_ends(figures))]


def _quality_table(figures: Row) -> str:
    head = ["voice", "WER, teacher", "WER, demo", "difference", *(f"{what}, teacher / demo" for what in _PAIRS)]
    rows = []
    for voice, sides in figures["voices"].items():
        teacher, demo, difference = sides["teacher"], sides["demo"], sides["wer_difference"]
        by = shown(_FIGURES["wer"], difference["value"], signed=True)
        spread = shown_range(_FIGURES["wer"], difference["low"], difference["high"], signed=True)
        rows.append(
            [
                *(voice, _value(teacher, "wer"), _value(demo, "wer"), f"{by} ({spread})"),
                *(f"{teacher[key]['count']:.0f} / {demo[key]['count']:.0f}" for key in ("truncated", "repeated")),
                f"{_value(teacher, 'dnsmos')} / {_value(demo, 'dnsmos')}",
            ]
        )
    return table(head, rows)


def _value(side: Row, key: str) -> str:
    return "-" if side[key] is None else shown(_FIGURES[key], side[key]["value"])


def _ends(figures: Row) -> str:
    parts = []
    for voice, sides in figures["voices"].items():
        ends = dict(sides["demo"]["ends"])
        total, stopped = sum(ends.values()), ends.pop("stop", 0)
        others = [f"{count} by {reason}" for reason, count in sorted(ends.items())]
        parts.append(", ".join([f"{voice} {stopped} of {total}", *others]))
    return f"Sentences that the model ended itself: {'; '.join(parts)}."


# --- speed ---


def kept_in_real_time(figures: Row) -> list[int]:
    """Numbers of listeners at which none was refused and no player was more than 100 ms behind."""
    rows = figures["listeners"].items()
    return [int(count) for count, row in rows if not row["refused"] and not row["listeners_over_100_ms_late"]]


def speed_words(figures: Row) -> str:
    alone = figures["alone"]
    first, listeners = alone["first_audio_ms"], max(kept_in_real_time(figures), default=0)
    speed = (
        f"One listener: {alone['x_real_time']:.1f} x real time, codec included; first audio after "
        f"{first['median']:.0f} ms (median of {alone['requests']} sequential requests; worst {first['worst']:.0f} ms)."
    )
    if not listeners:
        return speed
    return (
        f"{speed} The largest tested number of listeners kept in real time is {listeners}: none was refused, and no "
        "player was more than 100 ms behind."
    )
