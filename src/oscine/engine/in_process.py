"""The engine in this process: what a program or a server holds. Requests are checked on the caller's thread, spoken on
the engine's own."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from oscine.config import EngineConfig
from oscine.engine.admission import End, PromptReady, Stop, TextAppended
from oscine.engine.loop import EngineLoop
from oscine.engine.session import Session, Sound
from oscine.engine.streaming_text import StreamingText
from oscine.engine.tick_cost import TickCost
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.incremental_tokenizer import IncrementalTokenizer
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.runner import Runner
from oscine.types import (
    AppendText,
    AudioChunk,
    Cancel,
    ClipData,
    Command,
    EndText,
    EngineError,
    EngineStatus,
    SpeechRequest,
    VoiceError,
)

if TYPE_CHECKING:
    from oscine.prompt.cloning import VoiceCloner
    from oscine.voice import Voice


class InProcessEngine:
    """A SpeechEngine (types.py). `deliver` is called on the engine's thread: it must not block, and may call back."""

    def __init__(
        self,
        runner: Runner,
        builder: PromptBuilder,
        tokenizer: Tokenizer,
        config: EngineConfig,
        cloner: VoiceCloner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._builder, self._tokenizer, self._config, self._cloner = builder, tokenizer, config, cloner
        self._clock = clock
        positions = min(builder.config.talker.max_positions, config.memory.positions_per_slot)
        self._sound = Sound(runner.sample_rate_hz, runner.samples_per_frame, runner.eos_id, positions)
        self.sample_rate_hz = runner.sample_rate_hz
        self._open_texts: dict[str, StreamingText] = {}
        self._loop = EngineLoop(runner, config, clock)
        self._thread = threading.Thread(target=self._loop.run, name="oscine-engine", daemon=True)
        self._thread.start()

    def submit(
        self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, streaming_text: bool = False
    ) -> str:
        utterance_id = secrets.token_hex(8)
        if streaming_text:
            self._submit_open(utterance_id, request, deliver)
        else:
            session = self._session(utterance_id, request, deliver)
            prompt = self._builder.build(request)
            text_ids = len(self._tokenizer.encode_turn("assistant", request.text).body_ids)
            session.begin(prompt, text_ids, text_ended=True)
            self._loop.submit(session)
        return utterance_id

    def tell(self, utterance_id: str, command: Command) -> None:
        if isinstance(command, Cancel):
            self._loop.post(End(utterance_id))
        elif text := self._open_texts.get(utterance_id):
            piece = command.text if isinstance(command, AppendText) else ""
            text.take(piece, self._loop.post, ended=isinstance(command, EndText))

    def status(self) -> EngineStatus:
        return self._loop.status()

    @property
    def cost(self) -> TickCost:
        """Of a frame, as far as it was learnt."""
        return self._loop.cost

    def stop(self, drain_s: float = 0.0) -> None:
        self._loop.post(Stop(self._clock() + drain_s))
        if threading.current_thread() is not self._thread:  # a listener may call this
            self._thread.join()

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """On the caller's thread, once per content."""
        if threading.current_thread() is self._thread:
            raise EngineError("every stream would wait for this voice; clone on another thread than `deliver`'s")
        if self._cloner is None:
            raise VoiceError("this engine cannot clone voices; use a Base checkpoint", "ref_audio")
        try:
            return self._cloner.clone(clip, transcript)
        except RuntimeError as error:  # the device's; all of ours are others
            raise EngineError(f"the voice could not be made: {error}") from error

    def _submit_open(self, utterance_id: str, request: SpeechRequest, deliver: Callable[[AudioChunk], None]) -> None:
        def deliver_and_forget(chunk: AudioChunk) -> None:
            if chunk.finish_reason is not None:
                self._open_texts.pop(utterance_id, None)
            deliver(chunk)

        session = self._session(utterance_id, request, deliver_and_forget, streaming_text=True)
        prompt = self._builder.open(request)
        text = StreamingText(
            utterance_id, IncrementalTokenizer(self._tokenizer), prompt, self._builder.config.tts_eos_id
        )
        messages: list[PromptReady | TextAppended | End] = []
        text.take(request.text, messages.append, ended=False)
        for message in messages:
            if isinstance(message, End) and message.error is not None:
                raise message.error
            assert isinstance(message, PromptReady), message
            session.begin(message.prompt, message.text_ids, text_ended=False)
        self._open_texts[utterance_id] = text
        try:
            self._loop.submit(session)
        except BaseException:
            del self._open_texts[utterance_id]
            raise

    def _session(
        self,
        utterance_id: str,
        request: SpeechRequest,
        deliver: Callable[[AudioChunk], None],
        *,
        streaming_text: bool = False,
    ) -> Session:
        request.check_delivery()
        sampling = request.sampling(self._builder.config.sampling)
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, self._config.max_new_tokens))
        left_s = request.continues_s
        return Session(
            utterance_id,
            sampling,
            deliver,
            self._config,
            self._sound,
            budgeted=request.max_new_tokens is None,
            streaming_text=streaming_text,
            trim_silence=request.trim_silence,
            continues=left_s is not None,
            plays_until_s=self._clock() + left_s if left_s else None,
        )
