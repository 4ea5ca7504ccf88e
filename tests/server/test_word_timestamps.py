"""Word timestamps over HTTP, with a scripted aligner: in events, in a header, in JSON, in a batch."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.align.scripted_whisper import scripted_whisper
from tests.server.api.test_speech import LONG, SPEECH, events, say
from tests.server.scripted_engine import CARD, ScriptedEngine, spoken
from tests.server.serving import client_of

pytestmark = pytest.mark.slow

HELLO = "Hello there - you."


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("aligner")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "library")
        yield scripted_whisper(folder)


@pytest.fixture(scope="module")
def client(whisper: Path) -> Iterator[httpx.Client]:
    engine = ScriptedEngine()
    with client_of(engine, CARD, ServerConfig(segment_chars=60, aligner=str(whisper), aligner_wait_s=600)) as client:
        assert say(client, HELLO, stream=False, word_timestamps=True).status_code == 200  # the languages are known now
        yield client
    engine.stop()


@pytest.fixture
def broken(whisper: Path) -> Iterator[None]:
    """Every job kills the process."""
    (whisper / "behavior").write_text("crash")
    yield
    (whisper / "behavior").write_text("")


def words_of(received: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [word for event in received if event["type"] == "speech.audio.words" for word in event["words"]]


def check_times(words: list[dict[str, Any]], text: str, duration_s: float, names: tuple[str, str]) -> None:
    assert [word["word"] for word in words] == text.split()
    times = [word[name] for word in words for name in names]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= duration_s + 0.001


@pytest.mark.parametrize("speed", [1.0, 0.5, 2.0])
def test_events_report_every_word_of_every_segment(client: httpx.Client, speed: float) -> None:
    received = events(say(client, LONG, stream_format="sse", word_timestamps=True, speed=speed))
    done = received[-1]
    assert done["type"] == "speech.audio.done"
    check_times(words_of(received), LONG, done["audio_seconds"], ("start_s", "end_s"))
    segments = {event["index"]: event for event in received if event["type"] == "speech.audio.segment"}
    for event in received:
        if event["type"] == "speech.audio.words":
            segment = segments[event["index"]]
            assert segment["start_s"] <= event["words"][0]["start_s"] + 0.001
            assert event["words"][-1]["end_s"] <= segment["end_s"] + 0.001


def test_words_of_a_dialogue_name_the_turn_and_its_voice(client: httpx.Client) -> None:
    turns = [{"voice": "finch", "text": "Hello there."}, {"voice": "wren", "text": "Hi.", "pause_s": 0.5}]
    fields = {"input": turns, "response_format": "pcm", "seed": 3, "word_timestamps": True}
    received = events(client.post(SPEECH, json={**fields, "stream_format": "sse"}))
    told = [event for event in received if event["type"] == "speech.audio.words"]
    assert [(event["turn"], event["voice"]) for event in told] == [(0, "finch"), (1, "wren")]
    check_times(words_of(received), "Hello there. Hi.", received[-1]["audio_seconds"], ("start_s", "end_s"))
    words = client.post(SPEECH, json={**fields, "stream_format": "json"}).json()["words"]
    assert [(word["word"], word["turn"], word["voice"]) for word in words] == [
        ("Hello", 0, "finch"),
        ("there.", 0, "finch"),
        ("Hi.", 1, "wren"),
    ]
    header = client.post(SPEECH, json={**fields, "stream": False}).headers["x-word-timestamps"]
    assert [word["voice"] for word in json.loads(header)] == ["finch", "finch", "wren"]


def test_word_events_come_after_the_audio_of_their_segment_and_only_where_asked_for(client: httpx.Client) -> None:
    kinds = [event["type"] for event in events(say(client, HELLO, stream_format="sse", word_timestamps=True))]
    assert kinds[-3:] == ["speech.audio.segment", "speech.audio.words", "speech.audio.done"]
    assert "speech.audio.words" not in [event["type"] for event in events(say(client, HELLO, stream_format="sse"))]


def test_a_whole_file_has_the_words_in_a_header(client: httpx.Client) -> None:
    for fields in ({"stream": False}, {}):
        answer = say(client, HELLO, word_timestamps=True, **fields)
        assert answer.content == spoken(HELLO, 3)
        words = json.loads(answer.headers["x-word-timestamps"])
        seconds = float(answer.headers["x-audio-seconds"])
        check_times(words, HELLO, 1000 * seconds, ("start_ms", "end_ms"))


def test_words_of_a_prepared_text_are_those_of_the_user(client: httpx.Client) -> None:
    text, fields = 'Pay $5.50 <break time="2s"/> to Oscine, now.', {"pronunciations": {"Oscine": "the OSS-een"}}
    received = events(say(client, text, stream_format="sse", word_timestamps=True, normalize=True, **fields))
    words = words_of(received)
    check_times(words, "Pay $5.50 to Oscine, now.", received[-1]["audio_seconds"], ("start_s", "end_s"))
    assert words[2]["start_s"] - words[1]["end_s"] >= 1.999


def test_a_header_that_would_be_too_large_is_left_out(client: httpx.Client) -> None:
    answer = say(client, "word " * 200, stream=False, word_timestamps=True)
    assert "x-word-timestamps" not in answer.headers
    assert answer.headers["x-word-timestamps-omitted"].startswith("oversize; bytes=")


def test_a_json_answer_holds_audio_and_words(client: httpx.Client) -> None:
    answer = say(client, LONG, stream_format="json", word_timestamps=True, response_format="wav")
    about = answer.json()
    assert answer.headers["content-type"] == "application/json"
    check_times(about["words"], LONG, about["duration"], ("start", "end"))
    plain = say(client, LONG, stream=False, response_format="wav").content
    assert base64.b64decode(about["audio"]) == plain
    assert (about["text"], about["response_format"], about["finish_reason"]) == (LONG, "wav", "stop")
    assert "words" not in say(client, HELLO, stream_format="json").json()


def test_items_of_a_batch_have_their_words(client: httpx.Client) -> None:
    items = [{"input": HELLO, "word_timestamps": True}, {"input": "No times."}]
    first, second = client.post("/v1/audio/speech/batch", json={"items": items}).json()["results"]
    assert [word["word"] for word in first["words"]] == HELLO.split()
    assert "words" not in second


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stream_format": "audio"}, "a stream of bytes has no place for word_timestamps"),
        ({"stream": True}, "a stream of bytes has no place for word_timestamps"),
        ({"language": "chinese"}, "the aligner knows en, not chinese; leave word_timestamps out"),
    ],
)
def test_what_cannot_be_timed_is_refused(client: httpx.Client, fields: dict[str, Any], message: str) -> None:
    answer = say(client, HELLO, word_timestamps=True, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


def test_an_aligner_that_crashes_costs_only_the_times(client: httpx.Client, broken: None) -> None:
    received = events(say(client, HELLO, stream_format="sse", word_timestamps=True))
    assert b"".join(base64.b64decode(event.get("audio", "")) for event in received) == spoken(HELLO, 3)
    (event,) = [event for event in received if event["type"] == "speech.audio.words"]
    assert [word["word"] for word in event["words"]] == HELLO.split()
    assert {word["start_s"] for word in event["words"]} == {None}
    assert event["warning"].startswith("the words have no times: the aligner process ended")

    answer = say(client, HELLO, stream=False, word_timestamps=True)
    assert answer.content == spoken(HELLO, 3)
    assert answer.headers["x-word-timestamps-omitted"].startswith("the words have no times")
    about = say(client, HELLO, stream_format="json", word_timestamps=True).json()
    assert about["words"][0] == {"word": "Hello", "start": None, "end": None}
    assert about["warning"].startswith("the words have no times")


def test_the_aligner_works_again_after_a_crash(client: httpx.Client) -> None:
    received = events(say(client, HELLO, stream_format="sse", word_timestamps=True))
    assert None not in [word["start_s"] for word in words_of(received)]


def test_metrics_count_alignments_and_their_failures(client: httpx.Client, whisper: Path) -> None:
    def jobs() -> tuple[float, float, float]:
        page = {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in client.get("/metrics").text.splitlines()}
        counted = [f'oscine_aligner_jobs_total{{job="align",outcome="{outcome}"}}' for outcome in ("done", "failed")]
        done, failed, timed = (float(page[name]) for name in (*counted, 'oscine_aligner_seconds_count{job="align"}'))
        return done, failed, timed

    done, failed, timed = jobs()
    say(client, HELLO, stream=False, word_timestamps=True)
    assert jobs() == (done + 1, failed, timed + 1)
    (whisper / "behavior").write_text("fail")
    try:
        say(client, HELLO, stream=False, word_timestamps=True)
    finally:
        (whisper / "behavior").write_text("")
    assert jobs() == (done + 1, failed + 1, timed + 1)
    say(client, HELLO, stream=False)
    assert jobs() == (done + 1, failed + 1, timed + 1)


def test_audio_does_not_wait_for_the_aligner(whisper: Path, engine: ScriptedEngine) -> None:
    (whisper / "behavior").write_text("hang")
    try:
        with client_of(engine, CARD, ServerConfig(aligner=str(whisper), aligner_wait_s=600)) as client:
            fields = {"input": HELLO, "response_format": "pcm", "seed": 3, "stream_format": "sse"}
            with client.stream("POST", SPEECH, json={**fields, "word_timestamps": True}) as answer:
                audio = b""
                lines = answer.iter_lines()
                while len(audio) < len(spoken(HELLO, 3)):
                    if (line := next(lines)).startswith("data: "):
                        audio += base64.b64decode(json.loads(line.removeprefix("data: ")).get("audio", ""))
            assert audio == spoken(HELLO, 3)
    finally:
        (whisper / "behavior").write_text("")


def test_a_folder_without_a_model_is_refused_at_the_start(engine: ScriptedEngine, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no model\.bin"):
        build_app(engine, CARD, ServerConfig(aligner=str(tmp_path)))
