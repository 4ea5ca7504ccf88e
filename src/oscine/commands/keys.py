"""`oscine keys`: adds, lists and revokes named API keys in the file of `oscine serve`, which notices the change."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oscine.errors import RequestError
from oscine.serving.environment import variable_of

if TYPE_CHECKING:
    from oscine.server.http.key_file import NamedKey

keys_app = typer.Typer(
    no_args_is_help=True, help="Named API keys with roles and limits, in the file of `oscine serve`."
)
console = Console(stderr=True)  # standard output is for results

KeysFile = Annotated[
    Path,
    typer.Option("--keys-file", envvar=variable_of("server.keys_file"), help="The same as of `oscine serve`"),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON")]
_SPAN = re.compile(r"(\d{1,5})([dh])")


@keys_app.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="1 to 64 of a-z A-Z 0-9 . _ -; for the log and the metrics")],
    keys_file: KeysFile,
    role: Annotated[
        list[str] | None,
        typer.Option(help="speak (the default), voices, metrics or admin (all of them, and models); several: one each"),
    ] = None,
    streams: Annotated[int | None, typer.Option(help="Streams at once")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Speeches within any minute")] = None,
    characters_per_minute: Annotated[int | None, typer.Option(help="Characters of their texts")] = None,
    requests_per_month: Annotated[int | None, typer.Option(help="Speeches within a calendar month (UTC)")] = None,
    characters_per_month: Annotated[int | None, typer.Option(help="Characters of their texts")] = None,
    expires: Annotated[str | None, typer.Option(help="A date (2027-01-31), or a time from now: 30d, 12h")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print it. It is shown only now: the file has its hash."""
    from oscine.server.http.key_file import KeyFile

    limits = {
        "streams": streams,
        "requests_per_minute": requests_per_minute,
        "characters_per_minute": characters_per_minute,
        "requests_per_month": requests_per_month,
        "characters_per_month": characters_per_month,
    }
    given = {limit: most for limit, most in limits.items() if most is not None}
    secret, record = KeyFile(keys_file.expanduser()).add(name, role or ["speak"], given, _end(expires))
    if as_json:
        print(json.dumps({"api_key": secret, **_about(record)}))
        return
    print(secret)
    console.print(f"This is the only time that the key of {name} is shown.", markup=False, highlight=False)


@keys_app.command("list")
def list_keys(keys_file: KeysFile, as_json: AsJson = False) -> None:
    """List the keys by name, with the first characters of each."""
    from oscine.server.http.key_file import KeyFile

    keys = KeyFile(keys_file.expanduser()).read()
    if as_json:
        print(json.dumps([_about(key) for key in keys]))
        return
    table = Table("name", "key", "state", "roles", "limits", "expires")
    for key in keys:
        limits = ", ".join(f"{most} {limit.replace('_', ' ')}" for limit, most in key.limits if most is not None)
        expires = f"{key.expires_at:%Y-%m-%d %H:%M}" if key.expires_at else ""
        state = key.state(datetime.now(UTC).timestamp())
        table.add_row(*map(Text, (key.name, f"{key.prefix}...", state, ", ".join(key.roles), limits, expires)))
    Console().print(table)


@keys_app.command("revoke")
def revoke_key(name: str, keys_file: KeysFile) -> None:
    """Refuse a key from now on. Speech that runs continues."""
    from oscine.server.http.key_file import KeyFile

    print(KeyFile(keys_file.expanduser()).revoke(name).name)


def _about(key: NamedKey) -> dict[str, Any]:
    """What may be shown."""
    about = key.model_dump(mode="json", exclude={"sha256"})
    return {**about, "state": key.state(datetime.now(UTC).timestamp())}


def _end(expires: str | None) -> datetime | None:
    """Raises RequestError."""
    if expires is None:
        return None
    now = datetime.now(UTC).replace(microsecond=0)
    if span := _SPAN.fullmatch(expires.strip()):
        end = now + timedelta(**{{"d": "days", "h": "hours"}[span[2]]: int(span[1])})
    else:
        try:
            end = datetime.fromisoformat(expires.strip())
        except ValueError:
            form = "a date such as 2027-01-31, or a time from now such as 30d or 12h"
            raise RequestError(f"--expires takes {form}; got {expires!r}", "expires") from None
    end = end if end.tzinfo else end.replace(tzinfo=UTC)
    if end <= now:
        raise RequestError(f"--expires {expires} is not in the future; give a later date", "expires")
    return end
