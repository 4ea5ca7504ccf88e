"""The AsyncAPI document of the WebSockets, made of the messages that they read and the tables of their events.

A test holds each event that a test client receives against these tables, and the sources against their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from oscine import __version__
from oscine.server.dialects.dashscope import DashScopeConnection
from oscine.server.dialects.elevenlabs import MULTI_PATH, PATH, ElevenLabsConnection
from oscine.server.dialects.nari import SUBPROTOCOL, NariConnection
from oscine.server.dialects.sglang_omni import SglangOmniConnection
from oscine.server.live.messages import MESSAGES

# --- The events of each protocol and their fields.


class Event(NamedTuple):
    summary: str
    required: str = ""  # names of fields, separated by blanks
    optional: str = ""
    typed: bool = True  # it has a `type`

    def schema(self, kind: str) -> dict[str, Any]:
        """JSON schema of the event with this `type`."""
        names = (*self.required.split(), *self.optional.split())
        kinds = {"type": {"const": kind}} if self.typed else {}
        return {
            "type": "object",
            "description": self.summary,
            "required": [*kinds, *self.required.split()],
            "properties": {**kinds, **{name: _FIELDS[name] for name in names}},
        }


def _typed(kind: str | list[str], description: str = "", **more: Any) -> dict[str, Any]:
    return {"type": kind, **({"description": description} if description else {}), **more}


def _object(properties: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    return _typed("object", description, required=list(properties), properties=dict(properties))


_TEXT, _INTEGER, _NUMBER, _FLAG = _typed("string"), _typed("integer"), _typed("number"), _typed("boolean")
_OBJECT = _typed("object")
_NULLABLE_TEXT, _NULLABLE_NUMBER = _typed(["string", "null"]), _typed(["number", "null"])
_ERROR = _object({"message": _TEXT, "type": _TEXT, "param": _NULLABLE_TEXT, "code": _TEXT}, "As in all errors here.")
_WORD = _object({"word": _TEXT, "start_s": _NULLABLE_NUMBER, "end_s": _NULLABLE_NUMBER})
_INTEGERS = _typed("array", items=_INTEGER)
_CHARACTERS = {
    "anyOf": [
        _object(
            {"chars": _typed("array", items=_TEXT), "charStartTimesMs": _INTEGERS, "charDurationsMs": _INTEGERS},
            "Times from the end of the times before; with sync_alignment=true, in the speech.",
        ),
        _typed("null"),
    ]
}
_MILLISECONDS = _object({"word": _TEXT, "start_ms": _INTEGER, "end_ms": _INTEGER})

_FIELDS: dict[str, dict[str, Any]] = {
    # Of several protocols.
    "request_id": _TEXT,
    "session_id": _TEXT,
    "id": _TEXT,
    "message": _TEXT,
    "error": {
        "anyOf": [
            _ERROR,
            _typed("boolean", "In audio.done: whether the speech failed."),
            _typed("string", "To ElevenLabs' clients: the code."),
        ]
    },
    "warning": _TEXT,
    "retry_after_s": _typed("number", "Seconds after which a retry makes sense."),
    "ignored_fields": _typed("array", items=_TEXT),
    "response_format": _TEXT,
    "sample_rate": _INTEGER,
    "channels": _INTEGER,
    # The live protocol, and SGLang-Omni's.
    "utterance_index": _typed(["integer", "null"], "From 0 on a connection."),
    "sentence_index": _typed("integer", "A file of an utterance, from 0."),
    "sentence_text": _TEXT,
    "total_sentences": _INTEGER,
    "index": _typed("integer", "The segment."),
    "text": _TEXT,
    "spoken": {"type": "string", "description": "What the model read, if it is not the same."},
    "turn": _typed("integer", "Of a dialogue, from 0 in the utterance."),
    "voice": _typed("string", "The name of the turn's voice."),
    "start_s": _NUMBER,
    "end_s": _NUMBER,
    "words": _typed("array", items=_WORD),
    "word_timestamps": _FLAG,
    "format": _TEXT,
    "seed": _INTEGER,
    "cache": _typed("string", "`hit` or `miss`: whether the phrase cache had the first segment."),
    "model": _TEXT,
    "finish_reason": _TEXT,
    "total_bytes": _INTEGER,
    "audio_seconds": _NUMBER,
    "usage": _typed("object", additionalProperties=_INTEGER),
    "timestamp_info": _OBJECT,
    "commit_id": _typed(["string", "integer", "null"], "As the client named the commit."),
    "chars_committed": _typed("integer", "Since the last commit."),
    "spoken_text": _typed(["string", "null"], "An estimate of the words that were played."),
    "played_s": _NUMBER,
    "chunk_id": _INTEGER,
    "chunk_start_ms": _INTEGER,
    "chunk_end_ms": _INTEGER,
    "audio_b64": _typed("string", "Audio as base64.", contentEncoding="base64"),
    "timestamps": _typed(["array", "null"], items=_MILLISECONDS),
    "stream_audio": _FLAG,
    "split_granularity": _TEXT,
    "segment_index": _INTEGER,
    "segment_sentences": _INTEGER,
    "error_type": _TEXT,
    "code": _typed(["string", "integer"]),
    "param": _TEXT,
    # Qwen's cloud.
    "event_id": _TEXT,
    "session": _OBJECT,
    "response": _OBJECT,
    "item": _OBJECT,
    "part": _OBJECT,
    "item_id": _TEXT,
    "response_id": _TEXT,
    "output_index": _INTEGER,
    "content_index": _INTEGER,
    "delta": _typed("string", "Audio as base64.", contentEncoding="base64"),
    # nari.
    "protocol": _TEXT,
    "audio": {
        "anyOf": [
            _object({"encoding": _TEXT, "sample_rate": _INTEGER, "channels": _INTEGER}),
            _typed(["string", "null"], "Audio as base64, for ElevenLabs' clients.", contentEncoding="base64"),
        ]
    },
    "event": _typed("string", "The `type` of the message."),
    "sequence": _INTEGER,
    "stop_reason": _TEXT,
    "audio_chunks": _typed("integer", "Binary frames that were sent."),
    # ElevenLabs.
    "alignment": _CHARACTERS,
    "normalizedAlignment": _CHARACTERS,
    "isFinal": _FLAG,
    "contextId": _TEXT,
}
_PART = "event_id response_id item_id output_index content_index"
_CHUNK = "utterance_index sentence_index chunk_id chunk_start_ms chunk_end_ms sample_rate audio_b64 timestamps"

LIVE: dict[str, Event] = {
    "session.ready": Event(
        "The settings were accepted. Only where asked for.",
        "request_id response_format sample_rate",
        "model ignored_fields warning",
    ),
    "audio.start": Event(
        "Binary frames with the audio of a file follow.",
        "utterance_index sentence_index sentence_text format sample_rate channels seed",
        "cache word_timestamps",
    ),
    "audio.segment": Event(
        "A segment of the text was sent. Only where asked for.",
        "utterance_index index text start_s end_s",
        "spoken turn voice warning",
    ),
    "audio.words": Event(
        "When the words of a segment are spoken. Only where asked for.",
        "utterance_index index words",
        "turn voice warning",
    ),
    "audio.chunk": Event("Audio as JSON, where word timestamps are asked for in vLLM-Omni's way.", _CHUNK, "warning"),
    "audio.done": Event(
        "All audio of a file was sent.",
        "utterance_index sentence_index finish_reason error total_bytes audio_seconds",
        "usage spoken_text timestamp_info",
    ),
    "session.done": Event("The utterance is over.", "utterance_index total_sentences"),
    "input.committed": Event(
        "Answers input.commit: its text is queued.", "utterance_index commit_id sentence_index chars_committed"
    ),
    "input.cancelled": Event("Answers input.cancel.", "utterance_index played_s spoken_text"),
    "error": Event("A message or an utterance failed.", "message error", "utterance_index retry_after_s"),
}
SGLANG_OMNI: dict[str, Event] = {
    "session.configured": Event(
        "The settings were accepted.",
        "session_id response_format stream_audio split_granularity",
        "ignored_fields warning",
    ),
    "audio.start": LIVE["audio.start"]._replace(required=f"id {LIVE['audio.start'].required}"),
    "audio.chunk": LIVE["audio.chunk"],
    "audio.done": Event(
        "All audio of a sentence was sent, or it failed.",
        "id sentence_index error total_bytes",
        "utterance_index finish_reason audio_seconds usage spoken_text timestamp_info",
    ),
    "input.committed": Event(
        "Answers input.commit: its text was spoken.",
        "session_id total_sentences segment_index segment_sentences",
    ),
    "session.done": Event("The whole text was spoken; the connection closes.", "session_id total_sentences"),
    "error": Event("A message or a sentence failed.", "message error_type code error", "param retry_after_s"),
}
DASHSCOPE: dict[str, Event] = {
    "session.created": Event("The first event.", "event_id session"),
    "session.updated": Event("Settings were accepted.", "event_id session"),
    "input_text_buffer.committed": Event("Answers a commit.", "event_id item_id"),
    "input_text_buffer.cleared": Event("Answers input_text_buffer.clear.", "event_id"),
    "response.created": Event("A response begins.", "event_id response"),
    "response.output_item.added": Event("", "event_id response_id output_index item"),
    "response.content_part.added": Event("", f"{_PART} part"),
    "response.audio.delta": Event("The next bytes of the response's file.", f"{_PART} delta"),
    "response.audio.done": Event("All audio of the response was sent.", _PART),
    "response.content_part.done": Event("", f"{_PART} part"),
    "response.output_item.done": Event("", "event_id response_id output_index item"),
    "response.done": Event("The response is over: its status and usage.", "event_id response"),
    "session.finished": Event("Everything was spoken; the connection closes.", "event_id"),
    "error": Event("A message or a response failed.", "event_id error"),
}
NARI: dict[str, Event] = {
    "session.created": Event("The first event.", "protocol audio"),
    "request.configured": Event("The settings were accepted.", "", "ignored_fields warning"),
    "input_text.ack": Event("A piece of text, or its end, has arrived.", "event sequence request_id"),
    "response.started": Event("Binary frames with PCM follow.", "request_id audio"),
    "response.done": Event("All audio was sent; the connection closes.", "request_id stop_reason audio_chunks"),
    "error": Event("Something failed; the connection closes.", "request_id error"),
}
ELEVENLABS: dict[str, Event] = {
    "audio": Event(
        "The next bytes of the file, or the times of its characters.",
        "audio alignment normalizedAlignment",
        "contextId ignored_fields warning",
        typed=False,
    ),
    "final": Event("The text was spoken.", "audio isFinal", "contextId", typed=False),
    "error": Event(
        "The connection or the context failed, and is closed.", "message error code", "contextId", typed=False
    ),
}


# --- The document.


_AUDIO = "audio"  # the name of binary frames
_BINARY = {
    "name": _AUDIO,
    "summary": "The next bytes of the file.",
    "contentType": "application/octet-stream",
    "payload": {"type": "string", "format": "binary"},
}


class Protocol(NamedTuple):
    address: str
    about: str
    messages: Mapping[str, type[BaseModel]]  # by `type`: what the server reads
    events: Mapping[str, Event]  # by `type`: what it sends
    sends_binary: bool = True


PROTOCOLS = {
    "live": Protocol(
        "/v1/audio/speech/stream",
        "Our own protocol and vLLM-Omni's. The subprotocol `oscine` asks for all events.",
        MESSAGES,
        LIVE,
    ),
    "sglangOmni": Protocol(
        "/v1/audio/speech/stream",
        "SGLang-Omni's protocol, for clients whose first message has its settings in `session`.",
        SglangOmniConnection.kinds,
        SGLANG_OMNI,
    ),
    "dashscope": Protocol(
        "/api-ws/v1/realtime",
        "The realtime protocol of Qwen's cloud; the query may name a `model`.",
        DashScopeConnection.kinds,
        DASHSCOPE,
        sends_binary=False,
    ),
    "nari": Protocol(
        "/v1/audio/speech/ws", f"The subprotocol `{SUBPROTOCOL}` of nari-qwen3-tts.", NariConnection.kinds, NARI
    ),
    "elevenlabs": Protocol(
        PATH,
        "ElevenLabs' protocol for one text. The query has the settings.",
        ElevenLabsConnection.kinds,
        ELEVENLABS,
        sends_binary=False,
    ),
    "elevenlabsContexts": Protocol(
        MULTI_PATH,
        "ElevenLabs' protocol for several texts, each with a `context_id`.",
        ElevenLabsConnection.kinds,
        ELEVENLABS,
        sends_binary=False,
    ),
}


def asyncapi(*, has_keys: bool) -> dict[str, Any]:
    """The document of the WebSockets. In AsyncAPI's words the server receives what clients send."""
    schemas: dict[str, Any] = {}
    channels, operations = {}, {}
    for name, protocol in PROTOCOLS.items():
        received = {kind: _received(kind, model, schemas) for kind, model in protocol.messages.items()}
        sent = {kind: _sent(kind, event) for kind, event in protocol.events.items()}
        if protocol.sends_binary:
            sent[_AUDIO] = _BINARY
        channels[name] = {
            "address": protocol.address,
            **({"parameters": {"voice_id": {}}} if "{voice_id}" in protocol.address else {}),
            "description": protocol.about,
            "messages": {**received, **sent},
            "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
        }
        for action, kinds in (("receive", received), ("send", sent)):
            operations[f"{name}.{action}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/{kind}"} for kind in kinds],
                **({"security": [{"$ref": "#/components/securitySchemes/api_key"}]} if has_keys else {}),
            }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Oscine",
            "version": __version__,
            "description": "The WebSockets; /openapi.json has the rest.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"schemas": schemas, "securitySchemes": {"api_key": {"type": "http", "scheme": "bearer"}}},
    }


def _received(kind: str, model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    payload = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= payload.pop("$defs", {})
    return {"name": kind, "summary": payload.get("description", ""), "payload": payload}


def _sent(kind: str, event: Event) -> dict[str, Any]:
    return {"name": kind, "summary": event.summary, "payload": event.schema(kind)}
