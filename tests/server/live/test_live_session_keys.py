"""Keys over WebSockets: pieces of text count when they arrive, and a long-lived session notices that its key has ended
at its next speech."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.key_holders import KeyedServer, keyed_server
from tests.server.live.live_client import Client, Server
from tests.server.scripted_engine import ScriptedEngine
from tests.server.serving import eventually, serving


@pytest.fixture
def keyed(engine: ScriptedEngine, tmp_path: Path) -> KeyedServer:
    return keyed_server(engine, tmp_path, live_pause_s=3600)


@pytest.fixture
def server(keyed: KeyedServer) -> Iterator[Server]:
    with serving(keyed.app) as url:
        yield Server(url, keyed.app.state.service)


def test_text_counts_when_it_arrives_and_a_speech_is_a_request(keyed: KeyedServer, server: Server) -> None:
    with server.client(additional_headers=keyed.holder("acme")) as client:
        assert client.say("Hello ", "there.").kinds[-1] == "session.done"
        assert client.say("Hello.").kinds[-1] == "session.done"
        assert client.say().kinds[-1] == "session.done"  # nothing is said
    assert keyed.used("acme") == (2, 18)
    assert keyed.keys.usage.spoken["acme", "requests"] == 2


def counted(keyed: KeyedServer) -> tuple[int, int]:
    """What the metrics count, of speeches that have ended."""
    spoken = keyed.keys.usage.spoken
    return spoken["acme", "requests"], spoken["acme", "characters"]


def test_an_utterance_without_words_is_not_counted(keyed: KeyedServer, server: Server) -> None:
    with server.client(additional_headers=keyed.holder("acme")) as client:
        assert client.say("   ").kinds[-1] == "session.done"
    assert keyed.used("acme") == counted(keyed) == (0, 0)


def queue_utterances(client: Client, keyed: KeyedServer) -> None:
    """The first one is being spoken."""
    for text in ("The first.", "Second."):
        client.write(text)
        client.send("input.done")
    client.receive_frames(2)
    eventually(lambda: keyed.used("acme") == (2, 17))


def test_queued_utterances_that_the_client_cancels_are_counted(
    keyed: KeyedServer, server: Server, engine: ScriptedEngine
) -> None:
    engine.max_frames = 3
    with server.client(additional_headers=keyed.holder("acme")) as client:
        queue_utterances(client, keyed)
        client.cancel()
        assert keyed.used("acme") == counted(keyed) == (2, 17)


def test_queued_utterances_that_the_client_leaves_are_counted(
    keyed: KeyedServer, server: Server, engine: ScriptedEngine
) -> None:
    engine.max_frames = 3
    with server.client(additional_headers=keyed.holder("acme")) as client:
        queue_utterances(client, keyed)
    eventually(lambda: counted(keyed) == (2, 17))
    assert keyed.used("acme") == (2, 17)


def test_audio_counts_at_the_speed_at_which_it_was_sent(keyed: KeyedServer, server: Server) -> None:
    with server.client(additional_headers=keyed.holder("acme")) as client:
        client.configure(speed=2)
        client.say("Hello.")
    assert keyed.keys.usage.spoken["acme", "audio_ms"] == 240


def test_a_piece_beyond_a_limit_is_refused_and_the_session_goes_on(keyed: KeyedServer, server: Server) -> None:
    holder = keyed.holder("acme", characters_per_minute=10)
    with server.client(additional_headers=holder) as client:
        client.write("Hello ", "there.")
        refused = client.until("error").events[-1]["error"]
        assert refused["code"] == "rate_limit_exceeded" and "characters_per_minute" in refused["message"]
        assert client.say("you").kinds[-1] == "session.done"
        keyed.clock.now_s += 60
        assert client.say("Hello.").kinds[-1] == "session.done"
    assert keyed.used("acme") == (2, 15) and keyed.keys.usage.refused == {("acme", "characters_per_minute"): 1}


def test_a_session_ends_when_text_comes_for_a_revoked_key(keyed: KeyedServer, server: Server) -> None:
    with server.client(additional_headers=keyed.holder("acme")) as client:
        assert client.say("Hello.").kinds[-1] == "session.done"
        keyed.revoke("acme")
        client.write("More.")
        code, received = client.closed()
    assert code == 1008 and received.one("error")["error"]["code"] == "api_key_revoked"


def lose_role(keyed: KeyedServer) -> None:
    content = keyed.file.path.read_text(encoding="utf-8")
    keyed.file.path.write_text(content.replace('"speak"', '"metrics"'), encoding="utf-8")
    keyed.keys.named.reload()


def test_a_session_ends_when_text_comes_for_a_key_that_may_not_speak_any_more(
    keyed: KeyedServer, server: Server
) -> None:
    with server.client(additional_headers=keyed.holder("acme")) as client:
        assert client.say("Hello.").kinds[-1] == "session.done"
        lose_role(keyed)
        client.write("More.")
        code, received = client.closed()
    assert code == 1008 and received.one("error")["error"]["code"] == "missing_role"


@pytest.mark.parametrize("change", ["revoked", "without its role"])
def test_a_queued_speech_of_a_key_that_has_changed_is_not_spoken(
    keyed: KeyedServer, server: Server, engine: ScriptedEngine, change: str
) -> None:
    engine.max_frames = 3
    with server.client(additional_headers=keyed.holder("acme")) as client:
        for text in ("The first one.", "The second one."):
            client.write(text)
            client.send("input.done")
        client.receive_frames(2)
        eventually(lambda: keyed.used("acme")[0] == 2)
        keyed.revoke("acme") if change == "revoked" else lose_role(keyed)
        engine.max_frames = float("inf")
        code, received = client.closed()
    reason = "api_key_revoked" if change == "revoked" else "missing_role"
    assert code == 1008 and received.one("error")["error"]["code"] == reason
    assert "audio.done" in received.kinds and len(engine.requests) == 1
    eventually(lambda: keyed.used("acme") == (1, 14))  # the first one


def test_a_key_that_may_not_speak_is_refused_after_the_handshake(keyed: KeyedServer, server: Server) -> None:
    with server.client(additional_headers=keyed.holder("watcher", "metrics")) as client:
        code, received = client.closed()
    assert code == 1008 and received.one("error")["error"]["code"] == "missing_role"


@pytest.mark.parametrize("ended", ["Hello.", "!break"])
def test_a_speech_that_fails_before_its_audio_is_not_counted(keyed: KeyedServer, server: Server, ended: str) -> None:
    with server.client(additional_headers=keyed.holder("acme")) as client:
        client.say(ended)
    assert keyed.used("acme") == ((1, 6) if ended == "Hello." else (0, 0))
