"""Every route and every message of a WebSocket counts what it costs. A new one fails here until it has a line."""

from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.routing import BaseRoute, Route, WebSocketRoute

from oscine.config import ServerConfig
from oscine.process.resources import Account, Owner
from oscine.server.app import build_app
from oscine.server.asyncapi import PROTOCOLS
from oscine.server.dialects.dashscope_http import PATH as GENERATION
from oscine.server.service import Service
from oscine.speech.limits import limits_of
from oscine.voice import Voice
from tests.server.live.live_client import Server
from tests.server.reference_clip import CLIP
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine
from tests.server.serving import eventually, serving

LARGE = "x " * 50_000
LONG = "One two three. " * 200  # prepared on a thread
SAID = "One two three. " * 6  # more audio than is free
SPOKEN = {"voice": "anna", "response_format": "wav"}
VOICES, CONSENTS = "/v1/audio/voices", "/v1/audio/voice_consents"
SHORT_FILE = {"max_new_tokens": 2, "stream": False}
FORM = {"name": "berta", "consent": "yes"}
BIG_VOICE = Voice(np.zeros(8, np.float32), np.zeros((700, 16), np.int64), "x" * 4000)
IMPORTED = f"{VOICES}/import?name=cora&consent=yes"
TTS = "/v1/text-to-speech"
ELEVEN = f"{TTS}/{{voice_id}}"
TEXT = {"text": SAID}
Ask = Callable[[httpx.Client], httpx.Response]

