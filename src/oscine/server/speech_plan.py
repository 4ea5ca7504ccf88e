"""What a request means: its fields become a SpeechRequest, a list of segments, and a form for the sound."""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import dataclass
from typing import Any

from oscine.segmenter import segment_text
from oscine.server.encoders import Encoder, Format, checked_format, open_encoder
from oscine.server.errors import ApiError
from oscine.server.reference_clips import fetch_clip
from oscine.server.schemas import ExtraParams, VoiceId, VoiceOptions, shown_name
from oscine.server.service import Service
from oscine.types import ModelCard, RequestError, SamplingParams, SpeechRequest, unknown_choice
from oscine.voice import Voice

# What OpenAI's clients send unless told otherwise: whatever is served answers to these names too.
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
_DATE = re.compile(r"-20\d\d-\d\d-\d\d$")  # a snapshot of one of them
_TASKS = {"CustomVoice": "custom_voice", "VoiceDesign": "voice_design", "Base": "base"}
_SPLIT_HERE_CHARS = 2000
_DRAWS = ("top_k", "top_p", "repetition_penalty", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    request: SpeechRequest  # with its seed
    segments: tuple[str, ...]
    format: Format
    rate_hz: int  # of the sound as it is made
    out_rate_hz: int  # and as it leaves
    speed: float
    ignored_fields: tuple[str, ...]

    @property
    def seed(self) -> int:
        assert self.request.seed is not None
        return self.request.seed

    def encoder(self) -> Encoder:
        return open_encoder(self.format.name, rate_hz=self.rate_hz, out_rate_hz=self.out_rate_hz, speed=self.speed)

    def heard_s(self, samples: int) -> float:
        """How long so many samples last, as they leave."""
        return samples / self.rate_hz / self.speed


async def plan_speech(options: VoiceOptions, text: str, service: Service, default_format: str = "mp3") -> SpeechPlan:
    """Raises ApiError or RequestError. An open text (of a WebSocket) is "" here."""
    card = service.card
    _check_model(options.model, card)
    _check_task(options, card)
    _check_sampling(options)
    if options.word_timestamps:
        message = "word_timestamps: there is no aligner here; stream_format 'sse' gives the time range of every segment"
        raise ApiError(422, message, param="word_timestamps")
    out_rate_hz = options.sample_rate or card.sample_rate_hz
    speed = 1.0 if options.speed is None else options.speed
    form = checked_format(options.response_format or default_format, out_rate_hz, speed)
    if len(text) > service.config.max_text_chars:
        message = f"the text has {len(text)} characters, the limit is {service.config.max_text_chars}; send it in parts"
        raise ApiError(413, message, param="input")
    voice = await _voice(options, service)
    # A thousand characters take a millisecond; a book must not hold up everybody's sound.
    splitting = asyncio.to_thread(segment_text, text, service.split) if len(text) > _SPLIT_HERE_CHARS else None
    return SpeechPlan(
        request=_request(options, text, voice),
        segments=tuple(await splitting if splitting else segment_text(text, service.split)),
        format=form,
        rate_hz=card.sample_rate_hz,
        out_rate_hz=out_rate_hz,
        speed=speed,
        ignored_fields=tuple(options.ignored_fields),
    )


def _request(options: VoiceOptions, text: str, voice: str | Voice | None) -> SpeechRequest:
    extra = options.extra_params or ExtraParams()
    values: dict[str, Any] = {name: _either(options, extra, name) for name in _DRAWS}
    temperature = _either(options, extra, "temperature")
    greedy = True if temperature == 0 else None
    seed = _either(options, extra, "seed")
    modes = {None: None, True: "whole", False: "streaming"}
    return SpeechRequest(
        text=text,
        voice=voice,
        language=(options.language or "auto").lower(),
        instruct=options.instructions or None,
        text_mode=modes[options.non_streaming_mode],  # type: ignore[arg-type]
        seed=secrets.randbits(63) if seed is None else seed,
        greedy=greedy,
        temperature=None if greedy else temperature,
        subtalker_temperature=None if greedy else extra.subtalker_temperature,
        subtalker_top_k=extra.subtalker_top_k,
        subtalker_top_p=extra.subtalker_top_p,
        trim_silence=options.trim_silence,
        **values,
    )


def _either(options: VoiceOptions, extra: ExtraParams, name: str) -> Any:
    value = getattr(options, name)
    return getattr(extra, name) if value is None else value


def _check_model(model: str | None, card: ModelCard) -> None:
    # A hub id (Qwen/Qwen3-TTS-...) is what it was served by; the last part of it is its name.
    if model is None or card.name in (model, model.rpartition("/")[2]):
        return
    if _DATE.sub("", model.lower()) in OPENAI_MODELS:
        return
    message = unknown_choice("model", shown_name(model), [card.name, *OPENAI_MODELS])
    raise ApiError(404, message, param="model", code="model_not_found")


def _check_task(options: VoiceOptions, card: ModelCard) -> None:
    asked = options.task_type
    if asked is not None and _TASKS[asked] != card.kind:
        served = next(name for name, kind in _TASKS.items() if kind == card.kind)
        message = f"task_type {asked!r} is not served here: this checkpoint is {served}; leave the field out"
        raise RequestError(message, "task_type")


def _check_sampling(options: VoiceOptions) -> None:
    """By the engine's own limits, whatever the checkpoint's defaults are."""
    try:
        _request(options, "", None).sampling(SamplingParams())
    except RequestError as error:
        name = error.param or ""
        inside = getattr(options, name, None) is None and name in ExtraParams.model_fields
        raise ApiError(422, str(error), param=f"extra_params.{name}" if inside else name) from None


# --- voices ---------------------------------------------------------------------------------------------------------


async def _voice(options: VoiceOptions, service: Service) -> str | Voice | None:
    """One of: a clip, an embedding, a name."""
    clip, transcript = _reference(options)
    if options.speaker_embedding is not None:
        if clip is not None:
            raise RequestError("give ref_audio or speaker_embedding, not both", "speaker_embedding")
        _check_clones(service.card, "speaker_embedding")
        _check_width(options.speaker_embedding, service.card)
        return Voice.from_embedding(options.speaker_embedding)
    if clip is not None:
        _check_clones(service.card, "ref_audio")
        content = await fetch_clip(clip, service.clip_policy)
        words = None if options.x_vector_only_mode else transcript
        return await service.clip_voices.voice(content, words)
    if transcript is not None:
        raise RequestError("ref_text are the words of a clip; give the clip too, as ref_audio", "ref_text")
    if options.x_vector_only_mode:
        raise RequestError("x_vector_only_mode needs a clip; give it as ref_audio", "x_vector_only_mode")
    name = options.voice.id if isinstance(options.voice, VoiceId) else options.voice
    return service.voices.resolve(name)


def _reference(options: VoiceOptions) -> tuple[str | None, str | None]:
    clips = [options.ref_audio] if isinstance(options.ref_audio, str) else list(options.ref_audio or [])
    if options.references:
        if clips:
            raise RequestError("give ref_audio or references, not both", "references")
        return options.references[0].audio_path, options.references[0].text
    if len(clips) > 1:
        raise RequestError(f"ref_audio has {len(clips)} clips, one is taken; join them to one", "ref_audio")
    return (clips[0] if clips else None), options.ref_text


def _check_clones(card: ModelCard, param: str) -> None:
    if not card.clones:
        voices = ", ".join(card.speakers) or "described by instructions"
        message = f"{param}: this checkpoint ({card.kind}) cannot clone; serve a Base one, or use its voices ({voices})"
        raise RequestError(message, param)


def _check_width(embedding: list[float], card: ModelCard) -> None:
    if len(embedding) != card.speaker_width:
        raise RequestError(
            f"speaker_embedding has {len(embedding)} numbers, this checkpoint's have {card.speaker_width}; "
            "make it with this checkpoint (GET /v1/audio/voices/{name}/embedding)",
            "speaker_embedding",
        )
