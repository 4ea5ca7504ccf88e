"""The process of an aligner: a job is a message with samples, an answer one without. The first job loads the model."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from oscine.align.whisper import Whisper
from oscine.audio.clips import Clip
from oscine.errors import ConfigError
from oscine.process.child import as_pipe, connection_to_parent
from oscine.process.framing import Message, read_message, write_message

_NICENESS = 5  # the engine and the front end come first


def main(connection: str) -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.nice(_NICENESS)
    pipe = as_pipe(connection_to_parent(connection))
    with contextlib.suppress(EOFError, OSError):
        settings, _ = read_message(pipe)
        try:
            whisper = Whisper(Path(settings["folder"]), settings["threads"])
        except ConfigError as error:
            write_message(pipe, {"error": str(error)})
            return
        write_message(pipe, {"languages": whisper.languages})
        while True:
            write_message(pipe, _answer(whisper, *read_message(pipe)))


def _answer(whisper: Whisper, job: Message, pcm: bytes) -> Message:
    clip = Clip(np.frombuffer(pcm, "<f4"), job["rate_hz"])
    try:
        if job["method"] == "align":
            return {"times": whisper.align(clip, job["text"], job["language"])}
        return {"text": whisper.transcribe(clip, job["language"])}
    except Exception as error:  # of any library, about this audio; the next job may work
        return {"error": f"{type(error).__name__}: {error}"}
