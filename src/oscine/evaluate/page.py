"""A page to listen to a set: its figures, then every recording with its text and what was heard, worst first.

One file beside the recordings; it needs no network and no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from oscine.evaluate.recording import Evaluation, Recording
from oscine.evaluate.score import FIGURES, Mark, shown, shown_range
from oscine.evaluate.word_error_rate import Unit

_RATE_NAMES: dict[Unit, str] = {"word": "WER", "character": "CER"}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
:root{{color-scheme:light dark;--ink:#222;--soft:#555;--line:#ddd;--bad:#a32a2a;--good:#1d6b34;--card:#f7f7f5}}
@media (prefers-color-scheme:dark){{:root{{--ink:#e4e4e2;--soft:#a5a5a0;--line:#3a3a3a;--bad:#f08b80;--good:#7fcf96;
--card:#222223}}body{{background:#181819}}}}
body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--ink)}}
table{{border-collapse:collapse;margin:.6rem 0 1.6rem;font-variant-numeric:tabular-nums}}
th,td{{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right}}
th:first-child,td:first-child,td:last-child,th:last-child{{text-align:left}}td:not(:last-child),th{{white-space:nowrap}}.wide{{overflow-x:auto}}
.origin,.facts,dt{{color:var(--soft)}}code{{font-size:.85em}}
article{{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.7rem 1rem;margin:.8rem 0}}
article h2{{font-size:1rem;margin:0 0 .4rem;display:flex;flex-wrap:wrap;gap:.6rem;align-items:baseline}}
audio{{width:100%;height:2.2rem}}dl{{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;margin:.5rem 0}}
dd{{margin:0;overflow-wrap:anywhere}}.flag{{color:var(--bad);font-weight:600}}.facts{{margin:.2rem 0 0;font-size:.9em}}
del{{color:var(--bad)}}ins{{color:var(--good);text-decoration:underline}}</style></head><body>
{body}
</body></html>
"""


def summary(evaluation: Evaluation, marks: Sequence[Mark]) -> list[tuple[str, str, str, str]]:
    """For tables: figure, value, 95 % interval, what it counts. Only what was measured, and why something was not."""
    totals: dict[str, dict[str, float] | None] = evaluation.result["figures"]["totals"]
    ears: dict[str, Any] | None = evaluation.result["figures"]["ears"]
    lines = []
    for figure in FIGURES:
        total = totals[figure.key]
        if total is None:
            if figure.key == "dnsmos" and ears is not None:
                lines.append((figure.title, "-", "", ears.get("without_dnsmos", "not asked")))
            continue
        counted = (f"{total['count']:g} of " if figure.percent else "") + f"{total['of']:g} {figure.what}"
        counted += _kinds(figure.key, marks) if total["count"] else ""
        spread = shown_range(figure, total["low"], total["high"])
        lines.append((figure.title, shown(figure, total["value"]), spread, counted))
    return lines


def _kinds(key: str, marks: Sequence[Mark]) -> str:
    unit = {"wer": "word", "cer": "character"}.get(key)
    if unit is None:
        return ""
    alignments = [mark.alignment for mark in marks if mark.alignment is not None and mark.unit == unit]
    counts = {name: sum(getattr(one, name) for one in alignments) for name in ("exchanged", "missing", "added")}
    return ": " + ", ".join(f"{count} {name}" for name, count in counts.items())


def origin(evaluation: Evaluation) -> str:
    result = evaluation.result
    figures, made = result["figures"], result["versions"]
    asked, ears = figures["target"], figures["ears"]
    spoken = f"{asked['preset']}{' (' + ', '.join(asked['served']) + ')' if asked['served'] else ''}"
    heard = "not scored yet" if ears is None else f"heard by {ears['recogniser']['name']}"
    seeded = any(recording.seed is not None for recording in evaluation.recordings)
    seed = f"seed {figures['workload']['seed']}" if seeded else "no seeds sent"
    return (
        f"{result['machine']}; {spoken}, {figures['concurrency']} at once; texts: {figures['workload']['name']}, "
        f"{seed}; {heard}; oscine {made['oscine']}, commit {result['commit']}, {result['date']}"
    )


