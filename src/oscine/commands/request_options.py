"""Options of a command for the fields of a SpeechRequest, made from their declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape

from oscine.fields import RequestField
from oscine.request import SpeechRequest

_F = TypeVar("_F", bound=Callable[..., Any])
_SHORT_NAMES = {"paragraph_pause_s": "--paragraph-pause"}
_enum: Callable[[dict[str, str]], Any] = partial(StrEnum, "Choice")  # older versions of typer know no Literal


def with_request_options(*declared: str) -> Callable[[_F], _F]:
    """Gives a command the fields of a request, but for those that it has `declared` itself; it takes them as
    `**fields`."""

    def decorate(command: _F) -> _F:
        signature = inspect.signature(command, eval_str=True)
        parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        parameters += [_parameter(one) for name, one in SpeechRequest.fields().items() if name not in declared]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


def _parameter(field: RequestField) -> inspect.Parameter:
    dashed = field.name.replace("_", "-")
    names = [f"--{dashed}"] if field.kind is not bool else [f"--{dashed}/--no-{dashed}"]
    if short := _SHORT_NAMES.get(field.name):
        names.insert(0, short)
    kind: Any = type(field.choices[0]) if field.choices else field.kind
    if field.choices and kind is str:
        kind = _enum({name: name for name in field.choices})
    help_text = escape(field.spec.about.replace("`", "").rstrip("."))
    option = typer.Option(*names, help=help_text, metavar="" if kind is bool else None)
    hint: Any = kind | None if field.optional else kind
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[hint, option]
    )
