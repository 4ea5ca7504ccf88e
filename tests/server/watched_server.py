"""A server in a process of its own whose event loop is watched: `python -m tests.server.watched_server VOICES_DIR`.

GET /longest-hold answers with the longest time that the loop was held since the last such request, in seconds of the
process's own CPU time. So other programs on the machine do not count, and a thread that holds the interpreter lock
does. GET /scale answers how much slower this machine is now than the one on which the limit was set: other programs
slow down the cores' memory too.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.http.listener import bind
from oscine.server.web_server import WebServer
from oscine.voice import Voice
from tests.corpora.requests import STORED_VOICE
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine

STORED_VOICES = 990
_BEAT_S = 0.002
# A real engine runs in another process. A thread that speaks without a pause would use CPU time while the loop waits
# for a core, and the loop would have more frames to send after each wait.
_FRAME_S = 0.01
_UNIT_S = 0.030  # CPU time of `_unit_of_work` on the machine on which the limit was set


class LoopWatch:
    def __init__(self) -> None:
        self._longest_s = self._last_s = 0.0

    async def beat(self) -> None:
        while True:
            self._last_s = time.process_time()
            await asyncio.sleep(_BEAT_S)
            self._longest_s = max(self._longest_s, time.process_time() - self._last_s)

    async def take_longest_s(self) -> float:
        await asyncio.sleep(5 * _BEAT_S)  # a hold that has just ended is counted with the next beat
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s


def _unit_of_work() -> float:
    begun_s = time.process_time()
    text = json.dumps(list(range(100_000)))
    sum(json.loads(text))
    return time.process_time() - begun_s


def watched_app(voices_dir: Path) -> FastAPI:
    app = build_app(
        ScriptedEngine(frame_s=_FRAME_S), BASE_CARD, ServerConfig(voices_dir=str(voices_dir), ref_urls=True, port=0)
    )
    watch = LoopWatch()
    lifespan = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def watched_lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with lifespan(app):
            beating = asyncio.create_task(watch.beat())
            yield
            beating.cancel()

    app.router.lifespan_context = watched_lifespan

    async def longest_hold() -> float:
        return await watch.take_longest_s()

    async def scale() -> float:
        return max(1.0, statistics.median(_unit_of_work() for _ in range(5)) / _UNIT_S)

    app.add_api_route("/longest-hold", longest_hold)
    app.add_api_route("/scale", scale)
    return app


def main(voices_dir: Path) -> None:
    voices_dir.mkdir(exist_ok=True)
    voice = Voice(np.arange(BASE_CARD.speaker_width, dtype=np.float32))
    for number in range(STORED_VOICES):
        voice.save(voices_dir / f"{STORED_VOICE:a<58}-{number:04}.safetensors")
    app = watched_app(voices_dir)
    listener = bind("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    WebServer(app).run_until_stopped(listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
