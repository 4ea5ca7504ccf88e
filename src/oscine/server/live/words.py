"""Word timestamps of one utterance, in the form that the client asked for (`SpeechPlan.words`)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from oscine.server.api.word_fields import millisecond_words, missing_times, word_alignment, word_event
from oscine.server.live.connection import LiveConnection
from oscine.server.service import Service
from oscine.server.speech_plan import SpeechPlan
from oscine.speech.events import Words
from oscine.speech.narration import NarrationChunk
from oscine.speech.words import WordTimer


class LiveWords:
    """Sends audio and events about words; `index` is the utterance's, `sentence_index` that of a file in it."""

    def __init__(
        self, service: Service, connection: LiveConnection, plan: SpeechPlan, index: int, sentence_index: int
    ) -> None:
        self._connection, self._plan, self._index, self._sentence_index = connection, plan, index, sentence_index
        self._timer: WordTimer | None = service.word_timer(plan) if plan.words else None
        self._segments: list[Words] = []
        self._chunks = self._samples = self._chunk_samples = 0

    @property
    def start_fields(self) -> dict[str, bool]:
        """Fields of `audio.start`."""
        return {"word_timestamps": True} if self._plan.words == "chunks" else {}

    async def send_audio(self, data: bytes, chunk: NarrationChunk) -> None:
        """`data` is the chunk's encoded audio."""
        samples = len(chunk.pcm) // 2
        if data and self._plan.words == "chunks":
            await self._send_chunk(data, self._chunk_samples, self._samples + samples)
            self._chunk_samples = self._samples + samples
        elif data:
            await self._connection.send_audio(data)
        self._samples += samples
        if self._timer:
            self._timer.push(chunk.pcm, chunk.segment)
            await self._send_events(self._timer.finished())

    async def finish(self, gives_up: Callable[[], bool]) -> dict[str, Any]:
        """Sends the rest, and returns fields of `audio.done`."""
        if self._timer is None:
            return {}
        await self._send_events(await self._timer.rest(gives_up))
        words = [word for segment in self._segments for word in segment.words]
        warning = missing_times(self._segments)
        if self._plan.words == "chunks":
            await self._send_chunk(b"", 0, self._samples, None if warning else millisecond_words(words), warning)
        return {"timestamp_info": word_alignment(words)} if self._plan.words == "at_end" else {}

    def close(self) -> None:
        if self._timer:
            self._timer.close()

    async def _send_events(self, segments: list[Words]) -> None:
        self._segments += segments
        for segment in segments:
            fields = word_event(segment)
            fields["index"] += self._sentence_index
            await self._connection.send_event("audio.words", utterance_index=self._index, **fields)

    async def _send_chunk(
        self,
        data: bytes,
        first: int,
        last: int,
        timestamps: list[dict[str, Any]] | None = None,
        warning: str | None = None,
    ) -> None:
        """Audio as JSON: vLLM-Omni's form of a stream with timestamps, which come with the last chunk."""
        await self._connection.send_event(
            "audio.chunk",
            utterance_index=self._index,
            sentence_index=self._sentence_index,
            chunk_id=self._chunks,
            chunk_start_ms=round(1000 * self._plan.playback_s(first)),
            chunk_end_ms=round(1000 * self._plan.playback_s(last)),
            sample_rate=self._plan.out_rate_hz,
            audio_b64=base64.b64encode(data).decode(),
            timestamps=timestamps,
            **({"warning": warning} if warning else {}),
        )
        self._chunks += 1
