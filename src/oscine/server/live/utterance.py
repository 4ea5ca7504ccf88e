"""One utterance of a live session: text as it arrives, audio as it is generated, and the events about both.

input.text ─► StreamingScript ─► Speaker ─► events ─► LiveUtterance ─► events of the session (messages.py) ─► connection
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

from oscine.errors import FieldError, OscineError, clear_tracebacks
from oscine.request import SpeechRequest
from oscine.server.http.api_keys import Charge
from oscine.server.http.errors import api_error
from oscine.server.http.logs import log_fields
from oscine.server.http.metrics import Metrics
from oscine.server.live.connection import LiveConnection
from oscine.server.live.messages import InFile, LiveFile, UtteranceEnded
from oscine.server.service import Service
from oscine.server.speech_record import SpeechRecord
from oscine.speech.clock import PhoneReader, PlaybackClock, UtteranceTimeline
from oscine.speech.events import Audio, Ended, Paused, SegmentEnded, SpeechEvent, SpokenTurn, Started, Words
from oscine.speech.models import ServedModel
from oscine.speech.plan import SpeechPlan
from oscine.speech.run import Speaker
from oscine.speech.script import StreamingScript

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
        asked: SpeechRequest,
        refused_config: OscineError | None = None,
    ) -> None:
        """The default settings replace a missing `plan`. `asked` is what the plan is for. With `refused_config`, the
        utterance fails: the client asked for other settings than the default ones."""
        self._service, self._connection, self._clock = service, connection, clock
        self.api_key, self.index, self._plan = api_key, index, plan
        self.settings = (plan, asked) if plan else None  # of its turns
        self._refused_config = refused_config
        self._split = plan.split if plan else None
        # A sentence is spoken when it is complete: its file starts with its text.
        whole = plan is not None and (plan.request.text_mode == "whole" or plan.split is not None)
        self.text = StreamingScript(partial(service.planner.preparation, plan), whole=whole)
        self._speaker: Speaker | None = None  # when the first words have come
        self._model: ServedModel | None = None  # likewise
        self._record: _UtteranceRecord | None = None  # from the start of `run`
        self._file: LiveFile | None = None  # the one that is being sent
        self._held = b""  # of a file that is sent whole
        self._collected = service.ledger["audio"].open()
        self._files = 0  # that have ended: one, or one for each sentence
        self._ended = False  # the last file or an error was sent, or there was nothing to say
        self._done = False  # the end of the utterance was sent
        self._active_s = time.monotonic()  # when text came or audio left the last time
        self._committed_chars = 0
        self.commits = self.turns = 0
        self.timeline = UtteranceTimeline(index)
        self.charge = Charge(service.api_keys, api_key)
        self.is_followed = False  # by another utterance, whose audio waits for the end of this one

    def push(self, text: str) -> None:
        """Text for an utterance that has ended is dropped: the client was informed."""
        if not self._ended:
            self._active_s = time.monotonic()
            self.text.push(text)

    def begin_turn(self, turn: SpokenTurn) -> None:
        """The text that comes next belongs to this turn, with the seed of the utterance."""
        assert self._plan
        self.turns += 1
        turn = replace(turn, request=replace(turn.request, seed=self._plan.seed))
        if not self._ended:
            self.text.begin_turn(turn, partial(self._service.planner.preparation, self._plan, turn))

    def commit_text(self) -> int:
        """Ends the segment: the text so far is spoken to its end. Returns its characters since the last commit."""
        chars = self.text.chars - self._committed_chars
        if chars:
            self._committed_chars += chars
            self.commits += 1
            self.text.end_segment_early()
        return chars

    def clear_text(self) -> None:
        """Drops the text that is not being spoken yet."""
        self.text.clear(self._speaker.segment if self._speaker else None)

    def end_sentence(self) -> None:
        """Ends the current sentence without waiting for the next word, if each sentence is a file of its own."""
        if self._split:
            self.text.end_sentence()

    def give_slot_back(self) -> None:
        """Speaks the words so far and frees the slot for others, if the text has paused for too long."""
        if time.monotonic() - self._active_s < self._service.config.live_pause_s:
            return
        if self._split and self._connection.speaks_at_pauses:
            self.text.end_sentence(in_doubt=True)
        elif self._model and (self._model.is_full or self._connection.speaks_at_pauses):
            self.text.give_slot_back()

    @property
    def pending_chars(self) -> int:
        return 0 if self._ended else self.text.pending_chars

    def cancel(self) -> None:
        """The caller also cancels the task that is in `run`."""
        if self._speaker and self._speaker.segment:
            self.timeline.unfinished = self._speaker.segment.content
            self.timeline.unfinished_text = self._speaker.segment.content.written
        if self._record:
            self._record.finish(Ended("cancelled"))
        self.charge.settle(0.0, failed=False)  # if it has not begun

    async def send_cancelled(self, played_s: float) -> None:
        if self._file and not self._ended:
            self._file.spoken_text = self.timeline.text_until(played_s)
            await self._end_file(Ended("cancelled"))
        await self._send_end()

    async def run(self) -> None:
        """Returns when the text has ended and was spoken, or failed. Raises only if the client is gone."""
        record = self._record = _UtteranceRecord(self, self._service.metrics)
        try:
            with record:
                await self._speak(record)
        except Exception as error:
            if record.error is None:  # the client is gone
                raise
            clear_tracebacks(error)
            await self._send_failure(record)
        finally:
            self._record = self._speaker = None  # both refer to this utterance
            self._collected.close()
            self.charge.settle(0.0, failed=True)  # if there was nothing to say
        # If it failed early, the rest of its text must not start another utterance.
        await self.text.ended.wait()
        await self._send_end()

    async def _speak(self, record: SpeechRecord) -> None:
        service = self._service
        if await self.text.has_next():
            if self._refused_config:
                raise _not_configured(self._refused_config)
            service.check_ready(self._plan.model if self._plan else None)
            default = self._connection.default_config
            model = self._model = self._plan.model if self._plan else service.route(default)
            record.use(model.metrics)
            plan = self._plan = record.plan = self._plan or await self._connection.plan(model, default)
            self._speaker = service.speaker(plan, whole=plan.whole_files, words=plan.words is not None)
            self._speaker.clock, self._speaker.next_is_due = self._clock, self._next_is_due
            if table := model.card.phone_table:
                self._speaker.reads_codes = True
                self.timeline.reader = PhoneReader(table, plan.speed)
            with self.charge.stream(), model.streams:
                await record.render(self._speaker.speak(self.text), partial(self.render, plan))
        self._ended = True

    def _next_is_due(self) -> bool:
        """Whether the listener would hear a gap if the next sentence or utterance waited any longer."""
        is_followed = self.is_followed or (self._split is not None and self.text.pending_chars > 0)
        return is_followed and self._clock.unplayed_s < _LEAD_S

    async def render(self, plan: SpeechPlan, event: SpeechEvent) -> None:
        """Tells the client what has happened."""
        self._active_s = time.monotonic()
        match event:
            case Started():
                file = LiveFile(self.index, self._files, plan)
                await self._connection.send(InFile(file, event))
                self._file, self._held = file, b""
            case Paused(seconds):
                self.timeline.pause(seconds)
            case Audio():
                await self._send_audio(plan, event)
            case SegmentEnded(text=text, spoken=spoken):
                self.timeline.end_segment(text, spoken)
                await self._send(event)
            case Words():
                assert self._file
                self._file.words.append(event)
                await self._send(event)
            case Ended():
                await self._end_file(event)

    async def _send(self, event: Audio | SegmentEnded | Words) -> None:
        assert self._file
        await self._connection.send(InFile(self._file, event))

    async def _send_audio(self, plan: SpeechPlan, audio: Audio) -> None:
        assert self._file
        samples = len(audio.pcm) // 2
        self._file.samples += samples
        if plan.whole_files:
            self._collected.add(plan.file_bytes(audio.pcm))
            self._held += audio.data
            audio = replace(audio, data=self._held if audio.last else b"")
        if audio.data:
            await self._send(audio)
            self._file.size += len(audio.data)
        self.timeline.sent(plan.playback_s(samples), audio.codes)

    async def _end_file(self, end: Ended) -> None:
        assert self._file
        file, self._file, self._held = self._file, None, b""
        self._collected.close()
        self._files += 1
        self._ended = self._split is None
        await self._connection.send(InFile(file, end))

    async def _send_failure(self, record: SpeechRecord) -> None:
        assert record.error
        await self._connection.send_error(record.error, self.index)
        if self._file:
            await self._end_file(Ended("error"))
        self._ended = True

    async def _send_end(self) -> None:
        if not self._done:
            await self._connection.send(UtteranceEnded(self.index, self._files))
            self._done = True

    @property
    def has_begun(self) -> bool:
        """Whether audio was sent."""
        return self._file is not None or self._files > 0


class _UtteranceRecord(SpeechRecord):
    def __init__(self, utterance: LiveUtterance, metrics: Metrics) -> None:
        super().__init__(metrics, "websocket", utterance.charge)
        self._utterance = utterance

    @property
    def has_begun(self) -> bool:
        return self._utterance.has_begun

    def log(self, status: int, end: Ended | None) -> None:
        fields = log_fields(
            utterance=self._utterance.index,
            status=status,
            code=self.error and self.error.code,
            param=self.error and self.error.param,
            finish_reason=end and end.finish_reason,
            chars=self._utterance.text.chars,
            segments=sum(bool(one.text) for one in self._utterance.timeline.segments),
            audio_s=round(self.audio_s, 3),
            first_audio_ms=self.first_audio_ms,
            key=self._utterance.api_key or None,
        )
        _log.info("not spoken" if self.error else "spoken", extra=fields)


def _not_configured(refusal: OscineError) -> FieldError:
    message = f"nothing is spoken, because session.config was refused ({refusal}); send one that is accepted"
    return FieldError(message, param=api_error(refusal).param, code="not_configured")
