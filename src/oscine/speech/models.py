"""The served models: which there are, which one a request goes to, and adding and removing them while others speak.

Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from oscine.errors import EngineError, NotFoundError, NotReadyError, RequestError
from oscine.process.resources import Ledger
from oscine.request import SpeechRequest
from oscine.speech.capabilities import KIND_NAMES, Needs, can_clone_for
from oscine.speech.cloned_voices import ClonedVoices, Transcribe
from oscine.speech.routing import AskedModel, choose_models, find_name, needs_of
from oscine.speech.voice_names import MixedVoices, VoiceResolver, reserved_names
from oscine.speech.voice_store import VoiceStore
from oscine.types import EngineHealth, EngineState, EngineStatus, ModelCard, SpeechEngine
from oscine.voice import Voice


class EngineFigures(NamedTuple):
    """What an engine says about itself, for metrics."""

    model: str
    status: EngineStatus
    health: EngineHealth


MeterOf = Callable[[ModelCard], Any]  # what counts the speeches of a model; made and read by the server


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint and the engine that speaks it, which may still be starting."""

    card: ModelCard
    engine: SpeechEngine
    health: Callable[[], EngineHealth]
    wait_ready: Callable[[], None] = lambda: None  # blocks; raises the error of a start that failed

    @staticmethod
    def of(engine: SpeechEngine, card: ModelCard, health: Callable[[], EngineHealth] | None = None) -> LoadedModel:
        """Describes a model. Without `health`, the status of the engine says whether it is ready."""
        return LoadedModel(
            card, engine, health or (lambda: EngineHealth("ready" if engine.status().ready else "starting"))
        )


class StreamCount:
    """Counts running streams: `with count: ...`, from the request to its last byte. `check` may refuse one."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._streams = 0
        self._idle = asyncio.Event()

    def __enter__(self) -> None:
        self._check()
        self._streams += 1

    def __exit__(self, *_: object) -> None:
        self._streams -= 1
        if not self._streams:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> int:
        """Returns how many streams are left when the time is up."""
        self._idle.clear()
        if self._streams:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
        return self._streams


class ServedModel:
    """A model with what the server keeps for it."""

    def __init__(
        self,
        loaded: LoadedModel,
        store: VoiceStore,
        meter_of: MeterOf,
        ledger: Ledger,
        *,
        added: bool,
        transcribe: Transcribe | None = None,
        voice_aliases: Mapping[str, str] | None = None,
    ) -> None:
        """`added`: while the server runs."""
        self.added = added
        self.identity = object()  # outlives the model in keys of caches
        self.card, self.engine, self.health = loaded.card, loaded.engine, loaded.health
        self.voices = VoiceResolver(loaded.card, store, voice_aliases)
        self.cloned_voices = ClonedVoices(loaded.engine, ledger, transcribe)
        self.mixed_voices = MixedVoices(loaded.card, loaded.engine, self.voices, ledger)
        self.metrics = meter_of(loaded.card)
        self.created_s = int(time.time())
        self.removing = False  # takes no new streams
        self.streams = StreamCount(self.check_served)

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def is_ready(self) -> bool:
        return self.engine.status().ready

    @property
    def is_full(self) -> bool:
        """Whether the engine has no room for another stream."""
        status = self.engine.status()
        return status.queued > 0 or status.slots_active >= min(status.slots, status.real_time_streams or status.slots)

    @property
    def state(self) -> EngineState | Literal["removing"]:
        return "removing" if self.removing else self.health().state

    def readiness(self) -> dict[str, Any]:
        health = self.health()
        about = {"ready": self.is_ready and not self.removing, "state": self.state}
        return {**about, "restarts": health.restarts, "last_failure": health.last_reason}

    def check_ready(self, *, named: bool) -> None:
        """Raises EngineError or NotReadyError, or NotFoundError if the model is being removed. `named`: the
        message has the model's name."""
        self.check_served()
        health, engine = self.health(), f"the engine of model {self.name!r}" if named else "the engine"
        if health.state == "failed":
            raise EngineError(f"{engine} has failed: {health.last_reason}", retry_after_s=30.0)
        if not self.is_ready:
            raise NotReadyError(f"{engine} is {health.state}; retry in 2 s", retry_after_s=2.0)

    def check_served(self) -> None:
        """Raises NotFoundError if the model is being removed."""
        if self.removing:
            message = f"model {self.name!r} is being removed or was removed; GET /v1/models lists the others"
            raise NotFoundError(message, "model", "model_not_found")

    async def drain(self, drain_s: float) -> int:
        """Takes no new streams, and waits until running ones have ended. Returns how many have not."""
        self.removing = True
        return await self.streams.wait_idle(drain_s)


