"""The same events of a speech, rendered in every form: HTTP, batches, WebSockets, Triton and Python tell the same."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from oscine.align.word_split import TimedWord
from oscine.config import ServerConfig
from oscine.deploy.tritonserver.speech_host import CodesOnly, Samples
from oscine.server.api.batch import BatchResult
from oscine.server.api.renderers import RENDERERS, Call, Renderer
from oscine.server.dialects import dashscope_http, elevenlabs_http
from oscine.server.dialects.dashscope import DashScopeConnection
from oscine.server.dialects.elevenlabs import ElevenLabsConnection
from oscine.server.dialects.nari import NariConnection
from oscine.server.dialects.sglang_omni import SglangOmniConnection
from oscine.server.dialects.vllm_omni import VllmOmniConnection
from oscine.server.live.connection import LiveConnection
from oscine.server.live.messages import UtteranceEnded
from oscine.server.live.utterance import LiveUtterance
from oscine.server.schemas import SpeechBody
from oscine.server.service import Service
from oscine.speech.clock import PlaybackClock
from oscine.speech.events import Audio, Ended, Paused, SegmentEnded, SpeechEvent, Started, WholeFile, Words
from oscine.speech.models import LoadedModel
from oscine.speech.plan import SpeechPlan, WordForm
from oscine.types import Usage
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken

TEXT = "One. Two."
FIRST, SECOND, SILENCE = spoken("One.", 3), spoken("Two.", 3), bytes(2 * FRAME_SAMPLES)
FRAME_S = FRAME_SAMPLES / RATE_HZ
CODES = np.arange(8 * 16).reshape(8, 16)
WORDS = (TimedWord("One.", 0.1, 0.2), TimedWord("Two.", 0.5, 0.6))
EVENTS: list[SpeechEvent] = [
    Started("One. "),
    Audio(FIRST[:2000], FIRST[:2000], CODES[:1]),
    Audio(FIRST[2000:], FIRST[2000:], CODES[1:4], ends_segment=True),
    SegmentEnded(0, "One. ", 0.0, 4 * FRAME_S),
    Paused(FRAME_S),
    Audio(SILENCE, SILENCE),
    Words(0, WORDS[:1]),
    Audio(SECOND, SECOND, CODES[4:], ends_segment=True, last=True),
    SegmentEnded(1, "Two.", 5 * FRAME_S, 9 * FRAME_S),
    Words(1, WORDS[1:]),
    Ended("length", Usage(9, 8)),
]
SOUND = FIRST + SILENCE + SECOND
_KINDS = ("delta", "segment", "words", "done")


@dataclass
class Told:
    """What the client was told; None: this form does not say it."""

    sound: bytes | None = None
    finish_reason: str | None = None
    segments: list[str] | None = None
    words: list[str] | None = None
    output_tokens: int | None = None
    seconds: float | None = None


WHOLE = Told(SOUND, "length", ["One. ", "Two."], ["One.", "Two."], 8, round(9 * FRAME_S, 3))


@pytest.fixture
def service(engine: ScriptedEngine) -> Iterator[Service]:
    service = Service([LoadedModel.of(engine, CARD)], ServerConfig(kept_files_bytes=0))
    yield service
    service.close()


async def planned(service: Service) -> SpeechPlan:
    body = SpeechBody(input=TEXT, seed=3, response_format="pcm")
    return await service.plan(service.models.first, body, TEXT)


class Writer:
    """A ResponseWriter that keeps what is written."""

    def __init__(self) -> None:
        self.headers: Mapping[str, str] = {}
        self.content, self.ended = b"", False

    async def start(self, headers: Mapping[str, str]) -> None:
        assert not self.headers and not self.content
        self.headers = headers

    async def write(self, data: bytes, *, more: bool = True) -> None:
        assert self.headers and not self.ended
        self.content += data
        self.ended = not more


async def over_http(service: Service, form: type[Renderer]) -> Writer:
    body = SpeechBody(input=TEXT, seed=3, response_format="pcm", word_timestamps=True)
    writer = Writer()
    renderer = form(writer, await planned(service), Call(body, service, ""))  # type: ignore[arg-type]
    for event in EVENTS:
        assert not writer.ended
        await renderer.render(event)
    assert writer.ended
    return writer


def server_sent(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.partition("data:")[2]) for block in content.decode().split("\n\n") if block]


async def as_bytes(service: Service) -> Told:
    return Told((await over_http(service, RENDERERS["bytes"])).content)


async def as_events(service: Service) -> Told:
    events = server_sent((await over_http(service, RENDERERS["events"])).content)
    found = {kind: [event for event in events if event["type"] == f"speech.audio.{kind}"] for kind in _KINDS}
    (done,) = found["done"]
    return Told(
        b"".join(base64.b64decode(event["audio"]) for event in found["delta"]),
        done["finish_reason"],
        [event["text"] for event in found["segment"]],
        [word["word"] for event in found["words"] for word in event["words"]],
        done["usage"]["output_tokens"],
        done["audio_seconds"],
    )


async def as_a_whole_file(service: Service) -> Told:
    writer = await over_http(service, RENDERERS["whole"])
    headers = writer.headers
    assert int(headers["content-length"]) == len(writer.content)
    words = [word["word"] for word in json.loads(headers["x-word-timestamps"])]
    tokens, seconds = int(headers["x-output-tokens"]), float(headers["x-audio-seconds"])
    return Told(writer.content, headers["x-finish-reason"], None, words, tokens, seconds)


async def as_json(service: Service) -> Told:
    about = json.loads((await over_http(service, RENDERERS["json"])).content)
    words = [word["word"] for word in about["words"]]
    tokens = about["usage"]["output_tokens"]
    return Told(base64.b64decode(about["audio"]), about["finish_reason"], None, words, tokens, about["duration"])


async def as_dashscopes_events(service: Service) -> Told:
    *deltas, done = server_sent((await over_http(service, dashscope_http.EventsRenderer)).content)
    sound = b"".join(base64.b64decode(one["output"]["audio"]["data"]) for one in deltas)
    return Told(sound, done["output"]["finish_reason"], output_tokens=done["usage"]["output_tokens"])


async def as_dashscopes_answer(service: Service) -> Told:
    answer = json.loads((await over_http(service, dashscope_http.AnswerRenderer)).content)
    sound = base64.b64decode(answer["output"]["audio"]["url"].partition(",")[2])
    return Told(sound, answer["output"]["finish_reason"], output_tokens=answer["usage"]["output_tokens"])


def words_of(characters: list[str]) -> list[str]:
    return "".join(characters).split()


async def as_elevenlabs_lines(service: Service) -> Told:
    content = (await over_http(service, elevenlabs_http.TimedStream)).content
    lines = [json.loads(line) for line in content.splitlines()]
    timed = [line["alignment"] for line in lines if line["alignment"]]
    chars = [char for one in timed for char in one["characters"]]
    assert [one["character_start_times_seconds"][0] for one in timed] == [0.1, 0.5]
    return Told(b"".join(base64.b64decode(line["audio_base64"]) for line in lines), words=words_of(chars))


async def as_elevenlabs_answer(service: Service) -> Told:
    answer = json.loads((await over_http(service, elevenlabs_http.TimedFile)).content)
    assert answer["alignment"] == answer["normalized_alignment"]
    return Told(base64.b64decode(answer["audio_base64"]), words=words_of(answer["alignment"]["characters"]))


async def as_elevenlabs_websocket(service: Service) -> Told:
    *told, final = await over_a_websocket(service, ElevenLabsConnection, "chunks")
    messages = [one for one in told if isinstance(one, dict)]
    assert isinstance(final, dict) and final["isFinal"] and len(messages) == len(told)
    chars = [char for one in messages if one["alignment"] for char in one["alignment"]["chars"]]
    return Told(b"".join(base64.b64decode(one["audio"]) for one in messages), words=words_of(chars))


def collected() -> WholeFile:
    file = WholeFile()
    for event in EVENTS:
        file.add(event)
    return file


async def as_a_batch_result(service: Service) -> Told:
    result = BatchResult.of(0, await planned(service), collected(), words=True)
    assert result.words and result.usage
    words = [word["word"] for word in result.words]
    return Told(result.audio, result.finish_reason, None, words, result.usage["output_tokens"])


async def in_python(service: Service) -> Told:
    file = collected()
    np.testing.assert_array_equal(file.codes, CODES)
    words = [word.word for segment in file.words for word in segment.words]
    return Told(file.data, file.end.finish_reason, None, words, file.end.usage.frames)


class Socket:
    """A WebSocket that keeps what is sent."""

    def __init__(self) -> None:
        self.query_params: dict[str, str] = {}
        self.sent: list[dict[str, Any] | bytes] = []

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message["bytes"] if "bytes" in message else json.loads(message["text"]))


async def over_a_websocket(
    service: Service, protocol: type[LiveConnection], words: WordForm | None = None, offered: tuple[str, ...] = ()
) -> list[dict[str, Any] | bytes]:
    socket = Socket()
    connection = protocol(socket, service)  # type: ignore[arg-type]
    connection.subprotocol(offered)
    plan = replace(await planned(service), words=words)
    utterance = LiveUtterance(service, connection, PlaybackClock(), "", 0, plan, plan.request)
    for event in EVENTS:
        await utterance.render(plan, event)
    await connection.send(UtteranceEnded(0, 1))
    return socket.sent


def binary(sent: list[dict[str, Any] | bytes]) -> bytes:
    return b"".join(one for one in sent if isinstance(one, bytes))


def kinds(sent: list[dict[str, Any] | bytes]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in sent:
        if isinstance(one, dict):
            found.setdefault(one["type"], []).append(one)
    return found


async def as_our_websocket(service: Service) -> Told:
    sent = await over_a_websocket(service, LiveConnection, "events", ("oscine",))
    events = kinds(sent)
    assert sent[0] == events["audio.start"][0] and sent[-1] == events["session.done"][0]
    (done,) = events["audio.done"]
    assert done["total_bytes"] == len(SOUND) and events["session.done"][0]["total_sentences"] == 1
    segments = [event["text"] for event in events["audio.segment"]]
    words = [word["word"] for event in events["audio.words"] for word in event["words"]]
    tokens, seconds = done["usage"]["output_tokens"], done["audio_seconds"]
    return Told(binary(sent), done["finish_reason"], segments, words, tokens, seconds)


async def as_vllm_omnis_websocket(service: Service) -> Told:
    sent = await over_a_websocket(service, VllmOmniConnection, "chunks")
    events = kinds(sent)
    assert list(events) == ["audio.start", "audio.chunk", "audio.done", "session.done"] and not binary(sent)
    chunks, (done,) = events["audio.chunk"], events["audio.done"]
    assert [chunk["chunk_id"] for chunk in chunks] == [0, 1, 2, 3, 4]
    sound = b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in chunks)
    words = [word["word"] for word in chunks[-1]["timestamps"]]
    tokens, seconds = done["usage"]["output_tokens"], done["audio_seconds"]
    return Told(sound, done["finish_reason"], None, words, tokens, seconds)


async def as_sglang_omnis_websocket(service: Service) -> Told:
    sent = await over_a_websocket(service, SglangOmniConnection, "at_end")
    events = kinds(sent)
    (start,), (done,) = events["audio.start"], events["audio.done"]
    assert start["id"] == done["id"] and list(events) == ["audio.start", "audio.done", "input.committed"]
    words = done["timestamp_info"]["word_alignment"]["words"]
    tokens, seconds = done["usage"]["output_tokens"], done["audio_seconds"]
    return Told(binary(sent), done["finish_reason"], None, words, tokens, seconds)


async def as_dashscopes_websocket(service: Service) -> Told:
    sent = await over_a_websocket(service, DashScopeConnection)
    events = kinds(sent)
    sound = b"".join(base64.b64decode(event["delta"]) for event in events["response.audio.delta"])
    response = events["response.done"][0]["response"]
    assert response["status"] == "incomplete" and response["usage"]["characters"] == len(TEXT)
    reason = response["status_details"]["finish_reason"]
    return Told(sound, reason, output_tokens=response["usage"]["output_tokens"])


async def as_naris_websocket(service: Service) -> Told:
    sent = await over_a_websocket(service, NariConnection)
    (done,) = kinds(sent)["response.done"]
    assert done["audio_chunks"] == 4
    return Told(binary(sent), done["stop_reason"])


class Responses:
    """A ResponseStream that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Mapping[str, Any], bool]] = []

    def send(self, values: Mapping[str, Any], *, final: bool) -> None:
        self.sent.append((values, final))

    def ends(self) -> list[tuple[bool, str]]:
        assert [final for _, final in self.sent] == [values["final"] for values, _ in self.sent]
        return [(final, values["finish_reason"]) for values, final in self.sent]


