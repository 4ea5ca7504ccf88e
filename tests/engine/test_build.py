"""An engine built from a tiny checkpoint on the CPU, as a server builds it: in this process and in a worker."""

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

from oscine.audio.clips import pcm16, write_wav
from oscine.config import ChunkConfig, EngineConfig, MemoryConfig, RunawayConfig, TrimConfig, WorkerConfig
from oscine.engine import build
from oscine.engine.build import build_engine, plan_slots, plan_within_memory, prepare_device, warm_up
from oscine.engine.in_process import InProcessEngine
from oscine.engine.remote.client import EngineClient
from oscine.errors import CheckpointError, ConfigError, EngineError, OutOfMemoryError, RequestError, VoiceError
from oscine.model.config import read_config
from oscine.model.weights import weight_bytes
from oscine.request import SpeechRequest
from oscine.runner.factory import KernelChoice
from oscine.types import Cancel, SpeechEngine
from oscine.voice import Voice
from readme_figures import CONTEXT_BYTES, GB, published
from tests.conftest import CheckpointMaker
from tests.engine.conftest import MakeEngine
from tests.engine.recorder import WAIT_S, ChunkRecorder, speak_whole, submit, wait_until
from tests.engine.scripted_runner import PLAIN, ScriptedRunner
from tests.engine.test_in_process_parity import assert_delivered
from tests.reference.speaker import ReferenceSpeaker

pytestmark = pytest.mark.slow

RATE_HZ = 24000
KINDS = ("custom_voice", "voice_design", "base")
# Random weights make noise, which is neither trimmed nor checked for runaways. No request is refused because this
# machine is slow.
CONFIG = EngineConfig(
    slots=2,
    queue_wait_s=3600.0,
    trim_silence=TrimConfig(enabled=False),
    runaway=RunawayConfig(enabled=False),
    memory=MemoryConfig(positions_per_slot=512),
)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.2, RATE_HZ).astype(np.float32)


