"""The forms of a response of POST /v1/audio/speech: which one a request gets, and how each renders the events."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from starlette.datastructures import Headers

from oscine.align.word_split import TimedWord
from oscine.audio.encoders import FORMATS
from oscine.config import ServerConfig
from oscine.server.http.errors import ApiError
from oscine.server.http.streaming_response import ResponseWriter, write_with_audio
from oscine.server.schemas import SpeechBody
from oscine.server.service import Service
from oscine.speech.events import Audio, Ended, SegmentEnded, SpeechEvent, SpokenTurn, Started, WholeFile, Words
from oscine.speech.plan import SpeechPlan
from oscine.types import Usage

_MAX_READ_AS_CHARS = 500  # of the header x-read-as; events have the whole text
_UNQUOTED = " ,.;:!?'()-"
_SAMPLES = ("pcm", "wav", "flac")  # formats whose samples have a number of bits

ResponseForm = Literal["bytes", "events", "whole", "json"]
_FORMS: dict[str, ResponseForm] = {"audio": "bytes", "sse": "events", "json": "json"}  # by stream_format
_MAX_WHOLE_CHARS = 20_000  # some twenty minutes, or 55 MiB, which the server holds until they are complete
_QUALITY = re.compile(r";\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*(?:;|$)")


def response_form(body: SpeechBody, headers: Headers, config: ServerConfig) -> ResponseForm:
    """Chooses the form of the response. Servers of this API differ, and so do their clients.

    | the request has                                     | form                                                       |
    |-----------------------------------------------------|------------------------------------------------------------|
    | `stream_format`                                     | `audio`: bytes; `sse`: events; `json`: a JSON object       |
    | `stream: false`                                     | the whole file                                             |
    | an `Accept` that prefers text/event-stream to audio | events                                                     |
    | `stream: true`, and an `Accept` that prefers audio  | bytes                                                      |
    | `stream: true`                                      | bytes; events if the server is set so                      |
    | none of these, and `word_timestamps`                | the whole file                                             |
    | none of these, and the format is WAV or FLAC        | the whole file; bytes for a client that says that it reads |
    |                                                     | the response as it arrives, for a very long text, or if    |
    |                                                     | the server is set so                                       |
    | none of these                                       | bytes                                                      |

    `stream_format` goes before `Accept`: OpenAI's SDK accepts application/octet-stream even where it asks for events.
    WAV and FLAC files begin with their length. Sent before it is known, it is a placeholder, which many readers refuse
    or take for a day of audio.
    """
    if body.stream_format is not None:
        return _FORMS[body.stream_format]
    if body.stream is False:
        return "whole"
    accepted = _preferred(",".join(headers.getlist("accept")))
    if accepted == "events":
        return "events"
    if body.stream:
        return "events" if config.stream_events and accepted is None else "bytes"
    if body.word_timestamps:  # in a header, which is sent before the audio
        return "whole"
    needs_length = FORMATS[body.response_format or config.http_format].needs_length
    streams = config.stream_wav or _reads_a_stream(headers) or body.chars > _MAX_WHOLE_CHARS
    return "whole" if needs_length and not streams else "bytes"


def _reads_a_stream(headers: Headers) -> bool:
    # OpenAI's SDK in Python says so for `with_streaming_response`.
    return headers.get("x-stainless-raw-response") == "stream"


def _preferred(accept: str) -> Literal["bytes", "events"] | None:
    """Returns None if the client has not said; `*/*` accepts both."""
    quality = {"bytes": 0.0, "events": 0.0}
    for item in accept.lower().split(","):
        kind = item.partition(";")[0].strip()
        given = _QUALITY.search(item)
        value = float(given[1]) if given else 1.0
        if kind == "text/event-stream":
            quality["events"] = max(quality["events"], value)
        elif kind.startswith("audio/") or kind == "application/octet-stream":
            quality["bytes"] = max(quality["bytes"], value)
    if quality["bytes"] == quality["events"]:
        return None
    return "events" if quality["events"] > quality["bytes"] else "bytes"


@dataclass(frozen=True, slots=True)
class Call:
    """A request for speech over HTTP."""

    body: SpeechBody
    service: Service
    key: str
    base_url: str = ""  # of this server, as the client reaches it; for answers with URLs


class Renderer:
    """Writes one response. Nothing is written before the first audio, so that an error keeps its status."""

    media_type: ClassVar[str | None] = None  # None: the format's
    whole: ClassVar[bool] = False  # the response is written when the speech is complete
    no_words: ClassVar[str | None] = None  # why the times of words are refused

    def __init__(self, writer: ResponseWriter, plan: SpeechPlan, call: Call) -> None:
        self._writer, self._plan, self._call = writer, plan, call
        self._samples = 0
        self._remembered: bool | None = None

    async def render(self, event: SpeechEvent) -> None:
        if isinstance(event, Audio):
            self._samples += len(event.pcm) // 2
        elif isinstance(event, Started):
            self._remembered = event.remembered

    async def fail(self, error: ApiError) -> None:
        """Tells of a failure after the first byte. The response also stays incomplete: the client sees the loss."""

    def close(self) -> None:
        """Called when the response has ended, however it did."""

    @property
    def duration_s(self) -> float:
        """Seconds of audio so far."""
        return self._plan.playback_s(self._samples)

    async def start(self, **headers: str) -> None:
        plan, several = self._plan, self._call.service.models.several
        read_as, warnings = plan.read_as, plan.client_warnings
        about = {
            "content-type": self.media_type or plan.format.media_type,
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # a buffering proxy would defeat streaming
            "x-sample-rate": str(plan.out_rate_hz),
            "x-channels": "1",
            **({"x-bit-depth": "16"} if plan.format.name in _SAMPLES else {}),
            "x-seed": str(plan.seed),
            **({} if self._remembered is None else {"x-cache": "hit" if self._remembered else "miss"}),
            **({"x-read-as": quote(read_as[:_MAX_READ_AS_CHARS], safe=_UNQUOTED)} if read_as else {}),
            **({"x-model": quote(plan.model.name)} if several else {}),
            **({"x-ignored-fields": ", ".join(plan.ignored_fields)} if plan.ignored_fields else {}),
            **({"x-warning": "; ".join(warnings)} if warnings else {}),
        }
        await self._writer.start({**about, **headers})


class Bytes(Renderer):
    no_words = "a stream of bytes has no place for word_timestamps; use stream_format 'sse' or 'json', or stream false"

    async def render(self, event: SpeechEvent) -> None:
        await super().render(event)
        match event:
            case Started():
                await self.start()
            case Audio(data=data):
                await self._writer.write(data)
            case Ended():
                await self._writer.write(b"", more=False)


class Events(Renderer):
    media_type = "text/event-stream; charset=utf-8"

    async def render(self, event: SpeechEvent) -> None:
        await super().render(event)
        match event:
            case Started():
                await self.start()
            case Audio(data=data) if data:
                audio = base64.b64encode(data).decode()
                await self._event("speech.audio.delta", audio=audio, response_format=self._plan.format.name)
            case SegmentEnded():
                await self._event("speech.audio.segment", **segment_fields(event))
            case Words():
                await self._event("speech.audio.words", **word_event(event))
            case Ended():
                done = {"finish_reason": event.finish_reason, "seed": self._plan.seed}
                duration_s = round(self.duration_s, 3)
                await self._event(
                    "speech.audio.done", **done, audio_seconds=duration_s, usage=usage_fields(event.usage)
                )
                await self._writer.write(b"", more=False)

    async def fail(self, error: ApiError) -> None:
        is_for_sglang = self._call.service.config.live_protocol == "sglang-omni"
        kind = "error" if is_for_sglang else "speech.audio.error"
        await self._event(kind, error=error.body, partial_audio=self._samples > 0)

    async def _event(self, kind: str, **fields: Any) -> None:
        """Sends the name twice: some clients dispatch on the event's name, others on the type in its data."""
        await self._writer.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())


