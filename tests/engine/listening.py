"""What the tests of an engine in its own process share: a listener that checks every sample, and ways to wait.

They wait for what happens, never for a time: a machine that is busy with something else changes no result.
"""

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.engine.remote.fake_engine import FakeConfig, build_fake, pcm

from oscine.config import WorkerConfig
from oscine.engine.remote.client import EngineClient
from oscine.types import AppendText, AudioChunk, SpeechRequest

WAIT_S = 60.0  # for what should happen at once: only a test that fails waits so long
CONFIG = WorkerConfig(heartbeat_s=20.0, start_s=WAIT_S, submit_s=WAIT_S, terminate_s=2.0, backoff_s=0.05)
IMPATIENT = WorkerConfig(heartbeat_s=2.0, start_s=WAIT_S, submit_s=WAIT_S, terminate_s=0.3, backoff_s=0.05)
LONG = "say 100000"


class Heard:
    """A listener: what it got, and that nothing comes after the end. `hold` is called before each chunk is taken: it
    makes the listener as slow as it likes."""

    def __init__(self, seed: int = 0, hold: Callable[[], object] = lambda: None) -> None:
        self.seed, self.hold = seed, hold
        self.chunks: list[AudioChunk] = []
        self.ended = threading.Event()

    def __call__(self, chunk: AudioChunk) -> None:
        self.hold()
        self.chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.ended.set()

    def end(self, timeout_s: float = WAIT_S) -> AudioChunk:
        assert self.ended.wait(timeout_s), f"no end after {len(self.chunks)} chunks"
        return self.chunks[-1]

    def check(self) -> None:
        """Every sample in its place, one end, nothing after it."""
        position = 0
        for chunk in self.chunks:
            assert chunk.first_sample == position and chunk.pcm == pcm(self.seed, position, len(chunk.pcm) // 2)
            position += len(chunk.pcm) // 2
        assert [chunk.finish_reason is not None for chunk in self.chunks] == [False] * (len(self.chunks) - 1) + [True]


def started(config: WorkerConfig = CONFIG, fake: FakeConfig | None = None) -> EngineClient:
    engine = EngineClient(functools.partial(build_fake, fake or FakeConfig()), config)
    engine.wait_ready(WAIT_S)
    return engine


def speak(engine, text: str, seed: int = 0, *, hold: Callable[[], object] = lambda: None) -> Heard:
    heard = Heard(seed, hold)
    engine.submit(SpeechRequest(text=text, seed=seed), heard)
    return heard


def speak_and_then(engine, text: str, seed: int = 0) -> Heard:
    """Three chunks, and when they were heard the text: what a process has not sent when it is killed, nobody hears."""
    heard = Heard(seed)
    utterance = engine.submit(SpeechRequest(text="say 3", seed=seed), heard, streaming_text=True)
    eventually(lambda: len(heard.chunks) == 3)
    engine.tell(utterance, AppendText(text))
    return heard


def eventually(condition, timeout_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not become true"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
