"""Transcriber in another Python: both ends of a pipe. A line of JSON and the samples go there, a line of JSON comes back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from oscine.evaluate.optional import MissingLibraryError, one_line
from oscine.evaluate.transcriber import About, Heard, LocalTranscriber, TranscriberConfig
from oscine.types import OscineError, RequestError, Samples

Message = dict[str, Any]

# Our package alone becomes importable there: with the whole folder that it is installed in, the other Python would also
# meet libraries that were built for this one. Any Python can read these lines, so that an old one can say that it is.
_BEGIN = """
import json, sys, types
package = types.ModuleType("oscine")
package.__path__ = [sys.argv[1]]
sys.modules["oscine"] = package
try:
    from oscine.evaluate.transcriber_worker import main
except Exception as error:
    said = "Python %d.%d cannot listen: %s; %s" % (sys.version_info[:2] + (" ".join(str(error).split()), sys.argv[2]))
    print(json.dumps({"error": said, "kind": "missing"}))
else:
    main()
"""
_NEEDS = "it must be Python 3.11 or newer, with numpy and faster-whisper"
_QUOTED = 80  # characters of an answer that is none
_ENDS_WITHIN_S = 10.0
_KINDS: dict[str, type[OscineError]] = {"missing": MissingLibraryError, "request": RequestError}


class RemoteTranscriber:
    def __init__(self, python: Path, config: Message) -> None:
        package = Path(__file__).resolve().parents[1]
        try:
            self._process = subprocess.Popen(
                [_program(python), "-c", _BEGIN, str(package), _NEEDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            raise RequestError(f"--listen-with {str(python)!r} is no Python that starts: {error}", "python") from None
        self._python = python
        try:
            hello = self._ask(config)
        except BaseException:
            self._end()
            raise
        self.about: About = hello["about"]
        self.languages: frozenset[str] = frozenset(hello["languages"])

    def __enter__(self) -> RemoteTranscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def hear(self, sound: Samples, language: str | None) -> Heard:
        return Heard(**self._ask({"do": "hear", "language": language}, sound))

    def embed(self, sound: Samples) -> list[float]:
        vector: list[float] = self._ask({"do": "embed"}, sound)["embedding"]
        return vector

    def _ask(self, message: Message, sound: Samples | None = None) -> Message:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        samples = b"" if sound is None else sound.astype("<f4").tobytes()
        with contextlib.suppress(BrokenPipeError):  # whoever does not read may still have said why
            stdin.write(json.dumps({**message, "bytes": len(samples)}).encode() + b"\n" + samples)
            stdin.flush()
        answer = self._answer(stdout.readline())
        if "error" in answer:
            where = "" if answer["kind"] == "request" else f"--listen-with {self._python}: "
            raise _KINDS.get(answer["kind"], OscineError)(where + answer["error"])
        return answer

    def _answer(self, line: bytes) -> Message:
        if not line:
            raise OscineError(
                f"--listen-with {self._python} ended with status {self._process.wait()} instead of listening (what it "
                f"said is above); {_NEEDS}"
            )
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            said = line.decode(errors="replace").strip()[:_QUOTED]
            raise OscineError(
                f"--listen-with {self._python} wrote {said!r} instead of an answer; what is no answer must go to "
                "standard error"
            )
        return answer

    def _end(self) -> None:
        """The end of its input is the worker's end; a program that is none may wait for ever."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _program(python: Path) -> str:
    """A path from here, or a name that is searched. Here first: a Path has forgotten whether it began with ./"""
    here = python.absolute()  # not resolved: the link's own folder is what makes it an environment
    if len(python.parts) > 1 or (here.is_file() and os.access(here, os.X_OK)):
        return str(here)
    return shutil.which(str(python)) or str(here)


def main() -> None:
    """The other end. What libraries print must not be taken for an answer, so it goes where errors go."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        config, _ = _read(sys.stdin.buffer)
        ears = LocalTranscriber.build(TranscriberConfig(**config))
        _write(answers, {"about": ears.about, "languages": sorted(ears.languages)})
        while True:
            message, sound = _read(sys.stdin.buffer)
            if message["do"] == "hear":
                _write(answers, asdict(ears.hear(sound, message["language"])))
            else:
                _write(answers, {"embedding": ears.embed(sound)})
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except OscineError as error:
        kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), "")
        _write(answers, {"error": str(error), "kind": kind})
    except Exception as error:  # whatever a library raises; the other end has nobody who reads a traceback
        said = f"listening failed with {type(error).__name__}: {one_line(error)}"
        _write(answers, {"error": said, "kind": ""})


def _read(pipe: BinaryIO) -> tuple[Message, Samples]:
    line = pipe.readline()
    if not line:
        raise EOFError
    message: Message = json.loads(line)
    return message, np.frombuffer(pipe.read(message.pop("bytes")), "<f4")


def _write(pipe: BinaryIO, message: Message) -> None:
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()
