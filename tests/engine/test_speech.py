"""The whole engine over the real runner on a CPU: what a listener hears is what the reference path says."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.conftest import CheckpointMaker
from tests.reference.speaker import ReferenceSpeaker

from oscine.audio import pcm16
from oscine.config import EngineConfig, RunawayConfig, TrimConfig
from oscine.engine.in_process import InProcessEngine
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.backend import make_backend
from oscine.runner.memory_budget import plan_memory
from oscine.runner.slot_runner import SlotRunner
from oscine.types import AppendText, AudioChunk, Cancel, EndText, SpeechRequest

SLOTS = 3
WAIT_S = 120.0
SAMPLES_PER_FRAME = 1920
# Random weights: nothing they say is to be judged.
CONFIG = EngineConfig(
    slots=SLOTS, queue_wait_s=3600.0, trim_silence=TrimConfig(enabled=False), runaway=RunawayConfig(enabled=False)
)


class Ear:
    def __init__(self) -> None:
        self.chunks: list[AudioChunk] = []
        self.ended = threading.Event()

    def __call__(self, chunk: AudioChunk) -> None:
        assert chunk.first_sample == sum(len(earlier.pcm) // 2 for earlier in self.chunks)
        self.chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.ended.set()

    def wait(self) -> np.ndarray:
        assert self.ended.wait(WAIT_S)
        return np.frombuffer(b"".join(chunk.pcm for chunk in self.chunks), np.int16)

    @property
    def reason(self) -> str | None:
        return self.chunks[-1].finish_reason


@pytest.fixture(scope="module")
def base(small_checkpoints: CheckpointMaker) -> ReferenceSpeaker:
    return ReferenceSpeaker(small_checkpoints("0b6", "base"))


@pytest.fixture
def engine(base: ReferenceSpeaker, small_checkpoints: CheckpointMaker) -> Iterator[InProcessEngine]:
    tokenizer = Tokenizer.from_folder(small_checkpoints("0b6", "base"))
    budget = plan_memory(
        base.config, slots=SLOTS, positions_per_slot=256, positions_total=600, element_bytes=4, available_bytes=None
    )
    runner = SlotRunner(make_backend(base.model, budget))
    engine = InProcessEngine(runner, PromptBuilder(base.config, tokenizer), tokenizer, CONFIG)
    yield engine
    status = engine.status()
    engine.stop()
    assert status.ready and (status.slots_active, status.queued) == (0, 0)


@pytest.fixture(scope="module")
def requests(base: ReferenceSpeaker) -> list[SpeechRequest]:
    noise = np.random.default_rng(0).normal(0, 0.2, 36000).astype(np.float32)
    in_context, timbre = base.clone((noise, 24000), "hello there you"), base.clone((noise[::-1].copy(), 24000))
    return [
        SpeechRequest(text="Hello there.", voice=in_context, seed=1, top_p=0.9, max_new_tokens=12),
        SpeechRequest(text="And you, the world.", voice=timbre, text_mode="whole", seed=2, max_new_tokens=9),
        SpeechRequest(text="Hi", voice=in_context, text_mode="whole", greedy=True, max_new_tokens=14),
        SpeechRequest(text="A b c d e f g", voice=timbre, seed=4, temperature=2.0, top_k=0, max_new_tokens=12),
        SpeechRequest(text="Hello again my friend", voice=in_context, seed=5, max_new_tokens=10),
        SpeechRequest(text="x", voice=timbre, greedy=True, repetition_penalty=1.5, max_new_tokens=12),
    ]


@pytest.fixture(scope="module")
def expected(base: ReferenceSpeaker, requests: list[SpeechRequest]) -> list[tuple[np.ndarray, str]]:
    speeches = [base.speak(request) for request in requests]
    return [(np.frombuffer(pcm16(speech.audio), np.int16), speech.finish_reason) for speech in speeches]


def assert_heard(ear: Ear, pcm: np.ndarray, reason: str) -> None:
    heard = ear.wait()
    assert (ear.reason, len(heard)) == (reason, len(pcm))
    usage = ear.chunks[-1].usage
    assert usage is not None and usage.text_ids > 0 and usage.frames * SAMPLES_PER_FRAME == len(pcm)
    # One step apart where the float sample lies on a rounding edge.
    assert np.abs(heard.astype(int) - pcm.astype(int)).max(initial=0) <= 1


def test_in_company_everyone_says_what_the_reference_says(
    engine: InProcessEngine, requests: list[SpeechRequest], expected: list[tuple[np.ndarray, str]]
) -> None:
    rng = random.Random(1)
    ears: list[tuple[int, bool, Ear]] = []
    for _ in range(14):
        number, ear = rng.randrange(len(requests)), Ear()
        utterance_id = engine.submit(requests[number], ear)
        leaves = rng.random() < 0.25
        if leaves:
            threading.Timer(rng.random() * 0.2, engine.tell, (utterance_id, Cancel())).start()
        ears.append((number, leaves, ear))
        if rng.random() < 0.3:
            ear.ended.wait(rng.random() * 0.2)
    for number, leaves, ear in ears:
        pcm, reason = expected[number]
        heard = ear.wait()
        if leaves and ear.reason == "cancelled":
            np.testing.assert_allclose(heard, pcm[: len(heard)], atol=1)
        else:
            assert_heard(ear, pcm, reason)


@pytest.mark.parametrize("number", [0, 3, 4])
def test_text_in_pieces_says_what_the_whole_text_says(
    base: ReferenceSpeaker, engine: InProcessEngine, requests: list[SpeechRequest], number: int
) -> None:
    """Greedy: holding end of speech back takes its share out of a random draw, and so may change it."""
    request, ear = replace(requests[number], greedy=True), Ear()
    request = replace(request, max_new_tokens=len(base.speak(request).codes))  # stays below its own end
    whole = base.speak(request)
    assert whole.finish_reason == "length" and len(whole.codes) >= 4
    utterance_id = engine.submit(replace(request, text=request.text[:1]), ear, streaming_text=True)
    for char in request.text[1:]:
        engine.tell(utterance_id, AppendText(char))
        ear.ended.wait(0.01)
    engine.tell(utterance_id, EndText())
    assert_heard(ear, np.frombuffer(pcm16(whole.audio), np.int16), whole.finish_reason)
