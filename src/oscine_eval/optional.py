"""Imports optional libraries on first use; the error for a missing one says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from oscine.errors import OscineError


class MissingLibraryError(OscineError):
    """An optional library is not installed in this Python."""


def one_line(error: BaseException) -> str:
    """Returns the error's text without line breaks, or its class name if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


def import_optional(module: str, name: str, extra: str, *, remedy: str = "") -> Any:
    """Imports a library. `remedy`: what helps besides installing the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        how = f"pip install 'oscine[{extra}]'{remedy}"
        raise MissingLibraryError(f"{name} is not installed ({one_line(error)}): {how}") from None


def import_for_transcriber(module: str, name: str, extra: str) -> Any:
    """Imports a library that may also be in the Python of --transcriber-python."""
    return import_optional(module, name, extra, remedy=", or name a Python that has it with --transcriber-python")
