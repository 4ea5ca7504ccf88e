"""The engine over the real runner on a CPU delivers the audio of the reference path."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from oscine.audio.clips import pcm16
from oscine.config import EngineConfig, RunawayConfig, TrimConfig
from oscine.engine.in_process import InProcessEngine
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import SpeechRequest
from oscine.runner.cpu import backend as cpu_backend
from oscine.runner.factory import make_backend
from oscine.runner.memory_budget import plan_memory
from oscine.runner.slot_runner import SlotRunner
from oscine.types import AppendText, Cancel, EndText
from tests.conftest import CheckpointMaker
from tests.engine.recorder import ChunkRecorder, submit
from tests.reference.speaker import ReferenceSpeaker, varied_requests

pytestmark = pytest.mark.slow

SLOTS = 3
SAMPLES_PER_FRAME = 1920
# The audio of random weights is noise: it is neither trimmed nor checked for runaways.
CONFIG = EngineConfig(
    slots=SLOTS, queue_wait_s=3600.0, trim_silence=TrimConfig(enabled=False), runaway=RunawayConfig(enabled=False)
)


@pytest.fixture(scope="module")
def base(small_checkpoints: CheckpointMaker) -> ReferenceSpeaker:
    return ReferenceSpeaker(small_checkpoints("0b6", "base"))


@pytest.fixture(params=[0, 1], ids=["codec inline", "codec on its own thread"])
def engine(
    base: ReferenceSpeaker,
    small_checkpoints: CheckpointMaker,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[InProcessEngine]:
    monkeypatch.setattr(cpu_backend, "divide_threads", lambda: (1, request.param))
    tokenizer = Tokenizer.from_folder(small_checkpoints("0b6", "base"))
    budget = plan_memory(
        base.config, slots=SLOTS, positions_per_slot=256, positions_total=600, element_bytes=4, available_bytes=None
    )
    backend = make_backend(base.model, budget)
    builder = PromptBuilder(base.config, tokenizer)
    engine = InProcessEngine(SlotRunner(backend), builder, tokenizer, CONFIG, launching=backend.launching)
    yield engine
    status = engine.status()
    engine.stop()
    assert status.ready and (status.slots_active, status.queued) == (0, 0)


@pytest.fixture(scope="module")
def requests(base: ReferenceSpeaker) -> list[SpeechRequest]:
    return varied_requests(base)


@pytest.fixture(scope="module")
def expected(base: ReferenceSpeaker, requests: list[SpeechRequest]) -> list[tuple[np.ndarray, str]]:
    speeches = [base.speak(request) for request in requests]
    return [(np.frombuffer(pcm16(speech.audio), np.int16), speech.finish_reason) for speech in speeches]


def assert_delivered(recorder: ChunkRecorder, pcm: np.ndarray, reason: str) -> None:
    assert recorder.wait() == [reason] and len(recorder.samples) == len(pcm)
    usage = recorder.last().usage
    assert usage is not None and usage.text_ids > 0 and usage.frames * SAMPLES_PER_FRAME == len(pcm)
    # One step apart where the float sample is near a rounding border.
    assert np.abs(recorder.samples - pcm).max(initial=0) <= 1


def test_concurrent_streams_equal_the_reference(
    engine: InProcessEngine, requests: list[SpeechRequest], expected: list[tuple[np.ndarray, str]]
) -> None:
    rng = random.Random(1)
    recorders: list[tuple[int, bool, ChunkRecorder]] = []
    for _ in range(14):
        number, recorder = rng.randrange(len(requests)), ChunkRecorder()
        utterance_id = submit(engine, requests[number], recorder)
        cancelled = rng.random() < 0.25
        if cancelled:
            threading.Timer(rng.random() * 0.2, engine.send, (utterance_id, Cancel())).start()
        recorders.append((number, cancelled, recorder))
        if rng.random() < 0.3:
            recorder.ended.wait(rng.random() * 0.2)
    for number, cancelled, recorder in recorders:
        pcm, reason = expected[number]
        if recorder.wait() == ["cancelled"] and cancelled:
            np.testing.assert_allclose(recorder.samples, pcm[: len(recorder.samples)], atol=1)
        else:
            assert_delivered(recorder, pcm, reason)


@pytest.mark.parametrize("number", [0, 3, 4])
def test_text_in_pieces_equals_the_whole_text(
    base: ReferenceSpeaker, engine: InProcessEngine, requests: list[SpeechRequest], number: int
) -> None:
    """Greedy: suppressing the end of speech changes the probabilities of a random draw."""
    request, recorder = replace(requests[number], greedy=True), ChunkRecorder()
    request = replace(request, max_new_tokens=len(base.speak(request).codes))  # stops before its own end
    whole = base.speak(request)
    assert whole.finish_reason == "length" and len(whole.codes) >= 4
    utterance_id = submit(engine, replace(request, text=request.text[:1]), recorder, streaming_text=True)
    for char in request.text[1:]:
        engine.send(utterance_id, AppendText(char))
        recorder.ended.wait(0.01)
    engine.send(utterance_id, EndText())
    assert_delivered(recorder, np.frombuffer(pcm16(whole.audio), np.int16), whole.finish_reason)
