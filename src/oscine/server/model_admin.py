"""Adds and removes models while others speak. The engines are started by a function that the server is given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from oscine.config import CheckpointConfig
from oscine.errors import (
    CheckpointError,
    ConfigError,
    ConflictError,
    FieldError,
    NotAllowedError,
    NotFoundError,
    RequestError,
)
from oscine.process.resources import WorkPool
from oscine.server.http.logs import log_fields
from oscine.speech.models import LoadedModel, ModelRegistry, ServedModel
from oscine.speech.routing import OPENAI_MODELS
from oscine.speech.voice_store import VoiceStore

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")

# Finds a checkpoint and starts its engines, without waiting for them. Blocks. Raises OscineError.
OpenModel = Callable[[CheckpointConfig], LoadedModel]


class ModelAdmin:
    """Adds and removes models. `allowed` are the checkpoints that may be added: folders with everything below them,
    names, and hub ids with * for any characters."""

    def __init__(
        self,
        models: ModelRegistry,
        store: VoiceStore,
        pool: WorkPool,
        open_model: OpenModel | None,
        allowed: Sequence[str],
    ) -> None:
        self._models, self._store, self._open_model, self._allowed = models, store, open_model, tuple(allowed)
        self._adding = asyncio.Lock()  # one at a time: each is planned into the memory that the others left
        self._pool = pool
        self._tasks: set[asyncio.Task[Any]] = set()

    async def add(self, config: CheckpointConfig) -> ServedModel:
        """Returns when the model has spoken. If it cannot, nothing is left of it. Continues if the caller leaves."""
        return await self._finish(self._add(config))

    async def remove(self, name: str, drain_s: float) -> int:
        """Returns the number of streams that were cut off because they had not ended within `drain_s`."""
        model = self._models.find(name)
        if model is None:
            message = f"{name!r} stands for any served model; remove the served model itself: GET /v1/models lists them"
            raise NotFoundError(message, "model", "model_not_found")
        model.check_served()
        if all(one is model or one.state in ("removing", "starting") for one in self._models):
            raise ConflictError(f"{model.name!r} is the only model; add another one before you remove it")
        model.removing = True  # at once: another removal must not count on this model
        return await self._finish(self._remove(model, drain_s))

    async def _finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs the work to its end even if the client disconnects."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _add(self, config: CheckpointConfig) -> ServedModel:
        if self._open_model is None:
            raise NotAllowedError("this server cannot load models while it runs")
        config = replace(config, path=allowed_path(config.path, self._allowed), name=config.served_name)
        async with self._adding:
            self._check_name(config.served_name)
            loaded = await self._run(self._open_model, config)
            try:
                self._check_voices(loaded)
            except ConflictError:
                await self._run(loaded.engine.stop)
                raise
            model = self._models.add(loaded)
            try:
                await self._run(loaded.wait_ready)
            except Exception:  # not if it is cancelled: then the server ends, and stops all engines
                await self._remove(model, drain_s=0)
                raise
        _log.info("model added", extra=log_fields(model=model.name))
        return model

    async def _remove(self, model: ServedModel, drain_s: float) -> int:
        left = await model.drain(drain_s)
        await self._run(model.engine.stop)
        self._models.remove(model)
        _log.info("model removed", extra=log_fields(model=model.name, streams_cut_off=left))
        return left

    async def _run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Runs work on a thread. Errors about the checkpoint or the settings become errors of the request."""
        try:
            return await self._pool.run(work, *arguments)
        except CheckpointError as error:
            raise RequestError(str(error), "path") from error
        except ConfigError as error:
            raise ConflictError(str(error)) from error

    def _check_name(self, name: str) -> None:
        if not name.isprintable():
            raise FieldError(f"the name {name!r} has characters that cannot be printed; give another name", "name")
        if name in (model.name for model in self._models) or name.lower() in OPENAI_MODELS:
            raise ConflictError(f"the name {name!r} is taken by another model; give another name", "name")

    def _check_voices(self, loaded: LoadedModel) -> None:
        """Refuses a model with a preset that has the name of an uploaded voice, which the preset would hide."""
        if hidden := sorted(set(self._store.names()).intersection(loaded.card.speakers)):
            message = f"the model has presets with the names of uploaded voices: {', '.join(hidden)}; delete those"
            raise ConflictError(message)


def allowed_path(path: str, allowed: Sequence[str]) -> str:
    """The checkpoint to open: a real path, a hub id or another name. Raises NotAllowedError."""
    if path in allowed and not Path(path).is_absolute():
        return path
    if _HUB_ID.fullmatch(path) and any(fnmatchcase(path, one) for one in allowed):
        return path
    folders = [folder for one in allowed if (folder := Path(one).expanduser()).is_absolute()]
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # a loop of links, a NUL character
        real = Path(path).resolve()
        if Path(path).is_absolute() and any(real.is_relative_to(folder.resolve()) for folder in folders):
            return str(real)
    message = "this checkpoint may not be loaded; the operator's setting server.allowed_models has "
    raise NotAllowedError(message + (", ".join(allowed) or "none"), "path")
