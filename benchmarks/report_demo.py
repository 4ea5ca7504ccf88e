"""Sections about the demo voice, in docs/benchmarks.md and its card: quality and speed, from docs/results/demo.json
(training/judge.py), eval-*.json (oscine eval), joins.json (benchmarks.joins) and
listeners-demo.json (benchmarks.listeners --model demo)."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report_sections import listeners_table
from benchmarks.report_table import ROOT, Columns, Result, Row, blocks, origin, paragraph, section, table, table_of
from oscine_eval.score import FIGURES, Figure, shown, shown_range

WRITTEN = ROOT / "src" / "oscine_eval" / "texts" / "written.tsv"
_FLAGS = ("truncated", "repeated")
_FIGURES = {figure.key: figure for figure in FIGURES}


def demo_quality_section(results: Sequence[Result]) -> str:
    return blocks("## How well the demo voice speaks", *quality_parts(results[0]))


def demo_speed_section(results: Sequence[Result]) -> str:
    how = """Real sentences, spoken by an engine in its own process with the server's settings. All listeners start at
    once; each requests several sentences one after the other and plays each from its first chunk on. The engine refuses
    streams that it cannot sustain."""

    def body(result: Result) -> str:
        return blocks(paragraph(speed_words(result["figures"])), listeners_table(result))

    return section("How fast the demo voice is", paragraph(how), results, body)


def demo_load_section(results: Sequence[Result]) -> str:
    """The section of `oscine eval compare`: sequential requests against concurrent ones."""
    (result,) = results
    figures = result["figures"]
    counts = " and ".join(map(str, figures["settings"]["concurrency"]))
    how = f"""`oscine eval run` twice, with {counts} requests at once: the built-in English texts, which were not
    written for this voice, with the same seeds. docs/eval.md defines the terms; 95 % intervals in brackets.
    {figures["equal_recordings"]} of {figures["recordings"]} recordings are equal: no sample differs by more than one
    step of 16 bits."""
    rows = [_compared(_FIGURES[key], found) for key, found in figures["differences"].items()]
    shown_table = table(["", *figures["names"], "difference", "verdict"], rows)
    return blocks("## The demo voice under load", paragraph(how), _compared_origin(result), shown_table)


def demo_gpu_section(results: Sequence[Result]) -> str:
    """The section of `oscine eval compare`: a CPU against a GPU, one request against many at once, and FP8 weights."""
    machines = [result["figures"]["settings"].get("machine") for result in results]
    devices = sorted({f"{one[0]}, and {one[1]}" for one in machines if one})
    how = f"""The same texts and seeds, recorded on different devices or with different numbers of requests at once, and
    transcribed by the same recognizer: the built-in English texts (40) and the sentences that were held out of the
    voice's training (100), two recordings of each ({"; ".join(devices)}). A CPU computes in fp32 and a GPU in bf16, so
    their codes are different samples of the same speech. On a GPU, Triton's kernels speak this voice: CUDA's and those
    of FP8 have only the published widths. FP8 weights are therefore widened again, and spoken by the CPU. Equal: no
    sample differs by more than one step of 16 bits."""
    rows = []
    for result in results:
        figures, wer = result["figures"], result["figures"]["differences"]["wer"]
        _, *shown_wer = _compared(_FIGURES["wer"], wer)
        equal = f"{figures['equal_recordings']} of {figures['recordings']}"
        rows.append([f"{wer['texts']}", *figures["names"], *shown_wer, equal])
    head = ["texts", "first", "second", "WER, first", "WER, second", "difference", "verdict", "equal recordings"]
    origins = list(map(_compared_origin, results))
    return blocks("## The demo voice on a GPU", paragraph(how), *origins, table(head, rows))


def _compared_origin(result: Result) -> str:
    """The origin, with the commits of the recordings if they are not the comparison's."""
    recorded = list(dict.fromkeys(result["figures"]["settings"].get("commit", ())))
    if set(recorded) <= {result["commit"]}:
        return origin(result)
    return f"{origin(result)}; recorded with commit{'s' * (len(recorded) > 1)} {' and '.join(recorded)}"


def _compared(figure: Figure, found: Row) -> list[str]:
    by = shown(figure, found["by"], signed=True)
    spread = shown_range(figure, found["low"], found["high"], signed=True)
    verdict = "none beyond noise" if found["verdict"] == "none" else found["verdict"]
    return [figure.title, *(shown(figure, found[side]) for side in ("first", "second")), f"{by} ({spread})", verdict]


def demo_written_section(results: Sequence[Result]) -> str:
    """The section of `oscine eval run --texts written`."""
    (result,) = results
    kinds = {text: kind for kind, text, _ in (line.split("\t") for line in WRITTEN.read_text("utf-8").splitlines())}
    counts: dict[str, list[int]] = {}
    for one in result["figures"]["recordings"]:
        count = counts.setdefault(kinds[one["text"]], [0, 0])
        count[0] += one["substitutions"] + one["deletions"] + one["insertions"]
        count[1] += one["reference_length"]
    wrong, words = (sum(count[side] for count in counts.values()) for side in (0, 1))
    how = f"""`oscine eval run --texts written`: texts as people write them, with default settings, transcribed by
    Whisper base. {wrong} of {words} words are wrong ({100 * wrong / words:.1f} %), some only in their
    spelling."""
    rows = [[kind, f"{count[0]} of {count[1]}"] for kind, count in sorted(counts.items(), key=lambda kind: -kind[1][0])]
    return blocks("## The demo voice with texts as people write them", paragraph(how), origin(result),
                  table(["class", "words wrong"], rows))  # fmt: skip


