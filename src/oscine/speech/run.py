"""Speaks a text on the event loop: the one loop behind every response, protocol and program.

    script, or streaming text ─► Speaker ─► events (events.py) ─► SpeechRun ─► renderer
                                                                    └► metrics and the log

Nothing here blocks: engines answer `submit` without a thread, and audio arrives through a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from oscine.audio.pcm import Codes
from oscine.errors import RequestError
from oscine.request import MAX_CONTINUES_S, SpeechRequest
from oscine.speech.clock import PlaybackClock
from oscine.speech.events import NO_USAGE, Audio, Ended, Paused, SegmentEnded, SpeechEvent, Started
from oscine.speech.script import Script, Segment, StreamingScript, Utterance
from oscine.text.prosody import PLAIN, Prosody
from oscine.text.spoken_text import Pause
from oscine.types import AudioChunk, FinishReason, SpeechEngine, Usage

if TYPE_CHECKING:
    from oscine.audio.encoders import AsyncEncoder
    from oscine.speech.phrase_cache import ModelPhrases
    from oscine.speech.word_times import WordTimer

_FADE_S = 0.005  # at segment borders: too short to hear, long enough to avoid a click
_PAUSE_CHUNK_S = 1.0
_SEVERITY: tuple[FinishReason, ...] = ("stop", "runaway", "length", "cancelled", "error")


@dataclass(slots=True, eq=False)
class Speaker:
    """Speaks one text, segment after segment, with one voice and one seed; in a dialogue, with the voice of each turn.

    Each segment is submitted when the previous one is complete, while the client still has audio to play. Segments
    after the first are continuations, which the engine does not refuse for load.
    """

    engine: SpeechEngine
    request: SpeechRequest
    rate_hz: int
    speed: float = 1.0
    split: bool = False  # each segment is a file
    phrases: ModelPhrases | None = None  # where utterances are remembered
    packet_bytes: int | None = None  # the file's bytes come in packets of this size, an Audio each
    clock: PlaybackClock = field(default_factory=PlaybackClock)
    open_encoder: Callable[[], AsyncEncoder] | None = None  # None: files have the engine's samples
    open_timer: Callable[[], WordTimer] | None = None  # None: words have no times
    open_shaper: Callable[[Prosody], AsyncEncoder] | None = None  # changes the samples of a segment
    reads_codes: bool = False  # audio comes with its codes, except where it is remembered or changed
    next_is_due: Callable[[], bool] | None = None  # whether words without times are better than waiting for them
    segment: Segment | None = field(default=None, init=False)  # the one that is being spoken
    _segments: int = field(default=0, init=False)  # that have ended
    _paused: bool = field(default=False, init=False)  # since the last segment

    async def speak(self, text: Script | StreamingScript) -> AsyncGenerator[SpeechEvent, None]:
        """Yields what happens. Raises errors of the text and of the engine; closing it cancels the speech."""
        file: _File | None = None
        late = False  # the next segment
        try:
            item = await text.next_item()
            while item is not None:
                if isinstance(item, RequestError):
                    raise item
                file = file or _File(self, joins=text.joins and not self.split)
                if isinstance(item, Pause):
                    yield Paused(item.seconds)
                    self._paused = True
                    for silence in file.silence(item.seconds):
                        for event in await file.silent(silence):
                            yield event
                    item = await text.next_item()
                    continue
                segment = self.segment = item
                file.begin_segment(segment)
                async with self._utterance(segment, file, text.streams, late=late) as utterance:
                    file.begin_utterance(utterance)
                    if text.streams:
                        segment.attach(utterance)
                    while True:
                        audio = await utterance.next()
                        for silence in file.leading_silence(audio):
                            for event in await file.silent(silence):
                                yield event
                        if audio.finish_reason:
                            break
                        for event in await file.audio(file.joined(await file.shaped(audio.pcm)), audio.codes):
                            yield event
                text.end_segment(segment)
                late = segment.yielded
                over = self.split or audio.finish_reason == "length"
                item = None if over else await text.next_item()
                for event in await file.end_segment(audio, self._segments, segment, last=item is None):
                    if isinstance(event, SegmentEnded):
                        self.segment = None
                    yield event
                self._segments += 1
                if item is None:
                    for event in await file.end():
                        yield event
                    file.close()
                    file = None
                    item = await text.next_item() if self.split else None
            if file and file.started:  # after a pause
                for event in await file.audio(b"", last=True):
                    yield event
                for event in await file.end():
                    yield event
        finally:
            if file:
                file.close()

    def _utterance(self, segment: Segment, file: _File, streams: bool, *, late: bool) -> Utterance:
        """The next segment's utterance, not yet submitted. `late`: its text was, so its slot was given back."""
        request = segment.turn.request if segment.turn else self.request
        text = segment.begin().lstrip() if self.split else segment.begin()
        changed: dict[str, Any] = {"text": text, "max_new_tokens": file.tokens_left}
        if self._segments:  # silence before a later segment is the pause between two sentences
            unplayed_s = min(self.clock.unplayed_s, MAX_CONTINUES_S)
            trim = request.trim_silence if self._paused else False
            late = unplayed_s == 0 if self.split else late
            changed |= {"continues_s": unplayed_s, "resumes": late, "trim_silence": trim}
        self._paused = False
        if self.reads_codes and segment.prosody == PLAIN and (streams or not self.phrases):
            changed["stream_codes"] = True
        request = request.for_engine(**changed)  # its text is prepared
        if self.phrases and not streams:
            return self.phrases.utterance(self.engine, request)
        return Utterance(self.engine, request, streaming_text=streams)


