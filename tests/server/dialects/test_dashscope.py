"""WS /api-ws/v1/realtime over real sockets: the protocol of Qwen's hosted speech models."""

from collections.abc import Iterator
from typing import Any

import pytest

from oscine.audio.clips import read_clip
from oscine.config import ServerConfig
from oscine.errors import FieldError
from oscine.server.dialects.dashscope import cloud_name, own_fields
from tests.server.dialects.realtime_client import PATH, RealtimeClient, realtime, sound
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import eventually

FRAME_S = FRAME_SAMPLES / RATE_HZ
BEGIN = ["response.created", "response.output_item.added", "response.content_part.added"]
END = ["response.audio.done", "response.content_part.done", "response.output_item.done", "response.done"]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    # live_pause_s: no pause of a busy machine cuts a text that comes in pieces.
    with server_of(engine, ServerConfig(segment_chars=60, max_text_chars=200, live_pause_s=3600)) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def server(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Server:
    return running[1]


@pytest.fixture
def client(server: Server) -> Iterator[RealtimeClient]:
    with realtime(server) as client:
        client.update(seed=3)
        yield client


def kinds(received: Any) -> list[str]:
    """Drops repetitions: how many deltas there are depends on the machine."""
    found = received.kinds
    return [kind for index, kind in enumerate(found) if not index or kind != found[index - 1]]


# --- a session ---


def test_the_operator_chooses_the_format_of_a_client_that_names_none() -> None:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(default_format="wav")) as server, server.client(PATH) as client:
        assert client.until("session.created").one("session.created")["session"]["response_format"] == "wav"
        assert sound(RealtimeClient(client).say("Hello."))[:4] == b"RIFF"
    engine.stop()


def test_a_new_session_is_announced_with_its_settings(server: Server) -> None:
    with server.client(PATH) as client:
        created = client.until("session.created").one("session.created")
        assert created["event_id"].startswith("event_")
        session = created["session"]
        assert session["id"].startswith("sess_") and session["object"] == "realtime.session"
        assert (session["mode"], session["model"]) == ("server_commit", "qwen3-tts-flash-realtime")
        assert session["response_format"] == "pcm"


@pytest.mark.parametrize("mode", ["server_commit", "commit"])
def test_a_commit_gives_a_response_in_the_events_of_the_protocol(client: RealtimeClient, mode: str) -> None:
    client.update(mode=mode)
    text = "Hello there, 你好!"
    received = client.say(*text)
    assert sound(received) == spoken(text, 3)
    committed = received.one("input_text_buffer.committed")
    assert committed["item_id"]
    assert kinds(received)[-8:] == [*BEGIN, "response.audio.delta", *END] or mode == "server_commit"
    response = received.one("response.done")["response"]
    assert response["status"] == "completed" and response["usage"]["characters"] == len(text)
    ids = {event["response_id"] for event in received.events if "response_id" in event}
    assert ids == {response["id"]} == {received.one("response.created")["response"]["id"]}
    numbers = [event["event_id"] for event in received.events]
    assert len(set(numbers)) == len(numbers)


def test_server_commit_speaks_text_as_it_arrives(client: RealtimeClient, engine: ScriptedEngine) -> None:
    client.append("Hel")
    client.raw.until("response.audio.delta")
    assert [request.text for request in engine.requests] == ["Hel"]
    received = client.say("lo.")
    assert received.one("response.done")["response"]["usage"]["characters"] == len("Hello.")


def test_server_commit_speaks_the_last_words_when_the_text_pauses(engine: ScriptedEngine) -> None:
    """No commit is needed; the response goes on with the next words."""
    with server_of(engine, ServerConfig(live_pause_s=0.1)) as server, realtime(server) as client:
        client.append("Hello ")
        eventually(lambda: bool(engine.requests) and engine.status().slots_active == 0)
        client.append("there.")
        client.send("session.finish")
        code, received = client.raw.closed()
    assert code == 1000 and received.kinds[-1] == "session.finished"
    assert [request.text for request in engine.requests] == ["Hello", "there."] and engine.requests[1].resumes
    assert received.one("response.done")["response"]["usage"]["characters"] == len("Hello there.")
    assert len(sound(received)) == len(spoken("Hello there.", 3))


def test_commit_mode_keeps_text_until_it_is_committed(client: RealtimeClient, engine: ScriptedEngine) -> None:
    client.update(mode="commit")
    client.append("Not yet, ", "and this neither.")
    client.send("input_text_buffer.clear")
    client.raw.until("input_text_buffer.cleared")
    assert not engine.requests
    assert sound(client.say("This ", "one.")) == spoken("This one.", 3)
    assert sound(client.say("And that.")) == spoken("And that.", 3)


