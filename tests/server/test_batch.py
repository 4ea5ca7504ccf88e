"""Batches: every item has its own answer, and waits for its turn."""

import base64
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.scripted_engine import CARD, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of, eventually, serving

from oscine.audio import wav_header
from oscine.config import ServerConfig
from oscine.server import batch
from oscine.server.app import build_app

SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine, CARD) as client:
        yield client


def spoken_batch(client: httpx.Client, items: list[Any], **defaults: Any) -> list[dict[str, Any]]:
    answer = client.post(BATCH, json={"items": items, "response_format": "pcm", "seed": 3, **defaults})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    assert [result["index"] for result in results] == list(range(len(items)))
    return results


def pcm(result: dict[str, Any]) -> bytes:
    assert result["status"] == "success", result
    return base64.b64decode(result["audio_data"])


def a_few(words: str = "Some words.", count: int = 6) -> list[dict[str, str]]:
    return [{"input": f"{number}: {words}"} for number in range(count)]


def test_batches_answer_every_item(client: httpx.Client) -> None:
    items = [{"input": "One."}, {"input": "Two.", "voice": "nobody"}, {"input": "Three.", "response_format": "wav"}, {}]
    answer = client.post(BATCH, json={"items": items, "response_format": "pcm", "seed": 3, "voice": "wren"}).json()
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (4, 2, 2)
    one, two, three, four = answer["results"]
    assert base64.b64decode(one["audio_data"]) == spoken("One.", 3, "wren")
    assert one["finish_reason"] == "stop" and one["seed"] == 3
    assert "nobody" in two["error"]["message"] and two["error"]["param"] == "voice"
    pcm = spoken("Three.", 3, "wren")
    assert base64.b64decode(three["audio_data"]) == wav_header(RATE_HZ, len(pcm) // 2) + pcm
    assert four["error"]["param"] == "input"


@pytest.mark.parametrize("bad", ["text", None, 7, [], {"inptu": "a"}, {"input": "a", "voice": "b", "speaker": "c"}])
def test_a_bad_item_does_not_harm_the_others(client: httpx.Client, bad: Any) -> None:
    good, refused, last = spoken_batch(client, [{"input": "One."}, bad, {"input": "Two."}])
    assert (pcm(good), pcm(last)) == (spoken("One.", 3), spoken("Two.", 3))
    assert (refused["status"], refused["error"]["code"]) == ("error", "invalid_field")


def test_speaker_is_another_name_of_voice_at_the_top_and_in_items(client: httpx.Client) -> None:
    for top in ("voice", "speaker"):
        items = [{"input": "Hi."}, {"input": "Hi.", "voice": "finch"}, {"input": "Hi.", "speaker": "finch"}]
        voices = [pcm(result) for result in spoken_batch(client, items, **{top: "wren"})]
        assert voices == [spoken("Hi.", 3, voice) for voice in ("wren", "finch", "finch")]


def test_items_wait_for_the_streams_of_their_key(engine: ScriptedEngine) -> None:
    engine.max_frames = 0
    app = build_app(engine, CARD, ServerConfig(streams_per_key=2))
    answers: list[list[dict[str, Any]]] = []
    with serving(app) as url, httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        asking = threading.Thread(target=lambda: answers.append(spoken_batch(client, a_few())))
        asking.start()
        eventually(lambda: len(engine.submitted) == 2)
        time.sleep(0.3)
        assert len(engine.submitted) == 2 and app.state.service.streams == 2
        engine.max_frames = float("inf")
        asking.join()
        assert [pcm(result) for result in answers[0]] == [spoken(item["input"], 3) for item in a_few()]
        assert app.state.service.streams == 0


def test_an_item_that_waited_goes_on_when_another_has_ended(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, ServerConfig(streams_per_key=1)) as client:
        begun_s = time.monotonic()
        spoken_batch(client, a_few(count=16))
        assert time.monotonic() - begun_s < 8  # 1 s each, were it not told


def test_a_batch_whose_key_has_no_stream_left_is_told_to_come_again(engine: ScriptedEngine) -> None:
    engine.frame_s = 0.01
    with client_of(engine, CARD, ServerConfig(streams_per_key=1)) as client:
        with client.stream("POST", SPEECH, json={"input": "word " * 300, "response_format": "pcm"}) as running:
            pieces = running.iter_raw()  # kept: httpx closes the answer with its iterator
            next(pieces)
            refused = client.post(BATCH, json={"items": a_few()})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
        assert 'oscine_requests_total{mode="batch",status="429"} 1.0' in client.get("/metrics").text


def test_items_wait_as_long_as_others_of_their_batch_are_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_PATIENCE_S", 0.5)
    engine = ScriptedEngine(slots=1, queue=0, frame_s=0.05)
    with client_of(engine, CARD) as client:
        begun_s = time.monotonic()
        results = spoken_batch(client, a_few("A sentence of some length.", 3))
        assert time.monotonic() - begun_s > 3 * 0.5
        assert [pcm(result) for result in results] == [
            spoken(item["input"], 3) for item in a_few("A sentence of some length.", 3)
        ]
    engine.stop()


def test_a_batch_that_nobody_lets_in_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(batch, "_LONGEST_WAIT_S", 0.05)
    engine = ScriptedEngine(slots=1, queue=0, max_frames=1)
    with client_of(engine, CARD) as client:
        with client.stream("POST", SPEECH, json={"input": "Others.", "response_format": "pcm"}) as running:
            pieces = running.iter_raw()
            next(pieces)
            results = spoken_batch(client, a_few(count=2))
        assert [result["error"]["code"] for result in results] == ["overloaded"] * 2
    engine.stop()
