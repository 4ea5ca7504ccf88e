"""The options of the Python API, declared once for type checkers, `help()`, docs/python.md and errors. No torch."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

from oscine.errors import unknown_choice
from oscine.types import SpeechRequest, TextLevel, TextMode, TextOptions
from oscine.voice import Voice

OPTIONS_HEADING = "\n\nOptions:\n"  # in docstrings
_F = TypeVar("_F", bound=Callable[..., Any])


class SpeechOptions(TypedDict, total=False):
    """Keyword arguments of `Oscine.speak`, `stream`, `aspeak` and `astream`. None: the default of the checkpoint."""

    voice: Annotated[str | Voice | None, "A preset's name, or a voice of `Oscine.clone` or `Voice.load`."]
    language: Annotated[str, '"auto", or a language of the checkpoint.']
    instructions: Annotated[str | None, "How to speak; with VoiceDesign, a description of the voice."]
    speed: Annotated[float, "0.25 to 4, at the same pitch."]
    sample_rate: Annotated[int | None, "Of the result in Hz, such as 8000 or 48000. None: the checkpoint's."]
    seed: Annotated[int | None, "The same seed gives the same speech. None: random; the result reports it."]
    greedy: Annotated[bool | None, "True: no randomness in any codebook."]
    temperature: Annotated[float | None, "Of the first codebook."]
    top_k: Annotated[int | None, "Of the first codebook; 0: off."]
    top_p: Annotated[float | None, "Of the first codebook; 1: off."]
    repetition_penalty: Annotated[float | None, "Of the first codebook; 1: off."]
    subtalker_temperature: Annotated[float | None, "Of the other codebooks."]
    subtalker_top_k: Annotated[int | None, "Of the other codebooks; 0: off."]
    subtalker_top_p: Annotated[float | None, "Of the other codebooks; 1: off."]
    max_new_tokens: Annotated[int | None, "The maximum number of frames (80 ms each) of the whole text, plus one."]
    text_mode: Annotated[
        TextMode | None, '"whole": the prompt holds all of the text. "streaming": words follow frame by frame.'
    ]
    text_level: Annotated[
        TextLevel | None,
        '"raw": the text as it is. "clean": without markup, emoji and typographic characters. "spoken": also numbers, '
        "abbreviations, addresses and symbols in words.",
    ]
    normalize: Annotated[bool | None, 'True: `text_level` is "spoken"; False: at most "clean".']
    markup: Annotated[bool, 'False: `<break time="500ms"/>` is spoken, not a pause.']
    paragraph_pause_s: Annotated[float, "Silence between paragraphs, in seconds."]
    pronunciations: Annotated[Mapping[str, str], 'What is spoken instead of whole words: {"Oscine": "OSS-een"}.']
    trim_silence: Annotated[bool | None, "Remove the silence at the start. None: False, so that audio matches `codes`."]
    trim_echo: Annotated[bool | None, "With a transcript: remove an echo of the clip. None: the engine's setting."]


class Option(NamedTuple):
    name: str
    type: str
    default: Any
    meaning: str


# What HTTP, or the official package, calls the same thing.
_OTHER_NAMES = {
    "instruct": "instructions",
    "speaker": "voice",
    "do_sample": "greedy",
    "non_streaming_mode": "text_mode",
    "lang_code": "language",
}
_CLONING = ("ref_audio", "ref_text", "x_vector_only_mode")
_TEXT_OPTIONS = frozenset(field.name for field in fields(TextOptions))


def options() -> list[Option]:
    defaults = {field.name: _default(field) for cls in (SpeechRequest, TextOptions) for field in fields(cls)}
    meanings = get_type_hints(SpeechOptions, include_extras=True)
    return [
        Option(name, _shown(kind), defaults[name], meaning)
        for name, kind in get_type_hints(SpeechOptions).items()
        for meaning in meanings[name].__metadata__
    ]


def _shown(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(_shown, get_args(kind)))
    name = "None" if kind is NoneType else inspect.formatannotation(kind)
    return name.replace("oscine.voice.", "").replace("collections.abc.", "")


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def takes_speech_options(method: _F) -> _F:
    """Shows `help()` and `inspect.signature` the options that type checkers see in `**options`."""
    signature = inspect.signature(method)
    kinds, keyword = get_type_hints(SpeechOptions), inspect.Parameter.KEYWORD_ONLY
    shown = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    for option in options():
        shown.append(inspect.Parameter(option.name, keyword, default=option.default, annotation=kinds[option.name]))
    method.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    described = "\n".join(
        textwrap.fill(f"{option.name}: {option.meaning}", 100, initial_indent="    ", subsequent_indent=" " * 8)
        for option in options()
    )
    method.__doc__ = f"{inspect.getdoc(method)}{OPTIONS_HEADING}{described}"
    return method


def speech_request(text: str, options: Mapping[str, Any]) -> SpeechRequest:
    """Raises TypeError for an unknown option, as Python does for keyword arguments."""
    known = SpeechOptions.__annotations__
    for name in options:
        if name in _CLONING:
            raise TypeError(f"{name} is no option of speech; clone first: voice=tts.clone(clip, transcript)")
        if name not in known:
            raise TypeError(unknown_choice("option", name, known, _OTHER_NAMES.get(name)))
    of_text = {name: value for name, value in options.items() if name in _TEXT_OPTIONS}
    others = {name: value for name, value in options.items() if name not in _TEXT_OPTIONS}
    return SpeechRequest(text=text, text_options=TextOptions(**of_text) if of_text else None, **others)
