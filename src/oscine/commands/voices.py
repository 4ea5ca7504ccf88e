"""`oscine voices`: lists, adds and removes voices in the folder of `oscine serve`, without a server."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oscine.errors import NotFoundError, RequestError
from oscine.serving.environment import default_voices_dir, variable_of

if TYPE_CHECKING:
    from oscine.speech.voice_store import VoiceStore
    from oscine.voice import Voice

voices_app = typer.Typer(
    no_args_is_help=True, help="Preset voices of a checkpoint, and uploaded voices in the folder of `oscine serve`."
)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--voices-dir",
        envvar=variable_of("server.voices_dir"),
        help="Default: the folder of `oscine serve`; settings files are not read here",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON")]
_MAX_CONSENT_CHARS = 1024  # characters, as the server has it


def _store(voices_dir: Path | None, *, make: bool = False) -> VoiceStore:
    """The server's voice store. With `make`, the folder is created if it is missing."""
    from oscine.speech.voice_names import reserved_names
    from oscine.speech.voice_store import VoiceStore

    folder = Path(voices_dir or default_voices_dir()).expanduser()
    usable = make or os.path.isdir(folder)
    if not usable and voices_dir is not None:
        raise RequestError(f"there is no folder {str(folder)!r}; give one that holds voices", "voices_dir")
    return VoiceStore(folder if usable else None, reserved_names(()))  # None: there are no voices yet


@voices_app.command("list")
def list_voices(
    model: Annotated[str, typer.Option("--model", "-m", help="Checkpoint whose preset voices are listed")] = "demo",
    voices_dir: Folder = None,
    as_json: AsJson = False,
) -> None:
    """List preset and uploaded voices."""
    from oscine.model.checkpoint import find_checkpoint
    from oscine.model.config import read_config
    from oscine.server.http.logs import printable

    presets = read_config(find_checkpoint(model)).card(model).speakers
    uploaded = _store(voices_dir).all()
    if as_json:
        voices = [{"name": name, "mode": "preset", "content_hash": None, "consent": None} for name in presets]
        voices += [
            {"name": one.name, "mode": one.mode, "content_hash": one.voice.content_hash, "consent": one.consent}
            for one in uploaded
        ]
        print(json.dumps(voices))
        return
    table = Table("name", "mode", "vector width", "consent")
    for name in presets:
        table.add_row(*map(Text, (printable(name), f"preset of {model}", "", "")))
    for one in uploaded:
        row = one.name, one.mode, str(len(one.voice.speaker)), printable(one.consent or "")
        table.add_row(*map(Text, row))
    Console().print(table)


@voices_app.command("add")
def add_voice(
    name: Annotated[str, typer.Argument(help="1 to 64 printable characters")],
    source: Annotated[Path, typer.Argument(help="A clip to clone, or a voice file (.safetensors)")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Base checkpoint that clones the clip")] = None,
    ref_text: Annotated[str | None, typer.Option(help="Transcript of the clip")] = None,
    consent: Annotated[
        str, typer.Option(help="Required: who agreed to the use of this voice, or where that is recorded")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the voice of this name")] = False,
    voices_dir: Folder = None,
) -> None:
    """Add a voice from a clip or a saved voice file."""
    store = _store(voices_dir, make=True)
    store.check_name(name)  # all checks come before a model is loaded
    _check_source(source, model, ref_text)
    _check_consent(consent)
    voice = _voice(source, model, ref_text)
    print(store.add(name, voice, consent=consent, overwrite=overwrite).name)


@voices_app.command("remove")
def remove_voice(name: str, voices_dir: Folder = None) -> None:
    """Delete a voice."""
    try:
        print(_store(voices_dir).delete(name))
    except NotFoundError:
        message = f"there is no uploaded voice {name[:80]!r}; `oscine voices list` shows them"
        raise RequestError(message, "name") from None


def _check_source(source: Path, model: str | None, ref_text: str | None) -> None:
    if not _is_saved(source):
        if model is None:
            raise RequestError("cloning a clip needs a model; name a Base checkpoint with --model", "model")
        return
    for given, option in ((model, "--model"), (ref_text, "--ref-text")):
        if given is not None:
            raise RequestError(f"{option} is for clips; leave it out for a voice file", "source")


def _check_consent(consent: str) -> None:
    if not 1 <= len(consent) <= _MAX_CONSENT_CHARS:
        raise RequestError(
            f"--consent takes 1 to {_MAX_CONSENT_CHARS} characters, got {len(consent)}; say who agreed to the use of "
            "this voice, or where that is recorded",
            "consent",
        )


def _is_saved(source: Path) -> bool:
    return source.suffix == ".safetensors"


def _voice(source: Path, model: str | None, ref_text: str | None) -> Voice:
    if _is_saved(source):
        from oscine.voice import Voice

        return Voice.load(source)
    assert model is not None
    from oscine.api import Oscine  # here: torch takes seconds

    with Oscine(model, slots=1) as tts, clip_warnings(Console(stderr=True)):
        return tts.clone(source, ref_text)


@contextmanager
def clip_warnings(console: Console) -> Iterator[None]:
    """Prints warnings about clips without the file and line that Python would add."""
    from oscine.audio.checks import ClipWarning  # here: `--help` needs no numpy

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClipWarning)
        yield
    for one in caught:
        console.print(f"warning: {one.message}", style="yellow", markup=False, highlight=False, soft_wrap=True)
