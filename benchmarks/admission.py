"""Measures what the admission of a request costs the host: prompt, session, loop (with a runner that does nothing), and
the runner's own part. Times are those of the calling thread; `prefilled_ms` is the time until the device has the keys
and values of all newcomers.

    python -m benchmarks.admission [--model demo] [--newcomers 1 32 128]
    python -m benchmarks.admission --size 1b7 [--prompt-rows 400]              random weights of a published size, a GPU

Each figure is the least of --rounds rounds, in microseconds per request.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.checkpoints import WEIGHTS, checkpoint
from benchmarks.loaded_checkpoint import LoadedCheckpoint
from benchmarks.report_sections import admission_table
from benchmarks.results import read_arguments, save
from oscine.audio.pcm import CODEBOOKS
from oscine.config import EngineConfig, MemoryConfig, PacingConfig
from oscine.engine.build import plan_slots, prepare_device
from oscine.engine.in_process import InProcessEngine
from oscine.engine.loop import EngineLoop
from oscine.engine.session import Session, StreamSpec
from oscine.model.checkpoint import find_checkpoint
from oscine.model.device import choose_device, choose_dtype
from oscine.process.child import freeze_gc
from oscine.request import SamplingParams, SpeechRequest
from oscine.runner.backend import BackendOptions
from oscine.runner.factory import choose_kernels, make_backend
from oscine.runner.runner import FrameOutput, RunnerCounts, SlotAssignment, Ticket
from oscine.runner.slot_runner import SlotRunner
from oscine.types import Prompt

TEXT = "The weather will be fine tomorrow, with a little wind from the west."
Figures = dict[str, float]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Frames:
    slots: tuple[int, ...]
    with_prompts: bool = False

    def begun(self) -> bool:
        return True

    def device_free(self) -> bool:
        return True

    def wait_device_free(self) -> None: ...

    def ready(self) -> bool:
        return False


@dataclass(slots=True)
class NullRunner:
    """Silent frames at no cost, so that the rest is the loop's."""

    slots: int
    sample_rate_hz: int
    samples_per_frame: int
    eos_id: int

    def admit(self, assignment: SlotAssignment) -> None: ...

    def append_text(self, slot: int, text_ids: Sequence[int], *, ended: bool) -> None: ...

    def launch(self, slots: Sequence[int]) -> Ticket:
        return _Frames(tuple(slots))

    def collect(self, ticket: Ticket) -> FrameOutput:
        assert isinstance(ticket, _Frames)
        rows = len(ticket.slots)
        pcm = np.zeros((rows, self.samples_per_frame), np.int16)
        return FrameOutput(ticket.slots, np.zeros((rows, CODEBOOKS), np.int64), pcm, np.zeros(rows, np.bool_))

    def release(self, slot: int) -> None: ...

    def room_for(self, prompt: Prompt, sampling: SamplingParams) -> bool:
        return True

    def counts(self) -> RunnerCounts:
        return RunnerCounts()


def _us(call: Callable[[_T], object], items: Sequence[_T]) -> float:
    """Per item."""
    begun_s = time.perf_counter()
    for item in items:
        call(item)
    return 1e6 * (time.perf_counter() - begun_s) / len(items)


def loop_us(runner: NullRunner, config: EngineConfig, prompt: Prompt, text_ids: int, count: int) -> Figures:
    """`count` requests that arrive together: their way into the inbox, the tick that admits them, and a later one."""
    spec = StreamSpec(runner.sample_rate_hz, runner.samples_per_frame, runner.eos_id, config.memory.positions_per_slot)
    loop = EngineLoop(runner, config)
    sessions = []
    for number in range(count):
        # Continuations are never refused, and admitted before any cost is known.
        session = Session(f"{number}", SamplingParams(), _drop, config, spec, budgeted=True, continues=True)
        session.begin(prompt, text_ids, text_ended=True)
        sessions.append(session)
    submit_us = _us(loop.submit, sessions)
    admitting_us = _us(EngineLoop.tick, [loop]) / count
    assert loop.status().slots_active == count, loop.status()
    return {"submit": submit_us, "loop": admitting_us, "frame": _us(EngineLoop.tick, [loop]) / count}


def _drop(chunk: object) -> None: ...


@contextmanager
def timed_waits() -> Iterator[list[float]]:
    """Seconds of each wait of the host for the device."""
    waits_s: list[float] = []
    synchronize = torch.cuda.Event.synchronize

    def timed(event: torch.cuda.Event) -> None:
        begun_s = time.perf_counter()
        synchronize(event)
        waits_s.append(time.perf_counter() - begun_s)

    torch.cuda.Event.synchronize = timed  # type: ignore[method-assign, assignment]
    try:
        yield waits_s
    finally:
        torch.cuda.Event.synchronize = synchronize  # type: ignore[method-assign]


