"""What the tests of an engine in its own process share: a listener that checks every sample, and ways to wait."""

import functools
import threading
import time
from pathlib import Path

from tests.engine.fake_engine import FakeConfig, build_fake, pcm

from oscine.engine.process import EngineProcess, ProcessConfig
from oscine.types import AudioChunk, SpeechRequest

CONFIG = ProcessConfig(heartbeat_s=5.0, start_s=30.0, submit_s=10.0, terminate_s=2.0, backoff_s=0.05)
IMPATIENT = ProcessConfig(heartbeat_s=0.8, start_s=30.0, submit_s=10.0, terminate_s=0.3, backoff_s=0.05)
LONG = "say 100000"


class Heard:
    """A listener: what it got, and that nothing comes after the end."""

    def __init__(self, seed: int = 0, sleep_s: float = 0.0) -> None:
        self.seed, self.sleep_s = seed, sleep_s
        self.chunks: list[AudioChunk] = []
        self.arrived_s: list[float] = []
        self.ended = threading.Event()

    def __call__(self, chunk: AudioChunk) -> None:
        time.sleep(self.sleep_s)
        self.chunks.append(chunk)
        self.arrived_s.append(time.monotonic())
        if chunk.finish_reason is not None:
            self.ended.set()

    def end(self, timeout_s: float = 15.0) -> AudioChunk:
        assert self.ended.wait(timeout_s), f"no end after {len(self.chunks)} chunks"
        return self.chunks[-1]

    def check(self) -> None:
        """Every sample in its place, one end, nothing after it."""
        position = 0
        for chunk in self.chunks:
            assert chunk.first_sample == position and chunk.pcm == pcm(self.seed, position, len(chunk.pcm) // 2)
            position += len(chunk.pcm) // 2
        assert [chunk.finish_reason is not None for chunk in self.chunks] == [False] * (len(self.chunks) - 1) + [True]


def started(config: ProcessConfig = CONFIG, fake: FakeConfig | None = None) -> EngineProcess:
    engine = EngineProcess(functools.partial(build_fake, fake or FakeConfig()), config)
    engine.wait_ready(20)
    return engine


def speak(engine, text: str, seed: int = 0, *, sleep_s: float = 0.0) -> Heard:
    heard = Heard(seed, sleep_s)
    engine.submit(SpeechRequest(text=text, seed=seed), heard)
    return heard


def eventually(condition, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not become true"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
