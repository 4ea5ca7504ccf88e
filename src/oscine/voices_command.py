"""`oscine voices`: the folder of voices that `oscine serve` speaks with, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from oscine.settings import default_voices_dir
from oscine.types import RequestError
from oscine.voice import Voice

if TYPE_CHECKING:
    from oscine.server.voice_store import VoiceStore

voices_app = typer.Typer(
    no_args_is_help=True, help="Voices that `oscine serve` has uploaded, or may find in its folder."
)

Folder = Annotated[Path | None, typer.Option("--voices-dir", help="Default: the folder of `oscine serve`")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]


@contextmanager
def _store(folder: Path | None) -> Iterator[VoiceStore]:
    """The server's own store; what it would answer to a client is an error of the command line here."""
    from oscine.server.aliases import reserved_names
    from oscine.server.errors import ApiError
    from oscine.server.voice_store import VoiceStore

    try:
        yield VoiceStore(Path(folder or default_voices_dir()).expanduser(), reserved_names(()))
    except ApiError as error:
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
        table.add_row(one.name, one.mode, str(len(one.voice.speaker)), one.consent or "")
    Console().print(table)


@voices_app.command("add")
def add_voice(
    name: Annotated[str, typer.Argument(help="1 to 64 of a-z, 0-9, _ and -")],
    source: Annotated[Path, typer.Argument(help="A clip to clone, or a voice file (.safetensors)")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The Base checkpoint that clones the clip")] = None,
    ref_text: Annotated[str | None, typer.Option(help="The words that are said in the clip")] = None,
    consent: Annotated[str, typer.Option(help="A note of the speaker's consent")] = "",
    voices_dir: Folder = None,
) -> None:
    """Clone a clip, or take a saved voice, and keep it under a name."""
    with _store(voices_dir) as store:
        store.check_name(name)  # before a model is loaded
        print(store.add(name, _voice(source, model, ref_text), consent=consent).name)


@voices_app.command("remove")
def remove_voice(name: str, voices_dir: Folder = None) -> None:
    """Delete a voice."""
    with _store(voices_dir) as store:
        print(store.delete(name))


def _voice(source: Path, model: str | None, ref_text: str | None) -> Voice:
    if source.suffix == ".safetensors":
        return Voice.load(source)
    if model is None:
        raise RequestError("a clip is cloned by a model; name a Base checkpoint with --model", "model")
    from oscine.speaker import Oscine  # here: torch takes seconds

    return Oscine(model).clone(source, ref_text)
