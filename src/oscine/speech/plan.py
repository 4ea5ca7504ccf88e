"""Turns a SpeechRequest into a SpeechPlan: the voice, the segments of its text, and the audio format."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from oscine.audio.encoders import Format, checked_format, packet_bytes
from oscine.audio.formats import FormatName
from oscine.config import ServerConfig
from oscine.errors import ConfigError, RequestError, TooLargeError
from oscine.request import RANDOM_SEED, SpeechRequest, Turn, VoiceMix, VoiceSource, naming_turn
from oscine.speech.capabilities import (
    AUTO,
    check_can_clone,
    check_speaker_width,
    check_takes_voices,
    check_text,
    unsupported_script,
)
from oscine.speech.clips import ClipPolicy, fetch_clip
from oscine.speech.events import SpokenTurn
from oscine.speech.models import ServedModel
from oscine.speech.phrase_cache import CacheUse
from oscine.speech.script import Scripted, prepare_turns, spoken_items, spoken_turn
from oscine.speech.word_times import AsyncAligner, check_aligner
from oscine.text.cleaning import is_plain
from oscine.text.options import ENGLISH, TextLevel, TextOptions, asked_level, level_of, text_language
from oscine.text.preparation import StreamingPreparation, check_text_options, prepare_text
from oscine.text.segmenter import SegmenterConfig
from oscine.text.spoken_text import SpokenText
from oscine.text.ssml import tag_warning
from oscine.types import ModelCard
from oscine.voice import Voice

_MAX_READ_CHARS = 300  # of any content; reading them in English takes about a millisecond
_COMPRESSED_BYTES_PER_S = 20_000  # mp3, opus and aac stay below
_EXPERIMENTAL = "experimental: CustomVoice checkpoints were not trained for other voices than their own; listen first"
_MAX_INLINE_TURNS = 8  # as short as the text that is read inline
_MAX_INLINE_CHARS = 2000  # a thousand characters take a millisecond to segment; longer texts leave the event loop


# Word timestamps of a WebSocket: as events of ours, in vLLM-Omni's audio chunks, or as LiveKit's plug-in reads them.
WordForm = Literal["events", "chunks", "at_end"]
Split = Literal["sentence", "clause"]  # what is a file of its own in a live session


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    model: ServedModel
    request: SpeechRequest  # with its voice and its seed
    script: tuple[Scripted, ...]  # segments and pauses, and where the turns of a dialogue begin
    format: Format
    rate_hz: int  # of the engine's audio
    out_rate_hz: int
    speed: float
    cache: CacheUse = "off"  # of phrases
    packet_bytes: int | None = None  # streamed audio comes in packets of this size
    ignored_fields: tuple[str, ...] = ()
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

    def warning_about(self, segment: str) -> str | None:
        """What a client should know about a segment of a streaming text."""
        tags = tag_warning(segment, self.request.text_level) if self.request.markup else None
        return "; ".join(filter(None, (unsupported_script(segment, self.model.card), tags))) or None

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
        changed = self.speed != 1 or self.request.volume != 1 or self.out_rate_hz != self.rate_hz
        return changed or self.format.codec is not None

    @property
    def encoding(self) -> dict[str, Any]:
        """Keyword arguments of `open_encoder` and `encode_whole`."""
        rates = {"rate_hz": self.rate_hz, "out_rate_hz": self.out_rate_hz}
        return {**rates, "speed": self.speed, "volume": self.request.volume}

    def playback_s(self, samples: int) -> float:
        """Duration of this many engine samples at the requested speed."""
        return samples / self.rate_hz / self.speed

    def file_bytes(self, pcm: bytes) -> int:
        """What these samples of the engine take in a whole file, at most: encoders hold them until its end."""
        is_large = self.format.codec is None or self.format.needs_length
        per_s = 2 * self.out_rate_hz if is_large else _COMPRESSED_BYTES_PER_S
        return round(self.playback_s(len(pcm) // 2) * per_s)


class SpeechPlanner:
    def __init__(
        self,
        config: ServerConfig,
        clip_policy: ClipPolicy,
        aligner: AsyncAligner | None = None,
        cloner_of: Callable[[ServedModel], ServedModel] = lambda model: model,
    ) -> None:
        """`cloner_of` finds the model that makes voices from clips for another. Raises ConfigError."""
        self._clip_policy, self._aligner, self._cloner_of = clip_policy, aligner, cloner_of
        self._texts, self._files = clip_policy.ledger.pool("text"), clip_policy.ledger.pool("voice_file")
        self._level = config.text_level or ("spoken" if config.normalize else None)
        self._text_defaults = TextOptions(
            text_level=config.text_level, paragraph_pause_s=config.paragraph_pause_s or None
        )
        try:
            check_text_options(TextOptions(text_level=self._level), AUTO)
        except RequestError as error:
            name = "text_level" if config.text_level else "normalize"
            raise ConfigError(f"server.{name}: {error}") from None
        self._max_text_chars = config.max_text_chars
        self._remembers = config.phrase_cache_bytes > 0
        chars = config.segment_chars
        self.segmenter_config = SegmenterConfig(first_chars=chars // 2, segment_chars=chars, max_chars=2 * chars)

    async def plan(
        self,
        model: ServedModel,
        request: SpeechRequest,
        form: FormatName,
        *,
        packet_ms: int | None = None,
        cache: CacheUse = "auto",
        times_words: bool = False,
    ) -> SpeechPlan:
        """Plans a request. The text is "" for streaming text (WebSocket). Raises RequestError."""
        card = model.card
        if times_words:
            check_aligner(self._aligner, request.language)
        checked, out_rate_hz = checked_format(form, card.sample_rate_hz, request.sample_rate, request.speed)
        written = request.written
        if request.chars > self._max_text_chars:
            message = f"the text has {request.chars} characters, the limit is {self._max_text_chars}; split it"
            raise TooLargeError(message, "input")
        voice, clip_warnings = await self._voice(model, request.voice)
        repeats = request.seed not in (None, RANDOM_SEED)
        seed = request.seed if request.seed is not None and repeats else secrets.randbits(63)
        spoken = await self._settled(request, card, voice=voice, seed=seed)
        turns = await self._turns(model, request, voice, seed, times_words=times_words) if request.turns else []
        script = tuple(await self._script(spoken, turns, card))
        voices = (voice, *(turn.request.voice for turn in turns))
        return SpeechPlan(
            model=model,
            request=spoken,
            script=script,
            cache=self._cache_use(cache, script, repeats=repeats),
            format=checked,
            rate_hz=card.sample_rate_hz,
            out_rate_hz=out_rate_hz,
            speed=request.speed,
            packet_bytes=packet_bytes(checked, out_rate_hz, packet_ms) if packet_ms else None,
            warning=unsupported_script(written[:_MAX_INLINE_CHARS], card),
            field_warnings=(
                *clip_warnings,
                *([_EXPERIMENTAL] if any(_is_experimental(one, card) for one in voices) else []),
                *await self._tag_warnings(written if request.markup else "", spoken.text_level),
            ),
        )

    async def _settled(self, request: SpeechRequest, card: ModelCard, **changed: Any) -> SpeechRequest:
        """The request with what is `changed`, and with the level and the pauses of its text. Raises RequestError."""
        language = text_language(request.language, card.languages)
        await self._check_text_options(request, language)
        pause_s = request.paragraph_pause_s
        return replace(
            request,
            text_level=level_of(request, self._level or card.text_level, language),
            normalize=None,
            paragraph_pause_s=self._text_defaults.paragraph_pause_s if pause_s is None else pause_s,
            **changed,
        )

    async def _turns(
        self, model: ServedModel, request: SpeechRequest, voice: str | Voice | None, seed: int, *, times_words: bool
    ) -> list[SpokenTurn]:
        """Plans the turns of a dialogue, each as a request alone: what is wrong with a later one is known before the
        first is spoken. `voice` and `seed` are those of the dialogue. Raises RequestError."""
        voices: dict[object, str | Voice | None] = {None: voice}
        turns = []
        for index, turn in enumerate(request.turns):
            if index % _MAX_INLINE_TURNS == _MAX_INLINE_TURNS - 1:
                await asyncio.sleep(0)  # a turn takes a tenth of a millisecond
            with naming_turn(index):
                check_text(turn.text)
                if turn.voice not in voices:
                    voices[turn.voice], _ = await self._voice(model, turn.voice)
                turns.append(await self._turn(model, request, index, turn, voices[turn.voice], seed, times_words))
        return turns

    async def live_turn(self, plan: SpeechPlan, request: SpeechRequest, index: int, turn: Turn) -> SpokenTurn:
        """Plans a turn whose text arrives later. `plan` is that of `request`. Raises RequestError."""
        voice = plan.request.voice
        warnings: tuple[str, ...] = ()
        if turn.voice is not None:
            voice, warnings = await self._voice(plan.model, turn.voice)
            warnings += (_EXPERIMENTAL,) if _is_experimental(voice, plan.model.card) else ()
        times_words = plan.words is not None
        assert not isinstance(voice, VoiceSource | VoiceMix)
        planned = await self._turn(plan.model, request, index, turn, voice, plan.seed, times_words)
        return replace(planned, warning="; ".join(warnings) or None)

    async def _turn(
        self,
        model: ServedModel,
        request: SpeechRequest,
        index: int,
        turn: Turn,
        voice: str | Voice | None,
        seed: int,
        times_words: bool,
    ) -> SpokenTurn:
        alone = request.of_turn(turn)
        if times_words and turn.language is not None:
            check_aligner(self._aligner, alone.language, "language")
        alone = await self._settled(alone, model.card, voice=voice, seed=seed)
        return spoken_turn(index, turn, alone, model.card, request.voice)

    def _cache_use(self, asked: CacheUse, script: tuple[Scripted, ...], *, repeats: bool) -> CacheUse:
        """Raises RequestError."""
        if asked != "only":
            return asked if repeats and self._remembers else "off"  # with a random seed, no phrase is spoken twice
        if not self._remembers:
            raise RequestError("this server has no phrase cache; its setting is server.phrase_cache_bytes", "cache")
        if not repeats:
            raise RequestError("cache 'only' needs the seed that the phrase was spoken with", "seed")
        if (items := spoken_items(script)) > 1:
            message = f"cache 'only' takes one segment, this text has {items} segments and pauses; split it"
            raise RequestError(message, "cache")
        return asked

    async def _check_text_options(self, request: SpeechRequest, language: str) -> None:
        if asked_level(request) == "spoken" and language.lower() != ENGLISH:  # may load tables
            await self._texts.run(check_text_options, request, language)
        else:
            check_text_options(request, language)

    async def _script(self, request: SpeechRequest, turns: list[SpokenTurn], card: ModelCard) -> Sequence[Scripted]:
        limits = self.segmenter_config, self._max_text_chars
        language = text_language(request.language, card.languages)
        if turns:
            is_short = len(turns) <= _MAX_INLINE_TURNS and len(request.written) <= _MAX_READ_CHARS
            if is_short and all(_is_quick(one.request.text, one.request, one.request.language) for one in turns):
                return prepare_turns(turns, card.languages, *limits)
            return await self._texts.run_while_wanted(prepare_turns, turns, card.languages, *limits)
        given = request.text, request, language, *limits
        if len(request.text) <= _MAX_INLINE_CHARS and _is_quick(request.text, request, language):
            return prepare_text(*given)
        return await self._texts.run_while_wanted(prepare_text, *given)

    async def _tag_warnings(self, text: str, level: TextLevel | None) -> list[str]:
        if "<" not in text:
            return []
        is_short = len(text) <= _MAX_INLINE_CHARS
        warning = tag_warning(text, level) if is_short else await self._texts.run(tag_warning, text, level)
        return [warning] if warning else []

    def preparation(self, plan: SpeechPlan | None, turn: SpokenTurn | None = None) -> StreamingPreparation:
        """Prepares streaming text, that of a `turn` in a dialogue. Without `plan`, it has the default settings."""
        if plan is None:
            return StreamingPreparation(self._text_defaults, AUTO, self.segmenter_config)
        request = turn.request if turn else plan.request
        language = text_language(request.language, plan.model.card.languages)
        config = self.segmenter_config
        if plan.split:
            at_clauses = plan.split == "clause"
            config = replace(config, first_chars=1, segment_chars=1, ends_at_clauses=at_clauses)
        return StreamingPreparation(request, language, config)

    async def _voice(
        self, model: ServedModel, asked: str | Voice | VoiceSource | VoiceMix | None
    ) -> tuple[str | Voice | None, tuple[str, ...]]:
        """Finds the voice, or makes it. Also returns warnings about the clip."""
        if isinstance(asked, VoiceSource):
            if asked.embedding is not None:
                check_takes_voices(model.card, asked.param)
                check_speaker_width(len(asked.embedding), model.card, asked.param)
                return Voice.from_embedding(asked.embedding), ()
            cloner = self._cloner_of(model)
            check_can_clone(cloner.card, asked.param)
            assert asked.clip is not None
            transcript = asked.transcript if cloner is model else None  # only the timbre is spoken with
            with contextlib.closing(self._clip_policy.ledger["clip"].open()) as held:
                # Without a name for the clip: it is gone before its voice is made.
                return await cloner.cloned_voices.get(
                    await fetch_clip(asked.clip, self._clip_policy, held=held), transcript, held
                )
        if isinstance(asked, Voice) or model.card.kind == "voice_design":
            return (asked if isinstance(asked, Voice) else None), ()
        if not isinstance(asked, VoiceMix):
            quick = model.voices.is_preset(asked)
            found = model.voices.resolve(asked) if quick else await self._files.run(model.voices.resolve, asked)
            if not isinstance(found, VoiceMix):
                return found, ()
            asked = found
        return await model.mixed_voices.get(asked), ()


def _is_experimental(voice: object, card: ModelCard) -> bool:
    return isinstance(voice, Voice) and not card.clones


def _is_quick(text: str, options: TextOptions, language: str) -> bool:
    """Whether preparing the text takes at most some milliseconds. Under overload, a thread for each request would
    starve the event loop: refusals took 18 s."""
    if not options.changes_words:
        return True
    if options.pronunciations or (options.text_level == "spoken" and language.lower() != ENGLISH):
        return False
    return len(text) <= _MAX_READ_CHARS or (options.text_level == "clean" and is_plain(text))