def admit_s(runner: SlotRunner, assignments: Sequence[SlotAssignment]) -> tuple[float, float, float]:
    """The host's work, its waits for the device, and the time until the device has the keys and values of all prompt
    rows; after the first request, whose prefix the others share. Frees the slots again."""
    begun_s = time.perf_counter()
    with timed_waits() as waits_s:
        for assignment in assignments:
            runner.admit(assignment)
        runner.flush_admissions()  # all newcomers together
    host_s = time.perf_counter() - begun_s - sum(waits_s)
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)
    prefilled_s = time.perf_counter() - begun_s
    runner.collect(runner.launch([assignment.slot for assignment in assignments]))
    for assignment in assignments:
        runner.release(assignment.slot)
    return host_s, sum(waits_s), prefilled_s


def with_rows(prompt: Prompt, rows: int) -> Prompt:
    """A prompt of so many rows, which repeats the rows of this one; none of them is shared."""
    repeats = -(-rows // prompt.rows)
    text_ids, codec_ids = (np.tile(ids, repeats)[:rows] for ids in (prompt.text_ids, prompt.codec_ids))
    return replace(prompt, text_ids=text_ids, codec_ids=codec_ids, prefix_rows=0)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    device = choose_device(options.device)
    dtype = choose_dtype("auto", device)
    prepare_device(device)
    slots = max(options.newcomers)
    pacing = PacingConfig(prefill_rows_per_tick=1_000_000)  # all newcomers in one tick
    config = EngineConfig(slots=slots, memory=MemoryConfig(positions_per_slot=1024), pacing=pacing)
    loaded = LoadedCheckpoint.load(folder, device, dtype)
    budget = plan_slots(loaded.model.config, config, device, dtype, slots=slots)
    sizes = BackendOptions().sizes(slots)
    kernels = choose_kernels("auto", loaded.model.config, device, dtype, sizes).kernels  # as the server does
    runner = SlotRunner(make_backend(loaded.model, budget, BackendOptions(kernels=kernels or "triton")))
    runner.capture()
    null = NullRunner(slots, runner.sample_rate_hz, runner.samples_per_frame, runner.eos_id)
    request = SpeechRequest(text=TEXT, max_new_tokens=options.tokens, seed=1)
    prompt = loaded.builder.build(request)
    text_ids = len(loaded.tokenizer.encode(TEXT))
    engine = InProcessEngine(null, loaded.builder, loaded.tokenizer, config)
    freeze_gc()  # as the worker does
    rounds = range(options.rounds)
    prompt_us = min(_us(loaded.builder.build, [request] * 100) for _ in rounds)
    session_us = min(_us(engine.check, [request] * 100) for _ in rounds)
    engine.stop()
    figures: dict[str, Any] = {"device": str(device), "kernels": kernels}
    figures |= {"prompt_rows": options.prompt_rows or prompt.rows}
    figures |= {"newcomers": {}, "prefilled_ms": {}}
    for count in options.newcomers:
        every = [loop_us(null, config, prompt, text_ids, count) for _ in rounds]
        least = {name: min(one[name] for one in every) for name in every[0]}
        assignments = [loaded.assign(slot, request) for slot in range(count)]
        if options.prompt_rows:
            assignments = [replace(one, prompt=with_rows(one.prompt, options.prompt_rows)) for one in assignments]
        host_s, waits_s, prefilled_s = np.min([admit_s(runner, assignments) for _ in rounds], axis=0).tolist()
        figures["prefilled_ms"][str(count)] = 1e3 * prefilled_s
        figures["newcomers"][str(count)] = {
            "prompt_us": prompt_us,
            "session_us": session_us - prompt_us,
            "submit_us": least["submit"],
            "loop_us": least["loop"],
            "frame_us": least["frame"],
            "runner_us": 1e6 * host_s / count,
            "wait_us": 1e6 * waits_s / count,
        }
    return figures


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    return read_arguments(
        __doc__, words, **WEIGHTS, model=("demo", "a folder, a hub id or demo"),
        newcomers=([1, 32, 128], "requests that arrive together"), tokens=(57, "max_new_tokens of each"),
        prompt_rows=(int, "of each prompt, none of them shared, as for a cloned voice"), rounds=20, device="auto",
    )  # fmt: skip


@torch.inference_mode()
def main() -> None:
    options = arguments()
    folder = checkpoint(options) if options.size else find_checkpoint(options.model)
    figures = measure(folder, options)
    print(admission_table(figures["newcomers"]))
    print("until all newcomers are prefilled, ms:", figures["prefilled_ms"])
    where = "gpu" if torch.cuda.is_available() else "cpu"
    rows = f"rows{options.prompt_rows}-" if options.prompt_rows else ""
    print(save(options.out, f"admission-{where}-{rows}{options.size or Path(options.model).name}", figures))


if __name__ == "__main__":
    main()
