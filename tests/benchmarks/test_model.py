"""`python -m benchmarks.model` times what the engine does, with the codec and without."""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.loaded_checkpoint import LoadedCheckpoint
from benchmarks.model import arguments, main, measure
from benchmarks.playback import BackgroundStreams, PlaybackClock
from benchmarks.report_sections import model_facts, pair
from benchmarks.timing import time_ticks
from oscine import SpeechRequest
from oscine.errors import ConfigError, OverloadedError
from oscine.runner.backend import BackendOptions
from oscine.runner.cpu.codec import CpuCodec
from oscine.runner.factory import make_backend
from oscine.runner.runner import FrameOutput
from oscine.runner.slot_runner import SlotRunner
from oscine.types import AudioChunk, Command
from tests.conftest import CheckpointMaker
from tests.manual_engine import ManualEngine

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SHORT = "--device cpu --rows 2 1 --frames 2 --context 1 --probes 1"


@pytest.fixture(autouse=True, scope="module")
def same_threads() -> Iterator[None]:
    """The engine lowers the number of threads on a CPU; other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def checkpoint(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("0b6", "custom_voice", eos_gain=0.0)


@pytest.fixture(scope="module")
def figures(checkpoint: Path) -> dict:
    return measure(checkpoint, arguments(SHORT.split()))


# --- ticks ---


class ScriptedTicket:
    def __init__(self, number: int, ready: bool) -> None:
        self.number, self._ready = number, ready

    def ready(self) -> bool:
        return self._ready


class ScriptedRunner:
    """Records calls; results are ready at once, or only when collected."""

    def __init__(self, ready: bool) -> None:
        self.calls: list[str] = []
        self._ready, self._launched = ready, 0

    def launch(self, slots: Sequence[int]) -> ScriptedTicket:
        self._launched += 1
        self.calls.append(f"launch {self._launched}")
        return ScriptedTicket(self._launched, self._ready)

    def collect(self, ticket: ScriptedTicket) -> FrameOutput:
        self.calls.append(f"collect {ticket.number}")
        return FrameOutput((), np.zeros((0, 16), np.int64), np.zeros((0, 1), np.int16), np.zeros(0, np.bool_))


@pytest.mark.parametrize(
    ("ready", "calls"),
    [
        (False, "launch 1, launch 2, collect 1, launch 3, collect 2, collect 3"),
        (True, "launch 1, collect 1, launch 2, collect 2, launch 3, collect 3"),
    ],
)
def test_ticks_overlap_as_in_the_engine_and_the_first_is_not_counted(ready: bool, calls: str) -> None:
    runner = ScriptedRunner(ready)
    times = time_ticks(runner, [0], 2, CPU)  # type: ignore[arg-type]
    assert ", ".join(runner.calls) == calls
    assert len(times.wall_ms) == 2 and times.device_ms == ()


# --- codes only ---


def codes_of(loaded: LoadedCheckpoint, codec: bool) -> np.ndarray:
    runner = SlotRunner(make_backend(loaded.model, loaded.budget(2, 128), BackendOptions(codec=codec)))
    request = SpeechRequest(text="Hello there.", seed=3, max_new_tokens=9)
    runner.admit(loaded.assign(1, request))
    return np.concatenate([runner.collect(runner.launch([1])).codes for _ in range(4)])


def test_codes_are_the_same_without_the_codec(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedCheckpoint.load(checkpoint, CPU, torch.float32)
    expected = codes_of(loaded, codec=True)
    monkeypatch.setattr(CpuCodec, "run", None)  # any use of the codec now fails
    assert np.array_equal(codes_of(loaded, codec=False), expected)


# --- listeners ---


class NarrowEngine(ManualEngine):
    """Refuses more streams than it has slots, and ends those that are cancelled."""

    async def submit(self, *arguments: Any, **options: Any) -> None:
        if len(self.speaking) == self.slots:
            raise OverloadedError("full", 1.0)
        await super().submit(*arguments, **options)

    def send(self, utterance_id: str, command: Command) -> None:
        self.end(utterance_id, "cancelled")

    def running(self) -> list[int]:
        """The running ones, counted from 1 in the order of their submission."""
        return [1 + self.utterances.index(one) for one in self.speaking]


def background(engine: NarrowEngine, count: int) -> BackgroundStreams:
    return BackgroundStreams(engine, SpeechRequest(text="x"), count)


def test_background_streams_restart_and_are_cancelled_at_the_end() -> None:
    engine = NarrowEngine(slots=3)
    with background(engine, 3) as others:
        for utterance_id in engine.utterances:
            engine.speak(utterance_id)
        assert others.all_running()
        engine.end(engine.utterances[1])
        assert engine.running() == [1, 3, 4]
    assert engine.speaking == {}


def test_background_streams_report_that_the_engine_refused_them() -> None:
    with background(NarrowEngine(slots=2), 3) as others:
        assert not others.all_running()
    queued = NarrowEngine(slots=3)  # accepts all of them, but the last one waits until the first has ended
    with background(queued, 3) as others:
        first, second, _ = queued.utterances
        queued.speak(first)
        queued.speak(second)
        queued.end(first, "length")
        assert not others.all_running()
    assert queued.speaking == {}


def test_the_playback_clock_reports_how_late_a_chunk_came() -> None:
    player = PlaybackClock(24000)
    assert player.first_audio_ms is None
    player.deliver(AudioChunk(bytes(2 * 24000), 0))
    assert player.first_audio_ms is not None and player.first_s is not None
    player.first_s -= 3.0  # as if that had been three seconds ago
    player.deliver(AudioChunk(bytes(48), 24000, "stop"))
    assert player.worst_deficit_s == pytest.approx(2.0, abs=0.5) and player.ended.is_set()


# --- the whole ---


def test_every_number_of_streams_has_figures_in_both_modes(figures: dict) -> None:
    for mode in ("with_codec", "codes_only"):
        assert list(figures[mode]["rows"]) == ["1", "2"] and figures[mode]["memory_bytes"] > 0
        for row in figures[mode]["rows"].values():
            first, last = row["positions"]
            assert (first, last - first) == (figures["prompt_rows"] + 2, 2)
            assert row["frame_ms"]["p50"] <= row["frame_ms"]["p95"] and row["device_ms"] is None
    alone, both = figures["with_codec"]["rows"].values()
    assert alone["x_real_time"] == alone["x_real_time_each"]
    assert both["x_real_time"] == pytest.approx(2 * both["x_real_time_each"])
    assert alone["first_audio_ms"]["p50"] > 0
    assert (figures["kind"], figures["device"], figures["dtype"]) == ("custom_voice", "cpu", "float32")
    assert "float32 on cpu" in model_facts(figures)[0]


def test_the_engine_ends_with_the_measurement(figures: dict) -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == "oscine-engine"]


def test_the_command_prints_a_table_and_its_result_is_named_by_the_size(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Path, str]] = []
    monkeypatch.setattr("benchmarks.model.random_weights", lambda *where, endless: asked.append(where) or checkpoint)
    words = f"model.py --size 1b7 --scratch {tmp_path} --out {tmp_path} --device cpu --rows 1 --frames 1 --context 1"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--probes", "1"])
    main()
    printed = capsys.readouterr().out
    assert "times: p50 / p95 ms" in printed and "Memory: " in printed and asked == [(tmp_path, "1b7")]
    result = json.loads((tmp_path / "bench-model-1b7.json").read_text())
    assert result["command"].startswith("python ") and str(tmp_path) not in result["command"]
    row = result["figures"]["with_codec"]["rows"]["1"]
    assert pair(row["frame_ms"]).split(" / ")[0] in printed


def test_what_does_not_fit_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the checkpoint has 32768 positions"):
        measure(checkpoint, arguments([*SHORT.split(), "--frames", "40000"]))
    monkeypatch.setattr("benchmarks.model.free_bytes", lambda device: 2**29)
    with pytest.raises(ConfigError, match="100000 slots of"):
        measure(checkpoint, arguments([*SHORT.split(), "--rows", "1", "100000"]))


def test_one_thread_is_singular(figures: dict) -> None:
    assert "plain PyTorch, 1 thread)" in model_facts(figures | {"threads": 1})[0]
    assert "plain PyTorch, 3 threads)" in model_facts(figures | {"threads": 3})[0]
