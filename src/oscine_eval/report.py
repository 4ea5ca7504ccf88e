"""Formats the summary of an evaluation, and its HTML page: figures, then every recording, worst first. The page lies
next to the recordings; it needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from oscine_eval.optional import import_optional
from oscine_eval.recording import Evaluation, Recording
from oscine_eval.score import FIGURES, Score, shown, shown_range


def summary(evaluation: Evaluation, scores: Sequence[Score]) -> list[tuple[str, str, str, str]]:
    """Returns the rows of a table: figure, value, 95 % interval, counts. Figures that were not measured are left
    out."""
    lines = []
    transcriber = evaluation.figures["transcriber"]
    for figure in FIGURES:
        total: dict[str, float] | None = evaluation.figures["totals"][figure.key]
        if total is None:
            if figure.key == "dnsmos" and transcriber is not None:
                lines.append((figure.title, "-", "", transcriber.get("without_dnsmos", "not measured")))
            continue
        counts = (f"{total['count']:g} of " if figure.percent else "") + f"{total['of']:g} {figure.counted}"
        counts += _error_kinds(figure.key, scores) if total["count"] else ""
        spread = shown_range(figure, total["low"], total["high"])
        lines.append((figure.title, shown(figure, total["value"]), spread, counts))
    return lines


def _error_kinds(key: str, scores: Sequence[Score]) -> str:
    unit = {"wer": "word", "cer": "character"}.get(key)
    if unit is None:
        return ""
    alignments = [score.alignment for score in scores if score.alignment is not None and score.unit == unit]
    kinds = ("substitutions", "deletions", "insertions")
    return ": " + ", ".join(f"{sum(getattr(one, kind) for one in alignments)} {kind}" for kind in kinds)


def origin(evaluation: Evaluation) -> str:
    result, figures = evaluation.result, evaluation.figures
    target, transcriber = figures["target"], figures["transcriber"]
    server = f"{target['preset']}{' (' + ', '.join(target['served']) + ')' if target['served'] else ''}"
    by = "not scored yet" if transcriber is None else f"transcribed by {transcriber['recognizer']['name']}"
    has_seeds = any(recording.seed is not None for recording in evaluation.recordings)
    seed = f"seed {figures['workload']['seed']}" if has_seeds else "no seeds sent"
    return (
        f"{result['machine']}; {server}, {figures['concurrency']} at once; texts: {figures['workload']['name']}, "
        f"{seed}; {by}; oscine {result['versions']['oscine']}, commit {result['commit']}, {result['date']}"
    )


def html(evaluation: Evaluation, scores: Sequence[Score]) -> str:
    jinja2 = import_optional("jinja2", "jinja2", "eval")
    template = resources.files(__package__).joinpath("templates", "report.html.j2").read_text(encoding="utf-8")
    page: str = (
        jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            title=f"oscine eval: {evaluation.name}",
            origin=origin(evaluation),
            command=evaluation.result["command"],
            summary=summary(evaluation, scores),
            recordings=[(one, score, _facts(one)) for one, score in worst_first(evaluation.recordings, scores)],
        )
    )
    return page


def worst_first(recordings: Sequence[Recording], scores: Sequence[Score]) -> list[tuple[Recording, Score]]:
    """Orders failures first, then by number of flags, then by error rate."""

    def key(pair: tuple[Recording, Score]) -> tuple[bool, int, float, int]:
        recording, score = pair
        return recording.file is not None, -len(score.flags), -score.error_rate, recording.number

    return sorted(zip(recordings, scores, strict=True), key=key)


def _facts(recording: Recording) -> list[str]:
    facts = [f"{recording.audio_s:.2f} s"] if recording.file is not None else []
    facts.append(f"seed {recording.seed}" if recording.seed is not None else "a seed chosen by the server")
    if recording.take:
        facts.append(f"take {recording.take + 1}")
    if recording.finish_reason is not None:
        facts.append(f"finish reason {recording.finish_reason}")
    if recording.dnsmos is not None:
        facts.append("DNSMOS " + ", ".join(f"{name} {value:.2f}" for name, value in recording.dnsmos.items()))
    if recording.similarity is not None:
        facts.append(f"similarity {recording.similarity:.3f}")
    return facts
