"""Phrases that were spoken before: the same text with the same voice, settings and seed, from memory.

A row's codes do not depend on its batch, so what is remembered is what the engine would make again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any, Literal, Self

from oscine.errors import NotFoundError, OverloadedError
from oscine.process.resources import Account
from oscine.request import SpeechRequest
from oscine.speech.script import Utterance
from oscine.types import AudioChunk, SpeechEngine
from oscine.voice import Voice

_Key = tuple[Hashable, ...]  # the model, then the fields of a request
CacheUse = Literal["auto", "off", "only"]

MAX_PHRASE_S = 30.0  # longer ones are not kept, nor collected to be kept
_FIRST_S, _PIECE_S = 0.08, 1.0  # of the pieces that a remembered phrase comes in
_ENTRY_BYTES = 1024  # of a phrase, beside its samples and its texts
_CHARACTER_BYTES = 4  # at most
# Of a request, what says when it is spoken, not how.
_NOT_OF_THE_SOUND = ("continues_s", "resumes")
_FIELDS = tuple(one.name for one in fields(SpeechRequest) if one.name not in _NOT_OF_THE_SOUND)


@dataclass(frozen=True, slots=True)
class Phrase:
    pcm: bytes
    end: AudioChunk  # the last chunk, without samples


def _size(key: _Key, phrase: Phrase) -> int:
    return _ENTRY_BYTES + len(phrase.pcm) + _CHARACTER_BYTES * sum(len(one) for one in key if isinstance(one, str))


class PhraseCache:
    """The phrases that were used last. On the event loop only."""

    def __init__(self, max_bytes: int, recorded: Account) -> None:
        """`recorded` counts phrases that are not in the cache yet."""
        self._max_bytes, self.recorded = max_bytes, recorded
        self._phrases: OrderedDict[_Key, Phrase] = OrderedDict()
        self.bytes = self.hits = self.misses = 0

    def find(self, key: _Key) -> Phrase | None:
        if phrase := self._phrases.get(key):
            self._phrases.move_to_end(key)
            self.hits += 1
        else:
            self.misses += 1
        return phrase

    def keep(self, key: _Key, phrase: Phrase) -> None:
        if key in self._phrases or _size(key, phrase) > self._max_bytes:
            return
        self._phrases[key] = phrase
        self.bytes += _size(key, phrase)
        while self.bytes > self._max_bytes:
            self.bytes -= _size(*self._phrases.popitem(last=False))

    def forget(self, model: object) -> None:
        """Drops the phrases of a model that was removed."""
        for key in [key for key in self._phrases if key[0] is model]:
            self.bytes -= _size(key, self._phrases.pop(key))

    def __len__(self) -> int:
        return len(self._phrases)


@dataclass(frozen=True, slots=True)
class ModelPhrases:
    """The cache as one request uses it."""

    cache: PhraseCache
    model: Hashable  # stands for the checkpoint and how it is run
    rate_hz: int
    only: bool = False

    def utterance(self, engine: SpeechEngine, request: SpeechRequest) -> Utterance:
        """The remembered utterance, or one that will be remembered. Raises NotFoundError if it must be there and is
        not."""
        key = (self.model, *(_hashable(getattr(request, name)) for name in _FIELDS))
        if phrase := self.cache.find(key):
            return _RememberedUtterance(engine, request, phrase, self.rate_hz)
        if self.only:
            message = "this phrase is not in the cache: it was not spoken with this voice, these settings and this seed"
            raise NotFoundError(f"{message}; send it once with cache 'auto'", "cache", code="not_cached")
        return _RecordedUtterance(engine, request, self, key)

    def keep(self, key: _Key, pcm: bytes, end: AudioChunk) -> None:
        self.cache.keep(key, Phrase(pcm, replace(end, pcm=b"")))


def _hashable(value: Any) -> Hashable:
    return value.content_hash if isinstance(value, Voice) else value


class _RecordedUtterance(Utterance):
    """Is kept if it comes to its natural end."""

    def __init__(self, engine: SpeechEngine, request: SpeechRequest, phrases: ModelPhrases, key: _Key) -> None:
        super().__init__(engine, request)
        self._phrases, self._key = phrases, key
        self._pcm: bytearray | None = bytearray()  # None: it is not kept
        self._recorded = phrases.cache.recorded.open()

    async def next(self) -> AudioChunk:
        chunk = await super().next()
        if self._pcm is not None:
            self._record(self._pcm, chunk)
        return chunk

    async def __aexit__(self, *raised: Any) -> None:
        self._recorded.close()
        await super().__aexit__(*raised)

    def _record(self, pcm: bytearray, chunk: AudioChunk) -> None:
        try:
            self._recorded.add(len(chunk.pcm))
        except OverloadedError:
            self._pcm = None
            return
        pcm += chunk.pcm
        if len(pcm) > 2 * MAX_PHRASE_S * self._phrases.rate_hz:
            self._pcm = None
            self._recorded.close()
        elif chunk.finish_reason == "stop":
            self._phrases.keep(self._key, bytes(pcm), chunk)


class _RememberedUtterance(Utterance):
    """Needs no engine: it comes as fast as its reader takes it."""

    remembered = True

    def __init__(self, engine: SpeechEngine, request: SpeechRequest, phrase: Phrase, rate_hz: int) -> None:
        super().__init__(engine, request)
        self._pieces = self._cut(phrase, rate_hz)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def next(self) -> AudioChunk:
        return next(self._pieces)

    @staticmethod
    def _cut(phrase: Phrase, rate_hz: int) -> Iterator[AudioChunk]:
        begin, size = 0, 2 * round(_FIRST_S * rate_hz)
        while begin < len(phrase.pcm):
            yield replace(phrase.end, pcm=phrase.pcm[begin : begin + size], first_sample=begin // 2, finish_reason=None)
            begin, size = begin + size, 2 * round(_PIECE_S * rate_hz)
        yield phrase.end
