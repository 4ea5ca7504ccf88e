"""Log formats with the request's id, for people (console) or programs (JSON), and the audit log. Log lines never
contain spoken text."""

from __future__ import annotations

import contextvars
import json
import logging
import re
import time
from typing import Any, Literal

from oscine.process.log_writer import LogWriter

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="-")

_FIELDS = "log_fields"
_STDERR = 2
_WORD = re.compile(r'[^\s="]+')


def log_fields(**values: Any) -> dict[str, Any]:
    """Returns `extra=` for named values next to the message. None values are left out."""
    return {_FIELDS: {name: value for name, value in values.items() if value is not None}}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "request_id": request_id.get(),
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={_quoted(value)}" for name, value in getattr(record, _FIELDS, {}).items())
        message = record.getMessage().rstrip()
        line = printable(f"{clock} {record.levelname.lower():7} {request_id.get()} {message}{fields}")
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join((line, *(f"  {printable(frame)}" for frame in trace)))


def _quoted(value: object) -> str:
    """The value as it is if it is one word, otherwise quoted: a client's value must not look like further fields."""
    text = str(value)
    return text if _WORD.fullmatch(text) else '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def printable(text: str) -> str:
    """The text on one line, with terminal control codes escaped: data of clients may be in it."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


# uvicorn log messages that are not errors.
_EXPECTED = (
    "ASGI callable returned without completing response.",  # on purpose, after a failure that its handler has logged
    "Invalid UTF-8 sequence received from client.",  # the client is told; it cannot fill the log with tracebacks
)


def _is_unexpected(record: logging.LogRecord) -> bool:
    return record.getMessage() not in _EXPECTED


def drop_expected_errors() -> None:
    logging.getLogger("uvicorn.error").addFilter(_is_unexpected)  # a filter is added only once


# Without a handler, Python would write their warnings to standard error at once: a full pipe would stop the event loop.
# The parser of uploads warns of each wrong byte, of which the client is told.
_LEVELS_OF_LIBRARIES = (("uvicorn", "warning"), ("asyncio", "warning"), ("python_multipart", "critical"))


def log_to_stderr(form: Literal["console", "json"], level: str = "info") -> None:
    handler = LogWriter(_STDERR)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    for name, min_level in (("oscine", level), *_LEVELS_OF_LIBRARIES):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(min_level.upper())
        logger.propagate = False
    logging.getLogger("oscine.audit").setLevel(logging.INFO)  # at any level of the others


# --- The audit log: refused keys, changes of voices and models, the settings. Lines of the logger `oscine.audit`,
# with the client's address and the name of its key; never the key itself, a text, or a consent.


_log = logging.getLogger("oscine.audit")

client_address: contextvars.ContextVar[str | None] = contextvars.ContextVar("client_address", default=None)
key_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("key_name", default=None)


def audit(event: str, **fields: Any) -> None:
    _log.info(event, extra=log_fields(client=client_address.get(), key=key_name.get(), **fields))
