"""Several engines, one per GPU, behind one SpeechEngine: the least loaded one that works. A voice stays with its engine
while that costs nobody a place, because its prefix is cached there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from oscine.types import (
    AudioChunk,
    ClipData,
    Command,
    ConfigError,
    EngineError,
    EngineStatus,
    OverloadedError,
    SpeechEngine,
    SpeechRequest,
    TickHistogram,
)
from oscine.voice import Voice

_Answer = TypeVar("_Answer")


class Router:
    def __init__(self, engines: Sequence[SpeechEngine], *, affinity_margin: int = 4, voices_kept: int = 4096) -> None:
        """`affinity_margin`: how many utterances more than the least loaded engine a voice's own one may have."""
        if not engines:
            raise ConfigError("a router needs at least one engine")
        self._engines = list(engines)
        self._affinity_margin = affinity_margin
        self._voices_kept = voices_kept
        self._lock = threading.Lock()
        self._entering = [0] * len(engines)  # chosen, and not yet in the engine's own count
        self._chosen = [0] * len(engines)
        self._homes: OrderedDict[str, int] = OrderedDict()  # voice -> engine that served it last; oldest first

    def submit(
        self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, streaming_text: bool = False
    ) -> str:
        voice = _voice_key(request)
        engine, utterance_id = self._ask(
            voice, lambda engine: engine.submit(request, deliver, streaming_text=streaming_text)
        )
        self._remember(voice, engine)
        return f"{engine}.{utterance_id}"

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """By any of them: voices are values."""
        _, voice = self._ask(None, lambda engine: engine.clone(clip, transcript))
        return voice

    def tell(self, utterance_id: str, command: Command) -> None:
        engine, _, own_id = utterance_id.partition(".")
        if engine.isdecimal() and int(engine) < len(self._engines):
            self._engines[int(engine)].tell(own_id, command)

    def status(self) -> EngineStatus:
        """The sums over the engines that are ready; the tick of the slowest."""
        ready = [status for engine in self._engines if (status := engine.status()).ready]
        return EngineStatus(
            ready=bool(ready),
            slots=sum(status.slots for status in ready),
            slots_active=sum(status.slots_active for status in ready),
            queued=sum(status.queued for status in ready),
            frames=sum(status.frames for status in ready),
            tick_s=max((status.tick_s for status in ready), default=0.0),
            ticks=_sum_of([status.ticks for status in ready]),
            underruns=sum(status.underruns for status in ready),
            prefix_hits=sum(status.prefix_hits for status in ready),
            prefix_misses=sum(status.prefix_misses for status in ready),
            prefix_bytes=sum(status.prefix_bytes for status in ready),
            memory_bytes=sum(status.memory_bytes for status in ready),
        )

    def stop(self, drain_s: float = 0.0) -> None:
        """All at once, so that they drain during the same time. Raises the first error after all have ended."""
        errors: list[Exception] = []

        def stop_one(engine: SpeechEngine) -> None:
            try:
                engine.stop(drain_s)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=stop_one, args=(engine,), name="oscine-stop") for engine in self._engines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _ask(self, voice: str | None, ask: Callable[[SpeechEngine], _Answer]) -> tuple[int, _Answer]:
        """The best engine that is not too busy and does not fail, and its answer."""
        overloaded: list[OverloadedError] = []
        failed: list[EngineError] = []
        tried: set[int] = set()
        while (engine := self._enter(voice, tried)) is not None:
            tried.add(engine)
            try:
                return engine, ask(self._engines[engine])
            except OverloadedError as error:
                overloaded.append(error)
            except EngineError as error:
                failed.append(error)
            finally:
                with self._lock:
                    self._entering[engine] -= 1
        if overloaded:
            raise min(overloaded, key=lambda error: error.retry_after_s)
        raise failed[0] if failed else EngineError(f"none of {len(self._engines)} engines is ready")

    def _enter(self, voice: str | None, tried: set[int]) -> int | None:
        """The engine to try next, counted as entered, so that callers at the same moment do not all choose the same."""
        statuses = {index: engine.status() for index, engine in enumerate(self._engines) if index not in tried}
        with self._lock:
            loads = {
                index: status.slots_active + status.queued + self._entering[index]
                for index, status in statuses.items()
                if status.ready
            }
            if not loads:
                return None
            # Among equals, the one chosen least so far.
            best = min(loads, key=lambda index: (loads[index], self._chosen[index]))
            home = self._homes.get(voice) if voice is not None else None
            if home in loads and loads[home] <= loads[best] + self._affinity_margin:
                best = home
            self._entering[best] += 1
            self._chosen[best] += 1
            return best

    def _remember(self, voice: str | None, engine: int) -> None:
        if voice is None:
            return
        with self._lock:
            self._homes[voice] = engine
            self._homes.move_to_end(voice)
            if len(self._homes) > self._voices_kept:
                self._homes.popitem(last=False)


def _sum_of(histograms: Sequence[TickHistogram]) -> TickHistogram:
    columns = zip(TickHistogram().counts, *(one.counts for one in histograms), strict=True)
    return TickHistogram(tuple(sum(column) for column in columns), sum(one.sum_s for one in histograms))


def _voice_key(request: SpeechRequest) -> str | None:
    if isinstance(request.voice, Voice):
        return f"cloned:{request.voice.content_hash}"
    return f"preset:{request.voice}".lower() if request.voice else None
