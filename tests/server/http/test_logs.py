"""Log lines for people and for programs, and the audit log."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.http import logs
from oscine.server.http.logs import ConsoleFormatter, JsonFormatter, audit, log_fields
from oscine.serving.settings import changed_settings, load_settings
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine
from tests.server.serving import eventually, serving
from tests.websocket import connect

NASTY = "a\nb\r\x1b[31m\x9b\u202e\u2028c"


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("oscine", logging.INFO, __file__, 1, message, (), None)
    made.__dict__.update(log_fields(**values))
    return made


def test_terminal_control_codes_are_escaped() -> None:
    line = ConsoleFormatter().format(record(f"GET {NASTY}", voice=NASTY))
    assert line.isprintable()
    shown = r"a\nb\r\x1b[31m\x9b\u202e\u2028c"
    assert line.endswith(f' GET {shown} voice="{shown}"')


def test_a_value_cannot_look_like_further_fields() -> None:
    line = ConsoleFormatter().format(record("voice stored", voice='anna key=1 "x"', mode="timbre"))
    assert line.endswith(r' voice stored voice="anna key=1 \"x\"" mode=timbre')


def test_other_scripts_are_not_escaped() -> None:
    assert ConsoleFormatter().format(record("你好, é")).endswith("你好, é")


def test_json_lines_restore_the_original_values() -> None:
    line = JsonFormatter().format(record("GET", voice=NASTY))
    assert line.isprintable() and json.loads(line)["voice"] == NASTY


def test_the_lines_of_an_exception_are_indented() -> None:
    failed = record("it failed\n")
    try:
        raise ValueError("12:00:00 info\n12:00:00 info    - forged\x1b[31m")
    except ValueError:
        failed.exc_info = sys.exc_info()
    first, *trace = ConsoleFormatter().format(failed).split("\n")
    assert first.endswith(" it failed")
    assert trace[-1] == r"  12:00:00 info    - forged\x1b[31m"
    assert all(line.startswith("  ") and line.isprintable() for line in trace)


KEYS = ("sk-first-canary", "sk-second-canary")
CANARIES = ("zanzibar", "sk-", "canary", "kumquat")  # texts, keys, consents and transcripts have one of these
TEXT = "Zanzibar, zanzibar and zanzibar. "
VECTOR = json.dumps([0.5] * 8)


class Kept(logging.Handler):
    def __init__(self, descriptor: int) -> None:
        super().__init__()
        KEPT.append(self)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


KEPT: list[Kept] = []


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The real configuration of the logs, at its most talkative level."""
    monkeypatch.setattr(logs, "LogWriter", Kept)
    logs.log_to_stderr("json", "debug")
    return KEPT[-1]


@pytest.fixture
def url(engine: ScriptedEngine, tmp_path: Path, log: Kept) -> Iterator[str]:
    config = ServerConfig(api_keys=KEYS, voices_dir=str(tmp_path), max_text_chars=2000)
    with serving(build_app(engine, BASE_CARD, config)) as url:
        yield url


def audits(log: Kept) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in log.lines]
    return [line for line in lines if line["logger"] == "oscine.audit"]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def upload(url: str, name: str, key: str) -> httpx.Response:
    fields = {"name": name, "consent": "consent canary", "speaker_embedding": VECTOR}
    files = {field: (None, value) for field, value in fields.items()}
    return httpx.post(f"{url}/v1/audio/voices", files=files, headers=bearer(key), trust_env=False, timeout=600)


