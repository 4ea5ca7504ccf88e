"""`oscine voices`: the folder of voices that `oscine serve` speaks with, without a server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oscine.commands.settings import default_voices_dir, variable_of
from oscine.types import OscineError, RequestError
from oscine.voice import Voice

if TYPE_CHECKING:
    from oscine.server.voice_store import VoiceStore

voices_app = typer.Typer(
    no_args_is_help=True, help="Voices that `oscine serve` has uploaded, or may find in its folder."
)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--voices-dir",
        envvar=variable_of("server.voices_dir"),
        help="Default: the folder of `oscine serve`; a settings file (TOML) is not read here",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]
_MAX_CONSENT_CHARS = 1024  # characters, as the server has it


@contextmanager
def _store(voices_dir: Path | None, *, make: bool = False) -> Iterator[VoiceStore]:
    """The server's own store; what it would answer to a client is an error of the command line here. With `make`, the
    folder need not be there yet."""
    from oscine.server.errors import ApiError
    from oscine.server.voice_aliases import reserved_names
    from oscine.server.voice_store import VoiceStore

    folder = Path(voices_dir or default_voices_dir()).expanduser()
    usable = make or os.path.isdir(folder)
    if not usable and voices_dir is not None:
        raise RequestError(f"there is no folder {str(folder)!r}; give one that holds voices", "voices_dir")
    try:
        yield VoiceStore(folder if usable else None, reserved_names(()))  # None: nobody has added a voice yet
    except ApiError as error:
        if error.status >= 500:
            raise OscineError(error.message) from error
        raise RequestError(error.message, error.param) from error


@voices_app.command("list")
def list_voices(voices_dir: Folder = None, as_json: AsJson = False) -> None:
    """Names, kinds and sizes."""
    with _store(voices_dir) as store:
        voices = store.all()
    if as_json:
        facts = [
            {"name": one.name, "mode": one.mode, "content_hash": one.voice.content_hash, "consent": one.consent}
            for one in voices
        ]
        print(json.dumps(facts))
        return
    table = Table("name", "mode", "made for a width of", "consent")
    for one in voices:
        table.add_row(one.name, one.mode, str(len(one.voice.speaker)), Text(one.consent or ""))
    Console().print(table)


@voices_app.command("add")
def add_voice(
    name: Annotated[str, typer.Argument(help="1 to 64 of a-z, 0-9, _ and -")],
    source: Annotated[Path, typer.Argument(help="A clip to clone, or a voice file (.safetensors)")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The Base checkpoint that clones the clip")] = None,
    ref_text: Annotated[str | None, typer.Option(help="The words that are said in the clip")] = None,
    consent: Annotated[
        str, typer.Option(help="Needed: who agreed to the use of this voice, or where that is written")
    ] = "",
    voices_dir: Folder = None,
) -> None:
    """Clone a clip, or take a saved voice, and keep it under a name."""
    with _store(voices_dir, make=True) as store:
        store.check_name(name)  # this and the next two before a model is loaded
        _check_source(source, model, ref_text)
        _check_consent(consent)
        print(store.add(name, _voice(source, model, ref_text), consent=consent).name)


@voices_app.command("remove")
def remove_voice(name: str, voices_dir: Folder = None) -> None:
    """Delete a voice."""
    with _store(voices_dir) as store:
        if name.lower() not in store.names():
            raise RequestError(f"there is no uploaded voice {name[:80]!r}; `oscine voices list` shows them", "name")
        print(store.delete(name))


def _check_source(source: Path, model: str | None, ref_text: str | None) -> None:
    if not _is_saved(source):
        if model is None:
            raise RequestError("a clip is cloned by a model; name a Base checkpoint with --model", "model")
        return
    for given, option in ((model, "--model"), (ref_text, "--ref-text")):
        if given is not None:
            raise RequestError(f"{option} goes with a clip; a voice file is taken as it is: leave it out", "source")


def _check_consent(consent: str) -> None:
    if not 1 <= len(consent) <= _MAX_CONSENT_CHARS:
        raise RequestError(
            f"--consent takes 1 to {_MAX_CONSENT_CHARS} characters, got {len(consent)}; say who agreed to the use of this "
            "voice, or where that is written",
            "consent",
        )


def _is_saved(source: Path) -> bool:
    return source.suffix == ".safetensors"


def _voice(source: Path, model: str | None, ref_text: str | None) -> Voice:
    if _is_saved(source):
        return Voice.load(source)
    assert model is not None
    from oscine.api import Oscine  # here: torch takes seconds

    return Oscine(model).clone(source, ref_text)
