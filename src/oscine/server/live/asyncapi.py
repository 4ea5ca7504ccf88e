"""The AsyncAPI document of the WebSockets, made of the message types that they read and the tables of their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from oscine import __version__
from oscine.server.dialects.dashscope import DashScopeConnection
from oscine.server.dialects.nari import SUBPROTOCOL, NariConnection
from oscine.server.dialects.sglang_omni import SglangOmniConnection
from oscine.server.live.connection import MESSAGES
from oscine.server.live.socket_events import DASHSCOPE, LIVE, NARI, SGLANG_OMNI, Event

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
