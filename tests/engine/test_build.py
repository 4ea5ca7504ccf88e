"""A real engine, built from a tiny checkpoint on the CPU as a server builds it: here, and in its own process."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import CheckpointMaker
from tests.engine.listening import eventually
from tests.engine.test_speech import WAIT_S, Ear, assert_heard
from tests.reference.speaker import ReferenceSpeaker

from oscine.audio import pcm16, write_wav
from oscine.config import EngineConfig, MemoryConfig, RunawayConfig, TrimConfig, WorkerConfig
from oscine.engine.build import build_engine
from oscine.engine.in_process import InProcessEngine
from oscine.engine.remote.client import EngineClient
from oscine.model.weights import weight_bytes
from oscine.types import (
    Cancel,
    CheckpointError,
    ConfigError,
    EngineError,
    RequestError,
    SpeechEngine,
    SpeechRequest,
    VoiceError,
)
from oscine.utterance import synthesize
from oscine.voice import Voice

RATE_HZ = 24000
KINDS = ("custom_voice", "voice_design", "base")
# Random weights: nothing they say is to be judged, and nobody is sent away because this machine is slow.
CONFIG = EngineConfig(
    slots=2,
    queue_wait_s=3600.0,
    trim_silence=TrimConfig(enabled=False),
    runaway=RunawayConfig(enabled=False),
    memory=MemoryConfig(positions_per_slot=512),
)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.2, RATE_HZ).astype(np.float32)


class Stage:
    """One kind of checkpoint: its engine, the reference, requests of every mode and what the reference says to them."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.told: list[tuple[str, int, int]] = []
        self.engine = build_engine(folder, CONFIG, lambda *told: self.told.append(told), device="cpu")
        self.reference = ReferenceSpeaker(folder)
        self.requests = [
            SpeechRequest(text=text, text_mode=mode, seed=seed, max_new_tokens=8 + seed, **fields)
            for seed, (text, mode, fields) in enumerate(
                (text, mode, fields)
                for fields in self._fields(kind)
                for text, mode in (("Hello there, you.", "streaming"), ("And the world", "whole"))
            )
        ]
        self.expected = [self._said(request) for request in self.requests]

    def _fields(self, kind: str) -> list[dict[str, Any]]:
        if kind == "custom_voice":
            return [{"voice": "ryan", "language": "english", "greedy": True}]
        if kind == "voice_design":
            return [{"instruct": "A calm voice.", "top_p": 0.9}]
        in_context, timbre = self.engine.clone((noise(1), RATE_HZ), "hello you"), self.engine.clone((noise(2), RATE_HZ))
        assert in_context == self.reference.clone((noise(1), RATE_HZ), "hello you")
        assert timbre == self.reference.clone((noise(2), RATE_HZ))
        return [{"voice": timbre}, {"voice": in_context}]

    def _said(self, request: SpeechRequest) -> tuple[np.ndarray, str]:
        speech = self.reference.speak(request)
        return pcm16(speech.audio), speech.finish_reason


@pytest.fixture(scope="module", params=KINDS)
def stage(request: pytest.FixtureRequest, small_checkpoints: CheckpointMaker) -> Iterator[Stage]:
    stage = Stage(small_checkpoints("1b7", request.param), request.param)
    yield stage
    status = stage.engine.status()
    stage.engine.stop()
    assert status.ready and (status.slots_active, status.queued) == (0, 0)
    assert status.prefix_hits > 0, "the same voices spoke again and again"


def test_a_built_engine_is_warm_and_has_told_how_far_it_was(stage: Stage) -> None:
    stages = list(dict.fromkeys(name for name, _, _ in stage.told))
    assert stages[0].startswith("memory: 2 slots of up to 512 positions") and stages[1:] == ["weights", "warm-up"]
    for name in stages[1:]:
        *_, (done, total) = [(done, total) for told, done, total in stage.told if told == name]
        assert done == total > 0
    cost = stage.engine.cost
    status = stage.engine.status()
    assert status.frames > 0 and cost.fixed_s + cost.row_s > 0 and cost.rows_seen >= 1
    assert status.prefix_misses >= 1 and status.prefix_bytes > 0
    assert sum(status.ticks.counts) > 0 and status.ticks.sum_s > 0
    weights = weight_bytes(stage.reference.config, torch.float32)
    assert 0.5 * weights + status.prefix_bytes < status.memory_bytes < 1.5 * weights + 2**30


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_comes_and_goes_everyone_says_what_the_reference_says(stage: Stage, seed: int) -> None:
    rng = random.Random(seed)
    ears: list[tuple[int, Ear]] = []
    # Each mode at least once; three and more at a time for two slots.
    for number in [*range(len(stage.requests)), *rng.choices(range(len(stage.requests)), k=4)]:
        ear = Ear()
        utterance_id = stage.engine.submit(stage.requests[number], ear)
        if rng.random() < 0.3:
            threading.Timer(rng.random() * 0.5, stage.engine.tell, (utterance_id, Cancel())).start()
        ears.append((number, ear))
        ear.ended.wait(rng.random() * 0.3)
    for number, ear in ears:
        pcm, reason = stage.expected[number]
        heard = ear.wait()
        if ear.reason == "cancelled":
            np.testing.assert_allclose(heard, pcm[: len(heard)], atol=1)
        else:
            assert_heard(ear, pcm, reason)


