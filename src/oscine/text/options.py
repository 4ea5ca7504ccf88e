"""What becomes of a text before the model reads it; text/preparation.py does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from oscine.fields import Spec
from oscine.text.normalization.language import AUTO, has_rules

TextLevel = Literal["raw", "clean", "spoken"]  # of a text: as it is, without markup, in words
MAX_PARAGRAPH_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """The fields of a request that decide how its text is read."""

    text_level: Annotated[
        TextLevel | None,
        Spec(
            about="`raw`: the model reads the text as it is. `clean`: without markup, emoji and typographic "
            "characters. `spoken`: also numbers, abbreviations, addresses and symbols in words. Default: what the "
            "checkpoint needs."
        ),
    ] = None
    normalize: Annotated[
        bool | None,
        Spec(about="true: `text_level` is `spoken`; false: at most `clean`. `text_level` counts before it."),
    ] = None
    markup: Annotated[bool, Spec(about='false: `<break time="500ms"/>` and other tags of SSML are text.')] = True
    paragraph_pause_s: Annotated[
        float | None,
        Spec(
            about="Silence between paragraphs, in seconds.",
            rule=f"a number of seconds from 0 to {MAX_PARAGRAPH_PAUSE_S:g}",
            least=0,
            most=MAX_PARAGRAPH_PAUSE_S,
        ),
    ] = None
    pronunciations: Annotated[
        Mapping[str, str] | None,
        Spec(
            about='What is spoken instead of whole words: `{"Oscine": "OSS-een"}`.',
            rule='an object such as {"Oscine": "OSS-een"}',
        ),
    ] = None

    @property
    def changes_words(self) -> bool:
        """Whether other words may be spoken than were written."""
        return self.text_level in ("clean", "spoken") or bool(self.normalize) or bool(self.pronunciations)


# How far a text is rewritten before the model reads it: the level of a request, of the server and of the checkpoint.
#
# One rule: `text_level` counts where it is given. Otherwise `normalize: true` means "spoken", `normalize: false` the
# default level but at most "clean", and without either the default level counts: the server's, or else the
# checkpoint's.

ENGLISH = "english"
_Options = TypeVar("_Options", bound=TextOptions)


def asked_level(options: TextOptions) -> TextLevel | None:
    """The level that the options ask for, if it does not depend on a default."""
    return options.text_level or ("spoken" if options.normalize else None)


def text_language(language: str, languages: Sequence[str]) -> str:
    """The language to read a text in: that of the request, or the only one of the checkpoint."""
    return languages[0] if language == AUTO and len(languages) == 1 else language


def at_level(options: _Options, default: TextLevel, language: str) -> _Options:
    """The options with the level that counts."""
    return replace(options, text_level=level_of(options, default, language), normalize=None)


def level_of(options: TextOptions, default: TextLevel, language: str) -> TextLevel:
    """The level that counts. `default`: the server's, or else the checkpoint's. A level that nobody asked for is
    lowered to "clean" where a language has no rules."""
    if (level := asked_level(options)) is not None:
        return level
    if default == "spoken" and (options.normalize is False or not has_rules(language)):
        return "clean"
    return default
