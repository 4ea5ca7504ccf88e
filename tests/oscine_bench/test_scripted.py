"""Scripted servers with known faults: every figure equals the script's."""

import asyncio
import base64
import json
import socket

import pytest
from websockets.asyncio.server import ServerConnection

from oscine.audio.clips import wav_header
from oscine_bench.http_client import HttpClient
from oscine_bench.metrics import Timeline, gaps
from oscine_bench.summary import RequestOutcome, analyze
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest
from tests.oscine_bench.scripted import (
    END,
    HEAD,
    HELLO,
    RATE_HZ,
    ScriptClock,
    Step,
    chunk,
    listening,
    outcome,
    request_script,
    silence,
    speech,
    streamed,
    talk,
)


def timeline_of(one: RequestOutcome) -> Timeline:
    assert one.failure is None and one.timeline is not None
    return one.timeline


def test_a_plain_stream_is_measured_as_sent() -> None:
    got = outcome(streamed((0.050, speech(0.16)), (0.150, speech(0.4, 1)), (0.250, speech(0.4, 2)), end_s=0.300))
    assert timeline_of(got) == Timeline((0.050, 0.150, 0.250), pytest.approx((0.16, 0.56, 0.96)))
    assert (got.first_byte_s, got.audible_s, got.silence_s) == (0.050, 0.050, 0.0)
    assert got.e2e_s == 0.300
    assert got.x_real_time == pytest.approx(0.96 / 0.3)
    assert got.playback is not None and got.playback.deficit_s == 0.0
    assert gaps(timeline_of(got)) == pytest.approx([0.1, 0.1])


def test_a_late_chunk_causes_a_deficit_of_its_lateness() -> None:
    got = outcome(streamed((0.1, speech(0.5)), (0.2, speech(0.5, 1)), (1.5, speech(0.5, 2))))
    timeline_of(got)
    assert got.playback is not None
    assert got.playback.deficit_s == pytest.approx(0.4)  # audio until 1.1, more at 1.5
    assert got.playback.longest_stall_s == pytest.approx(0.4)
    assert got.playback.stalls == 1


def test_leading_silence_delays_audible_first_audio() -> None:
    got = outcome(streamed((0.050, silence(0.08)), (0.060, silence(0.22) + speech(0.5)), (0.070, speech(0.2, 1))))
    assert timeline_of(got).first_audio_s == 0.050
    assert got.silence_s == pytest.approx(0.29)  # the first loud window starts 10 ms before the noise
    assert got.audible_s == pytest.approx(0.050 + 0.29)


def test_a_stall_within_leading_silence_delays_audible_first_audio_further() -> None:
    got = outcome(streamed((0.1, silence(0.2)), (0.8, silence(0.2) + speech(0.3))))
    assert got.silence_s == pytest.approx(0.39)
    assert got.audible_s == pytest.approx(0.8 + 0.19)


def test_silence_alone_is_inaudible() -> None:
    got = outcome(streamed((0.1, silence(0.2)), (0.2, silence(0.2))))
    timeline_of(got)
    assert got.audible_s is None


def test_playback_does_not_apply_to_a_single_chunk() -> None:
    got = outcome(streamed((0.7, speech(0.5)), end_s=0.7))
    assert timeline_of(got) == Timeline((0.7,), (0.5,))
    assert got.playback is None


def test_playback_does_not_apply_to_a_response_with_a_content_length() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 48000\r\n\r\n"
    sound = speech(1.0)
    got = outcome([(0.5, head + sound[:24000]), (1.4, sound[24000:])])
    assert timeline_of(got).audio_s == (0.5, 1.0)
    assert got.playback is None


def test_a_slow_stream_stalls_at_every_chunk() -> None:
    got = outcome(streamed(*((0.1 * (i + 1), speech(0.08, i)) for i in range(10))))
    assert got.playback is not None
    assert got.playback.stalls == 9
    assert got.playback.deficit_s == pytest.approx(9 * 0.02)
    assert got.playback.longest_stall_s == pytest.approx(0.02)
    assert gaps(timeline_of(got)) == pytest.approx([0.1] * 9)


