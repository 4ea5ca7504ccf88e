"""The Python API: `Oscine` speaks with an engine in this process, `start_engine` starts one in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from oscine.audio import checks as clip_checks
from oscine.audio.checks import ClipWarning
from oscine.audio.clips import read_clip
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.audio.encoders import AsyncEncoder, open_encoder
from oscine.audio.pcm import Samples, samples_of
from oscine.config import EngineConfig, PacingConfig, WorkerConfig
from oscine.engine.build import build_engine
from oscine.engine.remote.client import EngineClient
from oscine.errors import ConfigError, EngineError, RequestError
from oscine.model.checkpoint import DEMO
from oscine.request import RANDOM_SEED, SpeechRequest, VoiceMix, naming_turn
from oscine.speech.capabilities import check_can_clone, check_text, resolve_request
from oscine.speech.events import Audio, Speech, SpeechEvent, SpokenTurn, WholeFile
from oscine.speech.run import Speaker
from oscine.speech.script import Script, Scripted, prepare_turns, spoken_turn
from oscine.speech.voice_names import language_name
from oscine.speech_options import suggests_names, takes_request
from oscine.text.options import at_level, text_language
from oscine.text.preparation import Prepared, check_text_options, prepare_text
from oscine.text.spoken_text import SpokenText
from oscine.types import ReportProgress
from oscine.voice import blended

if TYPE_CHECKING:
    from oscine.audio.clips import ClipSource
    from oscine.engine.in_process import InProcessEngine
    from oscine.model.config import ModelConfig
    from oscine.model.device import Device, Dtype
    from oscine.voice import Voice

_T = TypeVar("_T")
DEFAULT_SLOTS = 8
_CLOSED = "this Oscine is closed; create another one, or close it after its last speech"


def _no_progress(stage: str, done: int, total: int) -> None: ...


class Oscine:
    """A checkpoint that speaks: a folder in the published layout, a hub id, or "demo".

    Threads and event loops may share one. Up to `slots` requests run side by side; further ones wait. Use it as a
    context manager, or call `close`, to free the device early.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEMO,
        *,
        device: Device = "auto",
        dtype: Dtype = "auto",
        slots: int = DEFAULT_SLOTS,
        config: EngineConfig | None = None,
        progress: ReportProgress = _no_progress,
    ) -> None:
        """`config` replaces the engine's settings, `slots` included."""
        if not isinstance(model, str | os.PathLike):
            raise ConfigError(f"model must be a folder, a hub id or {DEMO!r}, got {type(model).__name__}")
        self._engine = build_engine(model, config or offline_config(slots), progress, device=device, dtype=dtype)
        self._event_loop = EventLoopThread("oscine-api")  # runs the synchronous calls
        self._finalizer = weakref.finalize(self, _shut_down, self._engine, self._event_loop)

    def close(self) -> None:
        """Ends running speech and frees the device. Further calls that need the engine raise EngineError."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self._finalizer.alive else ", closed"
        return f"Oscine({self.config.kind}, voices: {', '.join(self.voices) or 'none'}{closed})"

    @property
    def config(self) -> ModelConfig:
        """The checkpoint's own settings, as its files have them."""
        return self._engine.model_config

    @property
    def device(self) -> str:
        """Device, dtype and kernels, such as "NVIDIA H200, bfloat16, CUDA kernels"."""
        return self._engine.status().device

    @property
    def sample_rate(self) -> int:
        """The rate of the checkpoint's audio, in Hz."""
        return self._engine.sample_rate_hz

    @property
    def voices(self) -> list[str]:
        """Names of the preset voices; empty for a checkpoint that clones or designs them."""
        return sorted(self.config.talker.speakers)

    @property
    def languages(self) -> list[str]:
        """What the option `language` takes."""
        return ["auto", *sorted(self.config.selectable_languages)]

    @suggests_names(ref_audio="clip", ref_text="transcript")
    def clone(self, clip: ClipSource, transcript: str | None = None) -> Voice:
        """A voice from a clip: a path, a file's bytes, or (samples, rate). With the transcript of the clip the model
        continues in its manner (in-context cloning); without it, only the timbre is used.

        What should be changed about a clip that can be used (too short, noisy, clipped, another transcript) is a
        `ClipWarning`."""
        self._check_open()
        check_can_clone(self.config.card(""))
        if transcript is not None:
            check_text(transcript, "ref_text")
        read = read_clip(clip, REFERENCE_CLIP)
        voice = self._engine.clone(read, transcript)
        for message in clip_checks.warnings(clip_checks.examine(read), transcript):
            warnings.warn(message, ClipWarning, stacklevel=3)  # the caller's line; between is `suggests_names`
        return voice

    def mix(self, weights: Mapping[str | Voice, float]) -> Voice:
        """A voice between others: preset names or voices, with their weights, such as `{"ryan": 0.6, me: 0.4}`."""
        self._check_open()
        card = self.config.card("")
        parts = []
        for asked, weight in VoiceMix.of(weights).parts:
            voice = self._engine.preset(asked) if isinstance(asked, str) else asked
            resolve_request(SpeechRequest(voice=voice), card)
            parts.append((voice, weight))
        return blended(parts)

    @takes_request(SpeechRequest)
    def speak(self, request: SpeechRequest) -> Speech:
        """Speaks a text of any length and returns when all of it is spoken. Raises RequestError for what cannot be
        spoken."""
        return self.speak_batch([request])[0]

    @takes_request(SpeechRequest)
    def stream(self, request: SpeechRequest) -> Iterator[Samples]:
        """Yields the samples of `speak` in pieces, as they are generated. Bad input raises here, before the first
        piece. Leaving the iteration cancels the speech."""
        made = self._pieces(self._checked(request))
        pieces: queue.SimpleQueue[Samples | BaseException | None] = queue.SimpleQueue()

        async def produce() -> None:
            try:
                async for piece in made:
                    pieces.put(piece)
                pieces.put(None)
            except asyncio.CancelledError:
                pieces.put(EngineError(_CLOSED))
                raise
            except BaseException as error:
                pieces.put(error)
                raise

        def consume() -> Iterator[Samples]:
            producing = self._event_loop.start(produce())
            try:
                while (piece := pieces.get()) is not None:
                    if isinstance(piece, BaseException):
                        raise piece
                    yield piece
            finally:
                producing.cancel()

        return consume()

    def speak_batch(
        self, requests: Sequence[SpeechRequest], on_event: Callable[[int, SpeechEvent], None] | None = None
    ) -> list[Speech]:
        """Speaks several requests side by side. Each gives what it would give alone (docs/architecture.md says how
        exactly). `on_event` gets the index of a request and each event of its speech (`oscine.speech.events`), among
        them its audio."""
        checked = [self._checked(request) for request in requests]

        async def speak_all() -> list[Speech]:
            free = asyncio.Semaphore(self._engine.status().slots)

            async def speak_one(index: int, request: SpeechRequest) -> Speech:
                async with free:  # or the engine would take the last of many for waiting too long
                    return await self._speech(request, partial(on_event, index) if on_event else None)

            return await asyncio.gather(*(speak_one(index, request) for index, request in enumerate(checked)))

        return self._wait_for(speak_all())

    def check(self, requests: Sequence[SpeechRequest]) -> None:
        """Raises what speaking these requests would raise, and speaks nothing."""
        for request in requests:
            self._checked(request)

    @takes_request(SpeechRequest)
    async def aspeak(self, request: SpeechRequest) -> Speech:
        """The async form of `speak`. Cancelling it cancels the speech."""
        return await self._speech(self._checked(request))

    @takes_request(SpeechRequest)
    def astream(self, request: SpeechRequest) -> AsyncGenerator[Samples, None]:
        """The async form of `stream`. Closing the generator cancels the speech."""
        return self._pieces(self._checked(request))

    async def _pieces(self, request: SpeechRequest) -> AsyncGenerator[Samples, None]:
        async with contextlib.aclosing(self._events(request)) as events:
            async for event in events:
                if isinstance(event, Audio) and event.data:
                    yield samples_of(event.data)

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise EngineError(_CLOSED)

    def _checked(self, request: SpeechRequest) -> SpeechRequest:
        """The request with its seed, and with leading silence kept by default: audio and codes stay aligned."""
        if not isinstance(request, SpeechRequest):
            raise RequestError(
                f"a request must be a SpeechRequest, got {type(request).__name__}; write SpeechRequest(text=...)"
            )
        self._check_open()
        request.check()
        request = replace(
            request,
            voice=self._mixed(request.voice),
            turns=[replace(turn, voice=self._mixed(turn.voice, index)) for index, turn in enumerate(request.turns)],
            seed=secrets.randbits(63) if request.seed in (None, RANDOM_SEED) else request.seed,
            trim_silence=False if request.trim_silence is None else request.trim_silence,
            return_codes=True,
        )
        request = request if request.turns else self._settled(request)
        alone: SpeechRequest = request
        index: int | None = None
        for item in self._script(request):
            if isinstance(item, SpokenTurn):
                alone, index = item.request, item.index
            elif isinstance(item, SpokenText):
                with naming_turn(index):
                    self._engine.check(alone.for_engine(text=item.spoken))
        return request

    def _mixed(self, voice: Any, turn: int | None = None) -> Any:
        """The voice that is asked for, mixed if it is a mix."""
        with naming_turn(turn):
            mix = VoiceMix.named(voice) if isinstance(voice, str) else voice
            return self.mix(dict(mix.parts)) if isinstance(mix, VoiceMix) else voice

    def _settled(self, request: SpeechRequest) -> SpeechRequest:
        """The request with its language by name and the level of its text."""
        card, language = self.config.card(""), language_name(request.language)
        request, language = replace(request, language=language), text_language(language, card.languages)
        check_text_options(request, language)
        return at_level(request, card.text_level, language)

    def _events(self, request: SpeechRequest) -> AsyncGenerator[SpeechEvent, None]:
        """Speaks a checked request: a long text in segments, as in the server."""
        rate_hz, speed = self.sample_rate, float(request.speed)
        out_rate_hz, volume = request.sample_rate, request.volume
        convert = partial(open_encoder, "pcm", rate_hz=rate_hz, out_rate_hz=out_rate_hz, speed=speed, volume=volume)
        speaker = Speaker(
            self._engine,
            request,
            rate_hz,
            speed,
            open_encoder=lambda: AsyncEncoder(convert(), None),
            open_shaper=lambda prosody: AsyncEncoder(
                open_encoder("pcm", rate_hz=rate_hz, speed=prosody.speed, volume=prosody.volume), None
            ),
        )
        return speaker.speak(Script(self._script(request)))

    def _script(self, request: SpeechRequest) -> Sequence[Scripted]:
        if not request.turns:
            return self._prepared(request)
        card, turns = self.config.card(""), []
        for index, turn in enumerate(request.turns):
            with naming_turn(index):
                check_text(turn.text)
                turns.append(spoken_turn(index, turn, self._settled(request.of_turn(turn)), card, request.voice))
        return prepare_turns(turns, card.languages)

    def _prepared(self, request: SpeechRequest) -> list[Prepared]:
        if not isinstance(request.text, str):
            return [SpokenText.unchanged(request.text)]  # the engine refuses it
        language = text_language(request.language, self.config.card("").languages)
        return prepare_text(request.text, request, language)

    async def _speech(self, request: SpeechRequest, on_event: Callable[[SpeechEvent], None] | None = None) -> Speech:
        file = WholeFile()
        async for event in self._events(request):
            if on_event:
                on_event(event)
            file.add(event)
        assert request.seed is not None
        rate_hz = request.sample_rate or self.sample_rate
        return Speech(samples_of(file.data), rate_hz, file.codes, file.end.finish_reason, request.seed)

    def _wait_for(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        future = self._event_loop.start(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise EngineError(_CLOSED) from None
        finally:
            future.cancel()  # an interrupt; of a finished one this is a no-op


def _shut_down(engine: InProcessEngine, event_loop: EventLoopThread) -> None:
    engine.stop()
    event_loop.stop()


class EventLoopThread:
    """An event loop on a thread of its own, for callers that have none."""

    def __init__(self, name: str) -> None:
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(),), name=name, daemon=True)
        self._thread.start()
        self.loop, self._stopped = self._started.result()

    async def _main(self) -> None:
        stopped = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()

    def start(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Raises EngineError after `stop`."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise EngineError(_CLOSED) from None

    def stop(self) -> None:
        """Cancels what is running."""
        self.loop.call_soon_threadsafe(self._stopped.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def offline_config(slots: int) -> EngineConfig:
    """Settings for texts that nobody listens to in real time: requests wait, and none is refused for load."""
    return EngineConfig(
        slots=slots, queue_limit=1_000_000, queue_wait_s=3600.0, pacing=PacingConfig(real_time_share=1.0)
    )


def start_engine(
    model: str | os.PathLike[str] = DEMO,
    config: EngineConfig | None = None,
    *,
    device: Device = "auto",
    dtype: Dtype = "auto",
    worker: WorkerConfig | None = None,
    progress: ReportProgress = _no_progress,
) -> EngineClient:
    """An engine for many listeners in a process of its own, which is restarted if it dies. Returns when it is ready;
    use it as a context manager, or call `stop`."""
    build = partial(build_engine, model, config or EngineConfig(), device=device, dtype=dtype)
    engine = EngineClient(build, worker, on_progress=progress)
    try:
        engine.wait_ready()
    except BaseException:
        engine.stop()
        raise
    return engine
