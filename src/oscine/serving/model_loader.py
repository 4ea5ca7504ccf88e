"""Opens checkpoints for the server: one engine per device, with memory planned where several share a machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from oscine.audio.decoding.clip_decoder import start_decoder
from oscine.config import CheckpointConfig
from oscine.engine.memory_plan import PlannedEngine, RunningEngine, WantedEngine, cpu_threads, plan_memory_of
from oscine.engine.remote.client import EngineClient
from oscine.engine.remote.worker import import_and_build
from oscine.engine.router import Router
from oscine.errors import EngineError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.process.child import Child
from oscine.serving.settings import Settings
from oscine.types import BEST_STATES, EngineHealth, ModelCard, ReportProgress, SpeechEngine

if TYPE_CHECKING:
    from oscine.speech.models import LoadedModel


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint that was found, and the engines that it wants."""

    card: ModelCard
    wanted: tuple[WantedEngine, ...]


class ModelLoader:
    """`reporter` makes the callback for the progress of an engine, given the model's name and the device. `spawned` is
    a worker for the first engine."""

    def __init__(
        self,
        settings: Settings,
        reporter: Callable[[str, str], ReportProgress],
        spawned: Child | None = None,
    ) -> None:
        self._settings, self._reporter, self._spawned = settings, reporter, spawned
        self._engines: dict[EngineClient, WantedEngine] = {}
        self._closed = False
        self.plan: list[PlannedEngine] = []  # of `open_all`, if memory was planned

    def find_all(self) -> list[_Checkpoint]:
        """The configured checkpoints, downloaded if necessary. Starts nothing."""
        return [self._find(checkpoint) for checkpoint in self._settings.checkpoints]

    def open_all(self, found: Sequence[_Checkpoint]) -> list[LoadedModel]:
        """Starts the engines of the configured checkpoints. Raises ConfigError if they do not fit, before any starts.
        A single model without a memory_share plans for itself (engine/build.py)."""
        wanted = [engine for checkpoint in found for engine in checkpoint.wanted]
        if len(found) > 1 or any(engine.memory_share for engine in wanted):
            self.plan = plan_memory_of(wanted)
            loaded = self._start_planned(found, self.plan)
        else:
            loaded = [self._start(checkpoint.card, checkpoint.wanted) for checkpoint in found]
        if unused := self._take_spawned():
            unused.end()
        return loaded

    def open(self, config: CheckpointConfig) -> LoadedModel:
        """Starts the engines of one more checkpoint while the others run."""
        checkpoint = self._find(config)
        self._engines = dict(self._running)
        running = [
            RunningEngine(_with_slots(one, status.slots), client.health.pid, status.memory_bytes)
            for client, one, status in ((client, one, client.status()) for client, one in self._running)
        ]
        return self._start_planned([checkpoint], plan_memory_of(checkpoint.wanted, running))[0]

    def close(self) -> None:
        """Stops all engines at the same time, and starts no more."""
        self._closed = True
        engines = [engine for engine, _ in self._running]
        if engines:
            with ThreadPoolExecutor(len(engines), "oscine-stop") as pool:
                list(pool.map(EngineClient.stop, engines))

    @property
    def _running(self) -> list[tuple[EngineClient, WantedEngine]]:
        return [(client, one) for client, one in self._engines.items() if client.health.state != "stopped"]

    def _take_spawned(self) -> Child | None:
        spawned, self._spawned = self._spawned, None
        return spawned

    def _find(self, config: CheckpointConfig) -> _Checkpoint:
        settings = self._settings
        folder = find_checkpoint(config.path)
        card = read_config(folder).card(config.served_name)
        engine = settings.engine if config.slots is None else replace(settings.engine, slots=config.slots)
        wanted = WantedEngine(card.name, str(folder), engine, "", config.dtype or settings.dtype, config.memory_share)
        return _Checkpoint(card, tuple(replace(wanted, device=device) for device in config.devices or settings.devices))

    def _start_planned(self, checkpoints: Sequence[_Checkpoint], plan: Sequence[PlannedEngine]) -> list[LoadedModel]:
        """Starts the engines with the planned numbers of slots. Engines on the CPU share its cores."""
        planned = iter(plan)
        on_cpu = sum(one.device == "cpu" for one in plan) + sum(
            client.status().device.startswith("CPU") for client, _ in self._running
        )
        environment = {}
        if on_cpu > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(cpu_threads(on_cpu))
        loaded = []
        for checkpoint in checkpoints:
            engines = [_with_slots(wanted, next(planned).slots) for wanted in checkpoint.wanted]
            loaded.append(self._start(checkpoint.card, engines, environment))
        return loaded

    def _start(
        self, card: ModelCard, wanted: Sequence[WantedEngine], environment: dict[str, str] | None = None
    ) -> LoadedModel:
        if card.clones:
            start_decoder()
        if self._closed:
            raise EngineError("the server is shutting down")
        clients: list[EngineClient] = []
        with contextlib.ExitStack() as undo:
            for one in wanted:
                make = partial(import_and_build, one.folder, one.config, one.device, one.dtype)
                report = self._reporter(card.name, one.device)
                # A worker that has imported torch takes no other environment.
                spawned = None if environment else self._take_spawned()
                client = EngineClient(
                    make, self._settings.worker, environment=environment, spawned=spawned, on_progress=report
                )
                undo.callback(client.stop)
                clients.append(client)
                self._engines[client] = one
            undo.pop_all()
        engine: SpeechEngine = clients[0] if len(clients) == 1 else Router(clients)
        from oscine.speech.models import LoadedModel  # now, while the workers import torch

        return LoadedModel(card, engine, partial(_health, clients), partial(_wait_ready, clients))


def _with_slots(wanted: WantedEngine, slots: int) -> WantedEngine:
    """Returns the engine with this number of slots. 0: it has not started, and keeps its own."""
    return replace(wanted, config=replace(wanted.config, slots=slots)) if slots else wanted


def _wait_ready(engines: Sequence[EngineClient]) -> None:
    for engine in engines:
        engine.wait_ready()


def _health(engines: Sequence[EngineClient]) -> EngineHealth:
    """The state of the best engine, with the first failure of any."""
    healths = [engine.health for engine in engines]
    best = min(healths, key=lambda health: BEST_STATES.index(health.state))
    reasons = [health.last_reason for health in healths if health.last_reason]
    restarts = sum(health.restarts for health in healths)
    return EngineHealth(best.state, best.pid, restarts, reasons[0] if reasons else None)
