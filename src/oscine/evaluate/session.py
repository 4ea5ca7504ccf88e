"""The set is spoken through a server by so many callers at once, and every answer becomes a WAV file.

Texts and seeds are those of oscine.bench's workload: a function of the seed alone, whoever is asked and however fast.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oscine.audio import wav_header
from oscine.bench.client import HttpClient
from oscine.bench.exchange import Client, Exchange
from oscine.bench.live import LiveClient
from oscine.bench.load import Load, LoadRun, Span
from oscine.bench.record import make_result
from oscine.bench.session import run_async, showing
from oscine.bench.sound import BadSoundError, Sound, hear
from oscine.bench.summary import Judge
from oscine.bench.targets import Target
from oscine.bench.workload import Utterance, Workload
from oscine.evaluate.quality import clipped_share, silence_share
from oscine.evaluate.recording import FORMAT, KIND, RESULT, Evaluation, Recording
from oscine.evaluate.words import language_of
from oscine.types import OscineError, RequestError

_BUSY = ("http_429", "http_503")
_SOON_S, _LATE_S = 0.05, 10.0


def telling(target: Target) -> Target:
    """Asked for the whole answer at once, our server says in a header how the speech ended. Nobody waits for sound."""
    if target.preset_name != "oscine" or target.sse:
        return target
    return replace(target, extra={"stream": False, "stream_format": None, **target.extra})


class PatientClient:
    """Asks again, when it was told to, whoever was too busy: to be refused is no way of speaking badly."""

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client, self._patience_s = client, patience_s

    async def speak(self, utterance: Utterance, due_s: float | None = None) -> Exchange:
        give_up_s = time.monotonic() + self._patience_s
        while True:
            exchange = await self._client.speak(utterance, due_s)
            if exchange.failure is None or exchange.failure.kind not in _BUSY:
                return exchange
            wait_s = _retry_after_s(exchange.headers.get("retry-after", ""))
            if time.monotonic() + wait_s > give_up_s:
                return exchange
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        await self._client.close()


def _retry_after_s(told: str) -> float:
    try:
        return min(max(float(told), _SOON_S), _LATE_S)
    except ValueError:  # not told, or as a date
        return 1.0


@dataclass(slots=True)
class Session:
    target: Target
    workload: Workload
    folder: Path
    concurrency: int = 1
    repeat: int = 1  # takes of every text, each with its own seeds
    timeout_s: float = 120.0
    recordings: list[Recording] = field(default_factory=list)
    served: list[str] = field(default_factory=list)  # names of models, as the server gives them

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise RequestError(f"every text is spoken at least once, got --repeat {self.repeat}", "repeat")
        if (self.folder / RESULT).exists():
            raise RequestError(f"{str(self.folder)!r} holds a result already; give another --out, or remove it", "out")
        # A line that stands twice in a file is one text; --repeat is for more takes.
        self.workload = replace(self.workload, texts=tuple(dict.fromkeys(self.workload.texts)))

    @property
    def languages(self) -> dict[str, str | None]:
        """Of each text."""
        return {text: language_of(text, self.target.language) for text in self.workload.texts}

    def run(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OscineError(f"the folder {str(self.folder)!r} cannot be made: {error}") from None
        run_async(self._record())
        self.recordings.sort(key=lambda recording: recording.number)

    def evaluation(self, name: str | None, argv: Sequence[str], machine: str | None) -> Evaluation:
        workload = self.workload
        figures = {
            "target": {**self.target.described(), "served": self.served},
            "workload": {"name": workload.name, "texts": len(workload.texts), "seed": workload.seed},
            "concurrency": self.concurrency,
            "repeat": self.repeat,
            "ears": None,
            "reference": None,
        }
        result = make_result(name or self.target.preset_name, argv, figures, server_machine=machine)
        return Evaluation(self.folder, {**result, "kind": KIND, "format": FORMAT}, tuple(self.recordings))

    async def _record(self) -> None:
        span = Span(requests=self.repeat * len(self.workload.texts), warmup_s=0)
        answering: Client
        if self.target.preset.transport == "websocket":
            answering = LiveClient(self.target, timeout_s=self.timeout_s)
        else:
            answering = HttpClient(self.target, timeout_s=self.timeout_s)
        client = PatientClient(answering, self.timeout_s)
        try:
            await self._check(client)
            load = Load("closed", self.concurrency)
            run = LoadRun(client, Judge(self.target), self.workload, load, span, keep=self._keep)
            with showing(run.progress):
                await run.run()
        finally:
            await client.close()

    async def _check(self, client: Client) -> None:
        """One request, so that a wrong address or voice is one clear line and not a page of failures."""
        exchange = await client.speak(next(self.workload.utterances("warmup")))
        sound = self._sound(exchange)
        if isinstance(sound, str):
            hint = "; is it running?" if sound.startswith("connect") else ""
            raise OscineError(f"the server at {self.target.url} did not answer the first request: {sound}{hint}")
        asking = HttpClient(self.target, timeout_s=10)
        try:
            listed = await asking.get("/v1/models")
            self.served = [str(model["id"]) for model in json.loads(b"".join(listed.body))["data"]][:20]
        except (ValueError, KeyError, TypeError):
            self.served = []
        finally:
            await asking.close()

    def _keep(self, exchange: Exchange) -> None:
        said = exchange.utterance
        texts = self.workload.texts
        take = said.index // len(texts)
        recording = Recording(
            number=take * len(texts) + texts.index(said.text),
            take=take,
            text=said.text,
            seed=said.seed,
            language=language_of(said.text, self.target.language),
        )
        sound = self._sound(exchange)
        if isinstance(sound, str):
            self.recordings.append(replace(recording, failure=sound))
            return
        file = f"{recording.number:03d}.wav"
        samples = sound.pcm.astype("<i2").tobytes()
        (self.folder / file).write_bytes(wav_header(sound.rate_hz, len(sound.pcm)) + samples)
        self.recordings.append(
            replace(
                recording,
                file=file,
                audio_s=sound.duration_s,
                finish_reason=finish_reason(exchange),
                silence_share=silence_share(sound.pcm, sound.rate_hz),
                clipped_share=clipped_share(sound.pcm),
            )
        )

    def _sound(self, exchange: Exchange) -> Sound | str:
        """Or why there is none."""
        target = self.target
        if exchange.failure is not None:
            return f"{exchange.failure.kind}: {exchange.failure.message}"
        try:
            rate_hz = target.preset.pcm_rate_hz
            return hear(exchange, target.response_format, sse=target.sse, pcm_rate_hz=rate_hz)
        except BadSoundError as error:
            return f"{error.failure.kind}: {error.failure.message}"


def finish_reason(exchange: Exchange) -> str | None:
    """As the server told: in a header, or with the last of its events."""
    told: Any = exchange.headers.get("x-finish-reason")
    if told is None and exchange.headers.get("content-type", "").startswith("text/event-stream"):
        for line in reversed(b"".join(exchange.body).splitlines()):
            if line.startswith(b"data:") and b"speech.audio.done" in line:
                told = json.loads(line[5:]).get("finish_reason")
                break
    return str(told) if told else None
