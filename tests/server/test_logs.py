"""A line of the log is one line, whatever a client has sent."""

import json
import logging
import sys

from oscine.server.logs import ConsoleLine, JsonLine, facts

NASTY = "a\nb\r\x1b[31m\x9b\u202e\u2028c"


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("oscine", logging.INFO, __file__, 1, message, (), None)
    made.__dict__.update(facts(**values))
    return made


def test_nothing_that_a_terminal_would_obey_is_in_a_line() -> None:
    line = ConsoleLine().format(record(f"GET {NASTY}", voice=NASTY))
    assert line.isprintable()
    shown = r"a\nb\r\x1b[31m\x9b\u202e\u2028c"
    assert line.endswith(f" GET {shown} voice={shown}")


def test_other_scripts_stay_as_they_are() -> None:
    assert ConsoleLine().format(record("你好, é")).endswith("你好, é")


def test_a_line_for_programs_gives_back_what_came() -> None:
    line = JsonLine().format(record("GET", voice=NASTY))
    assert line.isprintable() and json.loads(line)["voice"] == NASTY


def test_an_exceptions_lines_cannot_be_taken_for_others() -> None:
    failed = record("it failed\n")
    try:
        raise ValueError("12:00:00 info\n12:00:00 info    - forged\x1b[31m")
    except ValueError:
        failed.exc_info = sys.exc_info()
    first, *trace = ConsoleLine().format(failed).split("\n")
    assert first.endswith(" it failed")
    assert trace[-1] == r"  12:00:00 info    - forged\x1b[31m"
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
