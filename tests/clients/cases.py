"""What the scripts beside this one share: a process is told all cases of its client on stdin, as JSON, and prints what
the client got for each of them. It runs in .venv-clients, where nothing of ours is installed."""

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


def tell(answers: dict[str, Answer]) -> None:
    """As the last line: clients may print what they like before it."""
    print("\n" + json.dumps(answers, default=lambda sound: base64.b64encode(sound).decode()))


def raised(error: BaseException, **facts: Any) -> Answer:
    return {"raised": [kind.__name__ for kind in type(error).__mro__], "message": str(error), **facts}


async def attempt(speak: Callable[[Case], Awaitable[Answer]], case: Case) -> Answer:
    """What a client raises is an answer too."""
    try:
        return await speak(case)
    except Exception as error:
        return raised(error)
