"""The process of an aligner: reads jobs from its standard input, writes answers to its standard output.

A job is a line of JSON and samples, an answer is a line of JSON. The first job loads the model.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from oscine.align.whisper import Whisper
from oscine.audio import Clip
from oscine.errors import ConfigError

Message = dict[str, Any]
_NICENESS = 5  # the engine and the front end come first


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    with contextlib.suppress(AttributeError, OSError):
        os.nice(_NICENESS)
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        settings, _ = read_message(sys.stdin.buffer)
        try:
            whisper = Whisper(Path(settings["folder"]), settings["threads"])
        except ConfigError as error:
            _write(answers, {"error": str(error)})
            return
        _write(answers, {"languages": whisper.languages})
        while True:
            _write(answers, _answer(whisper, *read_message(sys.stdin.buffer)))


def _answer(whisper: Whisper, job: Message, pcm: bytes) -> Message:
    clip = Clip(np.frombuffer(pcm, "<f4"), job["rate_hz"])
    try:
        if job["method"] == "align":
            return {"times": whisper.align(clip, job["text"], job["language"])}
        return {"text": whisper.transcribe(clip, job["language"])}
    except Exception as error:  # of any library, about this audio; the next job may work
        return {"error": f"{type(error).__name__}: {error}"}


def read_message(pipe: BinaryIO) -> tuple[Message, bytes]:
    line = pipe.readline()
    if not line:
        raise EOFError
    message: Message = json.loads(line)
    return message, pipe.read(message.pop("bytes"))


def _write(pipe: BinaryIO, answer: Message) -> None:
    pipe.write(json.dumps(answer).encode() + b"\n")
    pipe.flush()
