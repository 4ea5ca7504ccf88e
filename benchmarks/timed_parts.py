"""Wrappers that mark clock points at the interfaces between the product's parts: ASGI application, planner, engine.

runner_clock_points.py has those of the runner. The product itself pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.clock_points import ClockPoints, clock
from oscine.audio.formats import FormatName
from oscine.config import EngineConfig
from oscine.request import SpeechRequest
from oscine.speech.models import ServedModel
from oscine.speech.plan import SpeechPlan, SpeechPlanner
from oscine.types import AudioChunk, Deliver, ReportProgress


class TimedEngine:
    """Marks when `submit` is called and returns, and when the first audio is delivered."""

    def __init__(self, engine: Any, points: ClockPoints, begun: str, done: str, delivered: str) -> None:
        self._engine, self._points = engine, points
        self._begun, self._done, self._delivered = begun, done, delivered
        self.on_stop: Callable[[], None] = lambda: None

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        marked = self._marked(request, deliver)
        await self._engine.submit(utterance_id, request, marked, streaming_text=streaming_text)
        self._points.mark(request.seed, self._done)

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        marked = self._marked(request, deliver)
        self._engine.enqueue(utterance_id, request, marked, streaming_text=streaming_text)
        self._points.mark(request.seed, self._done)

    def _marked(self, request: SpeechRequest, deliver: Deliver) -> Deliver:
        def delivering(chunk: AudioChunk) -> None:
            if chunk.pcm:
                self._points.mark(request.seed, self._delivered)
            deliver(chunk)

        self._points.mark(request.seed, self._begun)
        return delivering

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def stop(self, drain_s: float = 0.0) -> None:
        self._engine.stop(drain_s)
        self.on_stop()


# --- the front end ---


class TimedPlanner(SpeechPlanner):
    def __init__(self, planner: SpeechPlanner, points: ClockPoints) -> None:
        self._planner, self._points = planner, points

    async def plan(self, model: ServedModel, request: SpeechRequest, form: FormatName, **more: Any) -> SpeechPlan:
        begun_s = clock()
        plan = await self._planner.plan(model, request, form, **more)
        self._points.mark(plan.seed, "plan_begun", begun_s)
        self._points.mark(plan.seed, "planned")
        return plan


class TimedResponses:
    """ASGI middleware: marks the call of the application and the first audio that it sends."""

    def __init__(self, app: ASGIApp, points: ClockPoints) -> None:
        self._app, self._points = app, points

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_s, seed = clock(), None

        async def send_marked(message: Message) -> None:
            nonlocal seed
            if message["type"] == "http.response.start":
                seed = next((int(value) for name, value in message["headers"] if name == b"x-seed"), None)
            elif message.get("body"):
                self._points.mark(seed, "arrived", arrived_s)
                self._points.mark(seed, "encoded")
            await send(message)

        await self._app(scope, receive, send_marked)


# --- the worker ---


def build_timed(model: str, config: EngineConfig, device: str, path: Path, progress: ReportProgress) -> Any:
    """Runs in the worker. The engine's `stop` writes the times."""
    from benchmarks.runner_clock_points import TimedRunner  # torch is for the worker only
    from oscine.engine.build import build_engine

    points = TimedRunner.points = ClockPoints()
    with patch("oscine.engine.build.SlotRunner", TimedRunner):
        engine = build_engine(model, config, progress, device=device)
    timed = TimedEngine(engine, points, begun="engine_arrived", done="prompt_built", delivered="delivered")
    timed.on_stop = lambda: points.write(path)
    return timed