async def as_tritons_samples(service: Service) -> Told:
    responses = Responses()
    renderer = Samples(await planned(service), responses)  # type: ignore[arg-type]
    for event in EVENTS:
        renderer.render(event)
    assert responses.ends() == [(False, ""), (False, ""), (False, ""), (True, "length")]
    return Told(b"".join(values["audio"].tobytes() for values, _ in responses.sent), responses.ends()[-1][1])


async def as_tritons_codes(service: Service) -> Told:
    responses = Responses()
    renderer = CodesOnly(await planned(service), responses, trim_silence=True)  # type: ignore[arg-type]
    for event in EVENTS:
        renderer.render(event)
    np.testing.assert_array_equal(np.concatenate([values["codes"] for values, _ in responses.sent]), CODES)
    assert [values["segment_end"] for values, _ in responses.sent] == [False, True, True]
    return Told(None, responses.ends()[-1][1])


# What each form tells.
FORMS: dict[Callable[[Service], Awaitable[Told]], str] = {
    as_bytes: "sound",
    as_events: "sound finish_reason segments words output_tokens seconds",
    as_a_whole_file: "sound finish_reason words output_tokens seconds",
    as_json: "sound finish_reason words output_tokens seconds",
    as_dashscopes_events: "sound finish_reason output_tokens",
    as_dashscopes_answer: "sound finish_reason output_tokens",
    as_elevenlabs_lines: "sound words",
    as_elevenlabs_answer: "sound words",
    as_elevenlabs_websocket: "sound words",
    as_a_batch_result: "sound finish_reason words output_tokens",
    in_python: "sound finish_reason words output_tokens",
    as_our_websocket: "sound finish_reason segments words output_tokens seconds",
    as_vllm_omnis_websocket: "sound finish_reason words output_tokens seconds",
    as_sglang_omnis_websocket: "sound finish_reason words output_tokens seconds",
    as_dashscopes_websocket: "sound finish_reason output_tokens",
    as_naris_websocket: "sound finish_reason",
    as_tritons_samples: "sound finish_reason",
    as_tritons_codes: "finish_reason",
}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_each_form_tells_what_it_has_a_place_for(form: Callable[[Service], Awaitable[Told]], service: Service) -> None:
    async def tell() -> Told:
        return await form(service)

    assert asyncio.run(tell()) == Told(**{name: getattr(WHOLE, name) for name in FORMS[form].split()})