@pytest.mark.parametrize("resets", [False, True])
def test_a_cut_connection_is_a_failure(resets: bool) -> None:
    steps = [(0.1, HEAD + chunk(speech(0.5))), (0.2, chunk(speech(0.5, 1)))]
    got = outcome(steps, hangs_up=not resets, resets=resets)
    assert got.failure is not None and got.failure.kind == "cut"
    assert "48000 bytes" in got.failure.message
    assert got.timeline is None


def test_doubled_audio_is_a_failure() -> None:
    sound = [speech(0.3, seed) for seed in range(2)]
    got = outcome(streamed((0.1, sound[0]), (0.2, sound[1]), (0.3, sound[0] + sound[1])))
    assert got.failure is not None
    assert (got.failure.kind, got.failure.message) == ("doubled", "the same 0.60 s of audio came twice")


def test_audio_longer_than_requested_is_a_failure_and_shorter_is_not() -> None:
    def of(seconds: float) -> RequestOutcome:
        return outcome(streamed((0.1, speech(seconds)), (0.2, speech(0.08, 1))), frames=5)

    assert of(0.24).failure is None
    assert of(0.32).failure is None  # five frames of 80 ms
    assert of(0.40).failure is None  # one frame more: another reading of max_new_tokens
    late = of(0.48).failure
    assert late is not None and late.kind == "too_long"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "128 streams are all taken", "code": "overloaded"}}', "128 streams are all taken"),
        (b'{"detail": "busy"}', "busy"),
        (b"<h1>no</h1>", "<h1>no</h1>"),
        (b"", "no message"),
    ],
)
def test_a_refusal_has_its_status_as_kind(body: bytes, said: str) -> None:
    head = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: %d\r\n\r\n" % len(body)
    got = outcome([(0.02, head + body)])
    assert got.failure is not None
    assert (got.failure.kind, got.failure.message) == ("http_429", said)
    assert got.e2e_s == 0.02


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([(0.1, HEAD), (0.2, END)], "empty"),
        ([(0.1, HEAD + chunk(speech(0.1)[:-1])), (0.2, END)], "malformed"),  # ends within a sample
        ([(0.1, b"220 this is mail\r\n")], "malformed"),
    ],
)
def test_incomplete_audio_is_a_failure(steps: list[tuple[float, bytes]], kind: str) -> None:
    failure = outcome(steps).failure
    assert failure is not None and failure.kind == kind


def test_a_sample_split_between_two_reads_counts_with_the_second_read() -> None:
    sound = speech(0.5)
    got = outcome(streamed((0.1, sound[:1]), (0.2, sound[1:12001]), (0.3, sound[12001:])))
    assert timeline_of(got) == Timeline((0.2, 0.3), (0.25, 0.5))
    assert got.first_byte_s == 0.1


def test_a_stated_sample_rate_is_used() -> None:
    head = HEAD.replace(b"audio/pcm", b"audio/pcm\r\nX-Sample-Rate: 48000")
    got = outcome([(0.1, head + chunk(speech(0.5))), (0.2, chunk(speech(0.5, 1))), (0.2, END)])
    assert timeline_of(got).audio_s == (0.25, 0.5)


@pytest.mark.parametrize("n_samples", [None, 24000])
def test_a_wav_header_is_not_audio(n_samples: int | None) -> None:
    header, sound = wav_header(RATE_HZ, n_samples), speech(1.0)
    got = outcome(
        streamed((0.1, header[:20]), (0.2, header[20:]), (0.3, sound[:24000]), (0.4, sound[24000:])),
        response_format="wav",
    )
    assert timeline_of(got) == Timeline((0.3, 0.4), (0.5, 1.0))
    assert got.first_byte_s == 0.1


def test_a_wav_that_ends_before_its_stated_length_is_cut() -> None:
    got = outcome(streamed((0.1, wav_header(RATE_HZ, 30000) + speech(1.0))), response_format="wav")
    assert got.failure is not None and got.failure.kind == "cut"