# What each route counts beside its body: it is called once, and asserted to count exactly this. Nothing: it holds no
# more than a small answer, and does its work in microseconds. `kept_file`: counted when it was made.
COSTS: dict[str, tuple[Ask, set[str]]] = {
    "POST /v1/audio/speech": (
        lambda http: http.post(
            "/v1/audio/speech", json={**SPOKEN, "input": LONG, "response_format": "mp3", "stream": False}
        ),
        {"text", "voice_file", "audio", "encoding"},
    ),
    "POST /v1/audio/speech/batch": (
        lambda http: http.post("/v1/audio/speech/batch", json={**SPOKEN, "items": [{"input": SAID}]}),
        {"voice_file", "audio", "encoding"},
    ),
    "GET /v1/audio/speech/{request_id:path}": (lambda http: http.get("/v1/audio/speech/none"), set()),
    "POST /v1/audio/encode": (
        lambda http: http.post("/v1/audio/encode?response_format=wav", content=bytes(2**17)),
        {"conversion", "response"},
    ),
    f"POST {GENERATION}": (
        lambda http: http.post(GENERATION, json={"input": {"text": SAID, "voice": "anna"}}),
        {"voice_file", "audio", "encoding", "kept_file"},
    ),
    "GET /files/{name}": (lambda http: http.get("/files/none.wav"), set()),
    f"GET {VOICES}": (lambda http: http.get(VOICES), {"voice_list", "response"}),
    f"POST {VOICES}": (
        lambda http: http.post(VOICES, data=FORM, files={"audio_sample": CLIP}),
        {"file", "clip", "clip_decoding", "clone"},
    ),
    f"POST {VOICES}/import": (lambda http: http.post(IMPORTED, content=BIG_VOICE.to_bytes({})), {"file"}),
    f"GET {VOICES}/{{name}}/embedding": (lambda http: http.get(f"{VOICES}/anna/embedding"), {"file"}),
    f"GET {VOICES}/{{name}}/file": (lambda http: http.get(f"{VOICES}/anna/file"), {"file", "response"}),
    f"GET {VOICES}/{{name}}": (lambda http: http.get(f"{VOICES}/anna"), {"file"}),
    f"DELETE {VOICES}/{{name}}": (lambda http: http.delete(f"{VOICES}/none"), {"file"}),
    f"GET {CONSENTS}": (lambda http: http.get(CONSENTS), {"voice_list"}),  # at most 100 of 2 KiB
    f"POST {CONSENTS}": (
        lambda http: http.post(CONSENTS, data={"name": "a", "language": "en"}, files={"recording": CLIP}),
        {"file"},
    ),
    f"GET {CONSENTS}/{{consent_id}}": (lambda http: http.get(f"{CONSENTS}/none"), {"file"}),
    f"POST {CONSENTS}/{{consent_id}}": (lambda http: http.post(f"{CONSENTS}/none", json={"name": "b"}), {"file"}),
    f"DELETE {CONSENTS}/{{consent_id}}": (lambda http: http.delete(f"{CONSENTS}/none"), {"file"}),
    f"POST {ELEVEN}": (
        lambda http: http.post(f"{TTS}/anna?output_format=wav_24000", json=TEXT),
        {"voice_file", "audio", "encoding"},
    ),
    f"POST {ELEVEN}/stream": (lambda http: http.post(f"{TTS}/anna/stream", json=TEXT), {"voice_file", "encoding"}),
    # Both need an aligner.
    f"POST {ELEVEN}/with-timestamps": (lambda http: http.post(f"{TTS}/anna/with-timestamps", json=TEXT), set()),
    f"POST {ELEVEN}/stream/with-timestamps": (
        lambda http: http.post(f"{TTS}/anna/stream/with-timestamps", json=TEXT),
        set(),
    ),
    "GET /v1/voices": (lambda http: http.get("/v1/voices"), {"voice_list", "response"}),
    "GET /v2/voices": (lambda http: http.get("/v2/voices?search=v1"), {"voice_list"}),
    "GET /v1/voices/{voice_id}": (lambda http: http.get("/v1/voices/anna"), {"voice_list"}),
    "GET /v1/usage/keys": (lambda http: http.get("/v1/usage/keys"), {"file"}),
    # Admin keys only; one model is added at a time.
    "POST /v1/models": (lambda http: http.post("/v1/models", json={"path": "demo"}), set()),
    "DELETE /v1/models/{model_id:path}": (lambda http: http.delete("/v1/models/none"), set()),
    **{
        f"GET {path}": (lambda http, path=path: http.get(path.replace("{model_id:path}", "scripted")), set())  # type: ignore[misc]
        for path in (
            "/v1/models",
            "/v1/models/{model_id:path}",
            "/v1/user",
            "/v1/user/subscription",
            "/v1/usage",
            "/health",
            "/ready",
            "/metrics",
            "/version",
            "/",
            "/docs",
        )
    },
    # One document and a few files for all clients.
    **{
        f"GET {path}": (lambda http, path=path: http.get(path.replace("{name}", "app.js")), set())  # type: ignore[misc]
        for path in ("/openapi.json", "/asyncapi.json", "/playground/{name}")
    },
}
BODIES = [route for route in COSTS if route.startswith("POST")]
WEBSOCKETS = {"/v1/audio/speech/stream", "/api-ws/v1/realtime", "/v1/audio/speech/ws", "/{path:path}"}  # the last: 404
WEBSOCKETS |= {f"{ELEVEN}/stream-input", f"{ELEVEN}/multi-stream-input"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = ScriptedEngine()
    app = build_app(engine, BASE_CARD, ServerConfig(max_text_chars=10**6))
    service: Service = app.state.service
    for number in range(450):
        service.voice_store.add("anna" if not number else f"v{number}", BIG_VOICE, consent="yes")
    with serving(app) as url:
        for path in ("/openapi.json", "/asyncapi.json"):  # the first request makes them
            httpx.get(url + path, trust_env=False, timeout=600)
        yield Server(url, service)
    engine.stop()


@pytest.fixture(autouse=True)
def no_shared_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools that all share have no limits: their use is a bug, and a status 500."""
    run = BaseEventLoop.run_in_executor

    def own_executor_only(self: BaseEventLoop, executor: Any, call: Any, *arguments: Any) -> Any:
        assert executor is not None, "the default executor is used"
        return run(self, executor, call, *arguments)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the pool of anyio is used")

    monkeypatch.setattr(BaseEventLoop, "run_in_executor", own_executor_only)
    monkeypatch.setattr("anyio.to_thread.run_sync", refuse)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The kinds that were counted."""
    kinds: set[str] = set()
    change = Account.change

    def note(self: Account, owner: Owner, size: int) -> None:
        change(self, owner, size)
        assert size <= 0 or owner.address == "127.0.0.1"
        kinds.add(self.limit.kind)

    monkeypatch.setattr(Account, "change", note)
    return kinds


def routes(of: list[BaseRoute]) -> Iterator[BaseRoute]:
    for route in of:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from routes(inner.routes)
        else:
            yield route


def test_every_route_has_a_line(server: Server) -> None:
    engine = ScriptedEngine()
    found, sockets = set(), set()
    for route in routes(build_app(engine, BASE_CARD).routes):
        if isinstance(route, WebSocketRoute):
            sockets.add(route.path)
        else:
            assert isinstance(route, Route) and route.methods
            found |= {f"{method} {route.path}" for method in route.methods - {"HEAD"}}
    engine.stop()
    assert found == set(COSTS) and sockets == WEBSOCKETS
    assert {protocol.address for protocol in PROTOCOLS.values()} <= sockets


@pytest.mark.parametrize("route", COSTS)
def test_a_route_counts_what_it_costs(server: Server, counted: set[str], route: str) -> None:
    ask, kinds = COSTS[route]
    with httpx.Client(base_url=server.url, trust_env=False, timeout=600, follow_redirects=True) as http:
        answer = ask(http)
    assert answer.status_code != 500 and counted - {"request"} == kinds, answer.text[:500]
    assert "response" in kinds or "audio" in kinds or len(answer.content) < 2**18


@pytest.mark.parametrize("route", BODIES)
def test_every_body_counts(server: Server, counted: set[str], route: str) -> None:
    path = route.split()[1].replace("{consent_id}", "none").replace("{voice_id}", "anna")
    body = {"files": {"x": LARGE}} if path in (VOICES, CONSENTS) else {"json": {"x": LARGE}}
    httpx.post(f"{server.url}{path}?response_format=wav", **body, trust_env=False, timeout=600)  # type: ignore[arg-type]
    assert "request" in counted


@pytest.mark.parametrize("path", [VOICES, CONSENTS])
def test_a_large_upload_stays_in_memory_where_it_is_counted(server: Server, path: str) -> None:
    name = "audio_sample" if path == VOICES else "recording"
    fields = {**FORM, "language": "en"} if path == CONSENTS else FORM
    answer = httpx.post(server.url + path, data=fields, files={name: bytes(3 * 2**20)}, trust_env=False, timeout=600)
    assert answer.status_code == 400, answer.text


MESSAGES = [(name, kind) for name, protocol in PROTOCOLS.items() for kind in protocol.messages]


@pytest.mark.parametrize(("protocol", "kind"), MESSAGES)
def test_every_message_counts_until_it_is_handled(server: Server, counted: set[str], protocol: str, kind: str) -> None:
    options: dict[str, Any] = {"subprotocols": ["nari.speech.v1"]} if protocol == "nari" else {}
    with server.client(PROTOCOLS[protocol].address.replace("{voice_id}", "anna"), **options) as client:
        client.send(kind, padding=LARGE)
        eventually(lambda: "request" in counted)
    eventually(lambda: len(server.service.ledger["request"]) == 0)


def test_an_utterance_without_text_counts_while_it_is_queued(server: Server) -> None:
    """It takes some kilobytes, and its message a few bytes."""
    account = server.service.ledger["live_text"]
    with account.hold(account.limit.in_all - 3 * 2**13), server.client() as client:
        client.send("input.text", text="Hi")  # the first one, which is not over
        eventually(lambda: len(account) > account.limit.in_all - 3 * 2**13)
        others = len(account)
        with server.client() as other:
            for _ in range(2):
                other.send("input.text", text="Hi")
                other.send("input.done")
                assert other.until("session.done", "error").kinds[-1] == "session.done"
        eventually(lambda: len(account) <= others)
        with account.hold(2**13), server.client() as other:
            other.send("input.done")
            assert other.until("session.done", "error").events[-1]["error"]["code"] == "too_much_held"
    eventually(lambda: len(account) == 0)


def test_by_default_all_bytes_together_stay_below_1_gib() -> None:
    limits = [limit for limit in limits_of(ServerConfig()) if not limit.threads]
    assert sum(limit.in_all for limit in limits) < 2**30
    assert all(limit.per_address is not None and limit.per_address <= 0.75 * limit.in_all for limit in limits)


def test_text_that_waits_to_be_spoken_counts(server: Server, counted: set[str]) -> None:
    with server.client() as client:
        client.send("input.text", text=LONG)
        eventually(lambda: "live_text" in counted)
    eventually(lambda: len(server.service.ledger["live_text"]) == 0)
