"""Shared state of all routes: what speaks, and the keys, metrics, limits and thread pools of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from oscine.audio.formats import FormatName
from oscine.config import ServerConfig
from oscine.errors import NotReadyError
from oscine.server.http.api_keys import ApiKeys
from oscine.server.http.connections import OpenConnections
from oscine.server.http.metrics import AlignerMetrics, Metrics
from oscine.server.kept_files import KeptFiles
from oscine.server.model_admin import ModelAdmin, OpenModel
from oscine.server.schemas import Text, VoiceOptions, field_warnings, ignored_fields
from oscine.server.speech_record import SpeechOutcomes
from oscine.speech.consent_store import ConsentStore
from oscine.speech.models import LoadedModel, ServedModel
from oscine.speech.plan import SpeechPlan
from oscine.speech.service import SpeechService
from oscine.types import BEST_STATES

_MAX_BATCH_ITEMS = 256  # that are spoken at once; pauses need no slot, and thousands of items would hold the event loop
_MODEL_STATES = (*BEST_STATES, "removing")


class Service(SpeechService):
    def __init__(
        self, models: Sequence[LoadedModel], config: ServerConfig, open_model: OpenModel | None = None
    ) -> None:
        self.metrics = Metrics(lambda: self.models.figures(), lambda: self.ledger.accounts.values())
        super().__init__(models, config, self.metrics.of_model, AlignerMetrics(self.metrics))
        self.api_keys = ApiKeys(config)
        self.consent_store = ConsentStore(self.voices_folder, config.max_voices, config.max_consent_bytes)
        changes = self.ledger.pool("model_change")
        self.model_admin = ModelAdmin(self.models, self.voice_store, changes, open_model, config.allowed_models)
        self.connections = OpenConnections(config)
        self.metrics.connections.set_function(lambda: len(self.connections))
        self.kept_files = KeptFiles(self.ledger["kept_file"], config.kept_files_s)
        self.outcomes = SpeechOutcomes()
        self.large_bodies = asyncio.Lock()
        self.batch_items = asyncio.Semaphore(_MAX_BATCH_ITEMS)
        self.metrics.watch_phrases(self.phrases)
        self.metrics.watch_keys(self.api_keys)
        self.draining = False

    @property
    def streams(self) -> int:
        """Running streams; draining waits for them."""
        return self.api_keys.streams

    def close(self) -> None:
        super().close()
        self.api_keys.close()

    def check_ready(self, model: ServedModel | None = None) -> None:
        """Raises 503 with the engine's state and when to retry. Without `model`, one ready model is enough."""
        self.check_not_draining()
        if model is None and self.models.several and any(one.is_ready for one in self.models):
            return
        (model or self.models.first).check_ready(named=self.models.several)

    def check_not_draining(self) -> None:
        """Raises NotReadyError while the server shuts down."""
        if self.draining:
            raise NotReadyError("the server is shutting down and takes no new requests", retry_after_s=5.0)

    def readiness(self) -> dict[str, Any]:
        """Whether requests can be spoken, and why not. `failed` has the names of the models that have failed. With
        several models one that is ready is enough, once each of those that the server began with has started or failed
        to; `models` has the state of each."""
        models = {model.name: model.readiness() for model in self.models}
        about = next(iter(models.values()))
        if self.models.several:
            starting = any(model.state == "starting" for model in self.models if not model.added)
            failures = [one["last_failure"] for one in models.values() if one["last_failure"]]
            about = {
                "ready": not starting and any(one["ready"] for one in models.values()),
                "state": "starting"
                if starting
                else min((one["state"] for one in models.values()), key=_MODEL_STATES.index),
                "restarts": sum(one["restarts"] for one in models.values()),
                "last_failure": failures[0] if failures else None,
                "models": models,
            }
        about["failed"] = [name for name, one in models.items() if one["state"] == "failed"]
        return {**about, "ready": False, "state": "draining"} if self.draining else about

    def route(self, options: VoiceOptions, text: Text = "") -> ServedModel:
        """The model that speaks this request. Called after `check_ready`, which is enough if there is only one."""
        model = self.models.route(partial(options.request, text), options.asked_model)
        if self.models.several:
            model.check_ready(named=True)
        return model

    async def plan(
        self, model: ServedModel, options: VoiceOptions, text: Text, default_format: FormatName | None = None
    ) -> SpeechPlan:
        """Raises RequestError. `text` is "" for streaming text (WebSocket). Without a format in the request it is
        `default_format`, or else the server's."""
        if self.config.strict:
            options.check_strict()
        form = options.response_format or default_format or self.config.http_format
        plan = await self.planner.plan(
            model,
            options.request(text),
            form,
            packet_ms=options.packet_ms,
            cache=options.cache or "auto",
            times_words=bool(options.word_timestamps),
        )
        unknown = tuple(options.unknown_fields())
        return replace(
            plan,
            ignored_fields=ignored_fields(options, model.card, unknown),
            field_warnings=(*plan.field_warnings, *field_warnings(unknown)),
        )
