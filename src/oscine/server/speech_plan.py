"""Turns the fields of a request into a SpeechPlan: a SpeechRequest, the segments of its text, and the audio format."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from oscine.audio.encoders import Format, checked_format
from oscine.config import FormatName, ServerConfig
from oscine.errors import FieldError, RequestError, TooLargeError
from oscine.server.api.schemas import ExtraParams, Split, VoiceId, VoiceOptions
from oscine.server.ignored_fields import field_warnings, ignored_fields
from oscine.server.model_registry import ServedModel
from oscine.server.sampling_fields import given_seed, sampling_fields
from oscine.server.text_fields import TextFields
from oscine.speech.capabilities import AUTO, KIND_NAMES, check_can_clone, check_speaker_width, unsupported_script
from oscine.speech.clips import ClipPolicy, fetch_clip
from oscine.speech.cloned_voices import ClonedVoice
from oscine.speech.words import AsyncAligner, check_aligner
from oscine.text.cleaning import is_plain
from oscine.text.levels import text_language
from oscine.text.preparation import Prepared, StreamingPreparation, prepare_text
from oscine.text.segmenter import SegmenterConfig
from oscine.text.spoken_text import SpokenText
from oscine.types import ModelCard, SamplingParams, SpeechRequest, TextOptions
from oscine.voice import Voice

_MAX_CLEANED_CHARS = 300  # of any content; cleaning them takes up to 2 ms
_MAX_INLINE_CHARS = 2000  # a thousand characters take a millisecond to segment; longer texts leave the event loop
_TEXT_MODES: dict[bool | None, Any] = {None: None, True: "whole", False: "streaming"}


# Word timestamps of a WebSocket: as events of ours, in vLLM-Omni's audio chunks, or as LiveKit's plug-in reads them.
WordForm = Literal["events", "chunks", "at_end"]


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    model: ServedModel
    request: SpeechRequest  # with its seed
    script: tuple[Prepared, ...]  # segments and pauses
    format: Format
    rate_hz: int  # of the engine's audio
    out_rate_hz: int
    speed: float
    ignored_fields: tuple[str, ...]
    warning: str | None = None  # for the client and the log
    field_warnings: tuple[str, ...] = ()  # for the client
    words: WordForm | None = None
    split: Split | None = None  # a WebSocket's utterance is one file, or one for each of these
    whole_files: bool = False  # of a WebSocket: each is sent in one frame

    @property
    def seed(self) -> int:
        assert self.request.seed is not None
        return self.request.seed

    @property
    def client_warnings(self) -> tuple[str, ...]:
        return (*((self.warning,) if self.warning else ()), *self.field_warnings)

    @property
    def segments(self) -> int:
        return sum(isinstance(item, SpokenText) for item in self.script)

    @property
    def read_as(self) -> str | None:
        """What the model reads, if it is not what was written."""
        texts = [item for item in self.script if isinstance(item, SpokenText)]
        return " ".join(one.spoken for one in texts) if any(one.replacements for one in texts) else None

    @property
    def is_converted(self) -> bool:
        return self.format.codec is not None or self.speed != 1 or self.out_rate_hz != self.rate_hz

    @property
    def encoding(self) -> dict[str, Any]:
        """Keyword arguments of `open_encoder` and `encode_whole`."""
        return {"rate_hz": self.rate_hz, "out_rate_hz": self.out_rate_hz, "speed": self.speed}

    def playback_s(self, samples: int) -> float:
        """Duration of this many engine samples at the requested speed."""
        return samples / self.rate_hz / self.speed


class SpeechPlanner:
    def __init__(self, config: ServerConfig, clip_policy: ClipPolicy, aligner: AsyncAligner | None = None) -> None:
        self._config, self._clip_policy, self._aligner = config, clip_policy, aligner
        self._text_fields = TextFields(config)
        self._max_text_chars = config.max_text_chars
        chars = config.segment_chars
        self.segmenter_config = SegmenterConfig(first_chars=chars // 2, segment_chars=chars, max_chars=2 * chars)

    async def plan(
        self, model: ServedModel, options: VoiceOptions, text: str, default_format: FormatName | None = None
    ) -> SpeechPlan:
        """Raises RequestError. `text` is "" for streaming text (WebSocket). `default_format` None: the
        server's."""
        card = model.card
        if self._config.strict:
            options.check_strict()
        _check_task(options, card)
        sampling = sampling_fields(options)
        _check_sampling(options, sampling)
        if options.word_timestamps:
            check_aligner(self._aligner, options.language_name)
        out_rate_hz = options.sample_rate or card.sample_rate_hz
        speed = 1.0 if options.speed is None else options.speed
        form = checked_format(options.response_format or default_format or self._config.http_format, out_rate_hz, speed)
        if len(text) > self._max_text_chars:
            message = f"the text has {len(text)} characters, the limit is {self._max_text_chars}; split it"
            raise TooLargeError(message, "input")
        voice = await self._voice(model, options)
        voice, clip_warnings = voice if isinstance(voice, ClonedVoice) else (voice, ())
        text_options = await self._text_fields.read(options, text_language(options.language_name, card.languages), card)
        request = SpeechRequest(
            text=text, voice=voice, text_options=text_options, **_request_fields(options), **sampling
        )
        unknown_fields = tuple(options.unknown_fields())
        return SpeechPlan(
            model=model,
            request=request,
            script=tuple(await self._script(request, card)),
            format=form,
            rate_hz=card.sample_rate_hz,
            out_rate_hz=out_rate_hz,
            speed=speed,
            ignored_fields=ignored_fields(options, card, unknown_fields),
            warning=unsupported_script(text[:_MAX_INLINE_CHARS], card),
            field_warnings=(*clip_warnings, *field_warnings(unknown_fields)),
        )

    async def _script(self, request: SpeechRequest, card: ModelCard) -> list[Prepared]:
        options, language = request.text_options, text_language(request.language, card.languages)
        given = request.text, options, language, self.segmenter_config, self._max_text_chars
        if len(request.text) <= _MAX_INLINE_CHARS and (options is None or _is_quick(request.text, options)):
            return prepare_text(*given)
        return await asyncio.to_thread(prepare_text, *given)

    def preparation(self, plan: SpeechPlan | None) -> StreamingPreparation:
        """Prepares streaming text. `plan` None: the default settings."""
        options = (plan.request.text_options if plan else None) or self._text_fields.defaults
        language = text_language(plan.request.language, plan.model.card.languages) if plan else AUTO
        config = self.segmenter_config
        if plan and plan.split:
            at_clauses = plan.split == "clause"
            config = replace(config, first_chars=1, segment_chars=1, ends_at_clauses=at_clauses)
        return StreamingPreparation(options, language, config)

    async def _voice(self, model: ServedModel, options: VoiceOptions) -> str | Voice | ClonedVoice | None:
        """Finds the voice from a clip, an embedding or a name."""
        clip, transcript = _reference(options)
        if options.speaker_embedding is not None:
            if clip is not None:
                raise RequestError(
                    "ref_audio and speaker_embedding are mutually exclusive; give one", "speaker_embedding"
                )
            check_can_clone(model.card, "speaker_embedding")
            check_speaker_width(len(options.speaker_embedding), model.card, "speaker_embedding")
            return Voice.from_embedding(options.speaker_embedding)
        if clip is not None:
            check_can_clone(model.card, "ref_audio")
            content = await fetch_clip(clip, self._clip_policy)
            return await model.cloned_voices.get(content, None if options.x_vector_only_mode else transcript)
        if transcript is not None:
            raise RequestError("ref_text is the transcript of a clip; give the clip too, as ref_audio", "ref_text")
        if options.x_vector_only_mode:
            raise RequestError("x_vector_only_mode needs a clip; give it as ref_audio", "x_vector_only_mode")
        if model.card.kind == "voice_design":
            return None
        given = options.speaker if options.voice is None else options.voice
        name = given.id if isinstance(given, VoiceId) else given
        if model.voices.is_preset(name):
            return model.voices.resolve(name)
        return await asyncio.to_thread(model.voices.resolve, name)


