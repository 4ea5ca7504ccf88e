"""The libraries of the extra `normalize`: imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from oscine.errors import RequestError


def import_rbnf() -> Any:
    return _import("unicode_rbnf")


def import_babel(module: str) -> Any:
    return _import(f"babel.{module}")


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.split(".")[0].replace("_", "-")
        raise RequestError(
            f"normalize needs the library {name}: pip install 'oscine[normalize]', or leave normalize out",
            "normalize",
        ) from None
