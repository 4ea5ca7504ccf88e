"""The engine behind a model of Triton, in this process: answers requests with samples or codes. No Triton here."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from oscine.audio.pcm import CODEBOOKS, Codes
from oscine.deploy.tritonserver.streams import PulledStreams, Streams
from oscine.deploy.tritonserver.tensors import SPEECH_INPUTS, ResponseStream
from oscine.engine.build import build_engine
from oscine.errors import ConfigError, FieldError, RequestError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.process.child import freeze_gc
from oscine.server.http.errors import invalid_field
from oscine.server.http.json_body import parse_json
from oscine.server.http.logs import log_to_stderr
from oscine.server.schemas import VoiceOptions
from oscine.serving.settings import Settings
from oscine.speech.events import Audio, Ended, SpeechEvent
from oscine.speech.models import EngineFigures, LoadedModel
from oscine.speech.plan import SpeechPlan
from oscine.speech.service import SpeechService
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
        self._engine, self._service = engine, SpeechService([LoadedModel(card, engine, self._health)], settings.server)
        self._trims_silence = settings.engine.trim_silence.enabled
        self._speak = self._speak_samples if codec else self._speak_codes
        self._streams = Streams()
        self._pulled = PulledStreams(self._streams)
        freeze_gc()

    def answer(self, request_id: str, tensors: Mapping[str, Any], response: ResponseStream) -> None:
        """Answers a request. Returns at once; the answer is sent as it is made."""
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
        text, options = speech_fields(tensors)
        request = options.request(text)
        model = self._service.models.route(lambda: request, options.asked_model)
        model.check_ready(named=False)
        return await self._service.planner.plan(model, request, "pcm")

    async def _speak_samples(self, tensors: Mapping[str, Any], response: ResponseStream) -> None:
        plan = await self._plan(tensors)
        await self._render(plan, Samples(plan, response))

    async def _speak_codes(self, tensors: Mapping[str, Any], response: ResponseStream) -> None:
        plan = await self._plan(tensors)
        if len(plan.script) > plan.segments:
            pauses = "pauses and <prosody> are not available through the split models"
            message = f"{pauses}; use the model oscine, or leave them out"
            raise RequestError(message, "text")
        trim = self._trims_silence if plan.request.trim_silence is None else plan.request.trim_silence
        # Silence is trimmed after the codec; here it would be dropped with the frames that it hides.
        plan = replace(plan, request=replace(plan.request, trim_silence=False, stream_codes=True))
        await self._render(plan, CodesOnly(plan, response, trim_silence=trim))

    async def _render(self, plan: SpeechPlan, responses: Samples) -> None:
        async with aclosing(self._service.speak(plan)) as events:
            async for event in events:
                responses.render(event)


class Samples:
    """The responses of a speech, as samples. The last one has the end."""

    def __init__(self, plan: SpeechPlan, response: ResponseStream) -> None:
        self._plan, self._response = plan, response
        self._last = Audio(b"", b"")

    def render(self, event: SpeechEvent) -> None:
        match event:
            case Audio(last=True):
                self._last = event
            case Audio() if self._is_sent(event):
                self._send(event, None)
            case Ended():
                self._send(self._last, event)

    def _is_sent(self, audio: Audio) -> bool:
        return bool(audio.pcm)

    def _values(self, audio: Audio) -> dict[str, Any]:
        return {"audio": np.frombuffer(audio.pcm, "<i2"), "sample_rate": self._plan.rate_hz}

    def _send(self, audio: Audio, end: Ended | None) -> None:
        about = {"final": end is not None, "finish_reason": end.finish_reason if end else "", "seed": self._plan.seed}
        self._response.send({**self._values(audio), **about}, final=end is not None)


class CodesOnly(Samples):
    """The responses of a speech, as codes, which a model behind this one decodes."""

    def __init__(self, plan: SpeechPlan, response: ResponseStream, *, trim_silence: bool) -> None:
        super().__init__(plan, response)
        self._trim_silence = trim_silence
        reference = plan.request.voice.reference_codes if isinstance(plan.request.voice, Voice) else None
        self._context = self._context_at_start = _NO_CODES if reference is None else reference

    def _is_sent(self, audio: Audio) -> bool:
        return audio.ends_segment or (audio.codes is not None and len(audio.codes) > 0)

    def _values(self, audio: Audio) -> dict[str, Any]:
        context, self._context = self._context, self._context_at_start if audio.ends_segment else _NO_CODES
        return {
            "codes": _NO_CODES if audio.codes is None else audio.codes,
            "context_codes": context,
            "segments": self._plan.segments,
            "segment_end": audio.ends_segment,
            "trim_silence": self._trim_silence,
        }


def _log_progress(stage: str, done: int, total: int) -> None:
    if done == total:
        _log.info("start: %s", stage)


# The inputs of a request as the fields of our HTTP API, so that both mean and refuse the same.


_TEXTS = {spec.name for spec in SPEECH_INPUTS if spec.datatype == "STRING"} - {"ref_audio"}


def speech_fields(tensors: Mapping[str, Any]) -> tuple[str, VoiceOptions]:
    """The text and everything else. Raises FieldError. `tensors` holds the inputs that were given."""
    values = {name: _decoded(name, value) if name in _TEXTS else value for name, value in tensors.items()}
    if "text" not in values:
        raise FieldError("text is missing; it is required", param="text")
    if "ref_audio" in values:
        values["ref_audio"] = _clip(values["ref_audio"])
    if "pronunciations" in values:
        values["pronunciations"] = parse_json(values["pronunciations"].encode(), what="input pronunciations")
    text = values.pop("text")
    try:
        return text, VoiceOptions.model_validate(values)
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None


def _decoded(name: str, value: Any) -> str:
    data = value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FieldError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}", param=name) from None


def _clip(value: Any) -> str:
    """Text is a URL or base64, as over HTTP. Anything else is the audio file itself: every format has binary data."""
    data = value if isinstance(value, bytes) else str(value).encode()
    if data.isascii() and b"\0" not in data:
        return data.decode()
    return base64.b64encode(data).decode()