def _is_quick(text: str, options: TextOptions) -> bool:
    """Whether preparing the text takes at most some milliseconds. Under overload, a thread for each request would
    starve the event loop: refusals took 18 s."""
    if not options.changes_words:
        return True
    if options.text_level != "clean" or options.pronunciations:
        return False
    return len(text) <= _MAX_CLEANED_CHARS or is_plain(text)


def _request_fields(options: VoiceOptions) -> dict[str, Any]:
    """Keyword arguments of SpeechRequest, without the text, the voice and the sampling."""
    seed = given_seed(options)
    return {
        "language": options.language_name,
        "instructions": options.instructions or None,
        "text_mode": _TEXT_MODES[options.non_streaming_mode],
        "seed": secrets.randbits(63) if seed is None else seed,
        "trim_silence": options.trim_silence,
        "trim_echo": options.trim_echo,
    }


def _reference(options: VoiceOptions) -> tuple[str | None, str | None]:
    """Clip and transcript."""
    clips = [options.ref_audio] if isinstance(options.ref_audio, str) else options.ref_audio or []
    if options.references:
        if clips:
            raise RequestError("give ref_audio or references, not both", "references")
        return options.references[0].clip, _transcript(options.references[0].text, options.ref_text)
    if len(clips) > 1:
        raise RequestError(f"ref_audio has {len(clips)} clips, only one is supported; join them", "ref_audio")
    return (clips[0] if clips else None), options.ref_text


def _transcript(of_reference: str | None, ref_text: str | None) -> str | None:
    if of_reference is not None and ref_text not in (None, of_reference):
        message = "ref_text and the text of references differ; both are the transcript of one clip: give one of them"
        raise RequestError(message, "ref_text")
    return ref_text if of_reference is None else of_reference


def _check_task(options: VoiceOptions, card: ModelCard) -> None:
    task = options.task_type
    if task is not None and task != KIND_NAMES[card.kind]:
        message = f"task_type {task!r} is not available: this checkpoint is {KIND_NAMES[card.kind]}; leave it out"
        raise RequestError(message, "task_type")


def _check_sampling(options: VoiceOptions, sampling: dict[str, Any]) -> None:
    """Applies the engine's own limits, whatever the checkpoint's defaults are."""
    try:
        _check_limits(**sampling)
    except RequestError as error:
        name = error.param or ""
        nested = getattr(options, name, None) is None and name in ExtraParams.model_fields
        raise FieldError(str(error), param=f"extra_params.{name}" if nested else name) from None


@lru_cache(maxsize=256, typed=True)  # most clients send the same few values, or none
def _check_limits(**sampling: Any) -> None:
    SpeechRequest(text="", **sampling).sampling(SamplingParams())