def test_refused_keys_and_changes_of_voices_are_in_the_audit_log(url: str, log: Kept) -> None:
    ask = {"trust_env": False, "timeout": 600}
    assert httpx.get(f"{url}/v1/models", **ask).status_code == 401  # type: ignore[arg-type]
    answer = httpx.get(
        f"{url}/v1/models", headers={**bearer("wrong"), "x-request-id": "r-2"}, trust_env=False, timeout=600
    )
    assert answer.status_code == 401
    path = url.replace("http", "ws") + "/v1/audio/speech/stream"
    with connect(path, proxy=None) as live, contextlib.suppress(ConnectionClosed):
        while True:
            live.recv(timeout=600)
    assert upload(url, "anna", KEYS[1]).status_code == 200
    assert (
        httpx.delete(f"{url}/v1/audio/voices/anna", headers=bearer(KEYS[0]), trust_env=False, timeout=600).status_code
        == 200
    )
    lines = audits(log)
    assert [(line["message"], line.get("reason"), line.get("key")) for line in lines] == [
        ("key refused", "missing", None),
        ("key refused", "unknown", None),
        ("key refused", "missing", None),
        ("voice stored", None, "settings:2"),
        ("voice deleted", None, "settings:1"),
    ]
    assert lines[1]["request_id"] == "r-2" and all(line["client"] == "127.0.0.1" for line in lines)
    assert lines[3]["voice"] == lines[4]["voice"] == "anna" and len(str(lines[3]["content_hash"])) == 64


def test_the_settings_are_in_the_audit_log_without_their_keys(log: Kept) -> None:
    settings = load_settings(None, {"server.api_keys": KEYS, "server.port": 8123, "engine.slots": 4, "model": "demo"})
    audit("settings", **changed_settings(settings))
    (line,) = audits(log)
    assert line["server.port"] == 8123 and line["engine.slots"] == 4 and line["server.api_keys"] == "2 hidden"
    assert "engine.queue_limit" not in line and not any(key in log.lines[-1] for key in KEYS)


def test_a_quiet_log_still_has_its_audits(log: Kept) -> None:
    logs.log_to_stderr("json", "error")
    audit("something")
    assert len(audits(KEPT[-1])) == 1


def test_no_log_line_holds_a_text_or_a_key(url: str, log: Kept, engine: ScriptedEngine) -> None:
    assert upload(url, "anna", KEYS[0]).status_code == 200
    assert upload(url, "zanzi\abar kumquat", KEYS[0]).status_code == 400
    speech, headers = f"{url}/v1/audio/speech", bearer(KEYS[0])
    with httpx.Client(trust_env=False, timeout=600, headers=headers) as client:
        for text in (
            TEXT,
            TEXT + "!break",
            TEXT + "!refuse",
            TEXT + "!run",
            "zanzibar \ud83d".encode("utf-8", "replace").decode(),
            TEXT * 100,
        ):
            for form in ({}, {"stream_format": "sse"}, {"stream": False}):
                with contextlib.suppress(httpx.RemoteProtocolError):
                    client.post(speech, json={"input": text, "voice": "anna", **form})
        for body in (
            b'{"input": "zanzibar", ',
            b'{"input": "zanzibar", "zanzibar": 1}',
            b'{"input": ["zanzibar"]}',
            b'{"input": "zanzibar", "voice": 5}',
            b'{"input": "zanzibar", "ref_audio": "data:,zanzibar", "ref_text": "kumquat"}',
            b"zanzibar",
        ):
            client.post(speech, content=body, headers={"content-type": "application/json"})
        client.post(f"{speech}/batch", json={"items": [{"input": TEXT}, {"input": TEXT + "!break"}], "voice": "anna"})
        client.get(f"{url}/v1/models?api_key={KEYS[0]}&text=zanzibar")
        client.get(f"{url}/v1/models", headers=bearer("sk-wrong-canary"))
    options = {"additional_headers": headers, "proxy": None}
    with connect(url.replace("http", "ws") + "/v1/audio/speech/stream", **options) as live:  # type: ignore[arg-type]
        live.send(json.dumps({"type": "session.config", "voice": "anna"}))
        for message in (
            {"type": "input.text", "text": TEXT},
            {"type": "input.txt", "text": TEXT},
            {"type": "input.done"},
        ):
            live.send(json.dumps(message))
        live.send('{"zanzibar')
        live.send(json.dumps({"type": "session.close"}))
        with contextlib.suppress(ConnectionClosed):
            while True:
                live.recv(timeout=600)
    eventually(lambda: engine.status().slots_active == 0)
    assert len(log.lines) > 30
    told = [line for line in log.lines for canary in CANARIES if canary in line.lower()]
    assert not told