class Whole(Renderer):
    """Sends the bytes of the file when it is complete. A subclass sends something else."""

    whole = True

    def __init__(self, writer: ResponseWriter, plan: SpeechPlan, call: Call) -> None:
        super().__init__(writer, plan, call)
        self._file = WholeFile()
        self._collected = call.service.ledger["audio"].open()

    async def render(self, event: SpeechEvent) -> None:
        await super().render(event)
        if isinstance(event, Audio):
            self._collected.add(self._plan.file_bytes(event.pcm))
        self._file.add(event)
        if isinstance(event, Ended):
            await self.send(self._file.data, self._file.words, event)

    def close(self) -> None:
        self._collected.close()

    async def send(self, data: bytes, words: list[Words], end: Ended) -> None:
        echo_s = end.echo_s / self._plan.speed
        headers = {
            **(word_headers(words) if self._call.body.word_timestamps else {}),
            "content-length": str(len(data)),
            "x-finish-reason": end.finish_reason,
            "x-audio-seconds": f"{self.duration_s:.3f}",
            "x-input-tokens": str(end.usage.text_ids),
            "x-output-tokens": str(end.usage.frames),
            "x-prompt-tokens": str(end.usage.text_ids),  # SGLang-Omni's names of these two
            "x-completion-tokens": str(end.usage.frames),
            **({"x-echo-trimmed-seconds": f"{echo_s:.2f}"} if end.echo_s else {}),
        }
        await self.start(**headers)
        await self._writer.write(data, more=False)


