"""A log record stays one line, whatever a client sends."""

import json
import logging
import sys

from oscine.server.http.logs import ConsoleFormatter, JsonFormatter, log_fields

NASTY = "a\nb\r\x1b[31m\x9b\u202e\u2028c"


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("oscine", logging.INFO, __file__, 1, message, (), None)
    made.__dict__.update(log_fields(**values))
    return made


def test_terminal_control_codes_are_escaped() -> None:
    line = ConsoleFormatter().format(record(f"GET {NASTY}", voice=NASTY))
    assert line.isprintable()
    shown = r"a\nb\r\x1b[31m\x9b\u202e\u2028c"
    assert line.endswith(f" GET {shown} voice={shown}")


def test_other_scripts_are_not_escaped() -> None:
    assert ConsoleFormatter().format(record("你好, é")).endswith("你好, é")


def test_json_lines_restore_the_original_values() -> None:
    line = JsonFormatter().format(record("GET", voice=NASTY))
    assert line.isprintable() and json.loads(line)["voice"] == NASTY


def test_the_lines_of_an_exception_are_indented() -> None:
    failed = record("it failed\n")
    try:
        raise ValueError("12:00:00 info\n12:00:00 info    - forged\x1b[31m")
    except ValueError:
        failed.exc_info = sys.exc_info()
    first, *trace = ConsoleFormatter().format(failed).split("\n")
    assert first.endswith(" it failed")
    assert trace[-1] == r"  12:00:00 info    - forged\x1b[31m"
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
