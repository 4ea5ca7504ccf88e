"""Turns the text of a request into what is spoken: segments of words for the model, and pauses between them.

`prepare_text` takes a whole text, `StreamingPreparation` one that arrives in pieces. First come pauses and the level
*clean*, then pronunciation entries, then the level *spoken*: what a request spells out itself is not changed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oscine.errors import RequestError
from oscine.fields import declared_fields
from oscine.text.chain import Chain, Stage
from oscine.text.cleaning import CleaningRule, is_plain
from oscine.text.english.reader import EnglishReader, ends_sentence
from oscine.text.options import ENGLISH, TextOptions, asked_level
from oscine.text.pauses import MAX_PAUSES_S, BreakRule, ParagraphRule, has_break
from oscine.text.pronunciations import PronunciationRule, check_pronunciations
from oscine.text.prosody import Prosody, ProsodyReader, has_prosody
from oscine.text.scanner import Piece, Rule, TextScanner
from oscine.text.segmenter import Segmenter, SegmenterConfig, SegmentPiece, segment_text
from oscine.text.spoken_text import Pause, Replacement, Run, SpokenBuffer, SpokenText
from oscine.text.ssml import SsmlRule, has_tags, is_tag_begun

Prepared = SpokenText | Pause | Prosody
_SLICE_CHARS = 4096  # prepared at once
ONLY_PAUSES = "the text holds pauses only; give at least one word to speak"
NO_WORDS = 'the text has no words, only marks; give at least one word to speak, or set text_level to "raw"'


def check_text_options(options: TextOptions, language: str) -> None:
    """Raises RequestError."""
    for name, declared in declared_fields(TextOptions).items():
        if (value := getattr(options, name)) is not declared.default:
            declared.check(value)
    if options.pronunciations:
        check_pronunciations(options.pronunciations)
    if asked_level(options) == "spoken" and language.lower() != ENGLISH:
        from oscine.text.normalization.rule import check_language  # here: it has large tables

        check_language(language)


def stages_for(options: TextOptions, language: str) -> list[Stage]:
    """The options are checked; a level that they leave open is "raw"."""
    level = asked_level(options) or "raw"
    rules: list[Rule] = []
    is_english = language.lower() == ENGLISH
    if options.markup:
        rules += [BreakRule(), SsmlRule(level, is_english=is_english)]
    if options.paragraph_pause_s:
        rules.append(ParagraphRule(options.paragraph_pause_s))
    if level != "raw":
        rules.append(CleaningRule(pauses_at_paragraphs=bool(options.paragraph_pause_s), keeps_tags=not options.markup))
    words: list[Rule] = []
    if options.pronunciations:
        words.append(PronunciationRule(options.pronunciations))
    if level == "spoken" and not is_english:
        from oscine.text.normalization.rule import NormalizationRule

        words.append(NormalizationRule(language))
    stages: list[Stage] = [TextScanner(stage) for stage in (rules, words) if stage]
    return [*stages, EnglishReader()] if level == "spoken" and is_english else stages


def prepare_text(
    text: str,
    options: TextOptions | None = None,
    language: str = "auto",
    config: SegmenterConfig | None = None,
    max_chars: int | None = None,
    check_cancelled: Callable[[], None] | None = None,
) -> list[Prepared]:
    """Segments and pauses in their order. Raises RequestError for a tag that cannot be read, for a text that is only
    pauses, and for one that has more than `max_chars` characters when it is spelled out.

    `check_cancelled` is called every few thousand characters and may raise an exception, which ends the work."""
    options, config = options or TextOptions(), config or SegmenterConfig()
    has_markup = (options.markup and (has_break(text) or has_tags(text))) or bool(options.paragraph_pause_s)
    level = asked_level(options) or "raw"
    is_cleaned = level == "raw" or (level == "clean" and is_plain(text))
    if level != "raw" and text.strip() and not has_words(text):
        raise RequestError(NO_WORDS, "text")
    if not text.strip() or (is_cleaned and not has_markup and not options.pronunciations):
        return [SpokenText.unchanged(segment) for segment in segment_text(text, config)]
    parts = _Parts(max_chars)
    chain = Chain(stages_for(options, language))
    reader = ProsodyReader() if options.markup and has_prosody(text) else None
    for start in range(0, len(text), _SLICE_CHARS):
        if check_cancelled is not None:
            check_cancelled()
        piece = text[start : start + _SLICE_CHARS]
        parts.read(chain, reader.push(piece) if reader else [piece])
    parts.read(chain, reader.finish() if reader else [])
    parts.extend(chain.finish())
    if level != "raw":
        parts.check_has_words()
    return parts.finish(config)


class _Parts:
    """The texts between pauses."""

    def __init__(self, max_chars: int | None) -> None:
        self._max_chars, self._chars = max_chars, 0
        self._limit = PauseLimit()
        self._done: list[SpokenBuffer | Pause | Prosody] = []

    def read(self, chain: Chain, parts: Iterable[str | Prosody]) -> None:
        for part in parts:
            if isinstance(part, Prosody):
                self.extend(chain.finish())
                self._done.append(part)
            else:
                self.extend(chain.push(part))

    def extend(self, pieces: Iterable[Piece]) -> None:
        words: list[Run] = []
        for written, spoken, pause_s, _ in pieces:
            if pause_s:
                self._push(words)
                words = []
                self._limit.add(pause_s)
                self._done.append(Pause(pause_s))
            else:
                words.append((written, None) if spoken is None else (spoken, written))
        self._push(words)

    def _push(self, words: list[Run]) -> None:
        if not words:
            return
        if not self._done or not isinstance(self._done[-1], SpokenBuffer):
            self._done.append(SpokenBuffer())
        buffer = self._done[-1]
        assert isinstance(buffer, SpokenBuffer)
        chars = len(buffer)
        buffer.extend(words)
        self._chars += len(buffer) - chars
        if self._max_chars is not None and self._chars > self._max_chars:
            message = f"spelled out, the text has more than {self._max_chars} characters (the limit); split it"
            raise RequestError(message, "text")

    def check_has_words(self) -> None:
        """Raises RequestError for a text of marks only, which is as good as empty."""
        buffers = [part for part in self._done if isinstance(part, SpokenBuffer)]
        if buffers and not any(has_words(part.spoken) for part in buffers):
            raise RequestError(NO_WORDS, "text")

    def finish(self, config: SegmenterConfig) -> list[Prepared]:
        # Next to pauses and changes, marks alone are not spoken.
        spoken = [part for part in self._done if not isinstance(part, SpokenBuffer) or has_words(part.spoken)]
        has_speech = any(isinstance(part, SpokenBuffer) for part in spoken)
        if not has_speech and any(isinstance(part, Pause) for part in spoken):
            raise RequestError(ONLY_PAUSES, "text")
        if self._done and not any(isinstance(part, SpokenBuffer) and part.spoken.strip() for part in self._done):
            raise RequestError(NO_WORDS, "text")
        items: list[Prepared] = []
        for part in spoken if has_speech else self._done or [SpokenBuffer()]:
            items += _segments(part, config) if isinstance(part, SpokenBuffer) else [part]
        return items


def _segments(part: SpokenBuffer, config: SegmenterConfig) -> list[SpokenText]:
    text, at = part.spoken, 0
    segments: list[SpokenText] = []
    for segment in segment_text(text.strip(), config):
        start = text.index(segment, at)
        gap = part.take(start - at)
        if segments and gap.written.strip():  # what was left out belongs to the text before it
            segments[-1] += _silent(gap)
        elif gap.written.strip():
            segments.append(_silent(gap) + part.take(len(segment)))
            at = start + len(segment)
            continue
        segments.append(part.take(len(segment)))
        at = start + len(segment)
    rest = part.take_rest()
    if segments and rest.written.strip():
        segments[-1] += _silent(rest)
    return segments


def _silent(text: SpokenText) -> SpokenText:
    """The same written text, of which nothing is spoken."""
    return SpokenText("", text.written, (Replacement(0, 0, 0, len(text.written)),))


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """A piece of a streaming text."""

    text: SpokenText
    ends: bool  # its segment


StreamResult = StreamPiece | Pause | Prosody | RequestError


class StreamingPreparation:
    """Prepares a text that arrives in pieces. Its segments do not depend on how it was cut.

    Text passes as soon as it is clear how it is spoken: a tag when it ends, a word that an entry may replace at
    the next character.
    """

    def __init__(self, options: TextOptions, language: str, config: SegmenterConfig) -> None:
        stages = stages_for(options, language)
        self.changes_words = options.changes_words
        self._scanner = Chain(stages) if stages else None
        self._segmenter = Segmenter(config)
        self._limit = PauseLimit()
        self._buffer = SpokenBuffer()  # given to the segmenter
        # Text after a pause, and without markup also the first one, until a word comes.
        self._after_pause: list[Piece] | None = [] if asked_level(options) in ("clean", "spoken") else None
        self._prosody = ProsodyReader() if options.markup else None
        self._begun = False
        self._is_blank = True  # nothing but white space came
        self._failed = False

    @property
    def held_chars(self) -> int:
        """Characters of the text that was not returned yet."""
        scanned = len(self._scanner.held) if self._scanner else 0
        scanned += len(self._prosody.held) if self._prosody else 0
        return scanned + len(self._buffer) + sum(len(piece.said) for piece in self._after_pause or ())

    def push(self, text: str) -> list[StreamResult]:
        """An error is the last result: the text after it is dropped."""
        self._is_blank = self._is_blank and not text.strip()
        if self._prosody is None or not ("<" in text or self._prosody.held):
            return self._scanned(text)
        return self._read(self._prosody.push(text))

    def _read(self, parts: Iterable[str | Prosody]) -> list[StreamResult]:
        results: list[StreamResult] = []
        try:
            for part in parts:
                results += self._changed(part) if isinstance(part, Prosody) else self._scanned(part)
        except RequestError as error:
            results += [] if self._failed else [*self._ended(), error]
            self._failed = True
        return results

    def _scanned(self, text: str) -> list[StreamResult]:
        return self._prepared(self._scanner.push(text) if self._scanner else [Piece(text)])

    def _changed(self, prosody: Prosody) -> list[StreamResult]:
        """The text so far ends a segment; what follows is spoken differently."""
        results = self._prepared(self._scanner.finish() if self._scanner else ())
        if self._failed:
            return results
        results += self._ended()
        self._after_pause = []
        return [*results, prosody]

    def flush(self) -> list[StreamResult]:
        """The text paused: its words are returned as if it had ended. A tag still waits for its end."""
        if self._scanner is None or not self._scanner.held:
            return []
        if self._prosody and (self._prosody.held or is_tag_begun(self._scanner.held_first)):
            return []
        return self._prepared(self._scanner.finish())

    def end_sentence(self, *, in_doubt: bool) -> list[StreamResult]:
        """The text paused: if it ends with a sentence, its segment ends too. `in_doubt`: also if it may go on."""
        held = self._scanner.held if self._scanner else ""
        results = self.flush() if in_doubt or ends_sentence(held.strip()) else []
        if self._waits:
            return results
        return [*results, *self._pieces(self._segmenter.end_sentence(in_doubt=in_doubt))]

    def end_segment(self) -> list[StreamResult]:
        """The segment ends with the text so far. A tag still waits for its end."""
        results = self.flush()
        if self._waits:
            return results
        return [*results, *self._pieces(self._segmenter.finish())]

    @property
    def _waits(self) -> bool:
        """Whether the segment cannot end now."""
        held = (self._scanner and self._scanner.held) or (self._prosody and self._prosody.held)
        return self._failed or bool(held)

    def finish(self) -> list[StreamResult]:
        """The rest of the text. A text without words ends with an error, as a whole one does."""
        results = self._read(self._prosody.finish()) if self._prosody and self._prosody.held else []
        results += self._prepared(self._scanner.finish() if self._scanner else ())
        if self._failed:
            return results
        results += self._ended()
        if self._after_pause is not None and not (self._begun or self._is_blank):
            self._failed = True
            has_pauses = self._limit.total_s > 0
            results.append(RequestError(ONLY_PAUSES if has_pauses else NO_WORDS, "text"))
        return results

    def _prepared(self, pieces: Iterable[Piece]) -> list[StreamResult]:
        results: list[StreamResult] = []
        if self._failed:
            return results
        words: list[Piece] = []  # up to the next pause
        try:
            for piece in pieces:
                if not piece.pause_s:
                    words.append(piece)
                    continue
                results += self._words(words)
                words = []
                results += self._pause(piece.pause_s)
            results += self._words(words)
        except RequestError as error:
            self._failed = True
            results += [*self._words(words), *self._ended(), error]
        return results

    def _ended(self) -> list[StreamPiece]:
        """The end of the segment, with what was left out there."""
        pieces = self._pieces(self._segmenter.finish())
        rest = self._buffer.take_rest()
        if pieces and rest.written:
            pieces[-1] = StreamPiece(pieces[-1].text + rest, pieces[-1].ends)
        return pieces

    def _pause(self, pause_s: float) -> list[StreamPiece | Pause]:
        self._limit.add(pause_s)
        ended = self._ended()
        self._after_pause = []
        return [*ended, Pause(pause_s)]

    def _words(self, pieces: list[Piece]) -> list[StreamPiece]:
        if self._after_pause is not None:
            self._after_pause += pieces
            if not any(has_words(piece.said) for piece in pieces):
                return []
            pieces, self._after_pause = self._after_pause, None
            if self._begun:
                pieces = _stripped(pieces)
        if not pieces:
            return []
        self._begun = True
        self._buffer.extend((one.said, None if one.spoken is None else one.written) for one in pieces)
        return self._pieces(self._segmenter.push("".join([one.said for one in pieces])))

    def _pieces(self, pieces: Iterable[SegmentPiece]) -> list[StreamPiece]:
        return [StreamPiece(self._buffer.take(len(piece.text)), piece.ends) for piece in pieces]


def _stripped(pieces: list[Piece]) -> list[Piece]:
    """Drops the white space before the first visible character."""
    first = next(index for index, piece in enumerate(pieces) if piece.said.strip())
    left_out = [piece for piece in pieces[:first] if piece.written.strip()]
    piece = pieces[first]
    return [*left_out, Piece(piece.written.lstrip()) if piece.spoken is None else piece, *pieces[first + 1 :]]


def has_words(text: str) -> bool:
    """Also of a text that is refused later, for a lone surrogate."""
    return any(map(str.isalnum, text)) or any("\ud800" <= char <= "\udfff" for char in text)


class PauseLimit:
    """Bounds the silence of one text."""

    def __init__(self) -> None:
        self.total_s = 0.0

    def add(self, pause_s: float) -> None:
        """Raises RequestError."""
        self.total_s += pause_s
        if self.total_s > MAX_PAUSES_S:
            message = f"the pauses of the text are longer than {MAX_PAUSES_S:g} s together (the limit); split the text"
            raise RequestError(message, "text")
