"""Options that `oscine bench` and `oscine eval` share, as fields of a dataclass. `with_option_groups` shows each field
to typer as an option."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from oscine.errors import RequestError

if TYPE_CHECKING:
    from oscine_bench.targets import Target
    from oscine_bench.workload import Workload

MAX_TIMEOUT_S = 86_400
INTERRUPTED = 130  # exit status, as in a shell
OPENAI_HOST = "api.openai.com"

Url = Annotated[
    str, typer.Argument(help="Server address, such as http://localhost:8000; triton://localhost:8001 for Triton's gRPC")
]
Lengths = Annotated[str, typer.Option(help="Length of the built-in texts: short, medium, long, or several: short,long")]


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces each parameter whose type is a dataclass by one option per field. Typer knows only single options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    shown = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name not in groups
    ]
    for group in groups.values():
        group_hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = Parameter.empty if field.default is MISSING else field.default
            annotation = group_hints[field.name]
            shown.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        grouped = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **grouped)

    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Options that name the server and the requests sent to it."""

    target: Annotated[
        str, typer.Option("--target", "-t", help="oscine, oscine-ws, triton, vllm-omni, nari, sglang-omni, openai")
    ] = "oscine"
    texts: Annotated[str, typer.Option(help="english, chinese, mixed, or a file with one text per line")] = "english"
    voice: Annotated[str | None, typer.Option(help="A voice of the server")] = None
    language: Annotated[str | None, typer.Option(help="Name of a language")] = None
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model name, if the server needs one")] = None
    ref_audio: Annotated[Path | None, typer.Option(help="Clip to clone, sent with every request")] = None
    ref_text: Annotated[str | None, typer.Option(help="Transcript of the clip")] = None
    response_format: Annotated[str, typer.Option("--format", help="pcm, wav, mp3, opus, aac, flac")] = "pcm"
    sse: Annotated[bool, typer.Option("--sse", metavar="", help="Server-sent events instead of bytes")] = False
    extra: Annotated[
        str, typer.Option(help="More fields of the body, as JSON: '{\"temperature\": 0.7}'; null removes a field")
    ] = "{}"
    seed: Annotated[int, typer.Option(help="Seed of texts, arrivals and requests")] = 0
    timeout: Annotated[float, typer.Option(help="Seconds for one request")] = 120.0
    api_key: Annotated[
        str | None,
        typer.Option(help=f"Default: OSCINE_API_KEY; for --target openai OPENAI_API_KEY, sent only to {OPENAI_HOST}"),
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of this result in tables")] = None
    machine: Annotated[str | None, typer.Option(help="The server's machine, if it is not this one")] = None

    def make_target(self, url: str, frames: int | None = None) -> Target:
        from oscine_bench.targets import TRITON, Address, Target

        preset = TRITON if self.target == "oscine" and url.startswith(f"{TRITON}://") else self.target
        try:
            extra = json.loads(self.extra)
        except ValueError as error:
            raise RequestError(f"--extra is not JSON: {error}", "extra") from None
        if not isinstance(extra, dict):
            raise RequestError(f'--extra must be a JSON object, such as {{"top_k": 20}}; got {self.extra!r}', "extra")
        if not 0 < self.timeout <= MAX_TIMEOUT_S:  # refuses nan, too
            raise RequestError(
                f"--timeout must be above 0 and at most {MAX_TIMEOUT_S} s, got {self.timeout:g}", "timeout"
            )
        same = ("model", "voice", "language", "sse", "response_format", "ref_audio", "ref_text")
        return Target(
            url=url,
            preset_name=preset,
            api_key=self.api_key or self._default_key(Address.parse(url).host),
            extra=extra,
            frames=frames,
            **{name: getattr(self, name) for name in same},
        )

    def _default_key(self, host: str) -> str | None:
        if self.target != "openai":
            return os.environ.get("OSCINE_API_KEY")
        # OpenAI's key must not be sent to other servers with OpenAI's API.
        is_openai = f".{host}".endswith(f".{OPENAI_HOST}")
        return os.environ.get("OPENAI_API_KEY") if is_openai else None

    def workload(self, lengths: str) -> Workload:
        from oscine_bench.workload import load_workload

        return load_workload(self.texts, [word for word in lengths.replace(" ", "").split(",") if word], self.seed)
