"""API keys over HTTP: where they are read, what each may do and how much, and a file that changes under load."""

import fcntl
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.errors import NotAllowedError, UnauthorizedError
from oscine.server.http import api_keys, key_usage
from oscine.server.http.api_keys import ApiKeys, role_needed
from tests.server.key_holders import START_S, KeyedServer, keyed_server
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine
from tests.server.serving import client_of_app, eventually

SPEECH = "/v1/audio/speech"


@pytest.fixture
def server(engine: ScriptedEngine, tmp_path: Path) -> KeyedServer:
    return keyed_server(engine, tmp_path, BASE_CARD)


@pytest.fixture
def client(server: KeyedServer) -> Iterator[httpx.Client]:
    with client_of_app(server.app) as client:
        yield client


def speak(client: httpx.Client, holder: dict[str, str], text: str = "Hello.", **fields: Any) -> httpx.Response:
    body = {"input": text, "response_format": "pcm", "speaker_embedding": [0.5] * 8, **fields}
    return client.post(SPEECH, json=body, headers=holder)


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sesame"},
        {"authorization": "api-key  sesame "},
        {"xi-api-key": "sesame"},
        {"x-api-key": " sesame"},
        {"api-key": "sesame"},
        {"authorization": "Basic eA==", "api-key": "sesame"},
        {"authorization": "Bearer", "xi-api-key": "sesame", "api-key": "other"},
    ],
)
def test_a_key_is_read_from_each_header_that_clients_send_it_in(headers: dict[str, str]) -> None:
    keys = ApiKeys(ServerConfig(api_keys=("sesame",), admin_keys=("admin",)))
    assert keys.authenticate(headers) == "settings:1" and ApiKeys(ServerConfig()).authenticate(headers) == ""
    keys.check_admin({name: value.replace("sesame", "admin") for name, value in headers.items()})
    for wrong in ("sesam", ""):
        with pytest.raises(UnauthorizedError):
            keys.authenticate({name: value.replace("sesame", wrong) for name, value in headers.items()})
    with pytest.raises(NotAllowedError):
        keys.check_admin(headers)


def test_a_key_in_both_lists_of_the_settings_is_an_admin_key() -> None:
    keys = ApiKeys(ServerConfig(api_keys=("one", "both"), admin_keys=("both",)))
    keys.check_admin({"api-key": "both"})
    assert keys.authenticate({"api-key": "both"}, role="speak") == "settings:3"


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/metrics", "metrics"),
        ("HEAD", "/metrics", "metrics"),
        ("GET", "/v1/usage", None),
        ("GET", "/v1/usage/keys", "metrics"),
        ("POST", SPEECH, "speak"),
        ("POST", f"{SPEECH}/batch", "speak"),
        ("POST", "/v1/audio/encode", "speak"),
        ("POST", "/v1/text-to-speech/wren/stream", "speak"),
        ("POST", "/v1/something/new", "speak"),
        ("GET", "/v1/audio/voices", None),
        ("GET", "/v1/audio/voices/anna", None),
        ("GET", "/v1/audio/voices/anna/file", "voices"),
        ("GET", "/v1/audio/voices/anna/embedding", "voices"),
        ("POST", "/v1/audio/voices", "voices"),
        ("POST", "/v1/audio/voices/import", "voices"),
        ("DELETE", "/v1/audio/voices/anna", "voices"),
        ("POST", "/v1/audio/voice_consents", "voices"),
        ("GET", "/v1/models", None),
        ("POST", "/v1/models", None),
    ],
)
def test_each_path_needs_the_role_that_it_is_about(method: str, path: str, role: str | None) -> None:
    assert role_needed(method, path) == role


def test_a_key_may_do_what_its_roles_say(server: KeyedServer, client: httpx.Client) -> None:
    holders = {role: server.holder(role, role) for role in ("speak", "voices", "metrics", "admin")}
    model = {"path": "/not/allowed"}
    fields = {"name": (None, "anna"), "consent": (None, "yes"), "speaker_embedding": (None, str([0.5] * 8))}
    tried = {
        role: [
            speak(client, holder).status_code,
            client.post("/v1/audio/voices", files=fields, headers=holder).status_code,
            client.get("/metrics", headers=holder).status_code,
            client.get("/v1/audio/voices", headers=holder).status_code,
        ]
        for role, holder in holders.items()
    }
    assert tried == {
        "speak": [200, 403, 403, 200],
        "voices": [403, 200, 403, 200],
        "metrics": [403, 403, 200, 200],
        "admin": [200, 200, 200, 200],
    }
    refused = client.post("/v1/audio/voices", files=fields, headers=holders["speak"])
    assert error(refused) == (403, "missing_role")
    assert "this API key has the roles speak, and this needs voices" in refused.json()["error"]["message"]
    assert error(client.post("/v1/models", json=model, headers=holders["speak"])) == (403, "missing_role")
    assert error(client.post("/v1/models", json=model, headers=holders["admin"])) == (403, "not_allowed")
    body = {"input": {"text": "Hello."}}
    path = "/api/v1/services/aigc/multimodal-generation/generation"
    assert error(client.post(path, json=body, headers=holders["metrics"])) == (403, "missing_role")


