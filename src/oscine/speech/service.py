"""All that speaks a request, whoever asks: models, voices, clips, the planner and the encoders. HTTP and Triton share
it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path

from oscine.audio.encoders import AsyncEncoder, open_encoder, open_file_encoder
from oscine.config import ServerConfig
from oscine.speech.clips import ClipPolicy
from oscine.speech.events import SpeechEvent
from oscine.speech.limits import ledger_of
from oscine.speech.models import LoadedModel, MeterOf, ModelRegistry
from oscine.speech.phrase_cache import ModelPhrases, PhraseCache
from oscine.speech.plan import SpeechPlan, SpeechPlanner
from oscine.speech.run import Speaker
from oscine.speech.script import Script
from oscine.speech.voice_names import reserved_names
from oscine.speech.voice_store import VoiceStore
from oscine.speech.word_times import AsyncAligner, JobMeter, WordTimer


class SpeechService:
    def __init__(
        self,
        models: Sequence[LoadedModel],
        config: ServerConfig,
        meter_of: MeterOf = lambda card: None,
        aligner_meter: JobMeter | None = None,
    ) -> None:
        """The meters count the speeches of each model, and the aligner's jobs."""
        self.config, self.ledger = config, ledger_of(config)
        self.voices_folder = Path(config.voices_dir).expanduser() if config.voices_dir else None
        presets = [speaker for model in models for speaker in model.card.speakers]
        reserved = reserved_names(presets, config.voice_aliases)
        self.voice_store = VoiceStore(self.voices_folder, reserved, config.max_voices)
        self.aligner: AsyncAligner | None = None
        if config.aligner:
            self.aligner = AsyncAligner(Path(config.aligner), config.aligner_threads, self.ledger, aligner_meter)
        transcribe = self.aligner.transcribe if self.aligner else None
        self.phrases = PhraseCache(config.phrase_cache_bytes, self.ledger["phrase"])
        self.models = ModelRegistry(
            models,
            self.voice_store,
            meter_of,
            self.ledger,
            config.model_aliases,
            transcribe,
            config.voice_aliases,
            self.phrases.forget,
        )
        self.clip_policy = ClipPolicy(
            urls=config.ref_urls,
            hosts=config.ref_hosts,
            files_below=Path(config.ref_files_below) if config.ref_files_below else None,
            max_bytes=config.max_clip_bytes,
            ledger=self.ledger,
        )
        self.planner = SpeechPlanner(config, self.clip_policy, self.aligner, self.models.cloner_of)

    def speak(self, plan: SpeechPlan, *, whole: bool = False, words: bool = False) -> AsyncGenerator[SpeechEvent, None]:
        """Speaks the script of a plan; arguments as in `speaker`."""
        return self.speaker(plan, whole=whole, words=words).speak(Script(plan.script))

    def speaker(self, plan: SpeechPlan, *, whole: bool, words: bool) -> Speaker:
        """`whole`: files are sent when they are complete. `words`: with the times of words."""
        # A whole file is encoded as it is generated too: a long one at once would hold a thread for seconds, and other
        # streams need the few threads.
        stages = partial(open_file_encoder if whole else open_encoder, plan.format.name, **plan.encoding)
        pool = self.ledger.pool("encoding") if whole or plan.is_converted else None
        timer: Callable[[], WordTimer] | None = None
        if words:
            assert self.aligner, "the planner refuses word timestamps without an aligner"
            timer = partial(
                WordTimer,
                self.aligner,
                self.ledger["audio"],
                plan.request.language,
                plan.rate_hz,
                plan.speed,
                wait_s=self.config.aligner_wait_s,
            )
        return Speaker(
            plan.model.engine,
            plan.request,
            plan.rate_hz,
            plan.speed,
            split=plan.split is not None,
            phrases=self._phrases(plan),
            packet_bytes=plan.packet_bytes,
            open_encoder=lambda: AsyncEncoder(stages(), pool),
            open_timer=timer,
            open_shaper=lambda prosody: AsyncEncoder(
                open_encoder("pcm", rate_hz=plan.rate_hz, speed=prosody.speed, volume=prosody.volume),
                self.ledger.pool("encoding"),
            ),
        )

    def _phrases(self, plan: SpeechPlan) -> ModelPhrases | None:
        """Codes are not remembered, only samples."""
        if plan.cache == "off" or plan.request.return_codes or plan.request.stream_codes:
            return None
        return ModelPhrases(self.phrases, plan.model.identity, plan.rate_hz, only=plan.cache == "only")

    def close(self) -> None:
        if self.aligner:
            self.aligner.close()
        self.ledger.close()
