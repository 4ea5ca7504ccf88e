"""The AsyncAPI document has every message that the WebSockets read or send."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import oscine.server
from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.asyncapi import PROTOCOLS, asyncapi
from oscine.server.live.messages import MESSAGES
from tests.server.described_messages import check_described
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import client_of

SERVER = Path(oscine.server.__file__).parent
SENDERS = ("send_event", "send_json", "event")  # private ones too
FILES = {
    "live": [*(SERVER / "live").glob("*.py")],
    "sglangOmni": [SERVER / "dialects" / "sglang_omni.py"],
    "dashscope": [SERVER / "dialects" / "dashscope.py"],
    "nari": [SERVER / "dialects" / "nari.py"],
    "elevenlabs": [SERVER / "dialects" / "elevenlabs.py"],
    "elevenlabsContexts": [SERVER / "dialects" / "elevenlabs.py"],
}
PASSED_ON = {"sglangOmni": {"audio.start", "audio.done", "audio.chunk"}}  # from the live session


def sent_kinds(files: list[Path]) -> Iterator[str]:
    """The first argument of each call that sends an event."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=kind), *_]) if (
                    name.lstrip("_") in SENDERS
                ):
                    yield str(kind)


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_every_event_that_the_server_sends_is_described(name: str) -> None:
    assert set(sent_kinds(FILES[name])) | PASSED_ON.get(name, set()) == set(PROTOCOLS[name].events)


def test_every_websocket_is_a_channel(engine: ScriptedEngine) -> None:
    routes = build_app(engine, CARD).routes
    found = {path for route in routes for path in websockets(route)} - {"/{path:path}"}
    assert found == {protocol.address for protocol in PROTOCOLS.values()}


def websockets(route: Any) -> Iterator[str]:
    if type(route).__name__ == "APIWebSocketRoute":
        yield route.path
    for inner in getattr(getattr(route, "original_router", None), "routes", ()):
        yield from websockets(inner)


def test_every_message_that_the_server_reads_is_described() -> None:
    document = asyncapi(has_keys=False)
    for name, protocol in PROTOCOLS.items():
        messages = document["channels"][name]["messages"]
        for kind, model in protocol.messages.items():
            payload = messages[kind]["payload"]
            assert set(payload["properties"]) == set(model.model_fields) and messages[kind]["summary"], (name, kind)
            assert "type" not in model.model_fields or payload["properties"]["type"]["const"] == kind
    assert set(MESSAGES) < set(document["channels"]["live"]["messages"])


def test_the_operations_name_each_message_once() -> None:
    document = asyncapi(has_keys=True)
    named = [one["$ref"] for operation in document["operations"].values() for one in operation["messages"]]
    assert len(named) == len(set(named)) == sum(len(one["messages"]) for one in document["channels"].values())
    for reference in named:
        _, _, channel, _, kind = reference.split("/")
        assert document["channels"][channel]["messages"][kind]["name"] == kind
    assert all(operation["security"] for operation in document["operations"].values())


def test_all_references_and_schemas_are_valid() -> None:
    document = asyncapi(has_keys=False)
    schemas = document["components"]["schemas"]
    for channel in document["channels"].values():
        for message in channel["messages"].values():
            jsonschema_rs.validator_for({**message["payload"], "components": {"schemas": schemas}})


def test_the_document_is_served(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, ServerConfig(api_keys=("key",))) as client:
        document = client.get("/asyncapi.json").json()
    assert document["asyncapi"] == "3.0.0" and document == asyncapi(has_keys=True)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "audio.begin"},
        {"type": "session.done", "utterance_index": 0},
        {"type": "session.done", "utterance_index": 0, "total_sentences": "1"},
        {"type": "session.done", "utterance_index": 0, "total_sentences": 1, "more": 1},
    ],
)
def test_test_clients_refuse_what_is_not_described(message: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="not in the AsyncAPI document"):
        check_described("/v1/audio/speech/stream", message)
