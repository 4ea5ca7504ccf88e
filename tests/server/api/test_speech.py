"""POST /v1/audio/speech over real sockets: clients receive the engine's audio in every form."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from oscine.audio.clips import read_clip, wav_header
from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.event_stream import read_events
from tests.server.scripted_engine import BASE_CARD, CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken
from tests.server.serving import client_of, eventually, serving

SPEECH = "/v1/audio/speech"
CONFIG = ServerConfig(segment_chars=60)
WHOLE = ServerConfig(segment_chars=10_000)
ENDLESS = {"input": "word " * 500}
LONG = (
    "The first sentence is here to be spoken. The second one follows it at once, as it should. "
    "Then comes a third, which has nothing to say. And a last one ends it all."
)


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with client_of(engine, CARD, CONFIG) as client:
        yield client


def say(client: httpx.Client, text: str, **fields: Any) -> httpx.Response:
    return client.post(SPEECH, json={"input": text, "response_format": "pcm", "seed": 3, **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    return read_events(response.text)


def test_pcm_is_the_engine_audio_bit_for_bit(client: httpx.Client) -> None:
    answer = say(client, "Hello there.", voice="wren")
    assert answer.status_code == 200
    assert answer.content == spoken("Hello there.", 3, "wren")
    assert answer.headers["content-type"] == "audio/pcm"
    assert answer.headers["x-sample-rate"] == str(RATE_HZ)
    assert (answer.headers["x-channels"], answer.headers["x-bit-depth"]) == ("1", "16")
    assert answer.headers["x-seed"] == "3"
    assert "transfer-encoding" in answer.headers


def test_the_default_format_is_mp3_as_in_openais_api(client: httpx.Client) -> None:
    answer = client.post(SPEECH, json={"input": "Hello there.", "model": "tts-1", "voice": "alloy"})
    assert answer.headers["content-type"] == "audio/mpeg"
    clip = read_clip(answer.content)
    assert abs(len(clip.samples) - 12 * FRAME_SAMPLES) < 3000  # an mp3's padding


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_lossless_formats_contain_the_engine_samples(client: httpx.Client, name: str) -> None:
    for stream in (None, False):
        answer = say(client, "Hello there.", response_format=name, **({} if stream is None else {"stream": stream}))
        samples = np.rint(read_clip(answer.content).samples * 32768).astype("<i2").tobytes()
        assert samples == spoken("Hello there.", 3)


def test_audio_is_sent_before_the_speech_is_complete() -> None:
    engine = ScriptedEngine(frame_s=0.02)
    with client_of(engine, CARD) as client:
        request = client.build_request("POST", SPEECH, json={"input": "word " * 200, "response_format": "pcm"})
        response = client.send(request, stream=True)
        pieces = response.iter_raw()  # keep it: httpx closes the response when its iterator is collected
        assert next(pieces) and engine.status().slots_active == 1
        response.close()
        eventually(lambda: engine.status().slots_active == 0)
    assert engine.cancelled == 1
    engine.stop()


def test_a_whole_file_has_its_length_and_finish_reason(client: httpx.Client) -> None:
    answer = say(client, "Hello there.", response_format="wav", stream=False)
    pcm = spoken("Hello there.", 3)
    assert answer.content == wav_header(RATE_HZ, len(pcm) // 2) + pcm
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["x-finish-reason"] == "stop"
    assert float(answer.headers["x-audio-seconds"]) == pytest.approx(12 * 0.08)
    assert (answer.headers["x-input-tokens"], answer.headers["x-output-tokens"]) == ("12", "12")
    assert (answer.headers["x-prompt-tokens"], answer.headers["x-completion-tokens"]) == ("12", "12")


@pytest.mark.parametrize("how", [{"stream_format": "sse"}, {"stream": True, "stream_format": "sse"}])
def test_events_carry_the_same_bytes(client: httpx.Client, how: dict[str, Any]) -> None:
    received = events(say(client, "Hello there.", **how))
    deltas = [base64.b64decode(event["audio"]) for event in received if event["type"] == "speech.audio.delta"]
    assert len(deltas) > 1
    assert b"".join(deltas) == spoken("Hello there.", 3)
    assert received[-1] == {
        "type": "speech.audio.done",
        "finish_reason": "stop",
        "seed": 3,
        "audio_seconds": 0.96,
        "usage": {"input_tokens": 12, "output_tokens": 12, "total_tokens": 24},
    }


def test_telephone_audio_has_8000_hz_and_comes_in_packets(client: httpx.Client) -> None:
    asked = {"response_format": "mulaw", "stream_format": "sse", "packet_ms": 20}
    response = say(client, "Hello!", **asked)
    packets = [base64.b64decode(event["audio"]) for event in events(response) if "audio" in event]
    assert response.headers["x-sample-rate"] == "8000"
    assert {len(packet) for packet in packets[:-1]} == {160}
    plain = say(client, "Hello!", response_format="mulaw", seed=int(response.headers["x-seed"]))
    assert plain.headers["content-type"] == "audio/PCMU" and plain.content == b"".join(packets)
    refused = say(client, "Hello!", response_format="mp3", packet_ms=20)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "packet_ms"


def test_a_remembered_phrase_is_told_in_a_header_and_counted(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, ServerConfig(phrase_cache_bytes=2**20)) as client:
        refused = say(client, "Hello!", cache="only")
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "not_cached"
        first, streamed, whole = (say(client, "Hello!", **how) for how in ({}, {"stream": True}, {"stream": False}))
        assert [answer.headers.get("x-cache") for answer in (first, streamed, whole)] == ["miss", "hit", "hit"]
        assert first.content == streamed.content == whole.content
        assert "x-cache" not in say(client, "Hello!", cache="off").headers
        page = client.get("/metrics").text
        assert "oscine_phrase_cache_hits_total 2.0" in page and "oscine_phrase_cache_misses_total 2.0" in page


def test_stream_true_with_stream_format_audio_streams_bytes(client: httpx.Client) -> None:
    answer = say(client, "Hello there.", stream=True, stream_format="audio")
    assert answer.content == spoken("Hello there.", 3)


def test_a_long_text_is_spoken_in_segments_with_one_voice_and_one_seed(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    received = events(say(client, LONG, voice="finch", stream_format="sse"))
    segments = [event for event in received if event["type"] == "speech.audio.segment"]
    assert len(segments) > 2
    assert [segment["text"] for segment in segments] == [request.text for request in engine.requests]
    joined = "".join(segment["text"] for segment in segments)
    assert re.sub(r"\s", "", joined) == re.sub(r"\s", "", LONG)
    assert {(request.voice, request.seed) for request in engine.requests} == {("finch", 3)}
    assert segments[0]["start_s"] == 0
    for before, after in pairwise(segments):
        assert after["start_s"] == before["end_s"]
    for segment in segments:
        assert segment["end_s"] - segment["start_s"] == pytest.approx(0.08 * len(segment["text"]), abs=0.002)
    assert engine.requests[0].continues_s is None
    assert all(request.continues_s is not None and request.continues_s > 0 for request in engine.requests[1:])


def test_segments_are_joined_without_lost_samples_or_clicks(client: httpx.Client, engine: ScriptedEngine) -> None:
    received = np.frombuffer(say(client, LONG).content, "<i2").astype(int)
    segments = [np.frombuffer(spoken(request.text, 3), "<i2").astype(int) for request in engine.requests]
    expected = np.concatenate(segments)
    assert len(received) == len(expected)
    borders = np.cumsum([len(segment) for segment in segments])[:-1]
    near = np.zeros(len(received), bool)
    for border in borders:
        near[border - 120 : border + 120] = True  # 5 ms on either side are faded
        assert abs(received[border - 1]) < 120 and abs(received[border]) < 120
    assert (received[~near] == expected[~near]).all()


def test_a_runaway_segment_is_reported_and_the_rest_is_spoken(client: httpx.Client, engine: ScriptedEngine) -> None:
    text = (
        "This one is fine and also quite a bit longer. This one will !run away from us all. And this one is fine again."
    )
    received = events(say(client, text, stream_format="sse"))
    assert len(engine.requests) == 3
    assert received[-1]["finish_reason"] == "runaway"


def test_max_new_tokens_limits_the_whole_text(client: httpx.Client) -> None:
    received = events(say(client, LONG, stream_format="sse", max_new_tokens=70))
    assert received[-1]["finish_reason"] == "length"
    assert received[-1]["usage"]["output_tokens"] <= 70


def test_a_failed_stream_stays_incomplete(client: httpx.Client) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        say(client, "Hello !break there")


def test_a_failed_event_stream_has_an_error_event_and_stays_incomplete(client: httpx.Client) -> None:
    body = {"input": "Hello !break there", "stream_format": "sse"}
    lines: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError), client.stream("POST", SPEECH, json=body) as response:
        lines.extend(line for line in response.iter_lines() if line)
    last = read_events(lines)[-1]
    assert last["type"] == "speech.audio.error"
    assert last["partial_audio"] is True
    assert last["error"]["code"] == "engine_failed"


def test_the_error_event_of_a_server_for_sglang_omnis_clients_has_their_name() -> None:
    engine = ScriptedEngine()
    with client_of(engine, CARD, ServerConfig(live_protocol="sglang-omni")) as client:
        body = {"input": "Hello !break there", "stream_format": "sse"}
        lines: list[str] = []
        with pytest.raises(httpx.RemoteProtocolError), client.stream("POST", SPEECH, json=body) as response:
            lines.extend(response.iter_lines())
    assert read_events(lines)[-1]["type"] == "error"
    engine.stop()


def test_an_error_before_the_first_audio_has_its_status(client: httpx.Client) -> None:
    answer = say(client, "!break")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_failed"


def test_a_disconnect_frees_the_slot() -> None:
    engine = ScriptedEngine(frame_s=0.01)
    with client_of(engine, CARD) as client:
        for _ in range(3):
            with client.stream("POST", SPEECH, json={"input": "word " * 500, "response_format": "opus"}) as response:
                next(response.iter_raw())
            eventually(lambda: engine.status().slots_active == 0)
    assert engine.cancelled == 3
    engine.stop()


def test_a_disconnect_leaves_the_queue() -> None:
    engine = ScriptedEngine(slots=1, frame_s=0.01)
    with (
        client_of(engine, CARD, WHOLE) as client,
        client.stream("POST", SPEECH, json={"input": "word " * 500}) as first,
    ):
        pieces = first.iter_raw()  # keep it: httpx closes the response when its iterator is collected
        next(pieces)
        second = HTTPConnection(client.base_url.host, client.base_url.port)
        second.request("POST", SPEECH, json.dumps({"input": "second"}), {"content-type": "application/json"})
        eventually(lambda: engine.status().queued == 1)
        second.close()
        eventually(lambda: engine.cancelled == 1 and engine.status().queued == 0)
    engine.stop()


def test_a_full_server_answers_429_with_retry_after() -> None:
    engine = ScriptedEngine(slots=1, queue=0, frame_s=0.01)
    with (
        client_of(engine, CARD, WHOLE) as client,
        client.stream("POST", SPEECH, json={"input": "word " * 500}) as first,
    ):
        pieces = first.iter_raw()  # keep it: httpx closes the response when its iterator is collected
        next(pieces)
        answer = client.post(SPEECH, json={"input": "second"})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["error"]["code"] == "overloaded"
    engine.stop()


def test_volume_scales_the_samples_and_has_the_name_of_kokoros_clients(client: httpx.Client) -> None:
    own = np.frombuffer(say(client, "Hello.").content, "<i2")
    half, alias = (say(client, "Hello.", **{name: 0.5}).content for name in ("volume", "volume_multiplier"))
    np.testing.assert_array_equal(np.frombuffer(half, "<i2"), np.rint(own * 0.5))
    assert half == alias
    assert say(client, "Hello.", volume=5).json()["error"]["param"] == "volume"


def test_speed_and_rate_change_the_length_and_the_segment_times(client: httpx.Client) -> None:
    received = events(say(client, "Hello there.", speed=2.0, sample_rate=16000, stream_format="sse"))
    pcm = b"".join(base64.b64decode(event["audio"]) for event in received if event["type"] == "speech.audio.delta")
    assert len(pcm) / 2 / 16000 == pytest.approx(0.48, abs=0.05)
    assert received[-1]["audio_seconds"] == pytest.approx(0.48)
    segment = next(event for event in received if event["type"] == "speech.audio.segment")
    assert segment["end_s"] == pytest.approx(0.48)


def test_a_clip_is_cloned_once_and_used(engine: ScriptedEngine) -> None:
    rng = np.random.default_rng(0)
    pcm = (rng.normal(0, 3000, RATE_HZ)).astype("<i2").tobytes()
    clip = base64.b64encode(wav_header(RATE_HZ, RATE_HZ) + pcm).decode()
    with client_of(engine, BASE_CARD) as client:
        for source in (clip, f"data:audio/wav;base64,{clip}"):
            answer = say(client, "Hello there.", ref_audio=source, ref_text="some words", task_type="Base")
            assert answer.status_code == 200, answer.text
        assert engine.clones == 1
        assert engine.requests[0].voice == engine.requests[1].voice
        assert say(client, "Hi.", ref_audio=clip, ref_text="words", x_vector_only_mode=True).status_code == 200
    assert engine.requests[2].voice.transcript is None  # type: ignore[union-attr]


def test_fields_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    fields = {
        "voice": {"id": "Wren"},
        "instructions": "slowly",
        "language": "English",
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "max_new_tokens": 90,
        "non_streaming_mode": False,
        "trim_silence": False,
        "extra_params": {"subtalker_top_k": 5},
        "initial_codec_chunk_frames": 4,
        "user": "somebody",
    }
    answer = say(client, "Hello.", **fields)
    assert answer.headers["x-ignored-fields"] == "initial_codec_chunk_frames, user"
    request = engine.requests[0]
    assert (request.voice, request.instructions, request.language) == ("wren", "slowly", "english")
    assert (request.temperature, request.top_k, request.top_p) == (0.7, 20, 0.9)
    assert (request.repetition_penalty, request.max_new_tokens, request.text_mode) == (1.1, 90, "streaming")
    assert (request.trim_silence, request.subtalker_top_k) == (False, 5)
    say(client, "Hello.", temperature=0, speaker="finch")
    assert engine.requests[1].greedy is True and engine.requests[1].voice == "finch"


def test_a_random_seed_is_reported(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm"})
    assert int(answer.headers["x-seed"]) == engine.requests[0].seed


def test_a_text_in_a_foreign_script_is_spoken_with_a_warning(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(engine, replace(CARD, languages=("english",))) as client:
        answer = client.post(SPEECH, json={"input": "你好", "response_format": "pcm", "seed": 3})
        assert answer.content == spoken("你好", 3)
        assert "Chinese characters" in answer.headers["x-warning"] and "english" in answer.headers["x-warning"]
        eventually(lambda: "Chinese characters" in caplog.text)
        assert "x-warning" not in client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm"}).headers


def test_vanished_clients_leave_no_streams_behind() -> None:
    engine = ScriptedEngine(frame_s=0.005, slots=4, queue=500)
    app = build_app(engine, CARD)
    with serving(app) as url:
        for number in range(30):
            with httpx.Client(base_url=url, trust_env=False, timeout=600) as client:
                try:
                    with client.stream("POST", SPEECH, json={"input": "word " * 100}, timeout=0.05) as response:
                        if number % 2:
                            next(response.iter_raw())
                except httpx.TimeoutException:
                    pass
        eventually(lambda: engine.status().slots_active == 0 and app.state.service.streams == 0)
    engine.stop()


class EchoEngine(ScriptedEngine):
    def end(self, utterance_id: str, reason: Any = "stop", error: Any = None) -> None:
        one = self.speaking[utterance_id]
        deliver = one.deliver
        one.deliver = lambda chunk: deliver(replace(chunk, echo_s=1.2 if one.request.trim_echo else 0.0))
        super().end(utterance_id, reason, error)


def test_an_echo_is_trimmed_where_asked_for_in_whole_files_as_in_streams() -> None:
    engine = EchoEngine()
    with client_of(engine, CARD) as client:
        whole, stream = (
            {"stream": False, "response_format": "mp3"},
            {"stream_format": "audio", "response_format": "mp3"},
        )
        asked = {"trim_echo": True}
        assert say(client, "Hi.", **whole, **asked).headers["x-echo-trimmed-seconds"] == "1.20"
        assert say(client, "Hi.", **whole, **asked, speed=2).headers["x-echo-trimmed-seconds"] == "0.60"
        assert "x-echo-trimmed-seconds" not in say(client, "Hi.", **whole).headers
        for fields in ({}, asked):
            assert say(client, "Hi.", **stream, **fields).status_code == 200
        items = {"items": [{"input": "Hi.", **asked}]}
        assert client.post("/v1/audio/speech/batch", json=items).status_code == 200
    engine.stop()
    assert [request.trim_echo for request in engine.requests] == [True, True, None, None, True, True]
