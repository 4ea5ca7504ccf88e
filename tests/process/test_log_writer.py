"""A log that nobody reads stops nothing."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator

import pytest

from oscine.process.log_writer import LogWriter

LINE = "x" * 200
LOST = re.compile(r"(\d+) log lines were lost")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def log(writer: LogWriter, message: str) -> None:
    writer.handle(logging.LogRecord("oscine", logging.INFO, __file__, 1, message, (), None))


def read_until(descriptor: int, end: str) -> str:
    text = ""
    while end not in text:
        text += os.read(descriptor, 65536).decode()
    return text


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    for number in range(100):
        log(writer, f"line {number}")
    writer.flush()
    assert os.read(pipe[0], 65536).decode().splitlines() == [f"line {number}" for number in range(100)]


def test_lines_that_nobody_reads_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], max_lines=100)
    for _ in range(2000):  # a pipe holds 64 KiB
        log(writer, LINE)
    text = read_until(pipe[0], "log lines were lost")
    while text.count(LINE) + sum(map(int, LOST.findall(text))) < 2000:
        log(writer, "is anybody there?")
        text += os.read(pipe[0], 65536).decode()
    assert 100 <= text.count(LINE) < 2000  # how many more depends on when the thread runs


def test_flushing_does_not_wait_for_a_reader_for_ever(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    for _ in range(1000):
        log(writer, LINE)
    writer.flush()


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    os.close(pipe[0])
    log(writer, "nobody")
    writer.flush()


def test_a_lone_surrogate_is_written_escaped(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    log(writer, "a\ud800b")
    writer.flush()
    assert os.read(pipe[0], 100) == b"a\\ud800b\n"


def test_a_full_disk_is_no_error() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(full)
    log(writer, "nowhere")
    writer.flush()
    os.close(full)
