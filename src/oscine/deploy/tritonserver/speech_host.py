"""The engine behind a model of Triton, in this process: answers requests with samples or codes. No Triton here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np

from oscine.audio.pcm import CODEBOOKS, Codes
from oscine.commands.settings import Settings
from oscine.deploy.tritonserver.backend import ResponseStream
from oscine.deploy.tritonserver.fields import speech_fields
from oscine.deploy.tritonserver.pulled_streams import PulledStreams
from oscine.deploy.tritonserver.streams import Streams
from oscine.engine.build import build_engine
from oscine.errors import ConfigError, RequestError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.process.child import freeze_gc
from oscine.server.http.logs import log_to_stderr
from oscine.server.http.metrics import EngineFigures
from oscine.server.model_registry import LoadedModel
from oscine.server.service import Service
from oscine.server.speech_plan import SpeechPlan
from oscine.types import EngineHealth
from oscine.voice import Voice

_log = logging.getLogger(__name__)
_NO_CODES: Codes = np.zeros((0, CODEBOOKS), np.int64)


class SpeechHost:
    """Hosts an engine. Without `codec` it makes codes only, and the answers carry them."""

    def __init__(self, settings: Settings, instance: int, *, codec: bool) -> None:
        log_to_stderr(settings.server.log_format, settings.server.log_level)
        if instance >= len(settings.devices):
            raise ConfigError(
                f"instance {instance} of the model has no device: settings.toml names {len(settings.devices)}, "
                "config.pbtxt has more instances; give both the same number"
            )
        folder = find_checkpoint(settings.model)
        device: Any = settings.devices[instance]
        engine = build_engine(folder, settings.engine, _log_progress, device=device, dtype=settings.dtype, codec=codec)
        (checkpoint,) = settings.checkpoints
        card = read_config(folder).card(checkpoint.served_name)
        self._engine, self._service = engine, Service([LoadedModel(card, engine, self._health)], settings.server)
        self._trims_silence = settings.engine.trim_silence.enabled
        self._speak = self._speak_samples if codec else self._speak_codes
        self._streams = Streams()
        self._pulled = PulledStreams(self._streams)
        freeze_gc()

    def answer(self, request_id: str, tensors: Mapping[str, Any], response: ResponseStream) -> None:
        """Returns at once; the answer is sent as it is made."""
        self._streams.start(request_id, lambda watched: self._speak(tensors, watched), response)

    def pull(self, stream_id: str, tensors: Mapping[str, Any], max_frames: int, response: ResponseStream) -> None:
        """Answers once, with the codes that are there. Only the first request for a stream has `tensors`. Returns at
        once."""
        if tensors:
            self._pulled.start(stream_id, lambda watched: self._speak(tensors, watched), max_frames, response)
        else:
            self._pulled.pull(stream_id, max_frames, response)

    def cancel(self, request_id: str) -> None:
        """Cancels a request, or a stream that is pulled, by its id."""
        self._streams.cancel(request_id)

    def figures(self) -> EngineFigures:
        (figures,) = self._service.models.figures()
        return figures

    def stop(self) -> None:
        """Cancels what is running."""
        self._streams.stop()
        self._service.close()
        self._engine.stop()

    def _health(self) -> EngineHealth:
        if self._engine.status().ready:
            return EngineHealth("ready")
        return EngineHealth("failed", last_reason="the log has the reason; unload the model and load it again")

    async def _plan(self, tensors: Mapping[str, Any]) -> SpeechPlan:
        self._service.check_ready()
        text, options = speech_fields(tensors)
        return await self._service.planner.plan(self._service.route(options), options, text, "pcm")

    async def _speak_samples(self, tensors: Mapping[str, Any], response: ResponseStream) -> None:
        plan = await self._plan(tensors)
        async with aclosing(self._service.narrate(plan)) as chunks:
            async for chunk in chunks:
                final = chunk.finish_reason is not None
                if chunk.pcm or final:
                    samples = np.frombuffer(chunk.pcm, "<i2")
                    end = _end_values(plan, chunk.finish_reason)
                    response.send({"audio": samples, "sample_rate": plan.rate_hz, **end}, final=final)

    async def _speak_codes(self, tensors: Mapping[str, Any], response: ResponseStream) -> None:
        plan = await self._plan(tensors)
        if len(plan.script) > plan.segments:
            message = "pauses are not available through the split models; use the model oscine, or leave them out"
            raise RequestError(message, "text")
        trim = self._trims_silence if plan.request.trim_silence is None else plan.request.trim_silence
        # Silence is trimmed after the codec; here it would be dropped with the frames that it hides.
        plan = replace(plan, request=replace(plan.request, trim_silence=False, stream_codes=True))
        reference = plan.request.voice.reference_codes if isinstance(plan.request.voice, Voice) else None
        context = at_start = _NO_CODES if reference is None else reference
        async with aclosing(self._service.narrate(plan)) as chunks:
            async for chunk in chunks:
                codes = _NO_CODES if chunk.codes is None else chunk.codes
                if not len(codes) and chunk.segment is None:
                    continue
                values = {
                    "codes": codes,
                    "context_codes": context,
                    "segments": plan.segments,
                    "segment_end": chunk.segment is not None,
                    "trim_silence": trim,
                    **_end_values(plan, chunk.finish_reason),
                }
                response.send(values, final=chunk.finish_reason is not None)
                context = _NO_CODES if chunk.segment is None else at_start


def _end_values(plan: SpeechPlan, finish_reason: str | None) -> dict[str, Any]:
    return {"final": finish_reason is not None, "finish_reason": finish_reason or "", "seed": plan.seed}


def _log_progress(stage: str, done: int, total: int) -> None:
    if done == total:
        _log.info("start: %s", stage)
