"""Half-open sockets and disks that stand still: nobody else notices."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.service import Service
from tests.server.http.test_connections import UPGRADE, head_of
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine, spoken
from tests.server.serving import eventually, serving

VOICE = {"name": (None, "anna"), "consent": (None, "yes"), "speaker_embedding": (None, "[0.5, 0.5]")}


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(frame_s=0.002)
    yield engine
    engine.stop()


def test_a_peer_that_vanished_without_a_word_is_noticed_by_the_pings(engine: ScriptedEngine) -> None:
    """A half-open WebSocket: the other end is gone, and no packet says so. It never answers."""
    app = build_app(engine, BASE_CARD, ServerConfig())
    with serving(app, ws_ping_interval=0.1, ws_ping_timeout=0.1) as url, contextlib.ExitStack() as stack:
        where, service = httpx.URL(url), app.state.service
        assert isinstance(service, Service)
        for _ in range(3):
            one = stack.enter_context(socket.create_connection((where.host, where.port or 0), timeout=600))
            one.sendall(UPGRADE + b"\r\n")
            assert head_of(one).startswith(b"HTTP/1.1 101 ")
        eventually(lambda: len(service.connections) == 0)


def test_a_disk_that_stands_still_delays_only_what_needs_it(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, stuck = threading.Event(), threading.Event()
    sync = os.fsync

    def wait(descriptor: int) -> None:
        stuck.set()
        assert go_on.wait(600)
        sync(descriptor)

    card = BASE_CARD.__class__(
        **{name: getattr(BASE_CARD, name) for name in BASE_CARD.__slots__} | {"speaker_width": 2}
    )
    with serving(build_app(engine, card, ServerConfig(voices_dir=str(tmp_path)))) as url:
        ask = {"trust_env": False, "timeout": 600}
        assert httpx.post(f"{url}/v1/audio/voices", files={**VOICE, "name": (None, "berta")}, **ask).status_code == 200  # type: ignore[arg-type]
        monkeypatch.setattr(os, "fsync", wait)
        statuses: list[int] = []

        def upload() -> None:
            statuses.append(httpx.post(f"{url}/v1/audio/voices", files=VOICE, trust_env=False, timeout=600).status_code)

        uploading = threading.Thread(target=upload)
        uploading.start()
        assert stuck.wait(600)
        body = {"input": "Hello.", "voice": "berta", "response_format": "pcm", "seed": 4}
        spoken_now = httpx.post(f"{url}/v1/audio/speech", json=body, **ask)  # type: ignore[arg-type]
        assert spoken_now.status_code == 200 and len(spoken_now.content) == len(spoken("Hello.", 4))
        assert httpx.get(f"{url}/health", **ask).status_code == 200 and not statuses  # type: ignore[arg-type]
        go_on.set()
        uploading.join(600)
        assert statuses == [200]


def test_a_jump_of_the_clock_changes_no_speech(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Summer time, a time server, or a person: deadlines do not use the clock on the wall."""
    wall = time.time
    with serving(
        build_app(
            engine,
            BASE_CARD.__class__(
                **{name: getattr(BASE_CARD, name) for name in BASE_CARD.__slots__}
                | {"kind": "custom_voice", "speakers": ("wren",)}
            ),
        )
    ) as url:
        body = {"input": "word " * 30, "response_format": "pcm", "seed": 2}
        with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, trust_env=False, timeout=600) as running:
            pieces = running.iter_raw()
            received = next(pieces)
            for jump_s in (86400.0, -86400.0, 10 * 365 * 86400.0):
                monkeypatch.setattr(time, "time", lambda jump_s=jump_s: wall() + jump_s)
                received += next(pieces)
            received += b"".join(pieces)
        assert received == spoken("word " * 30, 2)