def test_a_file_without_keys_admits_nobody(client: httpx.Client) -> None:
    assert error(speak(client, {})) == (401, "invalid_api_key")
    assert error(speak(client, {"api-key": "osk_anything"})) == (401, "invalid_api_key")
    assert client.get("/health").status_code == 200


def test_keys_of_the_settings_still_work_beside_the_file(engine: ScriptedEngine, tmp_path: Path) -> None:
    server = keyed_server(engine, tmp_path, BASE_CARD, api_keys=("sesame",), admin_keys=("open",), streams_per_key=3)
    named = server.holder("acme")
    with client_of_app(server.app) as client:
        for holder in (named, {"api-key": "sesame"}, {"api-key": "open"}):
            assert speak(client, holder).status_code == 200
        assert client.get("/metrics", headers={"api-key": "sesame"}).status_code == 200
    assert {name: server.used(name) for name in ("acme", "settings:1", "settings:2")} == dict.fromkeys(
        ("acme", "settings:1", "settings:2"), (1, 6)
    )
    assert server.keys.max_streams_of("acme") == 3


def test_a_revoked_and_an_expired_key_get_401_with_the_reason(
    server: KeyedServer, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    revoked = server.holder("acme")
    end = datetime.fromtimestamp(START_S, UTC) + timedelta(hours=1)
    expiring = {"xi-api-key": server.file.add("trial", ["speak"], {}, end).secret}
    server.keys.named.reload()
    assert speak(client, revoked).status_code == speak(client, expiring).status_code == 200
    server.revoke("acme")
    server.clock.now_s += 3600
    with caplog.at_level(logging.INFO, "oscine.audit"):
        answers = [speak(client, revoked), speak(client, expiring)]
    assert [error(answer) for answer in answers] == [(401, "api_key_revoked"), (401, "api_key_expired")]
    messages = [answer.json()["error"]["message"] for answer in answers]
    assert "this API key was revoked on" in messages[0]
    assert "this API key has expired on 2026-11-19 at 13:00 UTC; ask the operator" in messages[1]
    refused = [record.log_fields for record in caplog.records if record.getMessage() == "key refused"]  # type: ignore[attr-defined]
    assert [(one["key"], one["reason"]) for one in refused] == [("acme", "revoked"), ("trial", "expired")]


def test_a_stream_of_a_revoked_key_goes_on(server: KeyedServer, client: httpx.Client, engine: ScriptedEngine) -> None:
    holder = server.holder("acme")
    engine.max_frames = 5
    body = {"input": "A few words.", "response_format": "pcm", "speaker_embedding": [0.5] * 8, "stream": True}
    with client.stream("POST", SPEECH, json=body, headers=holder) as running:
        pieces = running.iter_raw()
        next(pieces)
        server.revoke("acme")
        assert speak(client, holder).status_code == 401
        engine.max_frames = float("inf")
        assert sum(map(len, pieces)) > 0
    assert server.used("acme") == (1, 12)


def test_a_limit_is_refused_with_its_name_and_the_time_of_the_next_try(
    server: KeyedServer, client: httpx.Client
) -> None:
    holder = server.holder("acme", characters_per_minute=10, characters_per_month=20)
    other = server.holder("other")
    assert speak(client, holder, "Hello.").status_code == 200
    server.clock.now_s += 20
    refused = speak(client, holder, "Hello.")
    assert error(refused) == (429, "rate_limit_exceeded") and refused.headers["retry-after"] == "40"
    assert "characters_per_minute of this API key is 10" in refused.json()["error"]["message"]
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert speak(client, other, "Hello.").status_code == 200
    for _ in range(2):
        server.clock.now_s += 60
        assert speak(client, holder, "Hello.").status_code == 200
    server.clock.now_s += 60
    refused = speak(client, holder, "Hello.")
    assert error(refused) == (429, "insufficient_quota")
    assert int(refused.headers["retry-after"]) == server.keys.usage.next_month_s - server.clock.now_s
    assert error(speak(client, holder, "Hello there, all of you.")) == (413, "too_large")
    server.clock.now_s = server.keys.usage.next_month_s
    assert speak(client, holder, "Hello.").status_code == 200


def test_streams_at_once_are_those_of_the_key(
    server: KeyedServer, client: httpx.Client, engine: ScriptedEngine
) -> None:
    narrow, wide = server.holder("narrow", streams=1), server.holder("wide")
    engine.max_frames = 5
    body = {"input": "A few words.", "response_format": "pcm", "speaker_embedding": [0.5] * 8, "stream": True}
    with client.stream("POST", SPEECH, json=body, headers=narrow) as running:
        pieces = running.iter_raw()
        next(pieces)
        assert error(speak(client, narrow)) == (429, "too_many_streams")
        engine.max_frames = float("inf")
        assert speak(client, wide).status_code == 200
        assert sum(map(len, pieces)) > 0
    eventually(lambda: server.keys.streams_of("narrow") == 0)
    assert speak(client, narrow).status_code == 200


def test_each_refusal_for_streams_counts_once(
    server: KeyedServer, client: httpx.Client, engine: ScriptedEngine
) -> None:
    holder = server.holder("acme", streams=1)
    engine.max_frames = 5
    body = {"input": "A few words.", "response_format": "pcm", "speaker_embedding": [0.5] * 8, "stream": True}
    with client.stream("POST", SPEECH, json=body, headers=holder) as running:
        pieces = running.iter_raw()  # keep it: httpx closes the response when its iterator is collected
        next(pieces)
        answers = [
            speak(client, holder),
            client.post(f"{SPEECH}/batch", json={"items": [{"input": "Hello."}]}, headers=holder),
            client.post("/v1/audio/encode?response_format=wav", content=bytes(2), headers=holder),
        ]
        engine.max_frames = float("inf")
    assert [error(answer) for answer in answers] == [(429, "too_many_streams")] * 3
    assert server.keys.usage.refused == {("acme", "streams"): 3}


def test_speech_that_fails_before_its_audio_is_not_counted(
    server: KeyedServer, client: httpx.Client, engine: ScriptedEngine
) -> None:
    holder = server.holder("acme", requests_per_month=2, characters_per_month=1000)
    engine.slots = engine.queue = 0
    assert speak(client, holder).status_code == 429
    engine.slots = engine.queue = 8
    assert speak(client, holder, "!refuse").status_code == 400
    assert speak(client, holder, "!break it").status_code == 503  # a whole file: nothing was sent
    assert server.used("acme") == (0, 0)
    with pytest.raises(httpx.RemoteProtocolError):
        speak(client, holder, "A long beginning. " * 20 + "!break", stream=True)  # after its first audio
    assert server.used("acme")[0] == 1
    assert speak(client, holder).status_code == 200
    assert error(speak(client, holder)) == (429, "insufficient_quota")


def test_each_item_of_a_batch_counts_once(server: KeyedServer, client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.slots, engine.queue = 1, 0  # all but one are tried again
    holder = server.holder("acme", characters_per_month=18)
    body = {"items": [{"input": "Hello."}] * 4, "response_format": "pcm", "speaker_embedding": [0.5] * 8}
    answer = client.post(f"{SPEECH}/batch", json=body, headers=holder).json()
    assert (answer["succeeded"], answer["failed"]) == (3, 1)
    (failed,) = [one for one in answer["results"] if one["status"] == "error"]
    assert failed["error"]["code"] == "insufficient_quota"
    assert server.used("acme") == (3, 18)


def test_the_metrics_and_the_log_have_the_names_of_keys(
    server: KeyedServer, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    holder, watcher = server.holder("acme", requests_per_minute=1), server.holder("watcher", "metrics")
    with caplog.at_level(logging.INFO, "oscine"):
        assert speak(client, holder).status_code == 200
        eventually(lambda: any(record.getMessage() == "spoken" for record in caplog.records))  # after the response
    (spoken,) = [record for record in caplog.records if record.getMessage() == "spoken"]
    assert spoken.log_fields["key"] == "acme" and spoken.log_fields["chars"] == 6  # type: ignore[attr-defined]
    assert speak(client, holder).status_code == 429
    page = client.get("/metrics", headers=watcher).text.splitlines()
    for line in (
        'oscine_key_requests_total{key="acme"} 1.0',
        'oscine_key_characters_total{key="acme"} 6.0',
        'oscine_key_audio_seconds_total{key="acme"} 0.48',
        'oscine_key_refused_total{key="acme",limit="requests_per_minute"} 1.0',
        "oscine_key_files_work 1.0",
    ):
        assert line in page
    assert not any("osk_" in line for line in page)


def test_a_broken_file_shows_in_the_metrics(server: KeyedServer, client: httpx.Client) -> None:
    watcher = server.holder("watcher", "metrics")
    server.file.path.write_text("{", encoding="utf-8")
    server.keys.named.reload()
    assert "oscine_key_files_work 0.0" in client.get("/metrics", headers=watcher).text.splitlines()


def test_a_change_of_the_file_is_noticed_without_a_restart_and_usage_is_saved(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "WATCH_S", 0.01)
    monkeypatch.setattr(api_keys, "SAVE_S", 0.01)
    server = keyed_server(engine, tmp_path, BASE_CARD)
    with client_of_app(server.app) as client:
        holder = {"api-key": server.file.add("acme", ["speak"], {}, None).secret}
        eventually(lambda: speak(client, holder).status_code == 200)
        server.file.revoke("acme")
        eventually(lambda: speak(client, holder).status_code == 401)
        usage = tmp_path / "keys.usage.json"
        eventually(usage.exists)
    saved = keyed_server(engine, tmp_path, BASE_CARD)  # after the first one has stopped
    assert saved.used("acme") == server.used("acme") and saved.used("acme")[0] >= 1


@pytest.fixture
def lock_of_usage(tmp_path: Path) -> Iterator[IO[bytes]]:
    """Another program's. It is held until it is closed."""
    with open(tmp_path / "keys.usage.json.lock", "wb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened


def test_a_key_is_revoked_while_another_program_holds_the_lock_of_the_usage(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock_of_usage: IO[bytes]
) -> None:
    monkeypatch.setattr(api_keys, "WATCH_S", 0.01)
    monkeypatch.setattr(api_keys, "SAVE_S", 0.01)
    monkeypatch.setattr(key_usage, "LOCK_WAIT_S", 600.0)
    server = keyed_server(engine, tmp_path, BASE_CARD)
    with client_of_app(server.app) as client:
        holder = server.holder("acme")
        assert speak(client, holder).status_code == 200
        server.file.revoke("acme")
        eventually(lambda: speak(client, holder).status_code == 401)
        lock_of_usage.close()
    assert server.keys.files_work and keyed_server(engine, tmp_path, BASE_CARD).used("acme") == server.used("acme")


def test_a_lock_that_is_never_released_shows_in_the_metrics_and_does_not_stop_the_end(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock_of_usage: IO[bytes]
) -> None:
    monkeypatch.setattr(api_keys, "SAVE_S", 0.01)
    monkeypatch.setattr(key_usage, "LOCK_WAIT_S", 0.01)
    server = keyed_server(engine, tmp_path, BASE_CARD)
    with client_of_app(server.app) as client:
        assert speak(client, server.holder("acme")).status_code == 200
        eventually(lambda: not server.keys.files_work)
    assert not lock_of_usage.closed and not (tmp_path / "keys.usage.json").exists()


def test_reloads_under_load_fail_no_request(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "WATCH_S", 0.001)
    server = keyed_server(engine, tmp_path, BASE_CARD)
    holders = [server.holder(f"customer-{number}") for number in range(4)]
    statuses: list[list[int]] = [[] for _ in holders]
    done = threading.Event()

    def keep_speaking(index: int) -> None:
        while not done.is_set():
            statuses[index].append(speak(client, holders[index]).status_code)

    with client_of_app(server.app) as client:
        speakers = [threading.Thread(target=keep_speaking, args=(index,)) for index in range(len(holders))]
        for speaker in speakers:
            speaker.start()
        for number in range(20):
            server.file.add(f"new-{number}", ["speak"], {}, None)
            good = server.file.path.read_bytes()
            server.file.path.write_text("{", encoding="utf-8")
            server.file.path.write_bytes(good)
        eventually(lambda: "new-19" in server.keys.named.by_name and all(statuses))
        done.set()
        for speaker in speakers:
            speaker.join(600)
    assert {status for one in statuses for status in one} == {200}
    assert [server.used(f"customer-{index}")[0] for index in range(len(holders))] == [len(one) for one in statuses]
