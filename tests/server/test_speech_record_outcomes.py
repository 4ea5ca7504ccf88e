"""GET /v1/audio/speech/{request_id}: how a recent speech ended."""

import contextlib
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.errors import RequestError
from oscine.server.speech_record import SpeechOutcome, SpeechOutcomes
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import client_of, eventually

SPEECH = "/v1/audio/speech"


def speak(client: httpx.Client, request_id: str, text: str = "Hello.", **fields: Any) -> httpx.Response:
    body = {"input": text, "response_format": "pcm", "seed": 7, **fields}
    return client.post(SPEECH, json=body, headers={"x-request-id": request_id})


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"stream_format": "sse"}])
def test_a_speech_tells_afterwards_how_it_ended(engine: ScriptedEngine, fields: dict[str, Any]) -> None:
    with client_of(engine, CARD) as client:
        speak(client, "speech/1", **fields)
        assert client.get(f"{SPEECH}/speech/1").json() == {
            "request_id": "speech/1",
            "finish_reason": "stop",
            "usage": dict(zip(("input_tokens", "output_tokens", "total_tokens"), (6, 6, 12), strict=True))
            | {"prompt_tokens": 6, "completion_tokens": 6},
            "object": "audio.speech",
            "audio_seconds": pytest.approx(6 * 0.08),
            "seed": 7,
            "error": None,
        }


def test_a_speech_that_failed_or_was_left_is_told_too(engine: ScriptedEngine) -> None:
    engine.frame_s = 0.01
    with client_of(engine, CARD) as client:
        speak(client, "refused", speed=9)  # never became a speech
        assert client.get(f"{SPEECH}/refused").status_code == 404
        speak(client, "unknown", voice="wrem")
        unknown = client.get(f"{SPEECH}/unknown").json()
        assert (unknown["finish_reason"], unknown["error"]["param"]) == (None, "voice")
        with contextlib.suppress(httpx.RemoteProtocolError):
            speak(client, "broken", "Hello!break")
        broken = client.get(f"{SPEECH}/broken").json()
        assert (broken["finish_reason"], broken["usage"]) == ("error", None)
        assert broken["error"]["code"] == "engine_failed" and broken["audio_seconds"] > 0
        body = {"input": "word " * 500, "response_format": "pcm"}
        with client.stream("POST", SPEECH, json=body, headers={"x-request-id": "left"}) as stream:
            next(stream.iter_raw())
        eventually(lambda: client.get(f"{SPEECH}/left").status_code == 200)
        left = client.get(f"{SPEECH}/left").json()
        assert (left["finish_reason"], left["error"]) == ("cancelled", None)


def test_no_key_sees_the_speeches_of_another(engine: ScriptedEngine) -> None:
    mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("mine", "theirs"))
    with client_of(engine, CARD, ServerConfig(api_keys=("mine", "theirs"))) as client:
        client.post(SPEECH, json={"input": "Hi."}, headers={**mine, "x-request-id": "a"})
        assert client.get(f"{SPEECH}/a", headers=mine).status_code == 200
        missing = client.get(f"{SPEECH}/a", headers=theirs)
        assert missing.status_code == 404 and missing.json()["error"]["param"] == "request_id"
        assert client.get(f"{SPEECH}/a").status_code == 401


def test_only_the_newest_outcomes_are_kept() -> None:
    outcomes = SpeechOutcomes(max_outcomes=2)

    def add(request_id: str, seed: int) -> None:
        fields = {"finish_reason": "stop", "usage": None, "audio_seconds": 1.0, "error": None}
        outcomes.add("", SpeechOutcome(request_id=request_id, seed=seed, **fields))  # type: ignore[arg-type]

    add("a", 1)
    add("b", 2)
    add("a", 3)  # used again: the newest one now
    add("c", 4)
    assert outcomes.get("", "a").seed == 3 and outcomes.get("", "c").seed == 4
    with pytest.raises(RequestError, match="the last 2 are kept"):
        outcomes.get("", "b")
