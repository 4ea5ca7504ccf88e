"""The set is spoken through a server by so many callers at once, and every answer becomes a WAV file.

Texts and seeds are those of oscine.bench's workload: a function of the seed alone, whoever is asked and however fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oscine.audio import wav_header
from oscine.bench.exchange import Client, Exchange, Failure
from oscine.bench.load import Load, LoadRun, Span, retry_after_s
from oscine.bench.record import make_result
from oscine.bench.session import open_client, run_async, served_models, showing
from oscine.bench.sound import BadSoundError, Sound, hear
from oscine.bench.summary import Judge
from oscine.bench.targets import Target
from oscine.bench.workload import Utterance, Workload
from oscine.evaluate.quality import clipped_share, silence_share
from oscine.evaluate.recording import FORMAT, KIND, RESULT, Evaluation, Recording
from oscine.evaluate.word_error_rate import language_of
from oscine.types import OscineError, RequestError

_BUSY = ("http_429", "http_503")
_MAX_WAIT_S = 10.0
_FIRST_TEXTS = 3  # one or two may be what a server refuses; whoever refuses three speaks nothing
_REASON_CHARACTERS = 200


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
            wait_s = min(retry_after_s(exchange), _MAX_WAIT_S)
            if time.monotonic() + wait_s > give_up_s:
                return exchange
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        await self._client.close()


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
        Load("closed", self.concurrency)  # refuses what is no number of callers
        _check_place(self.folder)
        # A line that stands twice in a file is one text; --repeat is for more takes.
        self.workload = replace(self.workload, texts=tuple(dict.fromkeys(self.workload.texts)))

    @property
    def languages(self) -> dict[str, str | None]:
        """Of each text."""
        return {text: language_of(text, self.target.language) for text in self.workload.texts}

    def run(self) -> None:
        """Whatever ends it, an interrupt or a full disk, `recordings` are those that were made."""
        try:
            run_async(self._record())
        finally:
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

    @property
    def requests(self) -> int:
        return self.repeat * len(self.workload.texts)

    async def _record(self) -> None:
        span = Span(requests=self.requests, warmup_s=0)
        async with open_client(self.target, self.timeout_s) as answering:
            client = PatientClient(answering, self.timeout_s)
            await self._check(client)
            self.served = await served_models(self.target)
            self._make_folder()  # not before: where nobody answers, nothing is left behind
            load = Load("closed", self.concurrency)
            run = LoadRun(client, Judge(self.target), self.workload, load, span, keep=self._keep)
            with showing(run.progress):
                await run.run()

    async def _check(self, client: Client) -> None:
        """One answer, so that a wrong address or voice is one clear line and not a page of failures."""
        server, count = f"the server at {self.target.url}", min(_FIRST_TEXTS, len(self.workload.texts))
        for utterance in itertools.islice(self.workload.utterances("warmup"), count):
            sound = self._sound(await client.speak(utterance))
            if not isinstance(sound, str):
                return
            if sound.startswith("connect"):
                raise OscineError(f"{server} did not answer the first request: {sound}; is it running?")
        texts = "the first text" if count == 1 else f"any of the first {count} texts"
        raise OscineError(f"{server} did not speak {texts}: {sound}")

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OscineError(f"the folder {str(self.folder)!r} cannot be made: {error}") from None

    def _keep(self, exchange: Exchange) -> None:
        said = exchange.utterance
        texts = self.workload.texts
        take = said.index // len(texts)
        recording = Recording(
            number=take * len(texts) + texts.index(said.text),
            take=take,
            text=said.text,
            seed=sent_seed(self.target, said),
            language=language_of(said.text, self.target.language),
        )
        sound = self._sound(exchange)
        if isinstance(sound, str):
            self.recordings.append(replace(recording, failure=sound))
            return
        file = f"{recording.number:03d}.wav"
        _write_recording(self.folder / file, sound)
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
            return _reason(exchange.failure)
        try:
            rate_hz = target.preset.pcm_rate_hz
            return hear(exchange, target.response_format, sse=target.sse, pcm_rate_hz=rate_hz)
        except BadSoundError as error:
            return _reason(error.failure)


def _check_place(folder: Path) -> None:
    """What lies there already is somebody's."""
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        has_result = (folder / RESULT).exists()
    except OSError as error:
        raise RequestError(f"{str(folder)!r} cannot be looked into: {error}; give another --out", "out") from None
    if has_result:
        raise RequestError(f"{str(folder)!r} holds a result already; give another --out, or remove it", "out")
    if not is_free:
        raise RequestError(f"{str(folder)!r} is no empty folder; give --out a new one, or an empty one", "out")


def _write_recording(path: Path, sound: Sound) -> None:
    samples = sound.pcm.astype("<i2").tobytes()
    try:
        path.write_bytes(wav_header(sound.rate_hz, len(sound.pcm)) + samples)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()  # half a recording
        raise OscineError(f"the recording cannot be written to {str(path)!r}: {error}") from None


def _reason(failure: Failure) -> str:
    """Short: a server's page of errors is not for ours."""
    message = failure.message[:_REASON_CHARACTERS].strip()
    return f"{failure.kind}: {message}" if message else failure.kind


def sent_seed(target: Target, utterance: Utterance) -> int | None:
    """None: the request has none, or one that is no number."""
    seed = target.session(utterance).get("seed")  # these fields are the same over HTTP
    return seed if isinstance(seed, int) else None


def finish_reason(exchange: Exchange) -> str | None:
    """As the server told: in a header, or with the last of its events."""
    told: Any = exchange.headers.get("x-finish-reason")
    if told is None and exchange.headers.get("content-type", "").startswith("text/event-stream"):
        for line in reversed(b"".join(exchange.body).splitlines()):
            if line.startswith(b"data:") and b"speech.audio.done" in line:
                told = json.loads(line[5:]).get("finish_reason")
                break
    return str(told) if told else None
