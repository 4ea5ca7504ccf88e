"""A Runner without a model, in virtual time. Its PCM encodes the request and the number of each frame.

It raises AssertionError where a real runner would be silently wrong: a slot used twice, a frame without its text, a
third tick in flight, results collected out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from oscine.config import ChunkConfig, EngineConfig, PacingConfig, TrimConfig
from oscine.engine.session import Session, StreamSpec
from oscine.engine.trimming import EchoTrimmer
from oscine.errors import TooLongError
from oscine.request import SamplingParams
from oscine.runner.runner import FrameOutput, RunnerCounts, SlotAssignment, Ticket
from oscine.types import AudioChunk, Prompt
from tests.engine.recorder import ChunkRecorder

SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, EOS_ID = 100, 8, 4000  # a frame is 80 ms
SPEC = StreamSpec(SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, EOS_ID, positions=10_000)
END_MARK = 77  # the text id that ends a text
LOUD = 1000  # added to every number in the PCM, so that nothing is silent
PLAIN = EngineConfig(
    trim_silence=TrimConfig(enabled=False),
    chunks=ChunkConfig(first_chunk_ticks=0.0),
    pacing=PacingConfig(launch_margin_s=1.0),  # every tick launches a frame
)


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class _Held:
    tag: int
    frames: int  # of speech, once the text has ended
    text_ids: list[int]
    streaming_text: bool
    max_frames: int
    frame: int = 0


@dataclass
class _Ticket:
    begun_s: float
    free_s: float  # the device can begin the next tick
    done_s: float
    slots: tuple[int, ...]
    codes: np.ndarray
    pcm: np.ndarray
    failed: np.ndarray
    clock: VirtualClock
    with_prompts: bool = False

    def begun(self) -> bool:
        return self.clock.now_s >= self.begun_s

    def device_free(self) -> bool:
        return self.clock.now_s >= self.free_s

    def wait_device_free(self) -> None:
        self.clock.now_s = max(self.clock.now_s, self.free_s)

    def ready(self) -> bool:
        return self.clock.now_s >= self.done_s


@dataclass
class ScriptedRunner:
    """Speech of request `tag` (its seed // 1000) has seed % 1000 frames, at least `min_frames` and one for each id of
    its text. `fail(stage, tag)` may raise; the logits of the tags in `not_finite` are not finite."""

    slots: int
    clock: VirtualClock = field(default_factory=VirtualClock)
    fixed_s: float = 0.005
    row_s: float = 0.0001
    prefill_row_s: float = 0.00001
    mixed_rows: int = 0  # prompt rows up to which prompts run beside the next frame, and not before it
    audio_s: float = 0.0  # of a frame, beside the next one
    codes_s: float = 0.0  # not 0: a CPU. The host computes prefills, then in a launch the codes; the rest is audio
    positions: int = 100_000
    min_frames: int = 0
    fail: Callable[[str, int], None] = lambda stage, tag: None
    not_finite: frozenset[int] = frozenset()
    sample_rate_hz: int = SAMPLE_RATE_HZ
    samples_per_frame: int = SAMPLES_PER_FRAME
    eos_id: int = EOS_ID
    held: dict[int, _Held] = field(default_factory=dict)
    admitted: int = 0
    launches: list[tuple[int, ...]] = field(default_factory=list)
    flying: list[_Ticket] = field(default_factory=list)
    busy_s: float = 0.0
    free_s: float = 0.0  # when the device has finished all enqueued work
    _pending_rows: int = 0  # that the next frame runs

    def admit(self, admission: SlotAssignment) -> None:
        slot, sampling = admission.slot, admission.sampling
        assert 0 <= slot < self.slots and slot not in self.held, f"slot {slot} is not free"
        tag, frames = divmod(sampling.seed, 1000)
        frames = max(frames, self.min_frames)
        self.fail("admit", tag)
        if admission.prompt.rows > self.positions:
            raise TooLongError("does not fit", "text")
        text_ids = admission.prompt.trailing_ids.tolist()
        self.held[slot] = _Held(tag, frames, text_ids, admission.streaming_text, sampling.max_new_tokens)
        self.admitted += 1
        prefill_s = self.prefill_row_s * admission.prompt.rows
        if self.codes_s:
            self.clock.now_s += prefill_s
        elif self._pending_rows + admission.prompt.rows <= self.mixed_rows:
            self._pending_rows += admission.prompt.rows
        else:
            self._enqueue(prefill_s)

    def append_text(self, slot: int, text_ids: Sequence[int], *, ended: bool) -> None:
        held = self.held[slot]
        assert held.streaming_text, f"slot {slot} has all its text"
        self.fail("append", held.tag)
        held.text_ids += text_ids
        held.streaming_text = not ended

    def launch(self, slots: Sequence[int]) -> Ticket:
        assert slots and len(set(slots)) == len(slots), slots
        assert len(self.flying) < 2, "two ticks are in flight"
        for slot in slots:
            self.fail("launch", self.held[slot].tag)
        self.clock.now_s += self.codes_s
        rows = [self._frame(slot) for slot in slots]
        begun_s = self._enqueue(0.0)
        prompt_rows, self._pending_rows = self._pending_rows, 0
        free_s = self._enqueue(self.fixed_s + self.row_s * len(slots) + self.prefill_row_s * prompt_rows)
        codes, pcm = np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])
        failed = np.array([self.held[slot].tag in self.not_finite for slot in slots])
        done_s, beside = free_s + self.audio_s, prompt_rows > 0
        ticket = _Ticket(begun_s, free_s, done_s, tuple(slots), codes, pcm, failed, self.clock, beside)
        self.flying.append(ticket)
        self.launches.append(ticket.slots)
        return ticket

    def collect(self, ticket: Ticket) -> FrameOutput:
        assert self.flying and ticket is self.flying[0], "not the oldest tick in flight"
        first = self.flying.pop(0)
        self.clock.now_s = max(self.clock.now_s, first.done_s)
        for slot in first.slots:
            if slot in self.held:
                self.fail("collect", self.held[slot].tag)
        done_s = first.done_s if self.codes_s else None
        return FrameOutput(first.slots, first.codes, first.pcm, first.failed, done_s)

    def release(self, slot: int) -> None:
        del self.held[slot]

    def room_for(self, prompt: Prompt, sampling: SamplingParams) -> bool:
        return sum(held.max_frames for held in self.held.values()) + sampling.max_new_tokens <= self.positions

    def counts(self) -> RunnerCounts:
        """Counts every prompt except the first as a prefix hit; each stream holds a hundred bytes."""
        return RunnerCounts(max(0, self.admitted - 1), min(1, self.admitted), 7, 100 * len(self.held))

    def delay_last(self, delay_s: float) -> None:
        """Lets the device take so much longer for the last frame."""
        last = self.flying[-1]
        last.free_s, last.done_s, self.free_s = last.free_s + delay_s, last.done_s + delay_s, self.free_s + delay_s

    def busy_share(self) -> float:
        """The busy share of the device's time so far."""
        return self.busy_s / self.clock.now_s

    def _enqueue(self, cost_s: float) -> float:
        self.busy_s += cost_s
        self.free_s = max(self.free_s, self.clock.now_s) + cost_s
        return self.free_s

    def _frame(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        held = self.held[slot]
        frame, held.frame = held.frame, held.frame + 1
        assert frame < held.max_frames, f"frame {frame} of at max_frames {held.max_frames}"
        text_known = frame < len(held.text_ids)
        assert text_known or not held.streaming_text, f"the text of frame {frame} is not known"
        text_id = held.text_ids[frame] if text_known else 0
        ended = frame >= max(held.frames, len(held.text_ids)) and not held.streaming_text
        codes = np.zeros(16, np.int64)
        codes[0] = EOS_ID if ended else (frame * 37 + frame // 7) % 2000  # no short period
        said = [held.tag, frame, slot, text_id]
        pcm = np.array([LOUD + number for number in said] + [LOUD] * (SAMPLES_PER_FRAME - len(said)), np.int16)
        return codes, pcm


def frames_of(pcm: bytes) -> list[tuple[int, int, int]]:
    """(tag, frame number, text id) of each frame, in order."""
    numbers = np.frombuffer(pcm, np.int16).reshape(-1, SAMPLES_PER_FRAME).astype(int) - LOUD
    return [(row[0], row[1], row[3]) for row in numbers.tolist()]


class Listener(ChunkRecorder):
    """Records the virtual time of each chunk too. `fails_at`: raises on the chunk of this index."""

    def __init__(self, clock: VirtualClock, fails_at: int | None = None) -> None:
        super().__init__()
        self.clock, self.fails_at = clock, fails_at
        self.arrived_s: list[float] = []

    def __call__(self, chunk: AudioChunk) -> None:
        super().__call__(chunk)
        self.arrived_s.append(self.clock.now_s)
        if self.fails_at == len(self.chunks) - 1:
            raise RuntimeError("this listener is broken")

    @property
    def frames(self) -> list[tuple[int, int, int]]:
        return frames_of(self.pcm)

    def underrun_s(self) -> float:
        """Returns how long the player had nothing to play after it started."""
        total_s = 0.0
        dry_s: float | None = None
        for chunk, arrived_s in zip(self.chunks, self.arrived_s, strict=True):
            if not chunk.pcm:
                continue
            if dry_s is not None:
                total_s += max(0.0, arrived_s - dry_s)
            dry_s = max(arrived_s, dry_s or arrived_s) + len(chunk.pcm) / 2 / SAMPLE_RATE_HZ
        return total_s


def prompt_of(rows: int = 10, trailing: Sequence[int] = ()) -> Prompt:
    ids = np.zeros(rows, np.int64)
    return Prompt(text_ids=ids, codec_ids=ids, trailing_ids=np.array(trailing, np.int64))


def session_of(
    tag: int,
    frames: int,
    listener: Callable[[AudioChunk], None],
    config: EngineConfig = PLAIN,
    *,
    text_ids: int = 10,
    rows: int = 10,
    max_new_tokens: int | None = None,
    streaming_text: bool = False,
    trim_silence: bool | None = None,
    echo: EchoTrimmer | None = None,
    continues: bool = False,
    resumes: bool = False,
    plays_until_s: float | None = None,
) -> Session:
    """A request of `frames` frames. With `streaming_text` it has no prompt yet: post a PromptReady."""
    sampling = SamplingParams(seed=tag * 1000 + frames, max_new_tokens=max_new_tokens or 1000)
    session = Session(
        str(tag),
        sampling,
        listener,
        config,
        SPEC,
        budgeted=max_new_tokens is None,
        streaming_text=streaming_text,
        trim_silence=trim_silence,
        echo=echo,
        continues=continues,
        resumes=resumes,
        plays_until_s=plays_until_s,
    )
    if not streaming_text:
        session.begin(prompt_of(rows), text_ids, text_ended=True)
    return session
