"""Every entrance for the fields of a request: HTTP, batches and the WebSocket protocols."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from oscine.server.dialects.dashscope_http import PATH as GENERATION
from tests.server.live.live_client import Server
from tests.websocket import connect

SPEECH = "/v1/audio/speech"
Ask = Callable[[Server, dict[str, Any]], str | None]  # the message of the error, or None


def over_http(server: Server, fields: dict[str, Any]) -> str | None:
    return message_of(post(server, SPEECH, {"input": "Hi.", **fields}))


def as_item_of_a_batch(server: Server, fields: dict[str, Any]) -> str | None:
    return message_of_batch(post(server, f"{SPEECH}/batch", {"items": [{"input": "Hi.", **fields}]}))


def as_default_of_a_batch(server: Server, fields: dict[str, Any]) -> str | None:
    return message_of_batch(post(server, f"{SPEECH}/batch", {"items": [{"input": "Hi."}], **fields}))


def over_dashscopes_http(server: Server, fields: dict[str, Any]) -> str | None:
    return message_of(post(server, GENERATION, {"input": {"text": "Hi."}, "parameters": fields}))


def over_elevenlabs_http(server: Server, fields: dict[str, Any]) -> str | None:
    others = {name: value for name, value in fields.items() if name != "voice"}
    path = f"/v1/text-to-speech/{fields.get('voice', 'default')}?output_format=mp3"
    return message_of(post(server, path, {"text": "Hi.", **others}))


def live(server: Server, fields: dict[str, Any]) -> str | None:
    with server.client() as client:
        return said(client.configure(**fields))


def live_as_vllm_omni(server: Server, fields: dict[str, Any]) -> str | None:
    with server.client() as client:
        return said(client.configure(**{"streaming_mode": "sentence", **fields}))


def live_as_sglang_omni(server: Server, fields: dict[str, Any]) -> str | None:
    with server.client() as client:
        client.send("session.config", session=fields)
        return said(client.until("session.configured", "error").events[-1])


def live_as_dashscope(server: Server, fields: dict[str, Any]) -> str | None:
    with server.client("/api-ws/v1/realtime") as client:
        client.until("session.created")
        client.send("session.update", session=fields)
        return said(client.until("session.updated", "error").events[-1])


def live_as_nari(server: Server, fields: dict[str, Any]) -> str | None:
    with server.client("/v1/audio/speech/ws", subprotocols=[Subprotocol("nari.speech.v1")]) as client:
        client.until("session.created")
        client.send("request.start", **fields)
        return said(client.until("request.configured", "error").events[-1])


def live_as_elevenlabs(server: Server, fields: dict[str, Any]) -> str | None:
    others = {name: value for name, value in fields.items() if name != "voice"}
    path = f"/v1/text-to-speech/{fields.get('voice', 'default')}/stream-input?output_format=mp3"
    with connect(server.url.replace("http", "ws") + path, proxy=None) as socket:
        socket.send(json.dumps({"text": "Hi.", **others}))
        with contextlib.suppress(ConnectionClosed):  # it was refused already
            socket.send(json.dumps({"text": ""}))
        told = json.loads(socket.recv(timeout=600))
        while not {"isFinal", "message"} & told.keys():
            told = json.loads(socket.recv(timeout=600))
    return None if "isFinal" in told else str(told["message"])


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, trust_env=False, timeout=600)


def message_of(answer: httpx.Response) -> str | None:
    return None if answer.status_code == 200 else str(answer.json()["error"]["message"])


def message_of_batch(answer: httpx.Response) -> str | None:
    if answer.status_code != 200:
        return message_of(answer)
    (result,) = answer.json()["results"]
    return result["error"] and str(result["error"]["message"])


def said(event: dict[str, Any]) -> str | None:
    return str(event["error"]["message"]) if event["type"] == "error" else None


ENTRANCES: list[Ask] = [
    *(over_http, as_item_of_a_batch, as_default_of_a_batch, over_dashscopes_http),
    *(over_elevenlabs_http, live_as_elevenlabs),
    *(live, live_as_vllm_omni, live_as_sglang_omni, live_as_dashscope, live_as_nari),
]