def worst_first(recordings: Sequence[Recording], marks: Sequence[Mark]) -> list[tuple[Recording, Mark]]:
    """What failed, then by flags, then by the share of errors."""

    def badness(pair: tuple[Recording, Mark]) -> tuple[bool, int, float, int]:
        recording, mark = pair
        return recording.file is not None, -len(mark.flags), -mark.error_share, recording.number

    return sorted(zip(recordings, marks, strict=True), key=badness)


def page(evaluation: Evaluation, marks: Sequence[Mark]) -> str:
    result = evaluation.result
    title = f"oscine eval: {evaluation.name}"
    head = ("", "", "95 % interval", "of")
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in summary(evaluation, marks)
    )
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="origin">{escape(origin(evaluation))}<br><code>{escape(result["command"])}</code></p>',
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>',
        *(_article(recording, mark) for recording, mark in worst_first(evaluation.recordings, marks)),
    ]
    return _PAGE.format(title=escape(title), body="\n".join(body))


def _article(recording: Recording, mark: Mark) -> str:
    name = f"{recording.number:03d}"
    badges = [f'<span class="flag">{escape(flag)}</span>' for flag in (*mark.flags, *mark.warnings)]
    if recording.failure is not None:
        badges.append('<span class="flag">failed</span>')
    if mark.alignment is not None:
        counted = f"{mark.alignment.errors} of {mark.alignment.wanted}"
        badges.append(f"<span>{_RATE_NAMES[mark.unit]} {mark.error_share:.0%} ({counted})</span>")
    parts = [f'<article id="r{name}"><h2>{name} {" ".join(badges)}</h2>']
    if recording.file is not None:
        source, label = escape(recording.file), f"recording {name}"
        parts.append(f'<audio controls preload="none" src="{source}" aria-label="{label}"></audio>')
    told = {"text": escape(recording.text)}
    if recording.failure is not None:
        told["failure"] = escape(recording.failure)
    if recording.heard is not None:
        told["heard"] = escape(recording.heard) or "<em>nothing</em>"
    if mark.alignment is not None and mark.alignment.errors:
        told["difference"] = _difference(mark)
    parts.append("<dl>" + "".join(f"<dt>{name}</dt><dd>{said}</dd>" for name, said in told.items()) + "</dl>")
    parts.append(f'<p class="facts">{escape(_facts(recording))}</p></article>')
    return "\n".join(parts)


def _difference(mark: Mark) -> str:
    assert mark.alignment is not None
    shown_pairs = []
    for wanted, heard in mark.alignment.pairs:
        if wanted == heard:
            shown_pairs.append(escape(wanted or ""))
            continue
        missing = f"<del>{escape(wanted)}</del>" if wanted is not None else ""
        added = f"<ins>{escape(heard)}</ins>" if heard is not None else ""
        shown_pairs.append(missing + added)
    return (" " if mark.unit == "word" else "").join(shown_pairs)


def _facts(recording: Recording) -> str:
    facts = [f"seed {recording.seed}" if recording.seed is not None else "a seed of the server's own"]
    if recording.take:
        facts.append(f"take {recording.take + 1}")
    if recording.file is not None:
        facts.insert(0, f"{recording.audio_s:.2f} s")
    if recording.finish_reason is not None:
        facts.append(f"ended by {recording.finish_reason}")
    if recording.dnsmos is not None:
        facts.append("DNSMOS " + ", ".join(f"{name} {value:.2f}" for name, value in recording.dnsmos.items()))
    if recording.similarity is not None:
        facts.append(f"similarity {recording.similarity:.3f}")
    return "; ".join(facts)
