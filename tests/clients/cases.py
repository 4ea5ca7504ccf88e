"""Shared by the client scripts in this folder: a process reads all cases of its client as JSON from stdin and prints
the result of each. It runs in .venv-clients, where Oscine is not installed."""

import base64
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Case = dict[str, Any]
Answer = dict[str, Any]


def cases() -> dict[str, Case]:
    asked: dict[str, Case] = json.load(sys.stdin)
    return asked


def report(answers: dict[str, Answer]) -> None:
    """Prints the results as the last line; clients may print other things before it."""
    print("\n" + json.dumps(answers, default=lambda sound: base64.b64encode(sound).decode()))


def raised(error: BaseException, **facts: Any) -> Answer:
    return {"raised": [kind.__name__ for kind in type(error).__mro__], "message": str(error), **facts}


async def attempt(speak: Callable[[Case], Awaitable[Answer]], case: Case) -> Answer:
    """Exceptions of the client are results too."""
    try:
        return await speak(case)
    except Exception as error:
        return raised(error)
