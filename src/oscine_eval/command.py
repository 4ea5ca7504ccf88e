"""`oscine eval run | score | compare`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from oscine.errors import OscineError, RequestError
from oscine_bench.target_options import INTERRUPTED, Lengths, TargetOptions, Url, with_option_groups

if TYPE_CHECKING:
    from oscine_eval.recording import Evaluation
    from oscine_eval.run import EvaluationRun
    from oscine_eval.transcriber import Transcriber, TranscriberConfig

eval_app = typer.Typer(no_args_is_help=True, help="Measure how well any speech server speaks.")
console = Console(stderr=True)  # standard output is for results

COMPARISON = "oscine eval compare"  # kind of a result

Folder = Annotated[Path, typer.Argument(help="A folder of `oscine eval run`, or the result in it")]


@dataclass(frozen=True, kw_only=True)
class TranscriberOptions:
    recognizer: Annotated[
        str | None, typer.Option(help="A Whisper folder for CTranslate2, or a name that faster-whisper can download")
    ] = None
    device: Annotated[str, typer.Option(help="Device of the recognizer: cpu or cuda")] = "cpu"
    transcriber_python: Annotated[
        Path | None, typer.Option(help="Another Python that has faster-whisper; it transcribes instead of this one")
    ] = None
    dnsmos: Annotated[bool, typer.Option(metavar="", help="Rate with DNSMOS too, if speechmos is installed")] = True
    similarity: Annotated[
        Path | None, typer.Option(help="ONNX speaker model: compares each recording with the reference clip")
    ] = None
    reference: Annotated[
        Path | None, typer.Option(help="Clip of the expected voice; default for run: its --ref-audio")
    ] = None

    def config(self, ref_audio: Path | None = None) -> tuple[TranscriberConfig, Path | None]:
        """And the reference clip, if similarity is measured."""
        from oscine_eval.transcriber import TranscriberConfig

        config = TranscriberConfig(recognizer=self.recognizer, device=self.device, dnsmos=self.dnsmos)
        if self.similarity is None:
            if self.reference is not None:
                raise RequestError("--reference needs --similarity, an ONNX speaker model", "reference")
            return config, None
        clip = self.reference or ref_audio
        if clip is None:
            raise RequestError("--similarity needs --reference, a clip of the expected voice", "reference")
        return replace(config, speaker_model=str(self.similarity)), clip

    def score_command(self, folder: Path, clip: Path | None, *, is_missing: bool) -> str:
        """Returns the command that scores the recordings later with the same options. `is_missing`: this Python cannot
        transcribe."""
        values = {
            "--recognizer": self.recognizer,
            "--device": None if self.device == "cpu" else self.device,
            "--transcriber-python": "PYTHON" if is_missing else self.transcriber_python,
            "--similarity": self.similarity,
            "--reference": clip,
        }
        words = [word for name, value in values.items() if value is not None for word in (name, str(value))]
        return shlex.join(["oscine", "eval", "score", str(folder), *words, *([] if self.dnsmos else ["--no-dnsmos"])])


@eval_app.command()
@with_option_groups
def run(
    url: Url,
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder for recordings, result and page")],
    server: TargetOptions,
    options: TranscriberOptions,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Concurrent requests")] = 1,
    repeat: Annotated[int, typer.Option(help="Takes of every text, with different seeds")] = 1,
    lengths: Lengths = "short,medium,long",
) -> None:
    """Record a set of texts through a server, transcribe, score, and write an HTML page with all recordings.

    `--texts written` is a set of 164 texts as people write them, with prices, dates, addresses, emoji and Markdown.
    """
    from oscine_bench.workload import Workload
    from oscine_eval.optional import MissingLibraryError
    from oscine_eval.run import EvaluationRun, with_finish_reason
    from oscine_eval.transcriber_process import open_transcriber
    from oscine_eval.transcription import check_languages
    from oscine_eval.word_error_rate import WRITTEN, check_libraries, spoken_forms

    config, clip = options.config(server.ref_audio)
    target = with_finish_reason(server.make_target(url))
    if server.texts == WRITTEN:
        workload = Workload("as people write", tuple(spoken_forms()), server.seed)
    else:
        workload = server.workload(lengths)
    recorder = EvaluationRun(target, workload, out, concurrency, repeat, server.timeout)
    missing, transcriber = "", None
    with ExitStack() as stack:
        try:  # before recording, so that errors come early
            check_libraries()
            transcriber = stack.enter_context(open_transcriber(config, options.transcriber_python))
            check_languages(recorder.languages, transcriber, server.language)
        except MissingLibraryError as error:
            if options.recognizer or options.transcriber_python or options.similarity:
                raise
            missing = str(error)
        command = options.score_command(out, clip, is_missing=bool(missing))
        later = f"The recordings are kept; score them with: {command}"
        evaluation = _record(recorder, server, later)
        if transcriber is not None:
            with _interruptible(f"interrupted. {later}"):
                evaluation = _transcribe(evaluation, transcriber, clip)
            evaluation = _save(evaluation)
    _finish(evaluation, [f"not scored: {missing}", later] if missing else [])


@eval_app.command()
@with_option_groups
def score(
    folder: Folder,
    options: TranscriberOptions,
    language: Annotated[
        str | None, typer.Option(help="Language of the texts; auto: detected by script; default: as recorded")
    ] = None,
) -> None:
    """Transcribe and score existing recordings, for the first time or again."""
    from oscine_eval.recording import read_evaluation
    from oscine_eval.transcriber_process import open_transcriber
    from oscine_eval.word_error_rate import check_libraries

    evaluation = read_evaluation(folder)
    config, clip = options.config()
    check_libraries()
    unchanged = f"interrupted; the result in {evaluation.folder} is unchanged"
    with _interruptible(unchanged), open_transcriber(config, options.transcriber_python) as transcriber:
        evaluation = _transcribe(evaluation, transcriber, clip, language)
    _finish(_save(evaluation))


@eval_app.command()
def compare(
    first: Folder,
    second: Folder,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the comparison")] = None,
) -> None:
    """Compare two servers or settings on the same texts and seeds: differences with 95 % intervals."""
    from oscine_bench.record import make_result, write_result
    from oscine_eval.compare import compare, conclusion
    from oscine_eval.recording import read_evaluation
    from oscine_eval.score import shown, shown_range

    if out is not None:
        _check_replaceable(out)
    found = compare(read_evaluation(first), read_evaluation(second))
    verdicts = {"none": "no difference beyond noise", "differs": "differs", "too few": "too few texts"}
    verdicts |= {"first worse": f"{found.names[0]} is worse", "second worse": f"{found.names[1]} is worse"}
    rows = []
    for one in found.differences:
        values = [shown(one.figure, value) for value in (one.first, one.second)]
        by, spread = shown(one.figure, one.by, signed=True), shown_range(one.figure, one.low, one.high, signed=True)
        rows.append((one.figure.title, *values, by, spread, verdicts[one.verdict]))
    _print_table(("", *found.names, "difference", "95 % interval", ""), rows)
    for name, pair in found.settings.items():
        _note(f"{name}: {pair[0]} and {pair[1]}")
    print("\n".join(conclusion(found)))
    if out is not None:
        title = " and ".join(found.names)
        write_result(out, {**make_result(title, sys.argv[1:], found.as_dict()), "kind": COMPARISON})


def _check_replaceable(out: Path) -> None:
    """Refuses to overwrite anything but an older comparison."""
    if not out.exists():
        return
    try:
        existing = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        existing = None
    if not isinstance(existing, dict) or existing.get("kind") != COMPARISON:
        raise RequestError(f"{str(out)!r} exists and was not made by `oscine eval compare`; give another --out", "out")


@contextmanager
def _interruptible(message: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _note(message)
        raise typer.Exit(INTERRUPTED) from None


def _record(recorder: EvaluationRun, server: TargetOptions, later: str) -> Evaluation:
    """Saves the recordings also after an interrupt or an error. `later`: how to score them then."""

    def save() -> Evaluation:
        return _save(recorder.evaluation(server.name, sys.argv[1:], server.machine))

    try:
        recorder.run()
    except (KeyboardInterrupt, OscineError) as error:
        if recorder.recordings:
            save()
            _note(f"ended after {len(recorder.recordings)} of {recorder.requests} recordings. {later}")
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise
    return save()


def _transcribe(
    evaluation: Evaluation, transcriber: Transcriber, clip: Path | None, language: str | None = None
) -> Evaluation:
    from oscine_eval.transcription import transcribe_recordings

    columns = (TextColumn("transcribing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=len(evaluation.recordings))
        return transcribe_recordings(evaluation, transcriber, clip, lambda: bar.advance(task), language)


def _save(evaluation: Evaluation) -> Evaluation:
    """Writes the result and the page; returns the evaluation with its totals."""
    from oscine_eval.optional import MissingLibraryError
    from oscine_eval.recording import PAGE
    from oscine_eval.report import html
    from oscine_eval.score import score_all, totals

    scores = score_all(evaluation.recordings)
    evaluation = evaluation.with_figures(totals=totals(evaluation.recordings, scores))
    evaluation.save([score.as_dict() for score in scores])
    try:
        (evaluation.folder / PAGE).write_text(html(evaluation, scores), encoding="utf-8")
    except MissingLibraryError as error:
        _note(f"no page: {error}")
    except OSError as error:
        raise OscineError(f"cannot write the page {str(evaluation.folder / PAGE)!r}: {error}") from None
    return evaluation


def _finish(evaluation: Evaluation, notes: Sequence[str] = ()) -> None:
    """Shows the figures. Exit status 1 if a recording failed."""
    from oscine_eval.recording import PAGE, RESULT
    from oscine_eval.report import summary
    from oscine_eval.score import score_all

    rows = summary(evaluation, score_all(evaluation.recordings))
    _print_table((evaluation.name, "", "95 % interval", "of"), rows)
    failures = [one.failure for one in evaluation.recordings if one.failure is not None]
    if failures:
        _note(f"{len(failures)} failed, first: {failures[0]}")
    print(f"page:   {evaluation.folder / PAGE}\nresult: {evaluation.folder / RESULT}")
    for note in notes:
        _note(note)
    if any(one.file is None for one in evaluation.recordings):
        raise typer.Exit(1)


def _note(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if index in (0, len(columns) - 1) else "right")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: nothing is taken for markup
    Console(width=None if sys.stdout.isatty() else 160).print(table)
