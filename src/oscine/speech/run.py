"""Speaks a text on the event loop: the one loop behind every response, protocol and program.

    text ─► Speaker ─► events (events.py) ─► SpeechRun ─► renderer
                                                 └► observer: metrics and the log

Nothing here blocks: engines answer `submit` without a thread, and audio arrives through a queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from oscine.errors import RequestError
from oscine.request import MAX_CONTINUES_S, SpeechRequest
from oscine.speech.clock import PlaybackClock
from oscine.speech.events import NO_USAGE, Audio, Ended, Paused, SegmentEnded, SpeechEvent, Started
from oscine.speech.utterance import Utterance
from oscine.text.preparation import Prepared
from oscine.text.spoken_text import Pause, SpokenText
from oscine.types import AudioChunk, FinishReason, SpeechEngine, Usage

if TYPE_CHECKING:
    from oscine.audio.encoders import AsyncEncoder
    from oscine.speech.words import WordTimer

_FADE_S = 0.005  # at segment borders: too short to hear, long enough to avoid a click
_PAUSE_CHUNK_S = 1.0
_SEVERITY: tuple[FinishReason, ...] = ("stop", "runaway", "length", "cancelled", "error")


class Segment(Protocol):
    """The text of one utterance, which may still grow."""

    @property
    def content(self) -> SpokenText: ...

    @property
    def yielded(self) -> bool:
        """Whether it was completed early to free its slot: the next segment is late."""

    def begin(self) -> str:
        """Returns the text to submit."""

    def attach(self, utterance: Utterance) -> None:
        """Sends the utterance the text that arrives later."""


class Text(Protocol):
    """Segments and pauses in order, as they arrive."""

    async def next_item(self) -> Segment | Pause | RequestError | None:
        """Returns None at the end. An error ends the speech."""

    def end_segment(self, segment: Segment) -> None:
        """The segment was spoken."""


@dataclass(frozen=True, slots=True)
class _WholeSegment:
    content: SpokenText
    yielded: bool = False

    def begin(self) -> str:
        return self.content.spoken

    def attach(self, utterance: Utterance) -> None: ...


class Script:
    """A text that is complete."""

    def __init__(self, items: Sequence[Prepared]) -> None:
        self._items = iter(items)

    async def next_item(self) -> Segment | Pause | None:
        item = next(self._items, None)
        return _WholeSegment(item) if isinstance(item, SpokenText) else item

    def end_segment(self, segment: Segment) -> None: ...


class Speaker:
    """Speaks one text, segment after segment, with one voice and one seed.

    Each segment is submitted when the previous one is complete, while the client still has audio to play. Segments
    after the first are continuations, which the engine does not refuse for load.
    """

    def __init__(
        self,
        engine: SpeechEngine,
        request: SpeechRequest,
        rate_hz: int,
        *,
        speed: float = 1.0,
        joins: bool = True,
        split: bool = False,
        streaming_text: bool = False,
        clock: PlaybackClock | None = None,
        open_encoder: Callable[[], AsyncEncoder] | None = None,
        open_timer: Callable[[], WordTimer] | None = None,
        next_is_due: Callable[[], bool] | None = None,
    ) -> None:
        """`joins`: segments are joined without clicks; otherwise they have the engine's audio bit for bit. `split`:
        each segment is a file. `streaming_text`: segments may grow while they are spoken. Without an encoder, files
        have the engine's samples. `next_is_due`: whether words without times are better than waiting for them."""
        self._engine, self._rate_hz, self._speed = engine, rate_hz, speed
        self._request = request.for_engine()  # its text is prepared
        self._joins, self._split, self._streaming_text = joins and not split, split, streaming_text
        self._clock = clock or PlaybackClock()
        self._open_encoder, self._open_timer, self._next_is_due = open_encoder, open_timer, next_is_due
        self._segments = self._files = 0  # that have ended
        self._paused = False  # since the last segment
        self.segment: Segment | None = None  # the one that is being spoken

    async def speak(self, text: Text) -> AsyncGenerator[SpeechEvent, None]:
        """Yields what happens. Raises errors of the text and of the engine; closing it cancels the speech."""
        file: _File | None = None
        late = False  # the next segment
        try:
            item = await text.next_item()
            while item is not None:
                if isinstance(item, RequestError):
                    raise item
                file = file or self._open_file()
                if isinstance(item, Pause):
                    yield Paused(item.seconds)
                    self._paused = True
                    for silence in file.silence(item.seconds):
                        for event in await file.audio(silence):
                            yield event
                    item = await text.next_item()
                    continue
                segment = self.segment = item
                file.begin_segment(segment)
                async with self._utterance(segment, file, late=late) as utterance:
                    segment.attach(utterance)
                    while not (audio := await utterance.next()).finish_reason:
                        for event in await file.audio(file.joined(audio.pcm), audio.codes):
                            yield event
                text.end_segment(segment)
                late = segment.yielded
                over = self._split or audio.finish_reason == "length"
                item = None if over else await text.next_item()
                for event in await file.end_segment(audio, self._segments, segment.content, last=item is None):
                    if isinstance(event, SegmentEnded):
                        self.segment = None
                    yield event
                self._segments += 1
                if item is None:
                    for event in await file.end(self._next_is_due):
                        yield event
                    file.close()
                    file, self._files = None, self._files + 1
                    item = await text.next_item() if self._split else None
            if file and file.started:  # after a pause
                for event in await file.audio(b"", last=True):
                    yield event
                for event in await file.end(self._next_is_due):
                    yield event
        finally:
            if file:
                file.close()

    def _open_file(self) -> _File:
        return _File(
            self._files,
            self._rate_hz,
            self._speed,
            self._clock,
            joiner=SegmentJoiner(self._rate_hz) if self._joins else None,
            encoder=self._open_encoder() if self._open_encoder else None,
            timer=self._open_timer() if self._open_timer else None,
            tokens_left=self._request.max_new_tokens,
        )

    def _utterance(self, segment: Segment, file: _File, *, late: bool) -> Utterance:
        """The next segment's utterance, not yet submitted. `late`: its text was, so its slot was given back."""
        text = segment.begin().lstrip() if self._split else segment.begin()
        changed: dict[str, Any] = {"text": text, "max_new_tokens": file.tokens_left}
        if self._segments:  # silence before a later segment is the pause between two sentences
            unplayed_s = min(self._clock.unplayed_s, MAX_CONTINUES_S)
            trim = self._request.trim_silence if self._paused else False
            late = unplayed_s == 0 if self._split else late
            changed |= {"continues_s": unplayed_s, "resumes": late, "trim_silence": trim}
        self._paused = False
        request = replace(self._request, **changed)
        return Utterance(self._engine, request, streaming_text=self._streaming_text)


