"""The text of one utterance while it comes: pieces in, parts out. A part is one utterance of the engine, which gets its
text as it comes; a long text is several of them."""

from __future__ import annotations

import asyncio
from collections import deque

from oscine.segmenter import Part, Segmenter, SegmenterConfig
from oscine.server.errors import ApiError
from oscine.utterance import Utterance


class LivePart:
    """What one utterance of the engine says; its text may still grow."""

    def __init__(self) -> None:
        self.text = ""
        self.text_ended = False
        self._handed_chars = 0
        self._utterance: Utterance | None = None

    def push(self, text: str, *, ends: bool) -> None:
        self.text += text
        self.text_ended = ends
        self._hand_over()

    def begin(self) -> str:
        self._handed_chars = len(self.text)
        return self.text

    def attach(self, utterance: Utterance) -> None:
        """From now on, text goes there at once; what came since `begin` goes first."""
        self._utterance = utterance
        self._hand_over()

    def cancel(self) -> None:
        if self._utterance:
            self._utterance.cancel()

    def _hand_over(self) -> None:
        if self._utterance is None:
            return
        if rest := self.text[self._handed_chars :]:
            self._handed_chars = len(self.text)
            self._utterance.append(rest)
        if self.text_ended:
            self._utterance.end_text()


class LiveText:
    """An utterance's text: pieces go in, parts come out, each as soon as it has a word, or with `whole` all of it."""

    def __init__(self, config: SegmenterConfig) -> None:
        self._splitter = Segmenter(config)
        self._waiting: deque[LivePart] = deque()
        self._growing: LivePart | None = None
        self._news = asyncio.Event()
        self.ended = asyncio.Event()
        self.chars = 0
        self.pending_chars = 0

    def push(self, text: str) -> None:
        self.chars += len(text)
        self.pending_chars += len(text)
        self._take(self._splitter.push(text))

    def end(self) -> None:
        self._take(self._splitter.finish())
        self.ended.set()
        self._news.set()

    def _take(self, pieces: list[Part]) -> None:
        for piece in pieces:
            if self._growing is None:
                self._growing = LivePart()
                self._waiting.append(self._growing)
            growing = self._growing
            if piece.ends:
                self._growing = None
            growing.push(piece.text, ends=piece.ends)
        self._news.set()

    async def next_part(self, *, whole: bool) -> LivePart | None:
        """None: the text has ended, and there is no word left."""
        while True:
            while self._waiting and self._waiting[0].text_ended and not self._waiting[0].text.strip():
                self.over(self._waiting.popleft())
            if self._waiting:
                part = self._waiting[0]
                if part.text_ended if whole else part.text.strip():
                    return self._waiting.popleft()
            elif self.ended.is_set():
                return None
            self._news.clear()
            await self._news.wait()

    def over(self, part: LivePart) -> None:
        """It was spoken. Did its speech end before its text, then later pieces are another part."""
        self.pending_chars -= len(part.text)
        if self._growing is part:
            self._growing = None


def check_letters(text: str, field: str) -> None:
    """Here, since an engine in another process would not answer each piece."""
    if "\0" in text:
        raise ApiError(400, f"{field} holds a NUL character; remove it, and send it again", param=field)
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{field} holds half a surrogate pair, which is no character; send the whole character in one piece"
        raise ApiError(400, message, param=field) from None
