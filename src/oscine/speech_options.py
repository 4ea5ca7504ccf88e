"""The fields of a SpeechRequest as keyword arguments of the Python API, also for type checkers and `help()`."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from oscine.errors import unknown_choice
from oscine.request import SpeechRequest, Turn
from oscine.voice import Voice

OPTIONS_HEADING = "\n\nOptions:\n"  # in docstrings
_P = ParamSpec("_P")
_Self = TypeVar("_Self")
_Result = TypeVar("_Result")

# What HTTP, or the official package, calls the same thing.
_OTHER_NAMES = {
    "instruct": "instructions",
    "speaker": "voice",
    "do_sample": "greedy",
    "non_streaming_mode": "text_mode",
    "lang_code": "language",
}
_CLONING = ("ref_audio", "ref_text", "x_vector_only_mode")


class Option(NamedTuple):
    name: str
    kind: Any
    default: Any
    meaning: str

    @property
    def type(self) -> str:
        return _shown(self.kind)


@functools.cache
def options() -> tuple[Option, ...]:
    kinds = get_type_hints(SpeechRequest, localns={"Voice": Voice})
    turns = Option("turns", Sequence[Turn], (), "Instead of a text: the turns of a dialogue, each with its own voice.")
    declared = SpeechRequest.fields().values()
    return (turns, *(Option(one.name, kinds[one.name], one.default, one.spec.about) for one in declared))


def _shown(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(_shown, get_args(kind)))
    name = "None" if kind is NoneType else inspect.formatannotation(kind)
    return (
        name.replace("oscine.voice.", "")
        .replace("oscine.request.", "")
        .replace("collections.abc.", "")
        .replace("typing.", "")
    )


def takes_request(
    request: Callable[_P, SpeechRequest],
) -> Callable[[Callable[[_Self, SpeechRequest], _Result]], Callable[Concatenate[_Self, _P], _Result]]:
    """Makes a method of a SpeechRequest take the request's fields instead: the text, and options by name."""

    def decorate(method: Callable[[_Self, SpeechRequest], _Result]) -> Callable[Concatenate[_Self, _P], _Result]:
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def call(self: _Self, text: str = "", **given: Any) -> Any:
                return await method(self, speech_request(text, given))

        else:

            @functools.wraps(method)
            def call(self: _Self, text: str = "", **given: Any) -> Any:
                return method(self, speech_request(text, given))

        _describe(call, method)
        return call  # type: ignore[return-value]

    return decorate


def suggests_names(**others: str) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Makes a method say which of its arguments was meant by an unknown one. `others`: names that HTTP has for them."""

    def decorate(method: Callable[_P, _Result]) -> Callable[_P, _Result]:
        known = [*inspect.signature(method).parameters][1:]

        @functools.wraps(method)
        def call(*values: _P.args, **given: _P.kwargs) -> _Result:
            for name in given.keys() - {*known}:
                raise TypeError(unknown_choice("option", name, known, others.get(name)))
            return method(*values, **given)

        return call

    return decorate


def _describe(call: Callable[..., Any], method: Callable[..., Any]) -> None:
    """Gives `help()` and `inspect.signature` the options that type checkers see."""
    parameter = inspect.Parameter
    shown = [
        parameter("self", parameter.POSITIONAL_ONLY),
        parameter("text", parameter.POSITIONAL_OR_KEYWORD, default="", annotation="str"),
    ]
    for option in options():
        shown.append(parameter(option.name, parameter.KEYWORD_ONLY, default=option.default, annotation=option.kind))
    result = inspect.signature(method).return_annotation
    call.__signature__ = inspect.Signature(shown, return_annotation=result)  # type: ignore[attr-defined]
    described = "\n".join(
        textwrap.fill(f"{option.name}: {option.meaning}", 100, initial_indent="    ", subsequent_indent=" " * 8)
        for option in options()
    )
    call.__doc__ = f"{inspect.getdoc(method)}{OPTIONS_HEADING}{described}"


def speech_request(text: str, given: Mapping[str, Any]) -> SpeechRequest:
    """Raises TypeError for an unknown option, as Python does for keyword arguments."""
    known = [option.name for option in options()]
    for name in given:
        if name in _CLONING:
            raise TypeError(f"{name} is no option of speech; clone first: voice=tts.clone(clip, transcript)")
        if name not in known:
            raise TypeError(unknown_choice("option", name, known, _OTHER_NAMES.get(name)))
    return SpeechRequest(text=text, **given)
