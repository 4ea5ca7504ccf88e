"""Speaks a request on the event loop: as one utterance, or as the segments of a long text, joined into one speech.

Nothing here blocks: engines answer `submit` without a thread, and audio arrives through a queue.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oscine.audio.pcm import Codes
from oscine.speech.clock import PlaybackClock
from oscine.speech.events import SegmentEnded
from oscine.speech.run import SegmentJoiner
from oscine.speech.utterance import Utterance
from oscine.text.spoken_text import Pause, SpokenText
from oscine.types import MAX_CONTINUES_S, AudioChunk, FinishReason, SpeechEngine, SpeechRequest, Usage

_NO_USAGE = Usage(0, 0)
_PAUSE_CHUNK_S = 1.0
_SEVERITY: tuple[FinishReason, ...] = ("stop", "runaway", "length", "cancelled", "error")


@dataclass(frozen=True, slots=True)
class NarrationChunk:
    """PCM16 audio, which may be empty, with the events that fall on it."""

    pcm: bytes
    segment: SegmentEnded | None = None  # the segment that ends with this chunk
    finish_reason: FinishReason | None = None  # on the last chunk
    usage: Usage = _NO_USAGE  # of all segments that have ended
    # Of the segment that ends with this chunk (return_codes), or of the frames since the chunk before (stream_codes).
    codes: Codes | None = None
    echo_s: float = 0.0  # on the last chunk: echoes of the reference that were trimmed, of all segments


class Narration:
    """Speaks segments one after the other, with one voice and one seed, and joins them without clicks.

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
        clock: PlaybackClock | None = None,
        single_segment: bool = False,
    ) -> None:
        """`single_segment`: no audio is held back for joining."""
        self._engine, self._rate_hz = engine, rate_hz
        self._request = request
        self._speed, self._clock = speed, clock or PlaybackClock()
        self._joiner = None if single_segment else SegmentJoiner(rate_hz)
        self._tokens_left = request.max_new_tokens
        self._segments = self._samples = self._segment_start = 0
        self._leading_pause = b""  # silence before the first segment, sent when that segment speaks
        self._paused = False  # since the last segment
        self._usage = _NO_USAGE
        self._echo_s = 0.0
        self._finish: FinishReason = "stop"

    def segment(self, text: str, *, streaming_text: bool = False, resumes: bool = False) -> Utterance:
        """The next segment's utterance, not yet submitted. `resumes`: its text was late, its slot was given back."""
        changed: dict[str, Any] = {"text": text, "text_options": None, "max_new_tokens": self._tokens_left}
        if self._segments:  # silence before a later segment is the pause between two sentences
            unplayed_s = min(self._clock.unplayed_s, MAX_CONTINUES_S)
            trim = self._request.trim_silence if self._paused else False
            changed |= {"continues_s": unplayed_s, "resumes": resumes, "trim_silence": trim}
        request = replace(self._request, **changed)  # its text is prepared
        self._segment_start = self._samples + len(self._leading_pause) // 2
        self._paused = False
        return Utterance(self._engine, request, streaming_text=streaming_text)

    def chunk(self, audio: AudioChunk) -> NarrationChunk:
        """Takes every chunk of a segment but the last."""
        pcm = self._joiner.push(audio.pcm) if self._joiner else audio.pcm
        return NarrationChunk(self._sent(pcm), usage=self._usage, codes=audio.codes)

    def end_segment(self, audio: AudioChunk, text: str | SpokenText, *, last: bool) -> NarrationChunk:
        """Takes the last chunk of a segment. The result has a finish_reason if the speech is over, which a length limit
        can cause before the last segment."""
        written, spoken = (text, None) if isinstance(text, str) else (text.written, text if text.replacements else None)
        pcm = audio.pcm
        if self._joiner:
            pcm = self._joiner.push(pcm) + self._joiner.end_segment(last=last)
        pcm = self._sent(pcm)
        # A runaway segment does not end the speech, but the speech reports it.
        self._finish = max(self._finish, audio.finish_reason or "stop", key=_SEVERITY.index)
        if audio.usage is not None:
            self._usage = Usage(self._usage.text_ids + audio.usage.text_ids, self._usage.frames + audio.usage.frames)
            if self._tokens_left is not None:
                self._tokens_left = max(2, self._tokens_left - audio.usage.frames)
        start_s, end_s = (at / self._rate_hz / self._speed for at in (self._segment_start, self._samples))
        segment = SegmentEnded(self._segments, written, start_s, end_s, spoken)
        self._segments += 1
        over = last or self._finish == "length"
        self._echo_s += audio.echo_s
        reason = self._finish if over else None
        return NarrationChunk(pcm, segment, reason, self._usage, audio.codes, self._echo_s)

    def pause(self, seconds: float) -> Iterator[NarrationChunk]:
        """Silence between two segments. Before the first one nothing is sent: the engine may still refuse it."""
        samples = round(seconds * self._speed * self._rate_hz)  # a change of speed shortens or lengthens all audio
        self._paused = True
        if not self._segments:
            self._leading_pause += bytes(2 * samples)
            return
        step = round(_PAUSE_CHUNK_S * self._rate_hz)
        for begin in range(0, samples, step):
            yield NarrationChunk(self._sent(bytes(2 * min(step, samples - begin))), usage=self._usage)

    def finish(self) -> NarrationChunk:
        """The last chunk of a speech that ends with a pause."""
        return NarrationChunk(b"", None, self._finish, self._usage, echo_s=self._echo_s)

    def _sent(self, pcm: bytes) -> bytes:
        if self._leading_pause and pcm:
            pcm, self._leading_pause = self._leading_pause + pcm, b""
        samples = len(pcm) // 2
        self._samples += samples
        self._clock.sent(samples / self._rate_hz / self._speed)
        return pcm


async def narrate(
    engine: SpeechEngine,
    request: SpeechRequest,
    script: Sequence[SpokenText | Pause | str],
    rate_hz: int,
    speed: float = 1.0,
) -> AsyncGenerator[NarrationChunk, None]:
    """Speaks segments, with the pauses between them, as one speech. A single segment yields the engine's chunks
    unchanged, bit for bit."""
    narration = Narration(engine, request, rate_hz, speed=speed, single_segment=len(script) == 1)
    for index, item in enumerate(script):
        if isinstance(item, Pause):
            for silence in narration.pause(item.seconds):
                yield silence
            continue
        async with narration.segment(item if isinstance(item, str) else item.spoken) as utterance:
            while not (audio := await utterance.next()).finish_reason:
                yield narration.chunk(audio)
        chunk = narration.end_segment(audio, item, last=index == len(script) - 1)
        yield chunk
        if chunk.finish_reason:
            return
    yield narration.finish()
