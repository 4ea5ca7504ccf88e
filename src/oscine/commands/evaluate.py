"""`oscine eval run | score | compare`: options become a session and ears, figures become a table and a page."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from oscine.bench.options import INTERRUPTED, Asked, Lengths, Url, expanded
from oscine.types import OscineError, RequestError

if TYPE_CHECKING:
    from oscine.evaluate.recording import Evaluation
    from oscine.evaluate.session import Session
    from oscine.evaluate.transcriber import Transcriber, TranscriberConfig

eval_app = typer.Typer(no_args_is_help=True, help="Judge how well a speech server speaks: this one or another's.")
console = Console(stderr=True)  # standard output is for results

COMPARISON = "oscine eval compare"  # a result's kind

Folder = Annotated[Path, typer.Argument(help="The folder of `oscine eval run`, or the result in it")]


@dataclass(frozen=True, kw_only=True)
class Hearing:
    """Who listens, and for what."""

    recogniser: Annotated[
        str | None, typer.Option(help="A Whisper folder for CTranslate2, or a name that faster-whisper may download")
    ] = None
    device: Annotated[str, typer.Option(help="Where the recogniser runs: cpu or cuda")] = "cpu"
    listen_with: Annotated[
        Path | None, typer.Option(help="Another Python that has faster-whisper, to listen there")
    ] = None
    dnsmos: Annotated[bool, typer.Option(help="Ask DNSMOS too, where speechmos is installed")] = True
    similarity: Annotated[
        Path | None, typer.Option(help="ONNX model of speaker vectors: is it the reference's voice?")
    ] = None
    reference: Annotated[
        Path | None, typer.Option(help="Clip of the true voice; without it, run takes its --ref-audio")
    ] = None

    def config(self, ref_audio: Path | None = None) -> tuple[TranscriberConfig, Path | None]:
        """And the clip that voices are compared with, where they are."""
        from oscine.evaluate.transcriber import TranscriberConfig

        ears = TranscriberConfig(recogniser=self.recogniser, device=self.device, dnsmos=self.dnsmos)
        if self.similarity is None:
            if self.reference is not None:
                raise RequestError("--reference goes with --similarity, a model of speaker vectors", "reference")
            return ears, None
        clip = self.reference or ref_audio
        if clip is None:
            raise RequestError("--similarity needs --reference, a clip of the true voice", "reference")
        return replace(ears, speaker_model=str(self.similarity)), clip

    def score_command(self, folder: Path, clip: Path | None, *, elsewhere: bool) -> str:
        """That lets the same ones listen later. `elsewhere`: nothing in this Python can."""
        values = {
            "--recogniser": self.recogniser,
            "--device": None if self.device == "cpu" else self.device,
            "--listen-with": "PYTHON" if elsewhere else self.listen_with,
            "--similarity": self.similarity,
            "--reference": clip,
        }
        words = [word for name, value in values.items() if value is not None for word in (name, str(value))]
        return shlex.join(["oscine", "eval", "score", str(folder), *words, *([] if self.dnsmos else ["--no-dnsmos"])])


@eval_app.command()
@expanded
def run(
    url: Url,
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder for recordings, result and page")],
    asked: Asked,
    hearing: Hearing,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Requests at once")] = 1,
    repeat: Annotated[int, typer.Option(help="Takes of every text, each with its own seeds")] = 1,
    lengths: Lengths = "short,medium,long",
) -> None:
    """Speak a set of texts through a server, listen, score, and write a page to listen to."""
    from oscine.evaluate.listening import check_languages
    from oscine.evaluate.optional import MissingLibraryError
    from oscine.evaluate.session import Session, telling
    from oscine.evaluate.transcriber import open_transcriber

    config, clip = hearing.config(asked.ref_audio)
    session = Session(telling(asked.at(url)), asked.workload(lengths), out, concurrency, repeat, asked.timeout)
    why = ""
    with ExitStack() as stack:
        ears = None
        try:  # before anything is spoken: what cannot be heard is better known now
            ears = stack.enter_context(open_transcriber(config, hearing.listen_with))
            check_languages(session.languages, ears, asked.language)
        except MissingLibraryError as error:
            if hearing.recogniser or hearing.listen_with or hearing.similarity:
                raise
            why = str(error)
        kept = f"The recordings are kept; score them with: {hearing.score_command(out, clip, elsewhere=ears is None)}"
        evaluation = _recorded(session, asked, kept)
        if ears is not None:
            with _interruptible(f"interrupted. {kept}"):
                heard = _heard(evaluation, ears, clip)
            evaluation = _saved(heard)
    _show_evaluation(evaluation)
    if why:
        _tell(f"not scored: {why}")
        _tell(kept)
    _end(evaluation)


@eval_app.command()
@expanded
def score(
    folder: Folder,
    hearing: Hearing,
    language: Annotated[
        str | None, typer.Option(help="What was spoken, by name; auto: as their letters suggest; default: as recorded")
    ] = None,
) -> None:
    """Listen to recordings that were made before, and score them: for the first time or anew."""
    from oscine.evaluate.recording import read_evaluation
    from oscine.evaluate.transcriber import open_transcriber

    evaluation = read_evaluation(folder)
    config, clip = hearing.config()
    unharmed = f"interrupted; the result in {evaluation.folder} stays as it was"
    with _interruptible(unharmed), open_transcriber(config, hearing.listen_with) as ears:
        heard = _heard(evaluation, ears, clip, language)
    evaluation = _saved(heard)
    _show_evaluation(evaluation)
    _end(evaluation)


@eval_app.command()
def compare(
    first: Folder,
    second: Folder,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the comparison")] = None,
) -> None:
    """Two servers or two settings: the same texts and seeds, differences with their 95 % intervals."""
    from oscine.bench.record import make_result, write_result
    from oscine.evaluate import compare as comparing
    from oscine.evaluate.recording import read_evaluation
    from oscine.evaluate.score import shown, shown_range

    if out is not None:
        _check_replaceable(out)
    found = comparing.compare(read_evaluation(first), read_evaluation(second))
    table = _table("", *found.names, "difference", "95 % interval", "")
    for one in found.differences:
        said = {"none": "no difference beyond noise", "first worse": f"{found.names[0]} is worse"}
        said |= {"second worse": f"{found.names[1]} is worse", "differs": "differs", "too few": "too few texts"}
        values = [shown(one.figure, value) for value in (one.first, one.second)]
        by, spread = shown(one.figure, one.by, signed=True), shown_range(one.figure, one.low, one.high, signed=True)
        table.add_row(*map(Text, (one.figure.title, *values, by, spread, said[one.verdict])))
    _show(table)
    for name, pair in found.settings.items():
        _tell(f"{name}: {pair[0]} and {pair[1]}")
    print("\n".join(comparing.conclusion(found)))
    if out is not None:
        title = " and ".join(found.names)
        write_result(out, {**make_result(title, sys.argv[1:], found.as_dict()), "kind": COMPARISON})


def _check_replaceable(out: Path) -> None:
    """A comparison may be made anew; any other file is not ours to replace."""
    if not out.exists():
        return
    try:
        made = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        made = None
    if not isinstance(made, dict) or made.get("kind") != COMPARISON:
        raise RequestError(f"{str(out)!r} exists and was not made by `oscine eval compare`; give another --out", "out")


@contextmanager
def _interruptible(told: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _tell(told)
        raise typer.Exit(INTERRUPTED) from None


def _recorded(session: Session, asked: Asked, kept: str) -> Evaluation:
    """Saved, whatever ends it. `kept`: what is said of those that were made before it ended too early."""

    def saved() -> Evaluation:
        return _saved(session.evaluation(asked.name, sys.argv[1:], asked.machine))

    try:
        session.run()
    except (KeyboardInterrupt, OscineError) as error:
        if session.recordings:
            saved()
            _tell(f"ended after {len(session.recordings)} of {session.requests} recordings. {kept}")
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise
    return saved()


def _heard(evaluation: Evaluation, ears: Transcriber, clip: Path | None, language: str | None = None) -> Evaluation:
    from oscine.evaluate.listening import listen

    columns = (TextColumn("listening"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=len(evaluation.recordings))
        return listen(evaluation, ears, clip, on_heard=lambda: bar.advance(task), language=language)


def _saved(evaluation: Evaluation) -> Evaluation:
    """With its figures and its page."""
    from oscine.evaluate.page import page
    from oscine.evaluate.recording import PAGE
    from oscine.evaluate.score import mark_all, totals

    marks = mark_all(evaluation.recordings)
    evaluation = evaluation.knowing(totals=totals(evaluation.recordings, marks))
    evaluation.save([mark.as_dict() for mark in marks])
    try:
        (evaluation.folder / PAGE).write_text(page(evaluation, marks), encoding="utf-8")
    except OSError as error:
        raise OscineError(f"the page cannot be written to {str(evaluation.folder / PAGE)!r}: {error}") from None
    return evaluation


def _end(evaluation: Evaluation) -> None:
    """When everything is saved and shown: scripts shall see that something is missing."""
    if any(one.file is None for one in evaluation.recordings):
        raise typer.Exit(1)


def _show_evaluation(evaluation: Evaluation) -> None:
    from oscine.evaluate.page import summary
    from oscine.evaluate.recording import PAGE, RESULT
    from oscine.evaluate.score import mark_all

    table = _table(evaluation.name, "", "95 % interval", "of")
    for line in summary(evaluation, mark_all(evaluation.recordings)):
        table.add_row(*map(Text, line))  # a Text: nothing in it is taken for markup
    _show(table)
    failures = [one.failure for one in evaluation.recordings if one.failure is not None]
    if failures:
        _tell(f"{len(failures)} failed, first: {failures[0]}")
    print(f"listen: {evaluation.folder / PAGE}\nresult: {evaluation.folder / RESULT}")


def _tell(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if index in (0, len(columns) - 1) else "right")
    return table


def _show(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(table)