class _File:
    """One file of a speech: joins, encodes and times its audio, and counts what its end reports."""

    def __init__(self, speaker: Speaker, *, joins: bool) -> None:
        """`joins`: segments are joined without clicks; otherwise they have the engine's audio bit for bit."""
        self._speaker = speaker
        self._per_s = speaker.rate_hz * speaker.speed  # samples of the engine in a second of the file
        self._joiner = SegmentJoiner(speaker.rate_hz) if joins else None
        self._encoder = speaker.open_encoder() if speaker.open_encoder else None
        self._timer = speaker.open_timer() if speaker.open_timer else None
        self.tokens_left = speaker.request.max_new_tokens
        self.started = False
        self._segment: Segment | None = None  # the last one
        self._segment_start = self._samples = 0
        self._leading_samples = 0  # of silence before the first segment, sent when that segment speaks
        self._finish: FinishReason = "stop"
        self._usage, self._echo_s = NO_USAGE, 0.0
        self._packet = b""  # the next one so far
        self._shaper: AsyncEncoder | None = None  # of the segment that is being spoken
        self._remembered: bool | None = None  # the first utterance; None: there is no cache

    def begin_segment(self, segment: Segment) -> None:
        self._segment = segment
        self._close_shaper()
        if segment.prosody != PLAIN and (open_shaper := self._speaker.open_shaper):
            self._shaper = open_shaper(segment.prosody)
        self._segment_start = self._samples + self._leading_samples

    def begin_utterance(self, utterance: Utterance) -> None:
        if not self.started and self._speaker.phrases:
            self._remembered = utterance.remembered

    async def shaped(self, pcm: bytes, *, last: bool = False) -> bytes:
        """The samples of the segment with its own speed and volume."""
        if self._shaper is None:
            return pcm
        shaped = await self._shaper.push(pcm)
        return shaped + await self._shaper.finish() if last else shaped

    def joined(self, pcm: bytes) -> bytes:
        return self._joiner.push(pcm) if self._joiner else pcm

    def silence(self, seconds: float) -> Iterator[bytes]:
        """The samples of a pause, in pieces. Before the first segment none: the engine may still refuse it."""
        samples = round(seconds * self._per_s)  # a change of speed shortens or lengthens all audio
        if self._segment is None:
            self._leading_samples += samples
        else:
            yield from self._zeros(samples)

    def leading_silence(self, audio: AudioChunk) -> Iterator[bytes]:
        """The samples of the pauses before the first segment, in pieces, when its first audio is there."""
        if audio.pcm and self._leading_samples:
            samples, self._leading_samples = self._leading_samples, 0
            yield from self._zeros(samples)

    def _zeros(self, samples: int) -> Iterator[bytes]:
        step = round(_PAUSE_CHUNK_S * self._speaker.rate_hz)
        for begin in range(0, samples, step):
            yield bytes(2 * min(step, samples - begin))

    async def silent(self, silence: bytes) -> list[SpeechEvent]:
        """The events of a piece of a pause: thousands of them come without a wait for the engine."""
        await asyncio.sleep(0)
        return await self.audio(silence)

    async def audio(
        self,
        pcm: bytes,
        codes: Codes | None = None,
        ended: Callable[[], SegmentEnded] | None = None,
        *,
        last: bool = False,
    ) -> list[SpeechEvent]:
        """The events of the next samples, which may be none. `ended` describes the segment that ends with them."""
        self._samples += len(pcm) // 2
        self._speaker.clock.sent(len(pcm) // 2 / self._per_s)
        segment = ended() if ended else None
        data = await self._encoded(pcm, last=last)
        *packets, data = self._packets(data, last=last)
        events: list[SpeechEvent] = [Audio(b"", packet) for packet in packets]
        events.append(Audio(pcm, data, codes, segment is not None, last))
        if not self.started:
            if not (pcm or data or segment or codes is not None):
                return []
            self.started = True
            events.insert(0, Started(self._segment.content.written if self._segment else "", self._remembered))
        if segment:
            events.append(segment)
        if self._timer:
            self._timer.push(pcm, segment)
            events += self._timer.finished()
        return events

    async def end_segment(self, audio: AudioChunk, index: int, segment: Segment, *, last: bool) -> list[SpeechEvent]:
        """The events of a segment's last chunk."""
        pcm = await self.shaped(audio.pcm, last=True)
        if self._joiner:
            pcm = self._joiner.push(pcm) + self._joiner.end_segment(last=last)
        # A runaway segment does not end the speech, but the speech reports it.
        self._finish = max(self._finish, audio.finish_reason or "stop", key=_SEVERITY.index)
        self._echo_s += audio.echo_s
        if audio.usage is not None:
            self._usage = Usage(self._usage.text_ids + audio.usage.text_ids, self._usage.frames + audio.usage.frames)
            if self.tokens_left is not None:
                self.tokens_left = max(2, self.tokens_left - audio.usage.frames)

        def ended() -> SegmentEnded:
            start_s, end_s = (at / self._per_s for at in (self._segment_start, self._samples))
            text = segment.content
            spoken = text if text.replacements else None
            return SegmentEnded(index, text.written, start_s, end_s, spoken, segment.turn)

        return await self.audio(pcm, audio.codes, ended, last=last)

    async def end(self) -> list[SpeechEvent]:
        """The last events, when the words have their times."""
        words = await self._timer.rest(self._speaker.next_is_due) if self._timer else []
        return [*words, Ended(self._finish, self._usage, self._echo_s)]

    def _close_shaper(self) -> None:
        if self._shaper:
            self._shaper.close()
        self._shaper = None

    def close(self) -> None:
        self._close_shaper()
        if self._encoder:
            self._encoder.close()
        if self._timer:
            self._timer.close()

    def _packets(self, data: bytes, *, last: bool) -> list[bytes]:
        """The data in packets, at least one; what does not fill one waits for more."""
        size = self._speaker.packet_bytes
        if not size:
            return [data]
        data = self._packet + data
        cut = len(data) if last else len(data) - len(data) % size
        self._packet = data[cut:]
        return [data[begin : begin + size] for begin in range(0, cut, size)] or [b""]

    async def _encoded(self, pcm: bytes, *, last: bool) -> bytes:
        if self._encoder is None:
            return pcm
        data = await self._encoder.push(pcm)
        return data + await self._encoder.finish() if last else data


class SegmentJoiner:
    """Fades the end of each segment out and the start of the next one in.

    Holds back the last samples, because they may turn out to be the end of a segment.
    """

    def __init__(self, rate_hz: int) -> None:
        self._fade = np.linspace(0.0, 1.0, round(_FADE_S * rate_hz), dtype=np.float32)
        self._held = b""
        self._faded_in = len(self._fade)  # the first segment starts without a fade

    def push(self, pcm: bytes) -> bytes:
        pcm = self._held + self._fade_in(pcm)
        cut = max(0, len(pcm) - 2 * len(self._fade))
        self._held = pcm[cut:]
        return pcm[:cut]

    def end_segment(self, *, last: bool) -> bytes:
        tail, self._held = self._held, b""
        if not last:
            self._faded_in = 0
            tail = _scaled(tail, self._fade[::-1][len(self._fade) - len(tail) // 2 :])
        return tail

    def _fade_in(self, pcm: bytes) -> bytes:
        count = min(len(pcm) // 2, len(self._fade) - self._faded_in)
        if not count:
            return pcm
        faded = _scaled(pcm[: 2 * count], self._fade[self._faded_in : self._faded_in + count])
        self._faded_in += count
        return faded + pcm[2 * count :]


def _scaled(pcm: bytes, gains: np.ndarray) -> bytes:
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) * gains
    return np.rint(samples).astype("<i2").tobytes()


class SpeechRun:
    """A speech from its request to its end. A subclass counts and logs it; `ended` is called exactly once, whatever
    happens."""

    _end: Ended | None = None  # of the last file
    _over = False

    def sent(self, audio: Audio) -> None:
        """Called when the client was sent this audio."""

    def ended(self, end: Ended | None, error: BaseException | None) -> None:
        """Called once, with one of the two. `end` is that of the last file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error:
            self.finish(None, error)
        elif self._end:  # else there was nothing to say
            self.finish(self._end)

    async def render(
        self, events: AsyncGenerator[SpeechEvent, None], render: Callable[[SpeechEvent], Awaitable[None]]
    ) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                await render(event)
                if isinstance(event, Audio):
                    self.sent(event)
                elif isinstance(event, Ended):
                    self._end = event

    def finish(self, end: Ended | None, error: BaseException | None = None) -> None:
        """Tells of the end. Only the first call counts."""
        if not self._over:
            self._over = True
            self.ended(end, error)
