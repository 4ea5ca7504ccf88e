"""The engine in this process. Requests are checked on the caller's thread and spoken on the engine's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from oscine.audio.pcm import Samples
from oscine.config import EngineConfig
from oscine.engine.admission import EndSession, PromptReady, SessionMessage, Shutdown, TextAppended
from oscine.engine.loop import EngineLoop
from oscine.engine.session import Session, StreamSpec
from oscine.engine.tick_cost import TickCost
from oscine.engine.trimming import EchoTrimmer, begins_like_end
from oscine.errors import EngineError, RequestError
from oscine.prompt.builder import PromptBuilder, StreamingPrompt
from oscine.prompt.tokenizer import IncrementalTokenizer, Tokenizer
from oscine.request import SpeechRequest
from oscine.runner.runner import Runner
from oscine.speech.capabilities import check_can_clone, check_text, unknown_voice
from oscine.types import AppendText, AudioChunk, Cancel, Command, Deliver, EndText, EngineStatus
from oscine.voice import Voice

if TYPE_CHECKING:
    from oscine.audio.clips import ClipSource
    from oscine.model.config import ModelConfig
    from oscine.prompt.cloning import VoiceCloner


def _run(loop: EngineLoop, launching: Callable[[], AbstractContextManager[None]]) -> None:
    with launching():
        loop.run()


class InProcessEngine:
    """A SpeechEngine and a LocalEngine (types.py). `deliver` is called on the engine's thread, and may call back."""

    def __init__(
        self,
        runner: Runner,
        builder: PromptBuilder,
        tokenizer: Tokenizer,
        config: EngineConfig,
        cloner: VoiceCloner | None = None,
        *,
        presets: Mapping[str, Samples] | None = None,
        device: str = "",
        clock: Callable[[], float] = time.monotonic,
        launching: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`presets` has the vectors of the preset voices. `launching` is the context manager of the runner's backend
        (runner/backend.py)."""
        self._builder, self._tokenizer, self._config, self._cloner = builder, tokenizer, config, cloner
        self._device, self._clock, self._presets = device, clock, presets or {}
        positions = min(builder.config.talker.max_positions, config.memory.positions_per_slot)
        self._spec = StreamSpec(runner.sample_rate_hz, runner.samples_per_frame, runner.eos_id, positions)
        self.sample_rate_hz = runner.sample_rate_hz
        self._streaming_texts: dict[str, StreamingText] = {}
        self._loop = EngineLoop(runner, config, clock)
        self._thread = threading.Thread(target=_run, args=(self._loop, launching), name="oscine-engine", daemon=True)
        self._thread.start()

    @property
    def model_config(self) -> ModelConfig:
        return self._builder.config

    @property
    def cost(self) -> TickCost:
        """The learned cost of a tick."""
        return self._loop.cost

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        self.enqueue(utterance_id, request, deliver, streaming_text=streaming_text)

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        if streaming_text:
            self._submit_streaming(utterance_id, request, deliver)
        else:
            self._loop.submit(self._session_of_whole_text(utterance_id, request, deliver))

    def check(self, request: SpeechRequest) -> None:
        """Raises the error that `submit` would raise for a request that cannot be spoken."""
        self._session_of_whole_text("", request, lambda chunk: None)

    def send(self, utterance_id: str, command: Command) -> None:
        if isinstance(command, Cancel):
            self._loop.post(EndSession(utterance_id))
        elif text := self._streaming_texts.get(utterance_id):
            piece = command.text if isinstance(command, AppendText) else ""
            text.append(piece, self._loop.post, ended=isinstance(command, EndText))

    def status(self) -> EngineStatus:
        return replace(self._loop.status(), device=self._device)

    def stop(self, drain_s: float = 0.0) -> None:
        self._loop.post(Shutdown(self._clock() + drain_s))
        if threading.current_thread() is not self._thread:  # `deliver` may call this
            self._thread.join()

    def clone(self, clip: ClipSource, transcript: str | None = None) -> Voice:
        """Runs on the caller's thread."""
        if threading.current_thread() is self._thread:
            raise EngineError("cloning in `deliver` would delay every stream; clone on another thread")
        check_can_clone(self.model_config.card(""), "ref_audio")
        assert self._cloner is not None
        try:
            return self._cloner.clone(clip, transcript)
        except RuntimeError as error:  # of the device; none of our errors is one
            raise EngineError(f"the voice could not be cloned: {error}") from error

    def preset(self, name: str) -> Voice:
        if (vector := self._presets.get(name.lower())) is None:
            raise unknown_voice(name, self.model_config.card(""))
        return Voice(vector)

    def _submit_streaming(self, utterance_id: str, request: SpeechRequest, deliver: Deliver) -> None:
        def deliver_and_forget(chunk: AudioChunk) -> None:
            if chunk.finish_reason is not None:
                self._streaming_texts.pop(utterance_id, None)
            deliver(chunk)

        session = self._session(utterance_id, request, deliver_and_forget, streaming_text=True)
        tokenizer, tts_eos_id = IncrementalTokenizer(self._tokenizer), self._builder.config.tts_eos_id
        text = StreamingText(utterance_id, tokenizer, self._builder.build_streaming(request), tts_eos_id)
        messages: list[SessionMessage] = []
        text.append(request.text, messages.append, ended=False)
        for message in messages:
            if isinstance(message, EndSession) and message.error is not None:
                raise message.error
            assert isinstance(message, PromptReady), message
            session.begin(message.prompt, message.text_ids, text_ended=False)
        self._streaming_texts[utterance_id] = text
        try:
            self._loop.submit(session)
        except BaseException:
            del self._streaming_texts[utterance_id]
            raise

    def _session_of_whole_text(self, utterance_id: str, request: SpeechRequest, deliver: Deliver) -> Session:
        session = self._session(utterance_id, request, deliver, streaming_text=False)
        prompt, text_ids = self._builder.build_counted(request)
        session.begin(prompt, text_ids, text_ended=True)
        return session

    def _session(self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool) -> Session:
        request.check_for_engine()
        unplayed_s = request.continues_s
        return Session(
            utterance_id,
            request.sampling(self._builder.config.sampling),
            deliver,
            self._config,
            self._spec,
            budgeted=request.max_new_tokens is None,
            streaming_text=streaming_text,
            trim_silence=request.trim_silence,
            echo=None if streaming_text else self._echo_trimmer(request),
            continues=unplayed_s is not None,
            resumes=request.resumes,
            plays_until_s=self._clock() + unplayed_s if unplayed_s else None,
            return_codes=request.return_codes,
            stream_codes=request.stream_codes,
        )

    def _echo_trimmer(self, request: SpeechRequest) -> EchoTrimmer | None:
        """Returns None if the request does not want one, or if no echo is possible."""
        config, voice = self._config.trim_echo, request.voice
        wanted = config.enabled if request.trim_echo is None else request.trim_echo
        if not wanted or not isinstance(voice, Voice) or voice.reference_codes is None or voice.transcript is None:
            return None
        if begins_like_end(request.text, voice.transcript):
            return None
        return EchoTrimmer(config, voice.reference_codes, self._spec.sample_rate_hz)


class StreamingText:
    """Turns pieces of one utterance's text into messages to the loop, on the callers' threads."""

    def __init__(
        self, utterance_id: str, tokenizer: IncrementalTokenizer, prompt: StreamingPrompt, tts_eos_id: int
    ) -> None:
        self._utterance_id, self._tokenizer = utterance_id, tokenizer
        self._prompt, self._tts_eos_id = prompt, tts_eos_id
        self._first_ids: list[int] = []  # collected until there are enough for the prompt
        self._has_words = self._begun = self._ended = False
        self._lock = threading.Lock()  # pieces of several threads keep their order

    def append(self, text: str, post: Callable[[SessionMessage], None], *, ended: bool) -> None:
        """Raises RequestError for a piece that cannot be spoken; the utterance then continues without it."""
        if not isinstance(text, str) or text.strip():
            check_text(text)  # a piece may be white space alone
        with self._lock:
            if self._ended:
                raise RequestError("this text has ended; start another utterance for more", "text")
            self._ended = ended
            self._has_words |= bool(text.strip())
            text_ids = self._tokenizer.push(text)
            if ended:
                text_ids += self._tokenizer.finish()
            if message := self._message(text_ids):
                post(message)

    def _message(self, text_ids: list[int]) -> SessionMessage | None:
        if self._begun:
            mark = [self._tts_eos_id] if self._ended else []
            return TextAppended(self._utterance_id, (*text_ids, *mark), len(text_ids), self._ended)
        if self._ended and not self._has_words:
            error = RequestError("the text ended without a word; send at least one word to speak", "text")
            return EndSession(self._utterance_id, "error", error)
        self._first_ids += text_ids
        if not self._first_ids or (not self._ended and len(self._first_ids) < self._prompt.ids_needed):
            return None
        self._begun = True
        try:
            prompt = self._prompt.build(self._tokenizer.role_ids, self._first_ids, ended=self._ended)
        except RequestError as error:
            return EndSession(self._utterance_id, "error", error)
        return PromptReady(self._utterance_id, prompt, len(self._first_ids), self._ended)
