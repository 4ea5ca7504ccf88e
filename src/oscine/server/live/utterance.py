"""One utterance of a live session: text as it arrives, audio as it is generated, and the events about both.

input.text ─► LiveText ─► segments ─► Narration ─► encoder ─► audio.start, (binary), audio.segment, audio.done
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.websockets import WebSocketDisconnect

from oscine.audio.encoders import AsyncEncoder
from oscine.errors import RequestError, clear_tracebacks
from oscine.server.api.renderers import segment_fields, usage_fields
from oscine.server.http.errors import ApiError, api_error
from oscine.server.http.logs import log_fields
from oscine.server.live.config import LiveConfig
from oscine.server.live.connection import LiveConnection
from oscine.server.live.plan import live_plan
from oscine.server.live.text import LiveSegment, LiveText
from oscine.server.live.words import LiveWords
from oscine.server.model_registry import ServedModel
from oscine.server.service import Service
from oscine.server.speech_plan import SpeechPlan
from oscine.server.speech_record import SpeechRecord
from oscine.speech.capabilities import unsupported_script
from oscine.speech.clock import PlaybackClock, UtteranceTimeline
from oscine.speech.events import Audio
from oscine.speech.narration import Narration, NarrationChunk
from oscine.text.spoken_text import Pause
from oscine.types import MAX_CONTINUES_S, FinishReason

_log = logging.getLogger(__name__)
_LEAD_S = 0.5  # of unplayed audio; enough for the first audio of the next utterance
_DEFAULTS = LiveConfig.model_validate({"type": "session.config"})


Item = LiveSegment | Pause | RequestError


class LiveUtterance:
    def __init__(
        self,
        service: Service,
        connection: LiveConnection,
        clock: PlaybackClock,
        api_key: str,
        index: int,
        plan: SpeechPlan | None,
        refused_config: ApiError | None = None,
    ) -> None:
        """`plan` None: the default settings. With `refused_config`, the utterance fails: the client asked for other
        settings than the default ones."""
        self._service, self._connection, self._clock = service, connection, clock
        self._api_key, self.index, self._plan = api_key, index, plan
        self._refused_config = refused_config
        self._split = plan.split if plan else None
        # A sentence is spoken when it is complete: `audio.start` has its text.
        self._whole_text = plan is not None and (plan.request.text_mode == "whole" or plan.split is not None)
        self._text = LiveText(partial(service.planner.preparation, plan), whole=self._whole_text)
        self._segment: LiveSegment | None = None  # the one that is being spoken
        self._meter: SpeechRecord | None = None  # from the start of `run`
        self._model: ServedModel | None = None  # when the first words have come
        self._files = 0  # that have ended: one, or one for each sentence
        self._file_begun_s = 0.0
        self._sent_bytes = 0  # of the file
        self._held = b""  # of a file that is sent whole
        self._started = False  # audio.start of the file was sent
        self._finish: FinishReason = "stop"  # of the last file
        self._ended = False  # audio.done or an error was sent, or there was nothing to say
        self._done = False  # session.done was sent
        self._logged = False
        self._active_s = time.monotonic()  # when text came or audio left the last time
        self._committed_chars = 0
        self.commits = 0
        self.timeline = UtteranceTimeline(index)
        self.is_followed = False  # by another utterance, whose audio waits for the end of this one

    def push(self, text: str) -> None:
        """Text for an utterance that has ended is dropped: the client was informed."""
        if not self._ended:
            self._active_s = time.monotonic()
            self._text.push(text)

    def end_text(self) -> None:
        self._text.end()

    def commit_text(self) -> int:
        """The text so far is spoken to its end. Returns its characters since the last commit."""
        chars = self._text.chars - self._committed_chars
        if chars:
            self._committed_chars += chars
            self.commits += 1
            self._text.end_segment_early()
        return chars

    def clear_text(self) -> None:
        """Drops the text that is not being spoken yet."""
        self._text.clear(self._segment)

    def end_sentence(self) -> None:
        """Ends the current sentence without waiting for the next word, if each sentence is a file of its own."""
        if self._split:
            self._text.end_sentence()

    def give_slot_back(self) -> None:
        """Speaks the words so far and frees the slot for others, if the text has paused for too long."""
        if time.monotonic() - self._active_s < self._service.config.live_pause_s:
            return
        if self._split and self._connection.speaks_at_pauses:
            self._text.end_sentence(in_doubt=True)
        elif self._model and (self._model.is_full or self._connection.speaks_at_pauses):
            self._text.give_slot_back()

    @property
    def changes_words(self) -> bool:
        return self._text.changes_words

    @property
    def text_ended(self) -> bool:
        return self._text.ended.is_set()

    @property
    def pending_chars(self) -> int:
        return 0 if self._ended else self._text.pending_chars

    def cancel(self) -> None:
        """The engine stops within a frame. The caller also cancels the task that is in `run`."""
        if self._segment:
            self._segment.cancel()
            self.timeline.unfinished_text = self._segment.written
        self._log_end(200, "cancelled")

    async def send_cancelled(self, played_s: float) -> None:
        if self._started and not self._ended:
            await self._send_done("cancelled", spoken_text=self.timeline.text_until(played_s))
        await self._send_session_done()

    async def run(self) -> None:
        """Returns when the text has ended and was spoken, or failed. Raises only if the client is gone."""
        self._meter = SpeechRecord(self._service.metrics, "websocket")
        try:
            await self._speak()
        except (asyncio.CancelledError, ConnectionError, WebSocketDisconnect):
            self._log_end(499, "cancelled")
            raise
        except Exception as error:
            known = api_error(error)  # logs an unexpected one
            clear_tracebacks(error)
            await self._send_failure(known)
        # If it failed early, the rest of its text must not start another utterance.
        await self._text.ended.wait()
        await self._send_session_done()

    async def _speak(self) -> None:
        item = await self._text.next_item()
        if item is None:
            self._ended = True
            return
        if self._refused_config:
            raise _not_configured(self._refused_config)
        service = self._service
        service.check_ready(self._plan.model if self._plan else None)
        model = self._model = self._plan.model if self._plan else service.route(_DEFAULTS)
        assert self._meter
        self._meter.use(model.metrics)
        plan = self._plan or await live_plan(service, self._connection, model, _DEFAULTS)
        with service.api_keys.stream(self._api_key), model.streams:
            while item:
                item = await self._speak_file(plan, item)
        self._ended = True
        if self._files:
            self._log_end(200, self._finish)

    async def _speak_file(self, plan: SpeechPlan, item: Item) -> Item | None:
        """One file, which is the whole utterance, or a sentence of it. Returns what follows."""
        service, request = self._service, plan.request
        if self._files:  # a continuation; one whose text came late waits until there is room
            unplayed_s = min(self._clock.unplayed_s, MAX_CONTINUES_S)
            request = replace(request, continues_s=unplayed_s, resumes=unplayed_s == 0, trim_silence=False)
        narration = Narration(
            plan.model.engine,
            request,
            plan.rate_hz,
            speed=plan.speed,
            clock=self._clock,
            single_segment=self._split is not None,
        )
        with (
            contextlib.closing((service.file_encoder if plan.whole_files else service.encoder)(plan)) as encoder,
            contextlib.closing(LiveWords(service, self._connection, plan, self.index, self._files)) as self._words,
        ):
            return await self._speak_items(plan, narration, encoder, item)

    async def _speak_items(
        self, plan: SpeechPlan, narration: Narration, encoder: AsyncEncoder, item: Item | None
    ) -> Item | None:
        resumes = False
        while item and not self._ended:
            if isinstance(item, RequestError):
                raise item
            if isinstance(item, Pause):
                self.timeline.pause(item.seconds)
                for silence in narration.pause(item.seconds):
                    await self._send(plan, encoder, silence)
                item = await self._text.next_item()
                continue
            segment = self._segment = item
            text = segment.begin().lstrip() if self._split else segment.begin()
            async with narration.segment(text, streaming_text=not self._whole_text, resumes=resumes) as utterance:
                segment.attach(utterance)
                while not (audio := await utterance.next()).finish_reason:
                    await self._send(plan, encoder, narration.chunk(audio))
            self._text.end_segment(segment)
            if self._split:
                await self._send(plan, encoder, narration.end_segment(audio, segment.content, last=True))
                return await self._text.next_item()
            item = None if audio.finish_reason == "length" else await self._text.next_item()
            await self._send(plan, encoder, narration.end_segment(audio, segment.content, last=item is None))
            resumes = segment.yielded
        if self._started and not self._ended:  # after a pause
            await self._send(plan, encoder, narration.finish())
        return None

    async def _send(self, plan: SpeechPlan, encoder: AsyncEncoder, chunk: NarrationChunk) -> None:
        self._active_s = time.monotonic()
        data = await encoder.push(chunk.pcm)
        if chunk.finish_reason:
            data += await encoder.finish()
        if not self._started and (chunk.pcm or chunk.segment):
            await self._send_start(plan)
        if plan.whole_files:
            self._held += data
            data, self._held = (self._held, b"") if chunk.finish_reason else (b"", self._held)
        await self._words.send_audio(data, chunk)
        self._sent_bytes += len(data)
        if self._meter:
            self._meter.sent(Audio(chunk.pcm, b""))
        self.timeline.sent_s += plan.playback_s(len(chunk.pcm) // 2)
        if chunk.segment:
            self.timeline.end_segment(chunk.segment.text)
            self._segment = None
            warning = unsupported_script(chunk.segment.text, plan.model.card)
            fields = {**segment_fields(chunk.segment), **({"warning": warning} if warning else {})}
            fields["index"] += self._files
            await self._send_event("audio.segment", **fields)
        if chunk.finish_reason:
            self._finish = chunk.finish_reason
            if not self._split:
                self._log_end(200, chunk.finish_reason)
            words = await self._words.finish(self._next_is_due)
            await self._send_done(chunk.finish_reason, usage=usage_fields(chunk.usage), **words)

    def _next_is_due(self) -> bool:
        """Whether the listener would hear a gap if the next sentence or utterance waited any longer."""
        is_followed = self.is_followed or (self._split is not None and self._text.pending_chars > 0)
        return is_followed and self._clock.unplayed_s < _LEAD_S

    async def _send_start(self, plan: SpeechPlan) -> None:
        text = self._segment.written if self._segment else ""
        await self._send_event(
            "audio.start",
            sentence_index=self._files,
            sentence_text=text.strip() if self._split else text,
            format=plan.format.name,
            sample_rate=plan.out_rate_hz,
            channels=1,
            seed=plan.seed,
            **self._words.start_fields,
        )
        self._started = True

    async def _send_failure(self, error: ApiError) -> None:
        self._log_end(error.status, "error" if self._started or self._files else None, error)
        await self._connection.send_error(error, self.index)
        if self._started:
            await self._send_done("error")
        self._ended = True

    async def _send_done(self, reason: FinishReason, **fields: Any) -> None:
        await self._send_event(
            "audio.done",
            sentence_index=self._files,
            finish_reason=reason,
            error=reason == "error",
            total_bytes=self._sent_bytes,
            audio_seconds=round(self.timeline.sent_s - self._file_begun_s, 3),
            **fields,
        )
        self._files += 1
        self._file_begun_s, self._sent_bytes, self._started = self.timeline.sent_s, 0, False
        self._ended = self._split is None

    async def _send_session_done(self) -> None:
        if not self._done:
            await self._send_event("session.done", total_sentences=self._files)
            self._done = True

    async def _send_event(self, kind: str, **fields: Any) -> None:
        await self._connection.send_event(kind, utterance_index=self.index, **fields)

    def _log_end(self, status: int, reason: FinishReason | None, error: ApiError | None = None) -> None:
        """Only the first call counts."""
        if self._meter is None or self._logged:
            return
        self._logged = True
        self._meter._count_end(status, reason)
        first_s = self._meter.first_audio_s
        _log.info(
            "not spoken" if error else "spoken",
            extra=log_fields(
                utterance=self.index,
                status=status,
                code=error and error.code,
                param=error and error.param,
                finish_reason=reason,
                chars=self._text.chars,
                segments=sum(bool(text) for text, _ in self.timeline.segments),
                audio_s=round(self._meter.audio_s, 3),
                first_audio_ms=None if first_s is None else round(1000 * first_s, 1),
            ),
        )


def _not_configured(refusal: ApiError) -> ApiError:
    message = f"nothing is spoken, because session.config was refused ({refusal.message}); send one that is accepted"
    return ApiError(400, message, param=refusal.param, code="not_configured")
