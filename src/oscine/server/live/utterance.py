"""One utterance of a live session: text as it arrives, audio as it is generated, and the events about both.

input.text ─► LiveText ─► Speaker ─► events ─► LiveUtterance ─► events of the session (events.py) ─► connection
"""

from __future__ import annotations

import logging
import time
from functools import partial

from oscine.errors import clear_tracebacks
from oscine.server.http.errors import ApiError
from oscine.server.http.logs import log_fields
from oscine.server.live.connection import LiveConnection
from oscine.server.live.events import (
    FileAudio,
    FileEnded,
    FileStarted,
    LiveFile,
    SegmentSpoken,
    UtteranceEnded,
    WordsTimed,
)
from oscine.server.live.text import LiveText
from oscine.server.service import Service
from oscine.server.speech_record import SpeechRecord
from oscine.speech.clock import PlaybackClock, UtteranceTimeline
from oscine.speech.events import Audio, Ended, Paused, SegmentEnded, SpeechEvent, Started, Words
from oscine.speech.models import ServedModel
from oscine.speech.plan import SpeechPlan
from oscine.speech.run import Speaker, SpeechRun
from oscine.types import FinishReason, Usage

_log = logging.getLogger(__name__)
_LEAD_S = 0.5  # of unplayed audio; enough for the first audio of the next utterance


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
        # A sentence is spoken when it is complete: its file starts with its text.
        self._whole_text = plan is not None and (plan.request.text_mode == "whole" or plan.split is not None)
        self._text = LiveText(partial(service.planner.preparation, plan), whole=self._whole_text)
        self._speaker: Speaker | None = None  # when the first words have come
        self._model: ServedModel | None = None  # likewise
        self._run: SpeechRun | None = None  # from the start of `run`
        self._file: _SentFile | None = None  # the one that is being sent
        self._files = 0  # that have ended: one, or one for each sentence
        self._ended = False  # the last file or an error was sent, or there was nothing to say
        self._done = False  # the end of the utterance was sent
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
        self._text.clear(self._speaker.segment if self._speaker else None)

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
        """The caller also cancels the task that is in `run`."""
        if self._speaker and self._speaker.segment:
            self.timeline.unfinished_text = self._speaker.segment.content.written
        if self._run:
            self._run.end(Ended("cancelled"))

    async def send_cancelled(self, played_s: float) -> None:
        if self._file and not self._ended:
            await self._end_file("cancelled", spoken_text=self.timeline.text_until(played_s))
        await self._send_end()

    async def run(self) -> None:
        """Returns when the text has ended and was spoken, or failed. Raises only if the client is gone."""
        record = _Record(self)
        self._run = SpeechRun(record)
        try:
            with self._run as run:
                await self._speak(run, record)
        except Exception as error:
            if record.error is None:  # the client is gone
                raise
            clear_tracebacks(error)
            await self._send_failure(record.error)
        # If it failed early, the rest of its text must not start another utterance.
        await self._text.ended.wait()
        await self._send_end()

    async def _speak(self, run: SpeechRun, record: SpeechRecord) -> None:
        service = self._service
        if await self._text.has_next():
            if self._refused_config:
                raise _not_configured(self._refused_config)
            service.check_ready(self._plan.model if self._plan else None)
            default = self._connection.default_config
            model = self._model = self._plan.model if self._plan else service.route(default)
            record.use(model.metrics)
            plan = self._plan = self._plan or await self._connection.plan(service, model, default)
            self._speaker = self._open_speaker(plan)
            with service.api_keys.stream(self._api_key), model.streams:
                await run.render(self._speaker.speak(self._text), partial(self.render, plan))
        self._ended = True

    def _open_speaker(self, plan: SpeechPlan) -> Speaker:
        service = self._service
        return Speaker(
            plan.model.engine,
            plan.request,
            plan.rate_hz,
            speed=plan.speed,
            split=self._split is not None,
            streaming_text=not self._whole_text,
            clock=self._clock,
            open_encoder=partial(service.file_encoder if plan.whole_files else service.encoder, plan),
            open_timer=partial(service.word_timer, plan) if plan.words else None,
            next_is_due=self._next_is_due,
        )

    def _next_is_due(self) -> bool:
        """Whether the listener would hear a gap if the next sentence or utterance waited any longer."""
        is_followed = self.is_followed or (self._split is not None and self._text.pending_chars > 0)
        return is_followed and self._clock.unplayed_s < _LEAD_S

    async def render(self, plan: SpeechPlan, event: SpeechEvent) -> None:
        """Tells the client."""
        self._active_s = time.monotonic()
        match event:
            case Started(text=text):
                file = LiveFile(self.index, self._files, plan)
                await self._connection.send(FileStarted(file, text.strip() if self._split else text))
                self._file = _SentFile(file, self._connection)
            case Paused(seconds):
                self.timeline.pause(seconds)
            case Audio():
                assert self._file
                await self._file.send(event)
                self.timeline.sent_s += plan.playback_s(len(event.pcm) // 2)
            case SegmentEnded():
                self.timeline.end_segment(event.text)
                assert self._file
                await self._connection.send(SegmentSpoken(self._file.about, event))
            case Words():
                assert self._file
                self._file.words.append(event)
                await self._connection.send(WordsTimed(self._file.about, event))
            case Ended():
                await self._end_file(event.finish_reason, event.usage)

    async def _end_file(
        self, reason: FinishReason, usage: Usage | None = None, *, spoken_text: str | None = None
    ) -> None:
        file, self._file = self._file, None
        assert file
        words = tuple(file.words) if usage else ()
        self._files += 1
        self._ended = self._split is None
        await self._connection.send(
            FileEnded(file.about, reason, file.size, file.duration_s, usage, words, spoken_text)
        )

    async def _send_failure(self, error: ApiError) -> None:
        await self._connection.send_error(error, self.index)
        if self._file:
            await self._end_file("error")
        self._ended = True

    async def _send_end(self) -> None:
        if not self._done:
            await self._connection.send(UtteranceEnded(self.index, self._files))
            self._done = True

    @property
    def has_begun(self) -> bool:
        """Whether audio was sent."""
        return self._file is not None or self._files > 0

    def log(self, record: SpeechRecord, status: int, end: Ended | None) -> None:
        _log.info(
            "not spoken" if record.error else "spoken",
            extra=log_fields(
                utterance=self.index,
                status=status,
                code=record.error and record.error.code,
                param=record.error and record.error.param,
                finish_reason=end and end.finish_reason,
                chars=self._text.chars,
                segments=sum(bool(text) for text, _ in self.timeline.segments),
                audio_s=round(record.audio_s, 3),
                first_audio_ms=record.first_audio_ms,
            ),
        )


class _SentFile:
    """A file that is being sent."""

    def __init__(self, about: LiveFile, connection: LiveConnection) -> None:
        self.about, self._connection = about, connection
        self._held = b""  # of a file that is sent whole
        self._samples = self._sent_samples = 0
        self.size = 0  # bytes sent
        self.words: list[Words] = []

    @property
    def duration_s(self) -> float:
        return self.about.plan.playback_s(self._samples)

    async def send(self, audio: Audio) -> None:
        self._samples += len(audio.pcm) // 2
        data = audio.data
        if self.about.plan.whole_files:
            self._held += data
            data, self._held = (self._held, b"") if audio.last else (b"", self._held)
        if data:
            start_s = self.about.plan.playback_s(self._sent_samples)
            await self._connection.send(FileAudio(self.about, data, start_s, self.duration_s))
            self.size, self._sent_samples = self.size + len(data), self._samples


class _Record(SpeechRecord):
    def __init__(self, utterance: LiveUtterance) -> None:
        super().__init__(utterance._service.metrics, "websocket")
        self._utterance = utterance

    @property
    def has_begun(self) -> bool:
        return self._utterance.has_begun

    def log(self, status: int, end: Ended | None) -> None:
        self._utterance.log(self, status, end)


def _not_configured(refusal: ApiError) -> ApiError:
    message = f"nothing is spoken, because session.config was refused ({refusal.message}); send one that is accepted"
    return ApiError(400, message, param=refusal.param, code="not_configured")