def demo_joins_section(results: Sequence[Result]) -> str:
    """The section of benchmarks/joins.py."""
    (result,) = results
    figures = result["figures"]
    how = f"""The first two segments of {figures["texts"]} long texts, cut and spoken as by the server. Absolute jumps
    between the medians of the {figures["around_s"]} s before and after: where segments meet, and in the pauses
    between sentences inside a segment. Median / p95, and how many. Pace: phones per second of two segments."""
    head = ["voice", "pitch, joins", "pitch, pauses", "level, joins", "level, pauses", "pace, joins"]
    rows = []
    for voice, row in figures["voices"].items():
        cells = []
        for name, unit in (("f0_semitones", "semitones"), ("level_db", "dB")):
            for where in ("joins", "pauses"):
                one = row[name][where]
                cells.append(f"{one['median']:.1f} / {one['p95']:.1f} {unit} ({one['count']})")
        rows.append([voice, *cells, f"{row['pace_percent']['median']:.1f} %"])
    return blocks("## Where segments of the demo voice meet", paragraph(how), origin(result), table(head, rows))


# --- quality ---


def quality_parts(result: Result) -> list[str]:
    figures = result["figures"]
    recognizer = figures["transcriber"]["recognizer"]
    rated = next(iter(figures["voices"].values()))["demo"]["dnsmos"]
    naturalness = f" DNSMOS is the overall score of the first {rated['of']:.0f} of them." if rated else ""
    how = f"""{figures["sentences"]} held-out sentences, each once with each voice, sampled with the checkpoint's own
    settings and transcribed by {recognizer["name"]} (weights {recognizer["sha256"]}: Whisper tiny.en, which makes
    errors on the teacher, too).{naturalness} docs/eval.md defines the terms; 95 % intervals in brackets."""
    parts = [paragraph(how), origin(result), _quality_table(figures), paragraph(_ends(figures))]
    if "judges" in figures:
        parts += [paragraph(_judges_words(figures)), table_of(_RATINGS, figures["voices"])]
        parts.append(table_of(_PROSODY, figures["voices"]))
    if "long" in figures:
        parts += [paragraph(_long_words(figures["long"])), _long_table(figures["long"])]
    return parts


def _quality_table(figures: Row) -> str:
    """DNSMOS is in the table of the ratings if there is one."""
    scored = ("dnsmos",) * any("ratings" not in one or one["demo"]["dnsmos"] for one in figures["voices"].values())
    pairs = (*_FLAGS, *("DNSMOS" for _ in scored))
    head = ["voice", "WER, teacher", "WER, demo", "difference", *(f"{what}, teacher / demo" for what in pairs)]
    rows = []
    for voice, sides in figures["voices"].items():
        teacher, demo = sides["teacher"], sides["demo"]
        rows.append(
            [
                *(voice, _value(teacher, "wer"), _value(demo, "wer"), _difference(sides["wer_difference"])),
                *(f"{teacher[key]['count']:.0f} / {demo[key]['count']:.0f}" for key in _FLAGS),
                *(f"{_value(teacher, key)} / {_value(demo, key)}" for key in scored),
            ]
        )
    return table(head, rows)


def _difference(found: Row) -> str:
    by = shown(_FIGURES["wer"], found["value"], signed=True)
    return f"{by} ({shown_range(_FIGURES['wer'], found['low'], found['high'], signed=True)})"


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


# --- ratings ---


def _judges_words(figures: Row) -> str:
    judges = figures["judges"]
    return f"""All of these recordings, rated by DNSMOS (overall; speechmos {judges["speechmos"]}) and by DistillMOS
    {judges["distillmos"]}, which predict mean opinion scores from 1 to 5, and transcribed by Whisper base (weights
    {judges["whisper"]}). Pitch and pace are medians over the sentences: the correlation of log F0 with the teacher's
    after time alignment, mean F0, and the duration without silence at the ends as a share of the teacher's."""


_RATINGS: Columns = {
    "voice": "{key}",
    **{
        f"{title}, teacher / demo": f"{{ratings[teacher][{key}][value]:.2f}} / {{ratings[demo][{key}][value]:.2f}}"
        for key, title in (("dnsmos", "DNSMOS"), ("distillmos", "DistillMOS"))
    },
    "WER, teacher / demo": lambda row: " / ".join(_value(row["ratings"][side], "wer") for side in ("teacher", "demo")),
    "difference": lambda row: _difference(row["ratings"]["wer_difference"]),
}
_PROSODY: Columns = {
    "voice": "{key}",
    "F0 correlation": lambda row: _or_dash(row["ratings"]["prosody"]["f0_correlation"], ".2f"),
    "mean F0 in Hz, teacher / demo": lambda row: " / ".join(
        _or_dash(row["ratings"]["prosody"][f"{side}_f0_hz"], ".0f") for side in ("teacher", "demo")
    ),
    "duration, demo / teacher": "{ratings[prosody][duration_ratio]:.2f}",
}


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _long_words(long: Row) -> str:
    """WER is that of Whisper base."""
    stopped, total, dropped = long["ends"].get("stop", 0), sum(long["ends"].values()), len(long["dropped"])
    return f"""{long["texts"]} texts of {long["shortest_s"]:.0f} to {long["longest_s"]:.0f} s of speech, with the voices
    in turn, spoken in segments as by the server: word error rate {100 * long["wer"]:.1f} %. The model ended
    {stopped} of {total} itself. {dropped} of {long["sentences"]} sentences count as dropped: fewer than 40 % of
    their words were recognized."""


def _long_table(long: Row) -> str:
    rows = [
        [f"{name} third", f"{100 * long[f'wer_{name}_third']:.1f} %"]
        + [f"{long[f'{judge}_{name}_third']:.2f}" for judge in ("dnsmos", "distillmos")]
        for name in ("first", "last")
    ]
    return table(["long texts", "WER", "DNSMOS", "DistillMOS"], rows)


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