class Json(Whole):
    media_type = "application/json"

    async def send(self, data: bytes, words: list[Words], end: Ended) -> None:
        plan, warning = self._plan, missing_times(words)
        fields = {
            "text": plan.request.written,
            "response_format": plan.format.name,
            "sample_rate": plan.out_rate_hz,
            "duration": round(self.duration_s, 3),
            "finish_reason": end.finish_reason,
            "seed": plan.seed,
            "usage": usage_fields(end.usage),
            **({"words": verbose_words(words)} if self._call.body.word_timestamps else {}),
            **({"warning": warning} if warning else {}),
        }
        await self.start()
        await write_with_audio(self._writer, json.dumps(fields), "audio", data)
        await self._writer.write(b"", more=False)


RENDERERS: dict[ResponseForm, type[Renderer]] = {"bytes": Bytes, "events": Events, "whole": Whole, "json": Json}


def segment_fields(segment: SegmentEnded) -> dict[str, Any]:
    return {
        "index": segment.index,
        "text": segment.text,
        **({"spoken": segment.spoken.spoken} if segment.spoken else {}),
        "start_s": round(segment.start_s, 3),
        "end_s": round(segment.end_s, 3),
        **turn_fields(segment.turn),
    }


def turn_fields(turn: SpokenTurn | None) -> dict[str, Any]:
    """The turn and its speaker, in a dialogue."""
    return {"turn": turn.index, **({"voice": turn.voice} if turn.voice else {})} if turn else {}


def usage_fields(usage: Usage) -> dict[str, int]:
    total = usage.text_ids + usage.frames
    return {"input_tokens": usage.text_ids, "output_tokens": usage.frames, "total_tokens": total}


# Word timestamps as the APIs of different servers spell them.


_MAX_HEADER_BYTES = 4096  # proxies refuse larger ones


def word_event(segment: Words) -> dict[str, Any]:
    """The fields of our own events."""
    words = [{"word": word.word, "start_s": word.start_s, "end_s": word.end_s} for word in segment.words]
    warning = {"warning": segment.warning} if segment.warning else {}
    return {"index": segment.index, **turn_fields(segment.turn), "words": words, **warning}


def verbose_words(segments: Sequence[Words]) -> list[dict[str, Any]]:
    """Words as in OpenAI's verbose_json."""
    return [
        {"word": word.word, "start": word.start_s, "end": word.end_s, **turn_fields(turn)}
        for word, turn in _all_words(segments)
    ]


def _all_words(segments: Sequence[Words]) -> list[tuple[TimedWord, SpokenTurn | None]]:
    return [(word, segment.turn) for segment in segments for word in segment.words]


def millisecond_words(segments: Sequence[Words]) -> list[dict[str, Any]]:
    """Words as vLLM-Omni has them; those without times are left out."""
    return [
        {
            "word": word.word,
            "start_ms": round(1000 * word.start_s),
            "end_ms": round(1000 * word.end_s),
            **turn_fields(turn),
        }
        for word, turn in _all_words(segments)
        if word.start_s is not None and word.end_s is not None
    ]


def word_alignment(segments: Sequence[Words]) -> dict[str, Any]:
    """The `timestamp_info` that LiveKit's plug-in for Baseten reads; words without times are left out."""
    timed = [word for word, _ in _all_words(segments) if word.start_s is not None]
    return {
        "word_alignment": {
            "words": [word.word for word in timed],
            "word_start_times_seconds": [word.start_s for word in timed],
            "word_end_times_seconds": [word.end_s for word in timed],
        }
    }


def missing_times(segments: Sequence[Words]) -> str | None:
    """Why words have no times."""
    return next((segment.warning for segment in segments if segment.warning), None)


def word_headers(segments: Sequence[Words]) -> dict[str, str]:
    """vLLM-Omni's headers of a whole file."""
    name = "x-word-timestamps"
    if warning := missing_times(segments):
        return {f"{name}-omitted": " ".join(warning.encode("ascii", "replace").decode().split())}
    header = json.dumps(millisecond_words(segments))  # ASCII: other characters are escaped
    if len(header) > _MAX_HEADER_BYTES:
        return {f"{name}-omitted": f"oversize; bytes={len(header)}; limit={_MAX_HEADER_BYTES}"}
    return {name: header}
