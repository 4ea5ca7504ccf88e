"""Selects Triton's interpreter where there is no GPU, before any test of this folder imports Triton."""

import importlib.util
import os
from typing import Any

from tests.kernels import conftest  # noqa: F401


def _patch_the_language_once_per_function() -> None:
    """The interpreter patches Triton's language again in every call of a device function, which is a third of its time.
    A kernel's launch patches and restores the language itself, so once per function is enough."""
    from triton.runtime import interpreter

    patched = set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.fn not in patched:
            interpreter._patch_lang(function.fn)
            patched.add(function.fn)
        return function.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    _patch_the_language_once_per_function()
