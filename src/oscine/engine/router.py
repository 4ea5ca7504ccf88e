"""Several engines, one per GPU, behind one SpeechEngine.

A request goes to the least loaded engine that is ready. A voice prefers the engine that served it last, because its
prefix is cached there.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from cachetools import LRUCache

from oscine.errors import ConfigError, EngineError, OverloadedError, clear_tracebacks
from oscine.request import SpeechRequest
from oscine.types import AudioChunk, ClipData, Command, Deliver, EngineStatus, SpeechEngine, TickHistogram
from oscine.voice import Voice

_SUMMED = [one.name for one in fields(EngineStatus) if one.name not in ("ready", "tick_s", "ticks", "device")]


@dataclass(slots=True)
class _Tries:
    """The engines tried so far for one call, best first, and their errors."""

    engines: int
    voice: str | None = None
    tried: set[int] = field(default_factory=set)
    overloaded: list[OverloadedError] = field(default_factory=list)
    failed: list[EngineError] = field(default_factory=list)

    def error(self) -> OverloadedError | EngineError:
        if self.overloaded:
            return min(self.overloaded, key=lambda error: error.retry_after_s)
        return self.failed[0] if self.failed else EngineError(f"none of {self.engines} engines is ready")


class Router:
    def __init__(self, engines: Sequence[SpeechEngine], *, affinity_margin: int = 4, max_voices: int = 4096) -> None:
        """`affinity_margin` is how many more utterances the preferred engine may have than the least loaded one."""
        if not engines:
            raise ConfigError("a router needs at least one engine")
        self.engines = list(engines)
        self._affinity_margin = affinity_margin
        self._lock = threading.Lock()
        self._entering = [0] * len(engines)  # chosen, but not yet in the engine's own count
        self._chosen = [0] * len(engines)
        self._preferred: LRUCache[str, int] = LRUCache(max_voices)  # voice -> engine that served it last
        self._homes: dict[str, SpeechEngine] = {}  # running utterance -> the engine that speaks it

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        def deliver_and_forget(chunk: AudioChunk) -> None:
            if chunk.finish_reason is not None:
                self._homes.pop(utterance_id, None)
            deliver(chunk)

        tries = _Tries(len(self.engines), _voice_key(request))
        while (index := self._choose(tries)) is not None:
            self._homes[utterance_id] = engine = self.engines[index]
            with self._trying(index, tries):
                try:
                    await engine.submit(utterance_id, request, deliver_and_forget, streaming_text=streaming_text)
                except BaseException:
                    self._homes.pop(utterance_id, None)
                    raise
                if tries.voice is not None:
                    with self._lock:
                        self._preferred[tries.voice] = index
                return
        raise tries.error()

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        tries = _Tries(len(self.engines))
        while (engine := self._choose(tries)) is not None:
            with self._trying(engine, tries):
                return self.engines[engine].clone(clip, transcript)
        raise tries.error()

    def preset(self, name: str) -> Voice:
        tries = _Tries(len(self.engines))
        while (engine := self._choose(tries)) is not None:
            with self._trying(engine, tries):
                return self.engines[engine].preset(name)
        raise tries.error()

    def send(self, utterance_id: str, command: Command) -> None:
        if engine := self._homes.get(utterance_id):
            engine.send(utterance_id, command)

    def status(self) -> EngineStatus:
        """Sums the status of all ready engines; the tick is that of the slowest."""
        ready = [status for engine in self.engines if (status := engine.status()).ready]
        devices = Counter(status.device for status in ready)
        ticks = [status.ticks for status in ready]
        counts = zip(TickHistogram().counts, *(one.counts for one in ticks), strict=True)
        return EngineStatus(
            ready=bool(ready),
            tick_s=max((status.tick_s for status in ready), default=0.0),
            ticks=TickHistogram(tuple(map(sum, counts)), sum(one.sum_s for one in ticks)),
            device=" + ".join(f"{count} x {name}" if count > 1 else name for name, count in devices.items()),
            **{name: sum(getattr(status, name) for status in ready) for name in _SUMMED},
        )

    def stop(self, drain_s: float = 0.0) -> None:
        """Stops all engines at the same time. Raises the first error after all have stopped."""
        errors: list[Exception] = []

        def stop_one(engine: SpeechEngine) -> None:
            try:
                engine.stop(drain_s)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=stop_one, args=(engine,), name="oscine-stop") for engine in self.engines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    @contextlib.contextmanager
    def _trying(self, engine: int, tries: _Tries) -> Iterator[None]:
        """Records that this engine is overloaded or failing; the caller then tries the next one."""
        tries.tried.add(engine)
        try:
            yield
        except OverloadedError as error:
            clear_tracebacks(error)
            tries.overloaded.append(error)
        except EngineError as error:
            clear_tracebacks(error)
            tries.failed.append(error)
        finally:
            with self._lock:
                self._entering[engine] -= 1

    def _choose(self, tries: _Tries) -> int | None:
        """Returns the engine to try next. It is counted at once, so that simultaneous callers do not all choose the
        same."""
        voice = tries.voice
        statuses = {index: engine.status() for index, engine in enumerate(self.engines) if index not in tries.tried}
        with self._lock:
            loads = {
                index: status.load + self._entering[index] / status.capacity
                for index, status in statuses.items()
                if status.ready
            }
            if not loads:
                return None
            best = min(loads, key=lambda index: (loads[index], self._chosen[index]))  # of equals, the least chosen
            preferred = self._preferred.get(voice) if voice is not None else None
            if preferred in loads:
                margin = self._affinity_margin / statuses[preferred].capacity
                best = preferred if loads[preferred] <= loads[best] + margin else best
            self._entering[best] += 1
            self._chosen[best] += 1
            return best


def _voice_key(request: SpeechRequest) -> str | None:
    if isinstance(request.voice, Voice):
        return f"cloned:{request.voice.content_hash}"
    return f"preset:{request.voice}".lower() if request.voice else None