def test_server_commit_clears_the_text_that_is_not_spoken_yet(client: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.max_frames = engine.status().frames + 2
    first = "The first sentence is long enough to be one of its own, I say. "
    client.append(first, "The second one will not be spoken at all, since it is cleared. ")
    client.raw.until("response.audio.delta")
    client.send("input_text_buffer.clear")
    client.raw.until("input_text_buffer.cleared")
    engine.max_frames = float("inf")
    received = client.say("But this.")
    assert [request.text.split()[0] for request in engine.requests] == ["The", "But"]
    assert received.one("response.done")["response"]["usage"]["characters"] < len(first) + 10


def test_finish_speaks_what_is_left_and_closes(client: RealtimeClient) -> None:
    client.update(mode="commit")
    client.append("To the ", "end.")
    client.send("session.finish")
    code, received = client.raw.closed()
    assert code == 1000 and received.kinds[-1] == "session.finished"
    assert sound(received) == spoken("To the end.", 3)


def test_a_session_without_text_finishes_at_once(server: Server) -> None:
    with realtime(server) as client:
        client.send("session.finish")
        code, received = client.raw.closed()
        assert (code, received.kinds) == (1000, ["session.finished"])


def test_a_commit_without_text_is_an_empty_response(client: RealtimeClient) -> None:
    received = client.say()
    assert received.kinds == ["input_text_buffer.committed", *BEGIN, *END]
    assert received.one("response.done")["response"]["status"] == "completed"


def test_cancel_stops_the_response_and_the_session_goes_on(client: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.max_frames = engine.status().frames + 3
    client.append("This is never spoken to its end.")
    client.commit()
    client.append("This is never begun.")
    client.commit()
    client.raw.until("response.audio.delta")
    client.send("response.cancel")
    for _ in range(2):
        done = client.raw.until("response.done").one("response.done")["response"]
        assert done["status"] == "cancelled"
    engine.max_frames = float("inf")
    assert sound(client.say("Next.")) == spoken("Next.", 3)


# --- settings ---


def test_settings_of_the_cloud_are_understood_or_named_as_ignored(client: RealtimeClient) -> None:
    updated = client.update(
        voice="finch",
        language_type="English",
        response_format="wav",
        sample_rate=48000,
        speech_rate=2.0,
        volume=80,
        pitch_rate=1.0,
        bit_rate=64,
        enable_tn=False,
        instructions="slowly",
        something_new=1,
    )
    session = updated["session"]
    assert session["ignored_fields"] == ["bit_rate", "something_new"]
    assert (session["voice"], session["language_type"]) == ("finch", "English")
    assert (session["response_format"], session["sample_rate"]) == ("wav", 48000)
    clip = read_clip(sound(client.say("Hello there.")))
    assert clip.rate_hz == 48000 and abs(len(clip.samples) / 48000 - 6 * FRAME_S) < 0.05


@pytest.mark.parametrize("form", ["mp3", "opus"])
def test_a_response_can_be_an_encoded_file(client: RealtimeClient, form: str) -> None:
    client.update(response_format=form)
    clip = read_clip(sound(client.say("Hello there.")))
    assert abs(len(clip.samples) / clip.rate_hz - 12 * FRAME_S) < 0.1


def test_a_misspelled_setting_gets_a_warning(client: RealtimeClient) -> None:
    assert "did you mean 'voice'?" in client.update(voise="finch")["session"]["warning"]
    assert "warning" not in client.update(voice="finch")["session"]


def test_updates_add_up(client: RealtimeClient, engine: ScriptedEngine) -> None:
    client.update(voice="finch", volume=50)
    updated = client.update(language_type="Chinese")
    assert updated["session"]["voice"] == "finch" and updated["session"]["ignored_fields"] == []
    assert sound(client.say("Hello.")) == spoken("Hello.", 3, "finch")
    assert engine.requests[-1].language == "chinese"


@pytest.mark.parametrize(("voice", "speaker"), [("Cherry", "wren"), ("Serena", "wren"), ("Ethan", "finch")])
def test_voices_of_the_cloud_are_aliases(client: RealtimeClient, voice: str, speaker: str) -> None:
    client.update(voice=voice)
    received = client.say("Hello.")
    assert sound(received) == spoken("Hello.", 3, speaker)
    assert received.one("response.done")["response"]["voice"] == voice


@pytest.mark.parametrize(
    ("settings", "param", "said"),
    [
        ({"mode": "now"}, "session.mode", "server_commit or commit"),
        ({"voice": "wrem"}, "session.voice", "did you mean 'wren'"),
        ({"language_type": "Klingon"}, "session.language_type", "possible: auto, chinese, english"),
        ({"speech_rate": 9}, "session.speech_rate", "from 0.25 to 4"),
        ({"sample_rate": 96000}, "session.sample_rate", "8000"),
        ({"response_format": "wma"}, "session.response_format", "mp3"),
        ({"model": "qwen-max"}, "session.model", "possible"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name_and_changes_nothing(
    client: RealtimeClient, settings: dict[str, Any], param: str, said: str
) -> None:
    error = client.update(**settings)["error"]
    assert error["param"] == param and said in error["message"]
    assert sound(client.say("Hello.")) == spoken("Hello.", 3)


def test_nothing_is_spoken_after_refused_settings_until_some_are_accepted(server: Server) -> None:
    with realtime(server) as client:
        for refused in ({"voice": "wrem"}, {"mode": "now"}, {"speech_rate": "fast"}):
            assert client.update(**refused)["type"] == "error"
            received = client.say("Hello.")
            assert "session.update was refused" in received.one("error")["error"]["message"]
            assert received.one("response.done")["response"]["status"] == "failed" and not sound(received)
        client.update(seed=3)
        assert sound(client.say("Hello.")) == spoken("Hello.", 3)


@pytest.mark.parametrize("model", ["scripted", "qwen3-tts-flash-realtime-2025-11-27", "qwen-tts-realtime"])
def test_cloud_models_stand_for_the_served_one(server: Server, model: str) -> None:
    with realtime(server, f"/api-ws/v1/realtime?model={model}") as client:
        assert client.say("Hello.").one("response.done")["response"]["status"] == "completed"


def test_an_unknown_model_is_refused(server: Server) -> None:
    with realtime(server, "/api-ws/v1/realtime?model=cosyvoice-v2") as client:
        client.append("Hello.")
        error = client.raw.until("error").events[-1]["error"]
        assert error["code"] == "model_not_found" and "scripted" in error["message"]


# --- failures ---


def test_a_failed_response_is_an_error_and_done(client: RealtimeClient) -> None:
    received = client.say("Hello!break")
    assert received.one("error")["error"]["code"] == "engine_failed"
    assert received.one("response.done")["response"]["status"] == "failed"
    received = client.say("!refuse")
    assert received.one("error")["error"]["type"] == "invalid_request_error"
    assert received.one("response.done")["response"]["status"] == "failed"
    assert sound(client.say("Next.")) == spoken("Next.", 3)


@pytest.mark.parametrize("mode", ["server_commit", "commit"])
def test_text_beyond_the_limit_is_refused(client: RealtimeClient, engine: ScriptedEngine, mode: str) -> None:
    client.update(mode=mode)
    engine.max_frames = engine.status().frames + 2
    client.append("a" * 150, "b" * 60)
    error = client.raw.until("error").events[-1]["error"]
    assert error["code"] == "too_large" and error["param"] == "text"
    engine.max_frames = float("inf")
    received = client.say("")
    assert received.one("response.done")["response"]["usage"]["characters"] == 150


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "[1]",
        b"\x00",
        '{"type": "input.text", "text": "a"}',
        '{"type": "input_text_buffer.append"}',
        '{"type": "input_text_buffer.append", "text": 5}',
        '{"type": "input_text_buffer.append", "text": "a\\u0000"}',
        '{"type": "session.update", "session": null}',
        '{"type": "session.update", "session": []}',
        '{"type": "session.update", "session": {"mode": ["commit"]}}',
        '{"type": "session.update", "session": {"volume": [], "voice": {}}}',
        '{"type": "response.create"}',
    ],
)
def test_a_bad_message_is_refused_and_the_session_goes_on(client: RealtimeClient, message: str | bytes) -> None:
    client.append("He")
    client.raw.send_raw(message)
    received = client.raw.until("error")
    assert len(received.events[-1]["error"]["message"]) < 1100
    assert sound(received) + sound(client.say("llo")) == spoken("Hello", 3)


def test_messages_after_finish_are_refused(client: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.max_frames = engine.status().frames + 2
    client.append("Hello.")
    client.send("session.finish")
    client.append("More.")
    assert "after session.finish" in client.raw.until("error").events[-1]["error"]["message"]
    engine.max_frames = float("inf")
    code, received = client.raw.closed()
    assert code == 1000 and received.kinds[-1] == "session.finished"


# Settings as fields of ours


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"language_type": "Chinese", "speech_rate": 1.5}, {"language": "Chinese", "speed": 1.5}),
        ({"enable_tn": True}, {"normalize": True}),
        ({"response_format": "mp3"}, {"response_format": "mp3"}),
        ({"volume": 50, "pitch_rate": 1.0, "optimize_instructions": False}, {}),
        ({"volume": 80, "new": []}, {"volume": 1.6, "new": []}),
        ({"volume": 0}, {"volume": 0.0}),
    ],
)
def test_a_setting_gets_our_name_unless_it_asks_for_nothing(settings: dict[str, Any], fields: dict[str, Any]) -> None:
    assert own_fields(settings) == fields
    assert {cloud_name(name) for name in fields} <= settings.keys()


@pytest.mark.parametrize("volume", [-1, 101, "loud", [], None])
def test_a_volume_that_is_none_is_refused_as_the_clouds(volume: object) -> None:
    with pytest.raises(FieldError, match="volume must be a number from 0 to 100, got"):
        own_fields({"volume": volume})


def test_the_http_calls_format_is_the_response_format() -> None:
    assert own_fields({"format": "mp3"}) == {"response_format": "mp3"}
    assert own_fields({"format": "mp3", "response_format": "wav"}) == {"response_format": "wav"}
