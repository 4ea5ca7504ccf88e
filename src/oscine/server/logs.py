"""Log lines with the request's id, for people or for programs. What users said is never in them."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
import time
from typing import Any, Literal

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="-")

_FACTS = "facts"


def facts(**values: Any) -> dict[str, Any]:
    """For `extra=`: what a line says beside its message, each under its own name."""
    return {_FACTS: {name: value for name, value in values.items() if value is not None}}


class _Line(logging.Formatter):
    def _facts(self, record: logging.LogRecord) -> dict[str, Any]:
        return dict(getattr(record, _FACTS, {}))


class JsonLine(_Line):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "request_id": request_id.get(),
            "message": record.getMessage(),
            **self._facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class ConsoleLine(_Line):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        told = "".join(f" {name}={value}" for name, value in self._facts(record).items())
        line = _visible(f"{clock} {record.levelname.lower():7} {request_id.get()} {record.getMessage().rstrip()}{told}")
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join((line, *(f"  {_visible(part)}" for part in trace)))


def _visible(text: str) -> str:
    """In one line, and without a code that a terminal would obey: what clients send may be in it."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class _CutOnPurpose(logging.Filter):
    """Uvicorn takes an answer that we leave without its end for a bug. It is how a client learns that a part is lost;
    why, our own log says."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.getMessage() != "ASGI callable returned without completing response."


_CUT_ON_PURPOSE = _CutOnPurpose()


def expect_cuts() -> None:
    logging.getLogger("uvicorn.error").addFilter(_CUT_ON_PURPOSE)  # once, however often it is added


def log_to_stderr(form: Literal["console", "json"], level: str = "info") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine() if form == "json" else ConsoleLine())
    for name, least in (("oscine", level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(least.upper())
        logger.propagate = False