def test_a_voice_may_be_made_while_others_speak(stage: Stage) -> None:
    """And only where there are encoders, and never on the thread that speaks."""
    refused: list[BaseException] = []
    ear = Ear()

    def deliver(chunk: Any) -> None:
        if chunk.pcm and not refused:
            try:
                stage.engine.clone((noise(3), RATE_HZ))
            except EngineError as error:
                refused.append(error)
        ear(chunk)

    stage.engine.submit(stage.requests[0], deliver)
    if len(stage.requests) == 4:
        assert stage.engine.clone((noise(3), RATE_HZ), "so") == stage.reference.clone((noise(3), RATE_HZ), "so")
    else:
        with pytest.raises(VoiceError, match="Base checkpoint"):
            stage.engine.clone((noise(3), RATE_HZ))
    assert_heard(ear, *stage.expected[0])
    assert len(refused) == 1 and "another thread" in str(refused[0])


# --- refused ---


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (MemoryConfig(positions_total=2**36), "are free; use fewer slots"),
        (MemoryConfig(positions_per_slot=16), "at least 1 slot of 64 positions"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_weight_is_loaded(
    small_checkpoints: CheckpointMaker, memory: MemoryConfig, told: str
) -> None:
    stages: list[str] = []
    with pytest.raises(ConfigError, match=told):
        build_engine(
            small_checkpoints("1b7", "base"),
            replace(CONFIG, slots=4096, memory=memory),
            lambda stage, done, total: stages.append(stage),
            device="cpu",
        )
    assert stages == []


def test_no_checkpoint_no_engine(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        build_engine(tmp_path, CONFIG, device="cpu")


# --- in its own process ---


@pytest.fixture(scope="module")
def base_folder(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("0b6", "base")


@pytest.fixture(scope="module")
def here(base_folder: Path) -> Iterator[InProcessEngine]:
    engine = build_engine(base_folder, replace(CONFIG, slots=1), device="cpu")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def there(base_folder: Path) -> Iterator[EngineClient]:
    build = functools.partial(build_engine, base_folder, replace(CONFIG, slots=4), device="cpu")
    engine = EngineClient(build, WorkerConfig(backoff_s=0.05))
    engine.wait_ready(WAIT_S)
    yield engine
    engine.stop()


def test_a_voice_made_there_is_the_voice_made_here(here: InProcessEngine, there: EngineClient, tmp_path: Path) -> None:
    write_wav(tmp_path / "clip.wav", noise(5) / 2, RATE_HZ)
    encoded = (tmp_path / "clip.wav").read_bytes()
    engines: list[SpeechEngine] = [here, there]
    for transcript in (None, "what was said"):
        assert_same(engine.clone((noise(4), 16000), transcript) for engine in engines)
        assert_same(engine.clone(encoded, transcript) for engine in engines)
    for clip, transcript in (
        (b"no audio", None),
        ((noise(4)[:99], RATE_HZ), None),
        ((noise(4), RATE_HZ), " "),
        ((noise(4), RATE_HZ), 7),
    ):
        errors = []
        for engine in engines:
            with pytest.raises(RequestError) as caught:
                engine.clone(clip, transcript)
            errors.append((type(caught.value), str(caught.value), caught.value.param))
        assert errors[0] == errors[1]


def assert_same(voices: Iterator[Voice]) -> None:
    first, second = voices
    assert first == second and isinstance(first, Voice)


def test_killed_while_it_speaks_it_comes_back_and_says_the_same(here: InProcessEngine, there: EngineClient) -> None:
    voice = here.clone((noise(6), RATE_HZ), "what was said")
    request = SpeechRequest(text="Hello there, you.", voice=voice, seed=3, max_new_tokens=10)
    said = synthesize(there, request)
    assert np.abs(samples(said) - samples(synthesize(here, request))).max() <= 1
    eventually(lambda: there.status().prefix_misses > 0 and sum(there.status().ticks.counts) > 0)
    assert there.status().memory_bytes > 0
    ear = Ear()
    there.submit(replace(request, continues_s=1.0), ear)
    assert len(ear.wait()) == len(samples(said)) and ear.chunks[-1].usage is not None
    ears = [Ear() for _ in range(4)]
    for ear in ears:
        there.submit(replace(request, max_new_tokens=400, seed=8), ear)
    eventually(lambda: any(ear.chunks for ear in ears))
    pid = there.health.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for ear in ears:
        ear.wait()
        assert ear.reason == "error" and isinstance(ear.chunks[-1].error, EngineError)
    there.wait_ready(WAIT_S)
    assert there.health.pid != pid and synthesize(there, request) == said


def samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, np.int16).astype(int)
