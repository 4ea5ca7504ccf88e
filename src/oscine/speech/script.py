"""What is spoken, segment by segment: a script that is complete, or text that arrives in pieces.

The engine speaks each segment of streaming text while it grows.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from oscine.errors import EngineError, RequestError
from oscine.request import SpeechRequest, Turn, VoiceMix, naming_turn
from oscine.speech.capabilities import resolve_request
from oscine.speech.events import SpokenTurn
from oscine.text.options import text_language
from oscine.text.preparation import PauseLimit, Prepared, StreamingPreparation, StreamResult, prepare_text
from oscine.text.prosody import PLAIN, Prosody
from oscine.text.segmenter import SegmenterConfig
from oscine.text.spoken_text import Pause, SpokenText
from oscine.types import AppendText, AudioChunk, Cancel, EndText, ModelCard, SpeechEngine

Scripted = Prepared | SpokenTurn
_NOTHING = SpokenText.unchanged("")


class Segment:
    """The text of one engine utterance, which may still grow."""

    def __init__(
        self,
        content: SpokenText = _NOTHING,
        *,
        complete: bool = False,
        turn: SpokenTurn | None = None,
        prosody: Prosody = PLAIN,
    ) -> None:
        self.content, self.complete, self.prosody = content, complete, prosody
        self.turn = turn  # of a dialogue
        self.yielded = False  # it was completed early, because the text paused
        self._sent_chars = 0
        self._utterance: Utterance | None = None

    @property
    def text(self) -> str:
        """The text as the model reads it."""
        return self.content.spoken

    def push(self, text: SpokenText, *, complete: bool) -> None:
        self.content += text
        self.complete = complete
        self._send()

    def begin(self) -> str:
        """The text to submit; `attach` sends what arrives after it."""
        self._sent_chars = len(self.text)
        return self.text

    def attach(self, utterance: Utterance) -> None:
        self._utterance = utterance
        self._send()

    def give_slot_back(self) -> None:
        """Completes the segment early: the words so far are spoken to the end."""
        self.yielded = True
        self.push(SpokenText.unchanged(""), complete=True)

    def _send(self) -> None:
        if self._utterance is None:
            return
        if rest := self.text[self._sent_chars :]:
            self._sent_chars = len(self.text)
            self._utterance.append(rest)
        if self.complete:
            self._utterance.end_text()


class Script:
    """A text or a dialogue that is complete."""

    streams = False

    def __init__(self, items: Sequence[Scripted]) -> None:
        self._items, self.joins = iter(items), spoken_items(items) > 1
        self._turn: SpokenTurn | None = None
        self._prosody = PLAIN

    async def next_item(self) -> Segment | Pause | None:
        item = next(self._items, None)
        while isinstance(item, SpokenTurn | Prosody):
            if isinstance(item, SpokenTurn):
                self._turn, item = item, PLAIN  # a tag that is left open ends with its turn
            self._prosody, item = item, next(self._items, None)
        if isinstance(item, SpokenText):
            return Segment(item, complete=True, turn=self._turn, prosody=self._prosody)
        return item

    def end_segment(self, segment: Segment) -> None: ...


def spoken_items(items: Sequence[Scripted]) -> int:
    """How many segments and pauses there are."""
    return sum(not isinstance(item, SpokenTurn | Prosody) for item in items)


def spoken_turn(index: int, turn: Turn, request: SpeechRequest, card: ModelCard, default_voice: object) -> SpokenTurn:
    """`request` speaks the turn alone; `default_voice` is what the dialogue asks for. Raises RequestError for what the
    checkpoint cannot speak."""
    preset = resolve_request(request, card).speaker
    asked = default_voice if turn.voice is None else turn.voice
    name = str(asked) if isinstance(asked, str | VoiceMix) else preset
    return SpokenTurn(index, name, turn.pause_s, request)


def prepare_turns(
    turns: Sequence[SpokenTurn],
    languages: Sequence[str],
    config: SegmenterConfig | None = None,
    max_chars: int | None = None,
    check_cancelled: Callable[[], None] | None = None,
) -> list[Scripted]:
    """The script of a dialogue: each turn as if it were alone, after its pause. `languages` are the checkpoint's.
    Otherwise as `prepare_text`; the limits of a text hold for all turns together."""
    script: list[Scripted] = []
    pauses, chars = PauseLimit(), 0
    for turn in turns:
        with naming_turn(turn.index):
            request, language = turn.request, text_language(turn.request.language, languages)
            items = prepare_text(request.text, request, language, config, max_chars, check_cancelled)
            if turn.pause_s:
                items.insert(0, Pause(turn.pause_s))
            for item in items:
                if isinstance(item, Pause):
                    pauses.add(item.seconds)
                elif isinstance(item, SpokenText):
                    chars += len(item.spoken)
            if max_chars is not None and chars > max_chars:
                message = f"spelled out, the dialogue has more than {max_chars} characters (the limit); split it"
                raise RequestError(message, "text")
        script += [turn, *items]
    return script


class StreamingScript:
    """Segments and pauses of a streaming text, in order. An error ends it."""

    joins = True  # more segments may follow

    def __init__(self, open_preparation: Callable[[], StreamingPreparation], *, whole: bool) -> None:
        """`whole`: segments come out when they are complete, not with their first word."""
        self._open_preparation, self.streams = open_preparation, not whole
        self._preparation = open_preparation()
        self._turn: SpokenTurn | None = None  # of the text that comes next
        self._prosody = PLAIN  # likewise
        self._waiting: deque[Segment | Pause | RequestError] = deque()
        self._growing: Segment | None = None
        self._changed = asyncio.Event()
        self._segment_chars = 0  # of the segments that were not spoken yet
        self._pauses = PauseLimit()  # of all turns together
        self.ended = asyncio.Event()
        self.chars = 0

    @property
    def changes_words(self) -> bool:
        return self._preparation.changes_words

    @property
    def pending_chars(self) -> int:
        """Characters that were received and not spoken yet."""
        return self._preparation.held_chars + self._segment_chars

    def push(self, text: str) -> None:
        self.chars += len(text)
        self._add(self._preparation.push(text))

    def begin_turn(self, turn: SpokenTurn, open_preparation: Callable[[], StreamingPreparation]) -> None:
        """Ends the text so far; what comes next belongs to this turn of a dialogue."""
        self._add(self._preparation.finish())
        self._turn, self._open_preparation, self._growing, self._prosody = turn, open_preparation, None, PLAIN
        self._preparation = open_preparation()
        self._add([Pause(turn.pause_s)] if turn.pause_s else [])

    def end_sentence(self, *, in_doubt: bool = False) -> None:
        self._add(self._preparation.end_sentence(in_doubt=in_doubt))

    def end_segment_early(self) -> None:
        """Makes the text so far a segment of its own; later text starts a new one."""
        self._add(self._preparation.end_segment())

    def end(self) -> None:
        self._add(self._preparation.finish())
        self.ended.set()

    def _add(self, results: list[StreamResult]) -> None:
        for result in results:
            if isinstance(result, Pause | RequestError):
                self._waiting.append(self._within_limit(result) if isinstance(result, Pause) else result)
                continue
            if isinstance(result, Prosody):
                self._prosody = result
                continue
            segment = self._growing
            if segment is None:
                segment = Segment(turn=self._turn, prosody=self._prosody)
                self._waiting.append(segment)
            self._growing = None if result.ends else segment
            self._segment_chars += len(result.text.spoken)
            segment.push(result.text, complete=result.ends)
        self._changed.set()

    def _within_limit(self, pause: Pause) -> Pause | RequestError:
        try:
            self._pauses.add(pause.seconds)
        except RequestError as error:
            return error
        return pause

    def clear(self, spoken: Segment | None) -> None:
        """Drops everything but `spoken`, the segment that is being spoken."""
        if self._growing and self._growing not in self._waiting:
            self._growing.give_slot_back()
        self._preparation, self._prosody = self._open_preparation(), PLAIN
        self._waiting.clear()
        self._growing = None
        self._segment_chars = len(spoken.text) if spoken else 0

    def give_slot_back(self) -> None:
        """Completes the segment that is being spoken; later text starts a new one."""
        if self._growing and self._growing not in self._waiting:
            self._add(self._preparation.flush())
        if self._growing and self._growing not in self._waiting:
            self._growing.give_slot_back()
            self._growing = None

    async def has_next(self) -> bool:
        """Waits for the next item. Returns False when the text has ended and nothing is left."""
        while True:
            self._drop_blank_segments()
            if self._waiting:
                item = self._waiting[0]
                if not isinstance(item, Segment) or (item.text.strip() if self.streams else item.complete):
                    return True
            elif self.ended.is_set():
                return False
            self._changed.clear()
            await self._changed.wait()

    async def next_item(self) -> Segment | Pause | RequestError | None:
        """Returns None when the text has ended and nothing is left."""
        return self._waiting.popleft() if await self.has_next() else None

    def _drop_blank_segments(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if not isinstance(first, Segment) or not first.complete or first.text.strip():
                return
            self._waiting.popleft()
            self.end_segment(first)

    def end_segment(self, segment: Segment) -> None:
        """The segment was spoken. If its audio ended before its text, later pieces start a new segment."""
        self._segment_chars -= len(segment.text)
        if self._growing is segment:
            self._growing = None


# One utterance of a SpeechEngine, for a coroutine.


_STOPPED = "the engine was stopped before the utterance was complete; send the request again"


class Utterance:
    """Submits a request and receives its chunks. Leaving the `async with` block early cancels it."""

    remembered = False  # it was spoken before

    def __init__(self, engine: SpeechEngine, request: SpeechRequest, *, streaming_text: bool = False) -> None:
        self._engine, self._request, self._streaming_text = engine, request, streaming_text
        self._id = secrets.token_hex(8)
        self._chunks: asyncio.Queue[AudioChunk] = asyncio.Queue()
        self.ended = self._cancelled = False

    async def __aenter__(self) -> Self:
        """Raises what the engine's `submit` raises."""
        loop = asyncio.get_running_loop()

        def deliver(chunk: AudioChunk) -> None:
            try:
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                self.cancel()

        await self._engine.submit(self._id, self._request, deliver, streaming_text=self._streaming_text)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.ended:
            self.cancel()

    async def next(self) -> AudioChunk:
        """The next chunk; the last one has a finish_reason. Errors of the engine are raised."""
        chunk = await self._chunks.get()
        self.ended = chunk.finish_reason is not None
        if chunk.error is not None:
            raise chunk.error
        if chunk.finish_reason == "cancelled" and not self._cancelled:
            raise EngineError(_STOPPED)
        return chunk

    def append(self, text: str) -> None:
        """Adds to the text. Raises RequestError for text that cannot be spoken."""
        self._engine.send(self._id, AppendText(text))

    def end_text(self) -> None:
        """Says that no more text follows."""
        self._engine.send(self._id, EndText())

    def cancel(self) -> None:
        """Ends the utterance without its last chunks."""
        self._cancelled = True
        self._engine.send(self._id, Cancel())
