"""One utterance of a WebSocket: its text as it comes, its sound as it is made, and what the client is told of it.

input.text ─► LiveText ─► parts ─► Narration ─► encoder ─► audio.start, sound, audio.segment, audio.done, session.done
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from oscine.narration import Narration, NarrationChunk, PlaybackClock
from oscine.server.errors import ApiError, api_error
from oscine.server.live.playback_position import Heard
from oscine.server.live.text import LivePart, LiveText, check_letters
from oscine.server.logs import facts
from oscine.server.metrics import SpeechMeter
from oscine.server.schemas import LiveConfig
from oscine.server.service import Service
from oscine.server.speech import segment_facts, usage_facts
from oscine.server.speech_plan import SpeechPlan, plan_speech
from oscine.server.streaming_response import OffLoopEncoder
from oscine.types import FinishReason, ModelCard, RequestError, SpeechRequest, VoiceError, unknown_choice
from oscine.voice import Voice

_log = logging.getLogger(__name__)
_DEFAULTS = LiveConfig.model_validate({"type": "session.config"})
_MAX_MESSAGE_CHARS = 1000  # of an error: it may quote what the client sent


class Line:
    """The way to the client."""

    def __init__(self, socket: WebSocket, stalled_s: float) -> None:
        self._socket, self._stalled_s = socket, stalled_s

    async def tell(self, kind: str, **values: Any) -> None:
        await self._send({"type": "websocket.send", "text": json.dumps({"type": kind, **values})})

    async def tell_error(self, error: ApiError, utterance_index: int | None = None) -> None:
        body = error.body
        if len(body["message"]) > _MAX_MESSAGE_CHARS:
            body["message"] = body["message"][:_MAX_MESSAGE_CHARS] + " ..."
        values = {"utterance_index": utterance_index, "retry_after_s": error.retry_after_s}
        given = {name: value for name, value in values.items() if value is not None}
        # `message` stands where vLLM-Omni's clients look for it, `error` where OpenAI's do.
        await self.tell("error", message=body["message"], error=body, **given)

    async def sound(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": data})

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._socket.send(message)
        except TimeoutError:
            raise ConnectionResetError(f"nobody read the sound for {self._stalled_s:g} s") from None
        except RuntimeError as error:
            # The socket was closed behind our back: for a broken frame, say, or a ping without an answer.
            raise WebSocketDisconnect(1006) from error


def check_speakable(request: SpeechRequest, card: ModelCard) -> None:
    """Raises what the engine would say to every text that is asked for like this."""
    if request.language != "auto" and request.language not in card.languages:
        raise RequestError(unknown_choice("language", request.language, ["auto", *card.languages]), "language")
    _check_instructions(request.instruct, card)
    _check_voice(request.voice, card)


def _check_instructions(instructions: str | None, card: ModelCard) -> None:
    if not instructions:
        if card.kind == "voice_design":
            message = "this VoiceDesign checkpoint needs a description of the voice; give it as instructions"
            raise RequestError(message, "instructions")
        return
    if not card.takes_instructions:
        raise RequestError("this checkpoint does not follow instructions; leave them out", "instructions")
    if not instructions.strip():
        raise RequestError("instructions are only white space; give a word, or leave them out", "instructions")
    check_letters(instructions, "instructions")


def _check_voice(voice: str | Voice | None, card: ModelCard) -> None:
    if not card.clones:
        if isinstance(voice, Voice):
            message = f"this checkpoint ({card.kind}) cannot speak with an uploaded voice; serve a Base one for it"
            raise VoiceError(message, "voice")
    elif not isinstance(voice, Voice):
        message = (
            "this Base checkpoint needs a voice to clone; give a clip (ref_audio), or the name of an uploaded voice"
        )
        raise VoiceError(message, "voice")
    elif len(voice.speaker) != card.speaker_width:
        raise VoiceError(
            f"the voice's speaker vector has {len(voice.speaker)} numbers, this checkpoint's have "
            f"{card.speaker_width}; make the voice again with this checkpoint",
            "voice",
        )


class LiveSpeech:
    def __init__(
        self, service: Service, line: Line, clock: PlaybackClock, key: str, index: int, plan: SpeechPlan | None
    ) -> None:
        """Without a plan, it is spoken as the defaults have it."""
        self._service, self._line, self._clock, self._key, self._index = service, line, clock, key, index
        self._plan = plan
        self._meter: SpeechMeter | None = None  # from the moment that it is its turn
        self._text = LiveText(service.split)
        self._part: LivePart | None = None  # that is being spoken
        self._bytes = 0
        self._started = False
        self._end_told = False  # how it ended
        self._over_told = False
        self._logged = False
        self.heard = Heard(index)

    # --- the reader's side ---

    def push(self, text: str) -> None:
        """What comes for an utterance that ended before its text is not spoken: the client has been told."""
        if not self._end_told:
            self._text.push(text)

    def end_text(self) -> None:
        self._text.end()

    @property
    def text_ended(self) -> bool:
        return self._text.ended.is_set()

    @property
    def pending_chars(self) -> int:
        return 0 if self._end_told else self._text.pending_chars

    def cancel(self) -> None:
        """The engine stops within a frame. Whoever runs this speech has to be cancelled too."""
        if self._part:
            self._part.cancel()
            self.heard.unfinished = self._part.text
        self._ended(200, "cancelled")

    async def tell_cancelled(self, played_s: float) -> None:
        if self._started and not self._end_told:
            await self._tell_done("cancelled", spoken_text=self.heard.text_until(played_s))
        await self._tell_over()

    # --- the speaker's side ---

    async def run(self) -> None:
        """Until the text has ended and is spoken, or could not be. Raises only where nobody listens any more."""
        self._meter = SpeechMeter(self._service.metrics, "websocket", self._service.card.sample_rate_hz)
        try:
            await self._speak()
        except (asyncio.CancelledError, ConnectionError, WebSocketDisconnect):
            self._ended(499, "cancelled")
            raise
        except Exception as error:
            await self._tell_failure(api_error(error))
        # Whoever still sends the text of a speech that failed would else begin another one in the middle of it.
        await self._text.ended.wait()
        await self._tell_over()

    async def _speak(self) -> None:
        whole = self._plan is not None and self._plan.request.text_mode == "whole"
        part = await self._text.next_part(whole=whole)
        if part is None:
            self._end_told = True  # no word, no sound
            return
        self._service.check_open()
        with self._service.access.stream(self._key):
            plan = self._plan or await plan_speech(_DEFAULTS, "", self._service, "pcm")
            encoder = self._service.encoder(plan)
            try:
                await self._narrate(plan, encoder, part, whole=whole)
            finally:
                encoder.close()

    async def _narrate(self, plan: SpeechPlan, encoder: OffLoopEncoder, first: LivePart, *, whole: bool) -> None:
        service, part = self._service, first
        narration = Narration(
            service.engine, plan.request, plan.rate_hz, service.submit_pool, speed=plan.speed, clock=self._clock
        )
        while True:
            self._part = part
            async with narration.segment(part.begin(), streaming_text=not whole) as utterance:
                part.attach(utterance)
                while not (chunk := await utterance.next()).finish_reason:
                    await self._send(plan, encoder, narration.chunk(chunk))
            self._text.over(part)
            at_limit = chunk.finish_reason == "length"
            following = None if at_limit else await self._text.next_part(whole=whole)
            await self._send(plan, encoder, narration.end_segment(chunk, part.text, last=following is None))
            if following is None:
                return
            part = following

    async def _send(self, plan: SpeechPlan, encoder: OffLoopEncoder, sound: NarrationChunk) -> None:
        data = await encoder.push(sound.pcm)
        if sound.finish_reason:
            data += await encoder.finish()
        if not self._started and (sound.pcm or sound.segment):
            await self._tell_start(plan)
        if data:
            await self._line.sound(data)
            self._bytes += len(data)
        if self._meter:
            self._meter.sent(sound.pcm)
        self.heard.sent_s += plan.heard_s(len(sound.pcm) // 2)
        if sound.segment:
            self.heard.end_part(sound.segment.text)
            self._part = None
            segment = segment_facts(plan, sound.segment)
            await self._line.tell("audio.segment", utterance_index=self._index, **segment)
        if sound.finish_reason:
            self._ended(200, sound.finish_reason)
            await self._tell_done(sound.finish_reason, usage=usage_facts(sound.usage))

    # --- what the client is told ---

    async def _tell_start(self, plan: SpeechPlan) -> None:
        await self._line.tell(
            "audio.start",
            **self._whose,
            sentence_text=self._part.text if self._part else "",
            format=plan.format.name,
            sample_rate=plan.out_rate_hz,
            channels=1,
            seed=plan.seed,
        )
        self._started = True

    async def _tell_failure(self, told: ApiError) -> None:
        self._ended(told.status, "error" if self._started else None, told)
        await self._line.tell_error(told, self._index)
        if self._started:
            await self._tell_done("error")
        self._end_told = True

    async def _tell_done(self, reason: FinishReason, **values: Any) -> None:
        await self._line.tell(
            "audio.done",
            **self._whose,
            finish_reason=reason,
            error=reason == "error",
            total_bytes=self._bytes,
            audio_seconds=round(self.heard.sent_s, 3),
            **values,
        )
        self._end_told = True

    async def _tell_over(self) -> None:
        if not self._over_told:
            spoken = int(self._started)
            await self._line.tell("session.done", utterance_index=self._index, total_sentences=spoken)
            self._over_told = True

    @property
    def _whose(self) -> dict[str, int]:
        # However many parts it is spoken in, an utterance is one sentence in vLLM-Omni's sense: one file.
        return {"utterance_index": self._index, "sentence_index": 0}

    def _ended(self, status: int, reason: FinishReason | None, error: ApiError | None = None) -> None:
        """For those who run the server; once."""
        if self._meter is None or self._logged:
            return
        self._logged = True
        self._meter.ended(status, reason)
        first_s = self._meter.first_audio_s
        _log.info(
            "not spoken" if error else "spoken",
            extra=facts(
                utterance=self._index,
                status=status,
                code=error and error.code,
                param=error and error.param,
                finish_reason=reason,
                chars=self._text.chars,
                parts=len(self.heard.parts),
                audio_s=round(self._meter.audio_s, 3),
                first_audio_ms=None if first_s is None else round(1000 * first_s, 1),
            ),
        )
