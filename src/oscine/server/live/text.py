"""Streaming text of one utterance: pieces go in, segments come out. The engine speaks each segment while it grows."""

from __future__ import annotations

import asyncio
from collections import deque

from oscine.segmenter import Segmenter, SegmenterConfig, SegmentPiece
from oscine.utterance import Utterance


class LiveSegment:
    """The text of one engine utterance, which may still grow."""

    def __init__(self) -> None:
        self.text = ""
        self.complete = False
        self.yielded = False  # it was completed early, because the text paused
        self._sent_chars = 0
        self._utterance: Utterance | None = None

    def push(self, text: str, *, complete: bool) -> None:
        self.text += text
        self.complete = complete
        self._send()

    def begin(self) -> str:
        """The text to submit; `attach` sends what arrives after it."""
        self._sent_chars = len(self.text)
        return self.text

    def attach(self, utterance: Utterance) -> None:
        self._utterance = utterance
        self._send()

    def cancel(self) -> None:
        if self._utterance:
            self._utterance.cancel()

    def give_slot_back(self) -> None:
        """The words so far are spoken to the end."""
        self.yielded = True
        self.push("", complete=True)

    def _send(self) -> None:
        if self._utterance is None:
            return
        if rest := self.text[self._sent_chars :]:
            self._sent_chars = len(self.text)
            self._utterance.append(rest)
        if self.complete:
            self._utterance.end_text()


class LiveText:
    def __init__(self, config: SegmenterConfig, *, whole: bool) -> None:
        """`whole`: segments come out when they are complete, not with their first word."""
        self._config, self._whole = config, whole
        self._segmenter = Segmenter(config)
        self._waiting: deque[LiveSegment] = deque()
        self._growing: LiveSegment | None = None
        self._changed = asyncio.Event()
        self.ended = asyncio.Event()
        self.chars = 0
        self.pending_chars = 0  # received and not yet spoken

    def push(self, text: str) -> None:
        self.chars += len(text)
        self.pending_chars += len(text)
        self._add(self._segmenter.push(text))

    def end(self) -> None:
        self._add(self._segmenter.finish())
        self.ended.set()

    def _add(self, pieces: list[SegmentPiece]) -> None:
        for piece in pieces:
            segment = self._growing
            if segment is None:
                segment = LiveSegment()
                self._waiting.append(segment)
            self._growing = None if piece.ends else segment
            segment.push(piece.text, complete=piece.ends)
        self._changed.set()

    def clear(self, spoken: LiveSegment | None) -> None:
        """Drops everything but `spoken`, the segment that is being spoken."""
        self.give_slot_back()
        self._segmenter = Segmenter(self._config)
        self._waiting.clear()
        self._growing = None
        self.pending_chars = len(spoken.text) if spoken else 0

    def give_slot_back(self) -> None:
        """Completes the segment that is being spoken; later text starts a new one."""
        if self._growing and self._growing not in self._waiting:
            self._growing.give_slot_back()
            self._growing = None

    async def next_segment(self) -> LiveSegment | None:
        """None: the text has ended and no words are left."""
        while True:
            while self._waiting and self._waiting[0].complete and not self._waiting[0].text.strip():
                self.end_segment(self._waiting.popleft())
            if self._waiting:
                segment = self._waiting[0]
                if segment.complete if self._whole else segment.text.strip():
                    return self._waiting.popleft()
            elif self.ended.is_set():
                return None
            self._changed.clear()
            await self._changed.wait()

    def end_segment(self, segment: LiveSegment) -> None:
        """The segment was spoken. If its audio ended before its text, later pieces start a new segment."""
        self.pending_chars -= len(segment.text)
        if self._growing is segment:
            self._growing = None