def event(kind: str, **fields: object) -> bytes:
    return b"data: " + json.dumps({"type": kind, **fields}).encode() + b"\n\n"


def as_events(steps: list[Step]) -> list[Step]:
    (at_s, head), *rest = steps
    return [(at_s, head.replace(b"audio/pcm", b"text/event-stream")), *rest]


def delta(sound: bytes) -> bytes:
    return event("speech.audio.delta", audio=base64.b64encode(sound).decode())


def test_an_event_counts_once_it_is_complete() -> None:
    first, second = delta(speech(0.25)), delta(speech(0.25, 1))
    done = event("speech.audio.done", usage={})
    steps = streamed((0.1, first), (0.2, second[:500]), (0.3, second[500:] + done), end_s=0.4)
    got = outcome(as_events(steps), sse=True)
    assert timeline_of(got) == Timeline((0.1, 0.3), (0.25, 0.5))


def test_an_error_event_and_a_missing_end_are_failures() -> None:
    broken = event("speech.audio.error", error={"message": "the engine is gone"}, partial_audio=True)
    failure = outcome(as_events(streamed((0.1, delta(speech(0.25))), (0.2, broken))), sse=True).failure
    assert failure is not None and (failure.kind, failure.message) == ("reported", "the engine is gone")
    failure = outcome(as_events(streamed((0.1, delta(speech(0.25))))), sse=True).failure
    assert failure is not None and failure.kind == "cut"


def test_a_response_without_length_ends_with_the_connection() -> None:
    steps = [(0.1, b"HTTP/1.0 200 OK\r\n\r\n" + speech(0.5)), (0.2, speech(0.5, 1))]
    got = outcome(steps, hangs_up=True)
    assert timeline_of(got) == Timeline((0.1, 0.2), (0.5, 1.0))


def test_connections_are_reused() -> None:
    exchanges, server = request_script(streamed((0.1, speech(0.1)), (0.2, speech(0.1, 1))), requests=3)
    assert [exchange.failure for exchange in exchanges] == [None] * 3
    assert server.connections == 1 and len(server.requests) == 3


def test_connection_close_is_respected() -> None:
    closing = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    exchanges, server = request_script([(0.1, closing + chunk(speech(0.1)) + END)], requests=2, hangs_up=True)
    assert [exchange.failure for exchange in exchanges] == [None] * 2
    assert server.connections == 2


def test_a_request_carries_the_targets_fields() -> None:
    _, server = request_script(streamed((0.1, speech(0.1))), voice="ryan", frames=56, api_key="secret", ref_text="你好")
    line, headers, body = server.requests[0]
    assert line == "POST /v1/audio/speech HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["authorization"] == "Bearer secret"
    asked = {"input": "hello", "seed": 7, "voice": "ryan", "ref_text": "你好"}
    length = {"max_new_tokens": 57, "trim_silence": False}
    assert body == asked | length | {"response_format": "pcm", "stream_format": "audio"}


def test_a_silent_server_is_a_timeout() -> None:
    async def main() -> RequestOutcome:
        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with listening(mute) as port:
            target = Target(url=f"127.0.0.1:{port}")
            client = HttpClient(target, timeout_s=0.05)
            got = analyze(await client.send(HELLO), target)
            await client.close()
            return got

    failure = asyncio.run(main()).failure
    assert failure is not None and failure.kind == "timeout"


def test_a_closed_port_is_a_connect_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening

        async def main() -> RequestOutcome:
            target = Target(url=f"127.0.0.1:{taken.getsockname()[1]}")
            return analyze(await HttpClient(target).send(HELLO), target)

        failure = asyncio.run(main()).failure
    assert failure is not None and failure.kind == "connect"


