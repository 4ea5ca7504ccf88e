"""Voices cloned from the clips of requests: each clip once, with warnings about it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from cachetools import LRUCache

from oscine.align.aligner import AlignerError
from oscine.audio.checks import examine, trim_at_pause, warnings
from oscine.audio.clips import Clip, check_reference, read_clip
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.audio.pcm import Samples
from oscine.errors import NotReadyError, VoiceError
from oscine.process.resources import Holding, Ledger
from oscine.types import SpeechEngine
from oscine.voice import Voice

AUTO = "auto"  # as a transcript: the server transcribes the clip

Transcribe = Callable[[Samples, int], Awaitable[str]]  # samples, rate_hz; raises AlignerError


class ClonedVoice(NamedTuple):
    voice: Voice
    warnings: tuple[str, ...] = ()  # about the clip, for its owner


def clip_hash(clip: bytes, transcript: str | None) -> str:
    digest = hashlib.sha256(f"{len(clip)} {transcript is None}:".encode())
    digest.update(clip)
    digest.update((transcript or "").encode(errors="surrogatepass"))
    return digest.hexdigest()


class ClonedVoices:
    """Clones voices on a few threads, each clip once: concurrent requests for a clip share one clone, and recent ones
    are cached. For one event loop."""

    def __init__(
        self, engine: SpeechEngine, ledger: Ledger, transcribe: Transcribe | None = None, *, max_voices: int = 256
    ) -> None:
        self._engine, self._transcribe = engine, transcribe
        self._voices: LRUCache[str, ClonedVoice] = LRUCache(max_voices)
        self._pending: dict[str, asyncio.Future[ClonedVoice]] = {}
        self._clones, self._clips, self._bytes = ledger.pool("clone"), ledger.pool("clip_decoding"), ledger["clip"]

    async def get(self, clip: bytes, transcript: str | None = None, held: Holding | None = None) -> ClonedVoice:
        """Returns the voice of a clip. With the transcript "auto", the clip is trimmed at a pause and transcribed.
        `held` counts the clip, and is given back when it is not needed any more.
        Raises VoiceError about the clip, the errors of the engine's `clone`, and OverloadedError if too many clones are
        pending."""
        if transcript == AUTO and self._transcribe is None:
            message = "ref_text 'auto' needs a server with an aligner (--aligner); send the words of the clip instead"
            raise VoiceError(message, "ref_text")
        with contextlib.closing(held or self._bytes.open()) as held:
            held.resize(len(clip))
            key = await self._clips.run(clip_hash, clip, transcript)
            if (voice := self._voices.get(key)) is not None:
                return voice
            if key not in self._pending:
                pending = asyncio.ensure_future(self._clone(clip, transcript, held.moved()))
                self._pending[key] = pending
                pending.add_done_callback(functools.partial(self._done, key))
        del clip  # the clone holds it
        # Shielded: a client that disconnects does not cancel the clone for others, nor for the cache.
        return await asyncio.shield(self._pending[key])

    async def _clone(self, encoded: bytes, transcript: str | None, held: Holding) -> ClonedVoice:
        with contextlib.closing(held):
            if transcript != AUTO:
                return await self._clones.run(lambda: self._encode(_read(encoded), transcript))
            clip = await self._clones.run(lambda: trim_at_pause(_read(encoded)))
            words = await self._transcribed(clip)
            return await self._clones.run(self._encode, clip, words)

    def _encode(self, clip: Clip, transcript: str | None) -> ClonedVoice:
        report = self._clips.executor.submit(examine, clip)  # at the same time as the engine clones
        voice = self._engine.clone((clip.samples, clip.rate_hz), transcript)
        return ClonedVoice(voice, warnings(report.result(), transcript))

    async def _transcribed(self, clip: Clip) -> str:
        assert self._transcribe is not None
        try:
            words = (await self._transcribe(clip.samples, clip.rate_hz)).strip()
        except AlignerError as error:
            message = f"the clip could not be transcribed: {error}; retry, or send its words as ref_text"
            raise NotReadyError(message, 5.0, "ref_text") from error
        if not words:
            raise VoiceError("no words were recognized in the clip; send them as ref_text", "ref_text")
        return words

    def _done(self, key: str, pending: asyncio.Future[ClonedVoice]) -> None:
        del self._pending[key]
        if not pending.cancelled() and pending.exception() is None:
            self._voices[key] = pending.result()


def _read(encoded: bytes) -> Clip:
    clip = read_clip(encoded, REFERENCE_CLIP)
    check_reference(clip)
    return clip
