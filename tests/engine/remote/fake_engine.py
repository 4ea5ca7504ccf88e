"""The fake engine of worker processes, importable from a spawned one. Its text is a list of commands:

say 20            twenty chunks of 100 samples, numbered so that lost, repeated or foreign samples are detected
die exit | kill   the process ends here; `die sick`: the engine reports that it is not ready
hang submit | loop
refuse VoiceError

The transcript of a clip to clone may contain `die kill`, `refuse VoiceError`, `sleep 0.5`, or `hold FOLDER`, which
writes a line to FOLDER/begun and waits for FOLDER/go_on.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oscine import errors
from oscine.errors import OscineError, OverloadedError, RequestError, VoiceError
from oscine.request import SpeechRequest
from oscine.types import AppendText, ClipData, Command, Deliver
from oscine.voice import Voice
from tests.manual_engine import FakeUtterance, SpeakingEngine

CHUNK_SAMPLES = 100


def pcm(seed: int, first_sample: int, samples: int) -> bytes:
    """Samples that encode their index and the seed."""
    return ((np.arange(first_sample, first_sample + samples) + seed * 2003) % 2**16).astype("<u2").tobytes()


@dataclass(frozen=True)
class FakeConfig:
    slots: int = 8
    tick_s: float = 0.001
    max_queue: int = 10_000
    fail_build: str = ""
    build_s: float = 0.0
    wait_for: str = ""  # a file: builds wait until it exists
    marker: str = ""  # a file: with fail_build, only builds after the first fail
    log: str = ""  # a file that gets a line for each build
    failures: int = 10_000  # with `log` and fail_build: only so many builds fail


def refusal(kind: str) -> OscineError:
    if kind == "OverloadedError":
        return OverloadedError("full", 2.5)
    cls: type[OscineError] = getattr(errors, kind)
    return cls(f"no {kind}", "voice") if issubclass(cls, RequestError) else cls(f"no {kind}")


def wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def build_fake(config: FakeConfig, progress: Callable[[str, int, int], None]) -> "FakeEngine":
    if config.wait_for:
        wait_for_file(Path(config.wait_for))
    for done in range(3):
        time.sleep(config.build_s / 3)
        progress(os.environ.get("FAKE_STAGE", "weights"), done + 1, 3)
    works = bool(config.marker) and not os.path.exists(config.marker)
    if config.marker:
        with open(config.marker, "a") as file:
            file.write("built\n")
    if config.log:
        with open(config.log, "a+") as file:
            file.write("built\n")
            file.seek(0)
            works = works or len(file.readlines()) > config.failures
    if config.fail_build == "exit" and not works:
        os._exit(7)
    if config.fail_build == "kill" and not works:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.fail_build and not works:
        raise ValueError("a stranger") if config.fail_build == "ValueError" else refusal(config.fail_build)
    return FakeEngine(config)


class FakeEngine(SpeakingEngine):
    def __init__(self, config: FakeConfig | None = None) -> None:
        config = config or FakeConfig()
        super().__init__(config.slots, config.max_queue, config.tick_s)

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        words = request.text.split()
        if words[0] == "refuse":
            raise ValueError("a stranger") if words[1] == "ValueError" else refusal(words[1])
        if words[:2] == ["hang", "submit"]:
            time.sleep(1000)
        super().enqueue(utterance_id, request, deliver, streaming_text=streaming_text)

    def send(self, utterance_id: str, command: Command) -> None:
        apart = isinstance(command, AppendText)
        super().send(utterance_id, AppendText(f" {command.text}") if apart else command)

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """The speaker vector encodes the rate and the length of the clip, in thousands: a vector has a limit."""
        verb, _, what = (transcript or "").partition(" ")
        if verb == "refuse":
            raise refusal(what)
        if verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "sleep":
            time.sleep(float(what))
        if verb == "hold":
            with (Path(what) / "begun").open("a") as begun:
                begun.write("begun\n")
            wait_for_file(Path(what) / "go_on")
        assert isinstance(clip, tuple)
        speaker = np.array([clip[1], len(clip[0])], np.float32) / 1000
        return Voice(speaker) if transcript is None else Voice(speaker, np.zeros((1, 16), np.int64), transcript)

    def preset(self, name: str) -> Voice:
        if name == "stranger":
            raise VoiceError("unknown voice 'stranger'", "voice")
        return Voice(np.full(2, len(name), np.float32))

    def step(self, utterance_id: str, utterance: FakeUtterance) -> bool:
        words = utterance.text.split()
        while not utterance.waiting and len(words) >= 2:
            self._obey(utterance, words.pop(0), words.pop(0))
        utterance.text = "".join(f"{word} " for word in words)
        if utterance.waiting:
            utterance.waiting -= 1
            self.speak(utterance_id, pcm(utterance.request.seed or 0, utterance.samples, CHUNK_SAMPLES))
        elif not utterance.open:
            self.end(utterance_id, "stop")
        else:
            return False
        return True

    def _obey(self, utterance: FakeUtterance, verb: str, what: str) -> None:
        if verb == "say":
            utterance.waiting = int(what)
        elif verb == "hang":
            time.sleep(1000)
        elif what == "sick":
            self.ready = False
        elif what == "exit":
            os._exit(3)
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