class BuiltEngine:
    """The engine of one kind of checkpoint, with requests in every mode and their audio from the reference path."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.progress: list[tuple[str, int, int]] = []
        self.engine = build_engine(folder, CONFIG, lambda *step: self.progress.append(step), device="cpu")
        self.reference = ReferenceSpeaker(folder)
        self.requests = [
            SpeechRequest(text=text, text_mode=mode, seed=seed, max_new_tokens=8 + seed, **fields)
            for seed, (text, mode, fields) in enumerate(
                (text, mode, fields)
                for fields in self._fields(kind)
                for text, mode in (("Hello there, you.", "streaming"), ("And the world", "whole"))
            )
        ]
        self.expected = [self._reference_audio(request) for request in self.requests]

    def _fields(self, kind: str) -> list[dict[str, Any]]:
        if kind == "custom_voice":
            return [{"voice": "ryan", "language": "english", "greedy": True}]
        if kind == "voice_design":
            return [{"instructions": "A calm voice.", "top_p": 0.9}]
        in_context, timbre = self.engine.clone((noise(1), RATE_HZ), "hello you"), self.engine.clone((noise(2), RATE_HZ))
        assert in_context == self.reference.clone((noise(1), RATE_HZ), "hello you")
        assert timbre == self.reference.clone((noise(2), RATE_HZ))
        return [{"voice": timbre}, {"voice": in_context}]

    def _reference_audio(self, request: SpeechRequest) -> tuple[np.ndarray, str]:
        speech = self.reference.speak(request)
        return pcm16(speech.audio), speech.finish_reason


@pytest.fixture(scope="module", params=KINDS)
def built(request: pytest.FixtureRequest, small_checkpoints: CheckpointMaker) -> Iterator[BuiltEngine]:
    built = BuiltEngine(small_checkpoints("1b7", request.param), request.param)
    yield built
    status = built.engine.status()
    built.engine.stop()
    assert status.ready and (status.slots_active, status.queued) == (0, 0)


def test_a_built_engine_is_warm_and_has_reported_its_progress(built: BuiltEngine) -> None:
    stages = list(dict.fromkeys(name for name, _, _ in built.progress))
    assert stages[0].startswith("memory: 2 slots of up to 512 positions") and stages[1:] == ["weights", "warm-up"]
    for name in stages[1:]:
        *_, (done, total) = [(done, total) for stage, done, total in built.progress if stage == name]
        assert done == total > 0
    cost = built.engine.cost
    status = built.engine.status()
    assert status.frames > 0 and cost.fixed_s + cost.row_s > 0 and cost.rows_seen >= 1
    assert status.prefix_misses >= 1 and status.prefix_bytes > 0
    assert sum(status.ticks.counts) > 0 and status.ticks.sum_s > 0
    weights = weight_bytes(built.reference.config, torch.float32)
    assert 0.5 * weights + status.prefix_bytes < status.memory_bytes < 1.5 * weights + 2**30


@pytest.mark.parametrize("seed", [1, 2])
def test_streams_that_start_and_end_at_any_time_equal_the_reference(built: BuiltEngine, seed: int) -> None:
    rng = random.Random(seed)
    recorders: list[tuple[int, ChunkRecorder]] = []
    # Each mode at least once; three or more at a time for two slots.
    for number in [*range(len(built.requests)), *rng.choices(range(len(built.requests)), k=4)]:
        recorder = ChunkRecorder()
        utterance_id = submit(built.engine, built.requests[number], recorder)
        if rng.random() < 0.3:
            threading.Timer(rng.random() * 0.5, built.engine.send, (utterance_id, Cancel())).start()
        recorders.append((number, recorder))
        recorder.ended.wait(rng.random() * 0.3)
    for number, recorder in recorders:
        pcm, reason = built.expected[number]
        if recorder.wait() == ["cancelled"]:
            np.testing.assert_allclose(recorder.samples, pcm[: len(recorder.samples)], atol=1)
        else:
            assert_delivered(recorder, pcm, reason)
    assert built.engine.status().prefix_hits > 0, "the same voices spoke again and again"


def test_a_voice_can_be_cloned_while_others_speak(built: BuiltEngine) -> None:
    """Happens only with a Base checkpoint, and never in a callback."""
    refused: list[BaseException] = []
    recorder = ChunkRecorder()

    def deliver(chunk: Any) -> None:
        if chunk.pcm and not refused:
            try:
                built.engine.clone((noise(3), RATE_HZ))
            except EngineError as error:
                refused.append(error)
        recorder(chunk)

    submit(built.engine, built.requests[0], deliver)
    if len(built.requests) == 4:
        assert built.engine.clone((noise(3), RATE_HZ), "so") == built.reference.clone((noise(3), RATE_HZ), "so")
    else:
        with pytest.raises(VoiceError, match="Base checkpoint"):
            built.engine.clone((noise(3), RATE_HZ))
    assert_delivered(recorder, *built.expected[0])
    assert len(refused) == 1 and "another thread" in str(refused[0])


# --- refused ---


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (MemoryConfig(positions_total=2**36), "are free; use fewer positions"),
        (MemoryConfig(positions_per_slot=16), "at least 1 slot of 64 positions"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_weights_are_loaded(
    small_checkpoints: CheckpointMaker, memory: MemoryConfig, reason: str
) -> None:
    stages: list[str] = []
    with pytest.raises(ConfigError, match=reason):
        build_engine(
            small_checkpoints("1b7", "base"),
            replace(CONFIG, slots=4096, memory=memory),
            lambda stage, done, total: stages.append(stage),
            device="cpu",
        )
    assert stages == []


def test_as_many_slots_as_fit_are_the_default(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stages = small_checkpoints("1b7", "custom_voice"), []
    config = replace(CONFIG, slots=None, memory=MemoryConfig(positions_per_slot=512, prefix_cache_mib=0))
    model_config, device, dtype = read_config(folder), torch.device("cpu"), torch.float32
    three = plan_slots(model_config, config, device, dtype, slots=3).total_bytes
    monkeypatch.setattr(build, "free_bytes", lambda device: weight_bytes(model_config, dtype) + three)
    engine = build_engine(folder, config, lambda *stage: stages.append(stage[0]), device="cpu")
    try:
        assert engine.status().slots == 3
        assert stages[0].startswith("warning: 3 slots instead of 32: 32 slots of up to 512 positions")
    finally:
        engine.stop()
    four = replace(config, slots=4)
    with pytest.raises(OutOfMemoryError, match="are free; use 3 slots or fewer positions; other processes hold memory"):
        build_engine(folder, four, device="cpu")
    monkeypatch.setattr(build, "total_bytes", build.free_bytes)
    with pytest.raises(ConfigError, match=r"are free; use 3 slots or fewer positions$") as refused:
        build_engine(folder, four, device="cpu")
    assert not isinstance(refused.value, OutOfMemoryError)  # which is tried again


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")]
)
def test_memory_that_ran_out_while_an_engine_was_built_may_be_free_later(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(build, "load_model", load)
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        build_engine(small_checkpoints("0b6", "custom_voice"), CONFIG, device="cpu")


@pytest.mark.parametrize(
    ("size", "kind", "slots"), [("0b6", "custom_voice", 13), ("0b6", "base", 12), ("1b7", "base", 2)]
)
def test_published_checkpoints_start_on_a_card_of_8_gb(
    size: str, kind: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They start with as many slots as docs/install.md says."""
    pytest.importorskip("triton")
    from oscine.runner.cuda.backend import CudaBackend

    monkeypatch.setattr(build, "choose_backend", lambda device, dtype: CudaBackend)
    monkeypatch.setattr(build, "free_bytes", lambda device: 8 * GB - CONTEXT_BYTES)
    notes: list[str] = []
    card, dtype = torch.device("cuda"), torch.bfloat16
    checkpoint = published(size, kind)
    budget = plan_within_memory(checkpoint, EngineConfig(), card, dtype, lambda *note: notes.append(note[0]))
    assert budget.slots == slots and notes[0].startswith(f"warning: {slots} slots instead of 32: ")


