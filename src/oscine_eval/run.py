"""Records a set of texts through a server: concurrent requests, one WAV file per response. Texts and seeds come from
oscine_bench's workload: they depend on the seed alone."""

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

from oscine.audio.clips import wav_header
from oscine.errors import OscineError, RequestError
from oscine_bench.benchmark import open_client, progress_line, run_async, served_models
from oscine_bench.exchange import BenchClient, Exchange, RequestFailure
from oscine_bench.load import LoadRun, OfferedLoad, RunLength, retry_after_s
from oscine_bench.received_audio import InvalidAudioError, ReceivedAudio, decode_audio
from oscine_bench.record import make_result
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest, Workload
from oscine_eval.audio_quality import clipped_share, silence_share
from oscine_eval.recording import FORMAT, KIND, RESULT, Evaluation, Recording
from oscine_eval.word_error_rate import language_code

_BUSY = ("http_429", "http_503")
_MAX_WAIT_S = 10.0
_FIRST_TEXTS = 3  # a server may refuse one or two texts; if it refuses all three, the run ends


def with_finish_reason(target: Target) -> Target:
    """Our server reports the finish reason in a header if it sends the whole response at once."""
    if target.preset_name != "oscine" or target.sse:
        return target
    return replace(target, extra={"stream": False, "stream_format": None, **target.extra})


class RetryingClient:
    """Repeats requests that a busy server refuses: a refusal says nothing about the speech."""

    def __init__(self, client: BenchClient, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s

    async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            exchange = await self._client.send(request, due_s)
            if exchange.failure is None or exchange.failure.kind not in _BUSY:
                return exchange
            wait_s = min(retry_after_s(exchange), _MAX_WAIT_S)
            if time.monotonic() + wait_s > deadline_s:
                return exchange
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        await self._client.close()


@dataclass(slots=True)
class EvaluationRun:
    target: Target
    workload: Workload
    folder: Path
    concurrency: int = 1
    repeat: int = 1  # takes of every text, with different seeds
    timeout_s: float = 120.0
    recordings: list[Recording] = field(default_factory=list)
    served: list[str] = field(default_factory=list)  # model names

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise RequestError(f"--repeat must be at least 1, got {self.repeat}", "repeat")
        OfferedLoad("closed", self.concurrency)  # checks the number
        _check_folder(self.folder)
        # Equal lines of a file are one text; --repeat makes more takes.
        self.workload = replace(self.workload, texts=tuple(dict.fromkeys(self.workload.texts)))

    @property
    def languages(self) -> dict[str, str | None]:
        """Returns the language code of each text."""
        return {text: language_code(text, self.target.language) for text in self.workload.texts}

    @property
    def requests(self) -> int:
        return self.repeat * len(self.workload.texts)

    def run(self) -> None:
        """Records all texts. After an interrupt or a full disk, `recordings` holds those made so far."""
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
            "transcriber": None,
            "reference": None,
        }
        result = make_result(name or self.target.preset_name, argv, figures, server_machine=machine)
        return Evaluation(self.folder, {**result, "kind": KIND, "format": FORMAT}, tuple(self.recordings))

    async def _record(self) -> None:
        load, length = OfferedLoad("closed", self.concurrency), RunLength(requests=self.requests, warmup_s=0)
        async with open_client(self.target, self.timeout_s) as single:
            client = RetryingClient(single, self.timeout_s)
            await self._check_server(client)
            self.served = (await served_models(self.target)).names
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OscineError(f"cannot make the folder {str(self.folder)!r}: {error}") from None
            run = LoadRun(client, self.target, self.workload, load, length, keep=self._keep)
            with progress_line(run.progress):
                await run.run()

    async def _check_server(self, client: BenchClient) -> None:
        """Requires one good response first, so that a wrong address or voice is one clear error instead of a page of
        failures."""
        count = min(_FIRST_TEXTS, len(self.workload.texts))
        for request in itertools.islice(self.workload.requests("warmup"), count):
            failure = _decode(await client.send(request), self.target)
            if isinstance(failure, ReceivedAudio):
                return
            if failure.startswith("connect"):
                raise OscineError(f"the first request to {self.target.url} failed: {failure}; is it running?")
        texts = "the first text" if count == 1 else f"all of the first {count} texts"
        raise OscineError(f"the server at {self.target.url} failed on {texts}: {failure}")

    def _keep(self, exchange: Exchange) -> None:
        request, texts = exchange.request, self.workload.texts
        take = request.index // len(texts)
        recording = Recording(
            number=take * len(texts) + texts.index(request.text),
            take=take,
            text=request.text,
            seed=sent_seed(self.target, request),
            language=language_code(request.text, self.target.language),
        )
        audio = _decode(exchange, self.target)
        if isinstance(audio, str):
            self.recordings.append(replace(recording, failure=audio))
            return
        file = f"{recording.number:03d}.wav"
        _write_wav(self.folder / file, audio)
        self.recordings.append(
            replace(
                recording,
                file=file,
                audio_s=audio.duration_s,
                finish_reason=finish_reason(exchange),
                silence_share=silence_share(audio.pcm, audio.rate_hz),
                clipped_share=clipped_share(audio.pcm),
            )
        )


def _decode(exchange: Exchange, target: Target) -> ReceivedAudio | str:
    """Returns the audio, or the failure as text."""
    try:
        if exchange.failure is None:
            return decode_audio(exchange, target)
        failure: RequestFailure = exchange.failure
    except InvalidAudioError as error:
        failure = error.failure
    return f"{failure.kind}: {failure.message}".strip(": ")


def _check_folder(folder: Path) -> None:
    """Refuses a folder in which files would be overwritten."""
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        has_result = (folder / RESULT).exists()
    except OSError as error:
        raise RequestError(f"cannot read {str(folder)!r}: {error}; give another --out", "out") from None
    if not is_free:
        state = "already holds a result" if has_result else "is not an empty folder"
        raise RequestError(f"{str(folder)!r} {state}; give --out a new or empty folder", "out")


def _write_wav(path: Path, audio: ReceivedAudio) -> None:
    try:
        path.write_bytes(wav_header(audio.rate_hz, len(audio.pcm)) + audio.pcm.astype("<i2").tobytes())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()  # an incomplete recording
        raise OscineError(f"cannot write the recording {str(path)!r}: {error}") from None


def sent_seed(target: Target, request: PlannedRequest) -> int | None:
    """Returns None if the request has no seed, or one that is not an integer."""
    seed = target.session(request).get("seed")  # the same field as over HTTP
    return seed if isinstance(seed, int) else None


def finish_reason(exchange: Exchange) -> str | None:
    """Reads the reason from a header, or from the last server-sent event."""
    reason: Any = exchange.headers.get("x-finish-reason")
    if reason is None and exchange.headers.get("content-type", "").startswith("text/event-stream"):
        for line in reversed(b"".join(exchange.body).splitlines()):
            if line.startswith(b"data:") and b"speech.audio.done" in line:
                reason = json.loads(line[5:]).get("finish_reason")
                break
    return str(reason) if reason else None