def test_reads_are_stamped_in_order_and_never_before_they_were_sent() -> None:
    async def main() -> tuple[list[float], list[float]]:
        loop_time = asyncio.get_running_loop().time
        sent_s: list[float] = []
        got = asyncio.Event()

        def clock() -> float:
            got.set()
            return loop_time()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for piece in (HEAD + chunk(speech(0.1)), chunk(speech(0.1, 1)), chunk(speech(0.1, 2)), END):
                sent_s.append(loop_time())
                got.clear()
                writer.write(piece)
                await got.wait()
            writer.close()

        async with listening(serve) as port:
            client = HttpClient(Target(url=f"127.0.0.1:{port}"), clock=clock)
            exchange = await client.send(HELLO)
            await client.close()
        return sent_s, [*exchange.arrived_s, exchange.end_s]

    sent_s, arrived_s = asyncio.run(main())
    # The server sends the next piece only after the client has stamped the last one.
    assert all(sent <= arrived for sent, arrived in zip(sent_s, arrived_s, strict=True))
    assert all(arrived <= later for arrived, later in zip(arrived_s, sent_s[1:], strict=False))


def test_the_websocket_is_measured_from_the_first_text() -> None:
    async def script(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        def sends(message: bytes | str) -> object:
            return lambda: asyncio.ensure_future(socket.send(message))

        await clock.move(0.02, sends(json.dumps({"type": "audio.start", "sample_rate": RATE_HZ})))
        await clock.move(0.05, sends(speech(0.16)))
        await clock.move(0.45, sends(speech(0.24, 1)))
        await clock.move(0.50, sends(json.dumps({"type": "audio.done", "finish_reason": "stop"})))

    exchanges, received = asyncio.run(talk(script, requests=2, voice="ryan"))
    for exchange in exchanges:
        got = analyze(exchange, Target(url="http://127.0.0.1", preset_name="oscine-ws"))
        assert timeline_of(got) == Timeline((0.05, 0.45), pytest.approx((0.16, 0.40)))
        assert got.e2e_s == 0.50
        assert got.playback is not None and got.playback.deficit_s == pytest.approx(0.45 - 0.21)
    assert [message["type"] for message in received] == ["session.config", "input.text", "input.done"] * 2
    asked = {"events": ["session.ready"], "seed": 7, "voice": "ryan", "response_format": "pcm"}
    assert received[0] == {"type": "session.config", **asked}


def test_words_are_sent_one_by_one_and_join_to_the_text() -> None:
    async def script(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        await socket.send(speech(0.16))
        await socket.send(json.dumps({"type": "audio.done"}))

    exchanges, received = asyncio.run(talk(script, word_interval_s=0.001))
    assert exchanges[0].failure is None
    assert "".join(message.get("text", "") for message in received) == HELLO.text


def test_unsent_words_do_not_spill_into_the_next_request() -> None:
    async def script(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        await socket.send(speech(0.16))
        await socket.send(json.dumps({"type": "audio.done", "finish_reason": "length"}))

    request = PlannedRequest("one two three four five", 7, 0)
    exchanges, received = asyncio.run(
        talk(script, after="input.text", requests=2, request=request, word_interval_s=10.0)
    )
    assert [exchange.failure for exchange in exchanges] == [None, None]
    assert [message.get("text") for message in received] == [None, "one ", None, "one "]


def test_errors_and_closes_of_the_websocket_are_failures() -> None:
    async def refuses(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        await socket.send(json.dumps({"type": "error", "error": {"message": "unknown voice 'x'"}}))

    async def hangs_up(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        await socket.send(speech(0.16))
        await socket.close(1011)

    async def babbles(socket: ServerConnection, clock: ScriptClock, received: list[dict]) -> None:
        await socket.send("well")

    (refused,), _ = asyncio.run(talk(refuses))
    (cut,), _ = asyncio.run(talk(hangs_up))
    (odd,), _ = asyncio.run(talk(babbles))
    assert refused.failure is not None and cut.failure is not None and odd.failure is not None
    assert odd.failure.kind == "malformed"
    assert (refused.failure.kind, refused.failure.message) == ("reported", "unknown voice 'x'")
    assert cut.failure.kind == "cut" and "1011" in cut.failure.message
