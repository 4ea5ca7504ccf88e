"""Every error that Oscine raises on purpose. No torch here.

OscineError
 ├─ CheckpointError   the model folder or hub id cannot be used
 ├─ ConfigError       the settings cannot work; found before weights are loaded
 │   └─ OutOfMemoryError  memory that the settings need is not free; another process may hold it
 ├─ OverloadedError   the engine is full, or a limit of all clients or of one key is reached; says when to retry
 │   └─ NotReadyError the engine is starting or restarting, or the server takes no more connections
 ├─ ExportError       a part of the checkpoint cannot be exported
 ├─ EngineError       the engine failed or is stopped; the request may be sent again
 └─ RequestError         this request cannot be done; others are not affected
     ├─ FieldError        a field is unknown, has the wrong type or is out of range
     ├─ UnauthorizedError the API key is missing or unknown
     ├─ TimedOutError     it did not arrive in time
     ├─ VoiceError        the voice, clip or saved voice file cannot be used
     ├─ NotFoundError     what the request names does not exist
     ├─ NotAllowedError   the operator's settings forbid it
     ├─ ConflictError     it contradicts what exists, such as a name that is taken
     └─ TooLargeError     it exceeds a limit
         └─ TooLongError  the prompt does not fit the model's positions

`param` names the wrong field, if there is one. `code` is for programs; None stands for the default of the class, which
the server's table of statuses has (server/http/errors.py).
"""

from __future__ import annotations

import difflib
import heapq
from collections import Counter
from collections.abc import Iterable


class OscineError(Exception):
    """Base class of all errors that Oscine raises on purpose."""

    key_limit: str | None = None  # the limit of the client's API key that was reached


class CheckpointError(OscineError):
    """The model folder or hub id cannot be used."""


class ConfigError(OscineError, ValueError):
    """The settings cannot work."""


class OutOfMemoryError(ConfigError):
    """Memory that the settings need is not free; another process may hold it, so a later try may succeed."""


class OverloadedError(OscineError):
    """The engine is full (one more stream would not keep all of them in real time), or another limit is reached."""

    def __init__(self, message: str, retry_after_s: float, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.retry_after_s, self.param, self.code = retry_after_s, param, code


class NotReadyError(OverloadedError):
    """The engine is starting or restarting, or the server takes no more connections."""


class ExportError(OscineError):
    """A part of the checkpoint cannot be exported, or the exported file is wrong."""


class EngineError(OscineError):
    """The engine failed or is stopped; the request may be sent again."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestError(OscineError, ValueError):
    """This request cannot be done; others are not affected."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class FieldError(RequestError):
    """A field is unknown, has the wrong type or is out of range."""


class UnauthorizedError(RequestError):
    """The API key is missing or unknown."""


class TimedOutError(RequestError):
    """The request did not arrive in time."""


class NotFoundError(RequestError):
    """What the request names does not exist."""


class NotAllowedError(RequestError):
    """The operator's settings forbid it."""


class ConflictError(RequestError):
    """The request contradicts what exists, such as a name that is taken."""


class TooLargeError(RequestError):
    """The request exceeds a limit."""


class VoiceError(RequestError):
    """The voice, clip or saved voice file cannot be used."""


class TooLongError(TooLargeError):
    """The prompt does not fit the model's positions."""


_MAX_NAME_CHARS = 100  # a longer name is cut before the nearest one is looked for
_MAX_NAMES_LISTED = 40
_MAX_SHOWN_CHARS = 80
_MAX_COMPARED = 16  # a comparison takes up to half a millisecond


def nearest(name: str, choices: Iterable[str], count: int = 1, *, similarity: float = 0.5) -> list[str]:
    """The choices that look most like the name, at most `count`. Only those that share most letters are compared.
    `similarity` goes from 0 to 1."""
    name = name[:_MAX_NAME_CHARS].lower()
    letters = Counter(name).items()

    def shared(choice: str) -> float:
        common = sum(min(number, choice.count(letter)) for letter, number in letters)
        return common / (len(choice) + len(name) + 1)

    by_lower = {choice[:_MAX_NAME_CHARS].lower(): choice for choice in choices}
    likely = heapq.nlargest(_MAX_COMPARED, by_lower, key=shared)
    return [by_lower[found] for found in difflib.get_close_matches(name, likely, n=count, cutoff=similarity)]


def unknown_choice(what: str, name: str, choices: Iterable[str], meant: str | None = None) -> str:
    """The message for a name that is not on a list: the name, the choice that was `meant` (None: the nearest), and the
    choices."""
    names = sorted(choices)
    name = name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "..."
    meant = meant or next(iter(nearest(name, names)), None)
    hint = f"; did you mean {meant!r}?" if meant else ""
    listed = ", ".join(names[:_MAX_NAMES_LISTED]) or "none: this checkpoint has no such names"
    more = f" and {len(names) - _MAX_NAMES_LISTED} more" if len(names) > _MAX_NAMES_LISTED else ""
    return f"unknown {what} {name!r}{hint} (possible: {listed}{more})"


def shown_name(name: str) -> str:
    """A client's string for an error message: short, and without lone surrogates."""
    return name[:_MAX_SHOWN_CHARS].encode(errors="backslashreplace").decode()


def counted(number: int, noun: str) -> str:
    """`1 stream`, `2 streams`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clear_tracebacks(error: BaseException) -> None:
    """Removes the tracebacks of an error that has been answered, and of those behind it or in its group. A frame that
    holds an error which passed through it is a cycle: all that belongs to the request would wait for a garbage
    collection, and a server that refuses many requests would pause for these."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            waiting += (one.__cause__, one.__context__)
            if isinstance(one, BaseExceptionGroup):
                waiting += one.exceptions
