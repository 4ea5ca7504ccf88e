"""How far a text is rewritten before the model reads it: the level of a request, of the server and of the checkpoint.

One rule: `text_level` counts where it is given. Otherwise `normalize: true` means "spoken", `normalize: false` the
default level but at most "clean", and without either the default level counts: the server's, or else the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from oscine.errors import RequestError
from oscine.text.normalization.language import AUTO, has_rules
from oscine.text.options import TextLevel, TextOptions

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
    if default == "spoken" and (options.normalize is False or not can_be_spoken(language)):
        return "clean"
    return default


def can_be_spoken(language: str) -> bool:
    """Whether "spoken" has rules for the language, and the libraries that they need."""
    if language.lower() == ENGLISH:
        return True
    if not has_rules(language):
        return False
    from oscine.text.normalization.speller import import_babel, import_rbnf  # optional libraries

    try:
        import_rbnf(), import_babel("core")
    except RequestError:
        return False
    return True
