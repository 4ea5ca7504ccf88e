"""Libraries that not everybody needs: imported when they are asked for, and named with their remedy when missing."""

from __future__ import annotations

import importlib
from typing import Any

from oscine.types import OscineError


class MissingLibraryError(OscineError):
    """Something optional is not installed in this Python."""


def one_line(error: BaseException) -> str:
    """Its text, which libraries like to spread over many lines; its kind where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def optional(module: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibraryError(
            f"{what} is not installed ({one_line(error)}): pip install 'oscine[{extra}]', "
            "or name a Python that has it with --listen-with"
        ) from None