@dataclass(slots=True, eq=False)
class _File:
    """One file of a speech: joins, encodes and times its audio, and counts what its end reports."""

    number: int
    rate_hz: int
    speed: float
    clock: PlaybackClock
    joiner: SegmentJoiner | None
    encoder: AsyncEncoder | None
    timer: WordTimer | None
    tokens_left: int | None
    started: bool = False
    _segment: Segment | None = None  # the last one
    _segment_start: int = 0  # in samples
    _samples: int = 0
    _leading_pause: bytes = b""  # silence before the first segment, sent when that segment speaks
    _finish: FinishReason = "stop"
    _usage: Usage = NO_USAGE
    _echo_s: float = 0.0

    def begin_segment(self, segment: Segment) -> None:
        self._segment = segment
        self._segment_start = self._samples + len(self._leading_pause) // 2

    def joined(self, pcm: bytes) -> bytes:
        return self.joiner.push(pcm) if self.joiner else pcm

    def silence(self, seconds: float) -> Iterator[bytes]:
        """The samples of a pause, in pieces. Before the first segment none: the engine may still refuse it."""
        samples = round(seconds * self.speed * self.rate_hz)  # a change of speed shortens or lengthens all audio
        if self._segment is None:
            self._leading_pause += bytes(2 * samples)
            return
        step = round(_PAUSE_CHUNK_S * self.rate_hz)
        for begin in range(0, samples, step):
            yield bytes(2 * min(step, samples - begin))

    async def audio(
        self, pcm: bytes, codes: Any = None, ended: Callable[[], SegmentEnded] | None = None, *, last: bool = False
    ) -> list[SpeechEvent]:
        """The events of the next samples, which may be none. `ended` describes the segment that ends with them."""
        if self._leading_pause and pcm:
            pcm, self._leading_pause = self._leading_pause + pcm, b""
        self._samples += len(pcm) // 2
        self.clock.sent(len(pcm) // 2 / self.rate_hz / self.speed)
        segment = ended() if ended else None
        data = await self._encoded(pcm, last=last)
        events: list[SpeechEvent] = [Audio(pcm, data, codes, segment is not None, last)]
        if not self.started:
            if not (pcm or data or segment or codes is not None):
                return []
            self.started = True
            events.insert(0, Started(self.number, self._segment.content.written if self._segment else ""))
        if segment:
            events.append(segment)
        if self.timer:
            self.timer.push(pcm, segment)
            events += self.timer.finished()
        return events

    async def end_segment(self, audio: AudioChunk, index: int, text: SpokenText, *, last: bool) -> list[SpeechEvent]:
        """The events of a segment's last chunk."""
        pcm = audio.pcm
        if self.joiner:
            pcm = self.joiner.push(pcm) + self.joiner.end_segment(last=last)
        # A runaway segment does not end the speech, but the speech reports it.
        self._finish = max(self._finish, audio.finish_reason or "stop", key=_SEVERITY.index)
        self._echo_s += audio.echo_s
        if audio.usage is not None:
            self._usage = Usage(self._usage.text_ids + audio.usage.text_ids, self._usage.frames + audio.usage.frames)
            if self.tokens_left is not None:
                self.tokens_left = max(2, self.tokens_left - audio.usage.frames)

        def ended() -> SegmentEnded:
            start_s, end_s = (at / self.rate_hz / self.speed for at in (self._segment_start, self._samples))
            return SegmentEnded(index, text.written, start_s, end_s, text if text.replacements else None)

        return await self.audio(pcm, audio.codes, ended, last=last)

    async def end(self, next_is_due: Callable[[], bool] | None) -> list[SpeechEvent]:
        """The last events, when the words have their times."""
        words = await self.timer.rest(next_is_due) if self.timer else []
        return [*words, Ended(self._finish, self._usage, self._echo_s)]

    def close(self) -> None:
        if self.encoder:
            self.encoder.close()
        if self.timer:
            self.timer.close()

    async def _encoded(self, pcm: bytes, *, last: bool) -> bytes:
        if self.encoder is None:
            return pcm
        data = await self.encoder.push(pcm)
        return data + await self.encoder.finish() if last else data


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


# --- Renders the events of a speech, and reports its end.


Render = Callable[[SpeechEvent], Awaitable[None]]


class Observer(Protocol):
    """Counts and logs one speech."""

    def sent(self, audio: Audio) -> None:
        """The client has been sent this audio."""

    def ended(self, end: Ended | None, error: BaseException | None) -> None:
        """Called once. One of the two is given; `end` is that of the last file."""


class SpeechRun:
    """A speech from its request to its end. The observer hears of the end exactly once, however it comes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._end: Ended | None = None  # of the last file
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error:
            self.end(None, error)
        elif self._end:  # else there was nothing to say
            self.end(self._end)

    async def render(self, events: AsyncGenerator[SpeechEvent, None], render: Render) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                await render(event)
                if isinstance(event, Audio):
                    self._observer.sent(event)
                elif isinstance(event, Ended):
                    self._end = event

    def end(self, end: Ended | None, error: BaseException | None = None) -> None:
        """Only the first call counts."""
        if not self._over:
            self._over = True
            self._observer.ended(end, error)