class ModelRegistry:
    """The served models, at least one, in the order in which they were configured and added."""

    def __init__(
        self,
        loaded: Sequence[LoadedModel],
        store: VoiceStore,
        meter_of: MeterOf,
        ledger: Ledger,
        aliases: Sequence[str] = (),
        transcribe: Transcribe | None = None,
        voice_aliases: Mapping[str, str] | None = None,
        removed: Callable[[object], None] = lambda identity: None,
    ) -> None:
        """The aliases are the operator's. `removed` gets the identity of each model that was removed."""
        assert loaded
        self._ledger = ledger
        self._voice_aliases, self._removed = voice_aliases or {}, removed
        self._store, self._meter_of, self._aliases, self._transcribe = store, meter_of, aliases, transcribe
        self._models: dict[str, ServedModel] = {}
        for one in loaded:
            self.add(one, added=False)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def first(self) -> ServedModel:
        return next(model for model in self._models.values() if not model.removing)

    @property
    def several(self) -> bool:
        return len(self._models) > 1

    @property
    def cards(self) -> list[ModelCard]:
        return [model.card for model in self if not model.removing]

    def add(self, loaded: LoadedModel, *, added: bool = True) -> ServedModel:
        assert loaded.card.name not in self._models
        model = ServedModel(
            loaded,
            self._store,
            self._meter_of,
            self._ledger,
            added=added,
            transcribe=self._transcribe,
            voice_aliases=self._voice_aliases,
        )
        self._models[loaded.card.name] = model
        self._reserve_names()
        return model

    def remove(self, model: ServedModel) -> None:
        """The caller has drained it and stopped its engine. Of a model that is gone, a no-op."""
        if self._models.get(model.name) is model:
            assert len(self._models) > 1
            del self._models[model.name]
            self._removed(model.identity)
        self._reserve_names()

    @property
    def aliases(self) -> list[str]:
        """Other names that stand for a model, or for any."""
        pairs = [alias.partition("=") for alias in self._aliases]
        return [name for name, _, model in pairs if name not in self._models and (not model or model in self._models)]

    def find(self, name: str | None) -> ServedModel | None:
        """The model that the field `model` means, or None for any. Raises NotFoundError."""
        found = None if name is None else find_name(name, self._models, self._aliases)
        return None if found is None else self._models[found]

    def route(self, request: Callable[[], SpeechRequest], asked: AskedModel) -> ServedModel:
        """The model that speaks this request. Raises NotFoundError for an unknown name, RequestError if no model can do
        it."""
        named = self.find(asked.name)
        if len(self._models) > 1:
            alone, cards = request().alone(), self.cards
            needs = [needs_of(one, asked, cards, self._uploaded, self._voice_aliases) for one in alone]
            return self._best(needs, named)
        model = named or self.first
        if asked.kind is not None and asked.kind != model.card.kind:
            task, own = KIND_NAMES[asked.kind], KIND_NAMES[model.card.kind]
            message = f"task_type {task!r} is not available: this checkpoint is {own}; leave it out"
            raise RequestError(message, "task_type")
        return model

    def route_needs(self, needs: Needs, name: str | None = None) -> ServedModel:
        """The model that does this; with a `name`, this one. Raises as `route` does."""
        return self._best([needs], self.find(name))

    def _best(self, needs: Sequence[Needs], named: ServedModel | None) -> ServedModel:
        """The best model that is ready among those that can do it; if none is ready, the best one."""
        if named is not None:
            named.check_served()
        cards = choose_models(needs, self.cards, named.name if named else None, self._store.names)
        models = [self._models[card.name] for card in cards]
        return models[0] if len(models) == 1 else next((model for model in models if model.is_ready), models[0])

    def cloner_of(self, model: ServedModel) -> ServedModel:
        """The model that makes a voice from a clip for this one: itself, or a Base of the same width. A model that no
        other can clone for is returned too."""
        others = [one for one in self if can_clone_for(one.card, model.card) and not one.removing]
        return model if model.card.clones or not others else next((one for one in others if one.is_ready), others[0])

    def figures(self) -> Iterator[EngineFigures]:
        for model in self:
            yield EngineFigures(model.name, model.engine.status(), model.health())

    def _uploaded(self, name: str) -> Voice | None:
        stored = self._store.get(name)
        return stored.voice if stored else None

    def _reserve_names(self) -> None:
        presets = [speaker for model in self for speaker in model.card.speakers]
        self._store.reserve(reserved_names(presets, self._voice_aliases))
