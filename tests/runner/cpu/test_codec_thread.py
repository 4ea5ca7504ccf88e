"""A codec on its own thread gives the samples of the same codec without one, in whatever order slots change hands."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec
from oscine.model.streaming import StreamState
from oscine.model.weights import load_model
from oscine.runner.backend import SlotCodec
from oscine.runner.cpu import codec as cpu_codec
from oscine.runner.cpu.codec import CodecThread, CpuCodec, divide_threads
from tests.conftest import CheckpointMaker
from tests.engine.recorder import WAIT_S
from tests.runner.codec_streams import CPU, RESETS, SLOTS, TICKS, random_codes, slot_vector


class HeldCodec(SlotCodec):
    """Its `run` waits while it is held, and raises the error that it was given."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None
        self.threads: list[tuple[threading.Thread, int]] = []  # of every run, with torch's number

    def hold(self) -> None:
        self.free.clear()

    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        self.threads.append((threading.current_thread(), torch.get_num_threads()))
        assert self.free.wait(WAIT_S)
        if self.error is not None:
            raise self.error


class SummingCodec(HeldCodec):
    """A slot's state is the sum of its codes 0, and every sample of a frame is that sum."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch, self.nbytes = SLOTS, 0
        self.sums = torch.zeros(SLOTS + 1, dtype=torch.int16)

    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        super().run(codes, slots, pcm16_out)
        self.sums[slots] += codes[:, 0].short()
        pcm16_out.copy_(self.sums[slots, None])

    def load_state(self, slot: int, state: StreamState) -> None:
        self.sums[slot] = state.frames[0]

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        return (self.sums[slot : slot + 1],)


class ReleasingThread(CodecThread):
    """Ends the hold of its codec when a call begins to wait for it. A call that does not wait meets the hold."""

    def __init__(self, codec: HeldCodec) -> None:
        super().__init__(codec, torch.get_num_threads())
        self.held = codec

    def wait(self) -> None:
        self.held.free.set()
        super().wait()


def codes_of(*numbers: int) -> Tensor:
    return torch.tensor(numbers)[:, None].expand(-1, CODEBOOKS)


def run(codec: SlotCodec, slot: int, number: int) -> Tensor:
    pcm = torch.zeros(1, 4, dtype=torch.int16)
    codec.run(codes_of(number), torch.tensor([slot]), pcm)
    return pcm


@pytest.fixture(scope="module")
def codec(small_checkpoints: CheckpointMaker) -> Codec:
    return load_model(small_checkpoints("0b6", "custom_voice"), device=CPU).codec


def samples_of_ticks(slots: SlotCodec, codec: Codec, wait: Callable[[], object]) -> list[Tensor]:
    """`wait` is called once for every two ticks."""
    frames = []
    for tick, rows in enumerate(TICKS * 2):
        if tick in RESETS:
            slots.reset(RESETS[tick])
        frames.append(torch.zeros(len(rows), codec.config.samples_per_frame, dtype=torch.int16))
        slots.run(random_codes(codec, len(rows), seed=tick), slot_vector(rows, slots.scratch), frames[-1])
        if tick % 2:
            wait()
    return frames


def test_the_samples_are_those_of_the_codec_without_a_thread(codec: Codec) -> None:
    inline, threaded = CpuCodec(codec, SLOTS), CodecThread(CpuCodec(codec, SLOTS), torch.get_num_threads())
    expected = samples_of_ticks(inline, codec, lambda: None)
    for ours, theirs in zip(samples_of_ticks(threaded, codec, threaded.wait), expected, strict=True):
        assert torch.equal(ours, theirs)
    for slot in range(SLOTS):
        for ours, theirs in zip(threaded.snapshot(slot), inline.snapshot(slot), strict=True):
            assert torch.equal(ours, theirs)


def test_a_run_returns_before_its_samples_are_there_and_runs_keep_their_order() -> None:
    codec = SummingCodec()
    threaded = CodecThread(codec, torch.get_num_threads())
    codec.hold()
    first, first_run = run(threaded, 1, 3), threaded.last_run
    second, second_run = run(threaded, 1, 4), threaded.last_run
    assert not first_run.done() and not second_run.done() and first.sum() == 0
    codec.free.set()
    threaded.wait()
    assert first_run.done() and second_run.done()
    assert (first.unique().tolist(), second.unique().tolist()) == ([3], [7])


@pytest.mark.parametrize(
    ("use", "state"),
    [
        (lambda codec: codec.reset(1), 0),
        (lambda codec: codec.restore(1, (torch.tensor([5], dtype=torch.int16),)), 5),
        (lambda codec: codec.load_state(1, StreamState(torch.tensor([6]), ())), 6),
        (lambda codec: codec.state_views(1)[0].fill_(8), 8),
        (lambda codec: codec.cleared_views(1)[0].fill_(9), 9),
    ],
    ids=["reset", "restore", "load_state", "state_views", "cleared_views"],
)
def test_a_frame_in_flight_does_not_overwrite_the_state_of_the_slots_next_stream(
    use: Callable[[SlotCodec], object], state: int
) -> None:
    codec = SummingCodec()
    threaded = ReleasingThread(codec)
    codec.hold()
    run(threaded, 1, 3)
    run(threaded, 1, 4)
    use(threaded)
    codec.free.set()  # also where the call did not wait
    threaded.wait()
    assert codec.sums[1] == state


def test_a_snapshot_includes_the_frame_in_flight() -> None:
    codec = SummingCodec()
    threaded = ReleasingThread(codec)
    codec.hold()
    run(threaded, 2, 3)
    (sums,) = threaded.snapshot(2)
    assert sums.tolist() == [3]


def test_an_error_belongs_to_its_run_and_to_no_other() -> None:
    codec = SummingCodec()
    threaded = CodecThread(codec, torch.get_num_threads())
    codec.error = ValueError("no")
    run(threaded, 0, 3)
    failed = threaded.last_run
    threaded.wait()
    threaded.reset(0)
    codec.error = None
    pcm = run(threaded, 0, 4)
    threaded.wait()
    assert isinstance(failed.exception(), ValueError) and threaded.last_run.exception() is None
    assert pcm.unique().tolist() == [4]


def test_the_thread_starts_with_the_first_run_and_ends_when_it_is_closed() -> None:
    codec = SummingCodec()
    threaded = CodecThread(codec, torch.get_num_threads())
    threaded.close()
    assert not codec.threads
    for number in (1, 2):
        pcm = run(threaded, 0, number)
        threaded.close()
        assert pcm[0, 0] == codec.sums[0], "what was begun is completed"
        assert codec.threads[-1][0].daemon and not codec.threads[-1][0].is_alive()


def test_the_thread_ends_when_the_codec_is_gone() -> None:
    codec = SummingCodec()
    threaded = CodecThread(codec, torch.get_num_threads())
    run(threaded, 0, 1)
    threaded.wait()
    (thread, _), *_ = codec.threads
    assert thread is not threading.current_thread()
    del threaded
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_the_thread_has_its_own_number_of_torch_threads() -> None:
    codec = SummingCodec()
    here = torch.get_num_threads()
    threaded = CodecThread(codec, here + 1)
    run(threaded, 0, 1)
    threaded.close()
    assert codec.threads[0][1] == here + 1 and torch.get_num_threads() == here


@pytest.mark.parametrize(
    ("threads", "cpus", "divided"),
    [(1, 1, (1, 0)), (1, 2, (1, 0)), (4, 1, (4, 0)), (2, 2, (1, 1)), (3, 4, (2, 1)), (8, 8, (4, 4))],
)
def test_threads_are_divided_only_where_there_are_two_cpus_and_two_threads(
    threads: int, cpus: int, divided: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(cpu_codec, "usable_cpus", lambda: cpus)
    assert divide_threads() == divided