def test_kernels_that_cannot_run_are_refused_before_weights_are_loaded(small_checkpoints: CheckpointMaker) -> None:
    stages: list[str] = []
    with pytest.raises(ConfigError, match=r"'cuda', but kernels need an NVIDIA GPU .* has cpu and float32"):
        build_engine(
            small_checkpoints("1b7", "base"),
            replace(CONFIG, kernels="cuda"),
            lambda stage, done, total: stages.append(stage),
            device="cpu",
        )
    assert stages == []


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        build_engine(tmp_path, CONFIG, device="cpu")


# --- kernels ---


def test_the_choice_of_kernels_is_reported_and_shown_as_part_of_the_device(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is scripted: tests/runner/test_factory.py tests it."""
    choice = KernelChoice("triton", "no CUDA compiler; `pip install one`", warning=True)
    monkeypatch.setattr("oscine.engine.build.choose_kernels", lambda wanted, *facts: choice)
    stages: list[str] = []
    config = replace(CONFIG, slots=1)
    engine = build_engine(
        small_checkpoints("1b7", "custom_voice"), config, lambda *step: stages.append(step[0]), device="cpu"
    )
    try:
        assert stages[0] == "warning: Triton kernels: no CUDA compiler; `pip install one`"
        assert engine.status().device.endswith("float32, Triton kernels")
    finally:
        engine.stop()


# --- codes alone ---


def test_an_engine_without_codec_streams_the_codes_of_a_whole_engine(here: InProcessEngine, base_folder: Path) -> None:
    voice = here.clone((noise(7), RATE_HZ), "what was said")
    request = SpeechRequest(text="Hello there, you.", voice=voice, seed=5, max_new_tokens=12)
    whole = ChunkRecorder()
    submit(here, replace(request, return_codes=True), whole)
    expected = whole.last().codes
    assert expected is not None and len(expected) == 11
    eager = ChunkConfig(first_chunk_ticks=0)  # by default a slow machine holds its first frames back
    talker = build_engine(base_folder, replace(CONFIG, slots=1, chunks=eager), device="cpu", codec=False)
    try:
        streamed = ChunkRecorder()
        submit(talker, replace(request, stream_codes=True), streamed)
        streamed.wait()
    finally:
        talker.stop()
    pieces = [chunk.codes for chunk in streamed.chunks]
    assert np.array_equal(np.concatenate(pieces), expected)
    # Each chunk carries the codes of its own frames: the first audio can be decoded when it is due.
    assert [len(codes) * 1920 for codes in pieces] == [len(chunk.pcm) // 2 for chunk in streamed.chunks]
    assert len(pieces) > 1 and not streamed.samples.any() and len(streamed.samples) == len(whole.samples)


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


def test_a_worker_clones_the_same_voice_as_this_process(
    here: InProcessEngine, there: EngineClient, tmp_path: Path
) -> None:
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


def test_a_killed_worker_restarts_and_speaks_the_same(here: InProcessEngine, there: EngineClient) -> None:
    voice = here.clone((noise(6), RATE_HZ), "what was said")
    request = SpeechRequest(text="Hello there, you.", voice=voice, seed=3, max_new_tokens=10)
    said = speak_whole(there, request)
    assert np.abs(samples(said) - samples(speak_whole(here, request))).max() <= 1
    wait_until(lambda: there.status().prefix_misses > 0 and sum(there.status().ticks.counts) > 0)
    assert there.status().memory_bytes > 0
    recorder = ChunkRecorder()
    submit(there, replace(request, continues_s=1.0), recorder)
    assert recorder.last().usage is not None and len(recorder.samples) == len(samples(said))
    recorders = [ChunkRecorder() for _ in range(4)]
    for recorder in recorders:
        submit(there, replace(request, max_new_tokens=400, seed=8), recorder)
    wait_until(lambda: any(recorder.chunks for recorder in recorders))
    pid = there.health.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for recorder in recorders:
        assert recorder.wait() == ["error"] and isinstance(recorder.last().error, EngineError)
    there.wait_ready(WAIT_S)
    assert there.health.pid != pid and speak_whole(there, request) == said


def samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, np.int16).astype(int)


@pytest.mark.parametrize(
    ("cpus", "codec", "threads"), [(1, True, 1), (2, True, 2), (2, False, 1), (3, True, 2), (8, True, 7), (8, False, 7)]
)
def test_one_core_is_left_to_the_server_unless_the_codec_uses_the_second_of_two(
    cpus: int, codec: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(build, "usable_cpus", lambda: cpus)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    prepare_device(torch.device("cpu"), codec=codec)
    assert not chosen, "the user has chosen"
    monkeypatch.delenv("OMP_NUM_THREADS")
    prepare_device(torch.device("cpu"), codec=codec)
    assert chosen == [threads]


# --- warm-up ---

COLD_S = 0.5


class WarmUp:
    """Runs a warm-up. The first launch of each batch waits until the whole batch is submitted."""

    def __init__(self, make_engine: MakeEngine, slots: int, **costs: float) -> None:
        self.config = replace(PLAIN, slots=slots)
        self.runner = ScriptedRunner(slots, fail=self._before, min_frames=50, **costs)  # type: ignore[arg-type]
        self.engine: InProcessEngine = make_engine(self.config, runner=self.runner)
        self.progress: list[tuple[str, int, int]] = []
        self.awaited = 0

    def run(self) -> None:
        warm_up(self.engine, self.config, self._report)

    def _report(self, stage: str, done: int, total: int) -> None:
        self.awaited = self.config.buckets[done] if done < total else 0
        self.progress.append((stage, done, total))

    def _before(self, stage: str, tag: int) -> None:
        if stage == "launch" and self.awaited:
            wait_until(lambda: self._submitted() >= self.awaited)
            self.awaited = 0
        elif stage == "collect":
            self.runner.fixed_s = min(self.runner.fixed_s, 0.005)  # only the first launch is cold

    def _submitted(self) -> int:
        status = self.engine.status()
        return status.slots_active + status.queued


def test_the_warm_up_measures_every_batch_size_although_the_first_tick_is_cold(make_engine: MakeEngine) -> None:
    warm = WarmUp(make_engine, slots=4, fixed_s=COLD_S, row_s=0.001)
    warm.run()
    assert warm.engine.cost.rows_seen == 4 == max(map(len, warm.runner.launches))
    assert 0 < warm.engine.cost.tick_s(1) < COLD_S / 5
    assert warm.progress == [("warm-up", done, 3) for done in range(4)]


def test_the_warm_up_ends_where_real_time_ends(make_engine: MakeEngine) -> None:
    warm = WarmUp(make_engine, slots=8, row_s=0.05)  # two rows take 105 ms, longer than a frame
    warm.run()
    assert max(map(len, warm.runner.launches)) == 2 and warm.progress[-1] == ("warm-up", 4, 4)


def test_a_warm_up_is_not_refused_on_a_machine_that_stalls(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first tick of each batch lasts longer than a request may wait for a slot, and only one request is in it."""
    warm = WarmUp(make_engine, slots=4)
    wait_for_batch, enqueue = warm.runner.fail, warm.engine.enqueue

    def enqueue_after_the_first(*arguments: Any) -> None:
        wait_until(lambda: not warm.engine.status().queued or warm.engine.status().slots_active > 0)
        enqueue(*arguments)

    monkeypatch.setattr(warm.engine, "enqueue", enqueue_after_the_first)

    def stall(stage: str, tag: int) -> None:
        is_first = stage == "launch" and warm.awaited > 0
        wait_for_batch(stage, tag)
        if is_first:
            warm.runner.clock.now_s += 2 * warm.config.queue_wait_s

    warm.runner.fail = stall
    warm.run()
    assert warm.engine.cost.rows_seen == 4 and warm.progress[-1] == ("warm-up", 3, 3)


def test_settings_without_room_for_an_utterance_are_refused(make_engine: MakeEngine) -> None:
    warm = WarmUp(make_engine, slots=1, positions=10)
    with pytest.raises(ConfigError, match="no room for one short utterance"):
        warm.run()
