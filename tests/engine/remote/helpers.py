"""Helpers for tests of worker processes."""

import functools
from collections.abc import Callable
from pathlib import Path

from oscine.config import WorkerConfig
from oscine.engine.remote.client import EngineClient
from oscine.request import SpeechRequest
from oscine.types import AppendText
from tests.engine.recorder import WAIT_S, ChunkRecorder, submit, wait_until
from tests.engine.remote.fake_engine import FakeConfig, build_fake, pcm

CONFIG = WorkerConfig(heartbeat_s=20.0, start_s=WAIT_S, submit_s=WAIT_S, terminate_s=2.0, backoff_s=0.05)
IMPATIENT = WorkerConfig(heartbeat_s=2.0, start_s=WAIT_S, submit_s=WAIT_S, terminate_s=0.3, backoff_s=0.05)
LONG = "say 100000"


class SampleRecorder(ChunkRecorder):
    """Checks the samples against those of a FakeEngine with this seed."""

    def __init__(self, seed: int = 0, before_chunk: Callable[[], object] = lambda: None) -> None:
        super().__init__(before_chunk)
        self.seed = seed

    def check(self) -> None:
        """All samples are correct, and there is one end."""
        assert self.pcm == pcm(self.seed, 0, len(self.pcm) // 2) and len(self.ends) == 1


def started(config: WorkerConfig = CONFIG, fake: FakeConfig | None = None) -> EngineClient:
    engine = EngineClient(functools.partial(build_fake, fake or FakeConfig()), config)
    engine.wait_ready(WAIT_S)
    return engine


def wait_until_idle(engine: EngineClient) -> None:
    """Waits until the worker itself reports no utterance, not only its client."""
    wait_until(lambda: engine._supervisor.status.load == 0)


def speak(engine, text: str, seed: int = 0, *, before_chunk: Callable[[], object] = lambda: None) -> SampleRecorder:
    recorder = SampleRecorder(seed, before_chunk)
    submit(engine, SpeechRequest(text=text, seed=seed), recorder)
    return recorder


def speak_and_then(engine, text: str, seed: int = 0) -> SampleRecorder:
    """Sends the text after three chunks have arrived: a killed process does not send what it holds."""
    recorder = SampleRecorder(seed)
    utterance = submit(engine, SpeechRequest(text="say 3", seed=seed), recorder, streaming_text=True)
    wait_until(lambda: len(recorder.chunks) == 3)
    engine.send(utterance, AppendText(text))
    return recorder


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
