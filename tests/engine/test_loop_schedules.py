"""Many random schedules: arrivals, cancels, text in pieces, slots used again, failures at every stage.

Whatever happens, each request gets its own frames, each once and in order, and exactly one finish reason. Nothing is
held afterwards.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

import pytest

from oscine.config import ChunkConfig, EngineConfig, PacingConfig, RunawayConfig
from oscine.engine.admission import EndSession, PromptReady, TextAppended
from oscine.engine.loop import EngineLoop
from oscine.errors import OverloadedError
from tests.engine.scripted_runner import END_MARK, PLAIN, Listener, ScriptedRunner, prompt_of, session_of

STAGES = ("admit", "append", "launch", "collect", "deliver")
FAILS_ALL = {"launch", "collect"}


@dataclass
class Request:
    tag: int
    frames: int
    listener: Listener
    text: list[int]  # one id per frame that has text, without the end mark; the first is in the prompt
    streaming_text: bool
    begun: bool = False
    given: int = 0
    ended: bool = False
    cancelled: bool = False

    @property
    def spoken_ids(self) -> list[int]:
        return [*self.text[1:], END_MARK]

    def expected(self) -> list[tuple[int, int, int]]:
        """Returns all its frames as the runner would make them alone."""
        frames = max(self.frames, len(self.spoken_ids)) if self.streaming_text else self.frames
        ids = self.spoken_ids if self.streaming_text else []
        return [(self.tag, frame, ids[frame] if frame < len(ids) else 0) for frame in range(frames)]


@dataclass
class Schedule:
    """One random run, reproducible by its seed."""

    rng: random.Random
    config: EngineConfig
    fail_stage: str | None
    requests: list[Request] = field(default_factory=list)
    refused: int = 0
    failed: int = 0
    failed_tags: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.runner = ScriptedRunner(
            self.rng.randint(1, 5),
            row_s=self.rng.choice([0.0, 0.0005]),
            positions=self.rng.choice([120, 10_000]),
            fail=self._fail,
        )
        self.loop = EngineLoop(self.runner, self.config, self.runner.clock)

    def _fail(self, stage: str, tag: int) -> None:
        if stage == self.fail_stage and self.rng.random() < 0.02 and self.failed < 2:
            self.failed += 1
            self.failed_tags.add(tag)
            raise RuntimeError(f"injected at {stage}")

    def arrive(self) -> None:
        tag = len(self.requests) + self.refused + 1
        listener = Listener(self.runner.clock)
        if self.fail_stage == "deliver" and self.rng.random() < 0.3:
            listener.fails_at = self.rng.randint(0, 4)
            self.failed_tags.add(tag)
        frames = self.rng.choice([0, 1, 2, self.rng.randint(3, 40)])
        streaming_text = self.rng.random() < 0.4
        text = [self.rng.randint(100, 999) for _ in range(self.rng.randint(1, 15))]
        options = {"streaming_text": streaming_text, "rows": self.rng.randint(5, 60), "max_new_tokens": 110}
        try:
            self.loop.submit(session_of(tag, frames, listener, self.config, **options))  # type: ignore[arg-type]
            self.requests.append(Request(tag, frames, listener, text, streaming_text))
        except OverloadedError:
            self.refused += 1

    def more_text(self, request: Request) -> None:
        count = self.rng.randint(0, 4)
        if not request.begun:
            first = request.text[: 1 + count]
            request.begun, request.given = True, len(first)
            prompt = prompt_of(trailing=first[1:])
            self.loop.post(PromptReady(str(request.tag), prompt, text_ids=len(first), text_ended=False))
            return
        piece = request.text[request.given : request.given + count]
        request.given += len(piece)
        request.ended = request.given == len(request.text) and self.rng.random() < 0.7
        mark = [END_MARK] if request.ended else []
        self.loop.post(TextAppended(str(request.tag), (*piece, *mark), len(piece), request.ended))

    def act(self) -> None:
        if self.rng.random() < 0.3:
            self.arrive()
        for request in self.requests:
            if request.streaming_text and not request.ended and self.rng.random() < 0.4:
                self.more_text(request)
            if not request.cancelled and self.rng.random() < 0.01:
                request.cancelled = True
                self.loop.post(EndSession(str(request.tag)))
        if self.rng.random() < 0.1:
            self.runner.clock.now_s += self.rng.random() * 0.2

    def tick(self) -> bool:
        if self.loop.tick():
            return True
        wake_s = self.loop.wake_s
        self.runner.clock.now_s = max(self.runner.clock.now_s, wake_s or 0.0)
        return wake_s is not None

    def run(self) -> None:
        for _ in range(60):
            self.act()
            self.tick()
        for _ in range(5000):
            for request in self.requests:
                while request.streaming_text and not request.ended:
                    self.more_text(request)
            if not self.tick():
                return
        raise AssertionError("it never becomes idle")

    def check(self) -> None:
        for request in self.requests:
            frames, ends = request.listener.frames, request.listener.ends
            assert len(ends) == 1, (request.tag, ends)
            expected = request.expected()
            assert frames == expected[: len(frames)], request.tag
            if ends == ["stop"]:
                assert frames == expected
            elif ends == ["cancelled"]:
                assert request.cancelled
            else:
                assert ends == ["error"] and (
                    request.tag in self.failed_tags or (self.fail_stage in FAILS_ALL and self.failed)
                )
        assert not self.runner.held and not self.runner.flying
        status = self.loop.status()
        assert status.ready and (status.slots_active, status.queued) == (0, 0)


@pytest.mark.parametrize("fail_stage", [None, *STAGES])
def test_in_every_schedule_each_frame_is_delivered_once(fail_stage: str | None) -> None:
    chunks = [ChunkConfig(first_chunk_ticks=0.0), ChunkConfig(), ChunkConfig(first_chunk_frames=3, buffer_share=1.0)]
    outcomes: set[str] = set()
    failed = 0
    for seed in range(60):
        rng = random.Random(f"{fail_stage} {seed}")
        config = dataclasses.replace(
            PLAIN,
            chunks=rng.choice(chunks),
            queue_limit=rng.choice([1, 5, 50]),
            runaway=RunawayConfig(enabled=False),
            pacing=PacingConfig(launch_margin_s=rng.choice([0.0, 0.001, 1.0])),
        )
        schedule = Schedule(rng, config, fail_stage)
        schedule.run()
        schedule.check()
        failed += schedule.failed
        outcomes |= {end for request in schedule.requests for end in request.listener.ends}
        outcomes |= {"refused"} if schedule.refused else set()
    wanted = {"stop", "cancelled", "refused"} | ({"error"} if fail_stage else set())
    assert outcomes == wanted, "the schedules do not reach everything they are meant to"
    assert failed or fail_stage in (None, "deliver")
