"""Runs a transcriber in another Python: both ends of the pipe.

A request is a message with samples, a response is one without (oscine/process/child.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from oscine.audio.pcm import Samples
from oscine.errors import OscineError, RequestError
from oscine.process.child import Message, read_message, write_message
from oscine_eval.optional import MissingLibraryError, one_line
from oscine_eval.transcriber import About, LocalTranscriber, Transcriber, TranscriberConfig, Transcript

# Makes only our packages importable: our site-packages may hold libraries built for this Python. The code runs in any
# Python 3, so that an old one can report its version.
_BOOTSTRAP = """
import json, os, sys, types
for name in ("oscine", "oscine_bench", "oscine_eval"):
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(sys.argv[1], name)]
    sys.modules[name] = package
try:
    from oscine_eval.transcriber_process import main
except Exception as error:
    reason = "Python %d.%d cannot transcribe: %s; %s" % (
        sys.version_info[:2] + (" ".join(str(error).split()), sys.argv[2])
    )
    print(json.dumps({"error": reason, "kind": "missing"}))
else:
    main()
"""
_REQUIREMENTS = "it needs Python 3.11 or newer, numpy and faster-whisper"
_QUOTED_CHARACTERS = 80
EXIT_TIMEOUT_S = 10.0
_ERRORS: dict[str, type[OscineError]] = {"missing": MissingLibraryError, "request": RequestError}


@contextlib.contextmanager
def open_transcriber(config: TranscriberConfig, python: Path | None = None) -> Iterator[Transcriber]:
    """`python` names another Python that has the libraries, instead of this one."""
    if python is None:
        yield LocalTranscriber(config)
        return
    remote = RemoteTranscriber(python)
    try:
        remote.start(config)
        yield remote
    finally:
        remote.close()


class RemoteTranscriber:
    about: About
    languages: frozenset[str]

    def __init__(self, python: Path) -> None:
        self._option = f"--transcriber-python {python}"
        packages = str(Path(__file__).resolve().parents[1])
        try:
            self._process = subprocess.Popen(
                [_program(python), "-c", _BOOTSTRAP, packages, _REQUIREMENTS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            raise RequestError(f"{self._option} does not start: {error}", "transcriber_python") from None

    def start(self, config: TranscriberConfig) -> None:
        ready = self._call(asdict(config))
        self.about, self.languages = ready["about"], frozenset(ready["languages"])

    def transcribe(self, audio: Samples, language: str | None) -> Transcript:
        return Transcript(**self._call({"method": "transcribe", "language": language}, audio))

    def embed(self, audio: Samples) -> list[float]:
        embedding: list[float] = self._call({"method": "embed"}, audio)["embedding"]
        return embedding

    def close(self) -> None:
        """The worker exits at the end of its input. Any other program may not: it is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, request: Message, audio: Samples | None = None) -> Message:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        samples = b"" if audio is None else audio.astype("<f4").tobytes()
        with contextlib.suppress(BrokenPipeError):  # a worker that has stopped reading may have written why
            write_message(stdin, request, samples)
        response = self._parse(stdout.readline())
        if "error" in response:
            where = "" if response["kind"] == "request" else f"{self._option}: "
            raise _ERRORS.get(response["kind"], OscineError)(where + response["error"])
        return response

    def _parse(self, line: bytes) -> Message:
        if not line:
            status = self._process.wait()
            raise OscineError(f"{self._option} exited with status {status} (see its output above); {_REQUIREMENTS}")
        with contextlib.suppress(ValueError):
            response = json.loads(line)
            if isinstance(response, dict):
                response.pop("bytes", None)  # no response has content
                return response
        start = line.decode(errors="replace").strip()[:_QUOTED_CHARACTERS]
        raise OscineError(
            f"{self._option} wrote {start!r} instead of a response; a wrapper must write to standard error only"
        )


def _program(python: Path) -> str:
    """Finds a program by path, or by name in the current folder or in PATH. The folder comes first, because Path("./x")
    is Path("x")."""
    here = python.absolute()  # not resolved: an environment is found through its link
    if len(python.parts) > 1 or (here.is_file() and os.access(here, os.X_OK)):
        return str(here)
    return shutil.which(str(python)) or str(here)


def main() -> None:
    """Runs the worker. Standard output is redirected to standard error, so that nothing that libraries print is taken
    for a response."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        config, _ = read_message(sys.stdin.buffer)
        transcriber = LocalTranscriber(TranscriberConfig(**config))
        write_message(responses, {"about": transcriber.about, "languages": sorted(transcriber.languages)})
        while True:
            request, content = read_message(sys.stdin.buffer)
            audio = np.frombuffer(content, "<f4")
            if request["method"] == "transcribe":
                write_message(responses, asdict(transcriber.transcribe(audio, request["language"])))
            else:
                write_message(responses, {"embedding": transcriber.embed(audio)})
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except OscineError as error:
        kind = next((name for name, known in _ERRORS.items() if isinstance(error, known)), "")
        write_message(responses, {"error": str(error), "kind": kind})
    except Exception as error:  # of any library; the parent shows one line instead of a traceback
        reason = f"transcription failed with {type(error).__name__}: {one_line(error)}"
        write_message(responses, {"error": reason, "kind": ""})
