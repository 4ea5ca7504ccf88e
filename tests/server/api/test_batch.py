"""Batches: every item has its own result, and waits while the key or the engine is full."""

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oscine.audio.clips import wav_header
from oscine.config import ServerConfig
from oscine.server.api import batch
from oscine.server.app import build_app
from oscine.server.http.errors import ApiError, api_error
from tests.server.key_holders import keyed_server
from tests.server.scripted_engine import CARD, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of, client_of_app, eventually, serving

SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine, CARD) as client:
        yield client


class SteppedClock:
    """Takes the place of the module `time`."""

    def __init__(self) -> None:
        self.now_s, self.reads = 0.0, 0

    def monotonic(self) -> float:
        self.reads += 1
        return self.now_s


def spoken_batch(client: httpx.Client, items: list[Any], **defaults: Any) -> list[dict[str, Any]]:
    answer = client.post(BATCH, json={"items": items, "response_format": "pcm", "seed": 3, **defaults})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    assert [result["index"] for result in results] == list(range(len(items)))
    return results


def pcm(result: dict[str, Any]) -> bytes:
    assert result["status"] == "success", result
    return base64.b64decode(result["audio_data"])


def some_items(words: str = "Some words.", count: int = 6) -> list[dict[str, str]]:
    return [{"input": f"{number}: {words}"} for number in range(count)]


def test_every_item_has_its_own_result(client: httpx.Client) -> None:
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
def test_a_bad_item_does_not_fail_the_others(client: httpx.Client, bad: Any) -> None:
    good, refused, last = spoken_batch(client, [{"input": "One."}, bad, {"input": "Two."}])
    assert (pcm(good), pcm(last)) == (spoken("One.", 3), spoken("Two.", 3))
    assert (refused["status"], refused["error"]["code"]) == ("error", "invalid_field")


def test_a_result_has_the_warnings_about_its_item(client: httpx.Client) -> None:
    plain, misspelled, tagged = spoken_batch(
        client,
        [
            {"input": "Hi."},
            {"input": "Hi.", "voise": "finch"},
            {"input": "<wobble>Hi.</wobble>"},
        ],
    )
    assert "warning" not in plain and "did you mean 'voice'?" in misspelled["warning"]
    assert "unknown tags: <wobble>" in tagged["warning"]


def test_speaker_is_an_alias_of_voice_at_the_top_and_in_items(client: httpx.Client) -> None:
    for top in ("voice", "speaker"):
        items = [{"input": "Hi."}, {"input": "Hi.", "voice": "finch"}, {"input": "Hi.", "speaker": "finch"}]
        voices = [pcm(result) for result in spoken_batch(client, items, **{top: "wren"})]
        assert voices == [spoken("Hi.", 3, voice) for voice in ("wren", "finch", "finch")]


def test_items_wait_for_free_streams_of_their_key(engine: ScriptedEngine) -> None:
    engine.max_frames = 0
    app = build_app(engine, CARD, ServerConfig(streams_per_key=2))
    answers: list[list[dict[str, Any]]] = []
    with serving(app) as url, httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        request = threading.Thread(target=lambda: answers.append(spoken_batch(client, some_items())))
        request.start()
        eventually(lambda: len(engine.requests) == 2)
        time.sleep(0.3)
        assert len(engine.requests) == 2 and app.state.service.streams == 2
        engine.max_frames = float("inf")
        request.join()
        assert [pcm(result) for result in answers[0]] == [spoken(item["input"], 3) for item in some_items()]
        assert app.state.service.streams == 0


def test_an_item_that_waits_is_not_refused(engine: ScriptedEngine, tmp_path: Path) -> None:
    server = keyed_server(engine, tmp_path)
    holder = server.holder("acme", streams=1, characters_per_month=3 * len("0: Some words."))
    with client_of_app(server.app) as client:
        client.headers.update(holder)
        results = spoken_batch(client, some_items(count=4))
    assert [result["status"] for result in results].count("success") == 3
    assert server.keys.usage.refused == {("acme", "characters_per_month"): 1}


def test_a_waiting_item_starts_when_another_ends(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def patient(exception: Exception) -> ApiError:
        error = api_error(exception)
        error.retry_after_s = 3600.0
        return error

    monkeypatch.setattr(batch, "MAX_RETRY_WAIT_S", 3600.0)
    monkeypatch.setattr(batch, "api_error", patient)
    with client_of(engine, CARD, ServerConfig(streams_per_key=1)) as client:
        spoken_batch(client, some_items(count=16))


def test_a_batch_is_refused_when_its_key_has_no_free_stream(engine: ScriptedEngine) -> None:
    engine.frame_s = 0.01
    with client_of(engine, CARD, ServerConfig(streams_per_key=1)) as client:
        with client.stream("POST", SPEECH, json={"input": "word " * 300, "response_format": "pcm"}) as running:
            pieces = running.iter_raw()  # keep it: httpx closes the response when its iterator is collected
            next(pieces)
            refused = client.post(BATCH, json={"items": some_items()})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
        assert 'oscine_requests_total{mode="batch",model="",status="429"} 1.0' in client.get("/metrics").text


def test_items_wait_as_long_as_their_batch_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "RETRY_S", 0.5)
    engine = ScriptedEngine(slots=1, queue=0, max_frames=0)
    clock = SteppedClock()
    monkeypatch.setattr(batch, "time", clock)
    items, results = some_items("A sentence of some length.", 3), []
    with client_of(engine, CARD) as client:
        request = threading.Thread(target=lambda: results.extend(spoken_batch(client, items)))
        request.start()
        while request.is_alive():
            # An item takes 0.52 s by this clock, however busy the machine is.
            reads = clock.reads
            clock.now_s += 0.02
            engine.max_frames += 1
            eventually(lambda before=reads: clock.reads > before or not request.is_alive())
    assert clock.now_s > 3 * 0.5
    assert [pcm(result) for result in results] == [spoken(item["input"], 3) for item in items]
    engine.stop()


def test_a_batch_without_progress_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "RETRY_S", 0.2)
    monkeypatch.setattr(batch, "MAX_RETRY_WAIT_S", 0.05)
    engine = ScriptedEngine(slots=1, queue=0, max_frames=1)
    with client_of(engine, CARD) as client:
        with client.stream("POST", SPEECH, json={"input": "Others.", "response_format": "pcm"}) as running:
            pieces = running.iter_raw()
            next(pieces)
            results = spoken_batch(client, some_items(count=2))
        assert [result["error"]["code"] for result in results] == ["overloaded"] * 2
    engine.stop()
