import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence

import numpy as np
import pytest

from oscine.errors import EngineError, RequestError
from oscine.request import SpeechRequest
from oscine.speech.clock import PlaybackClock
from oscine.speech.events import Audio, Ended, Paused, SegmentEnded, SpeechEvent, Started
from oscine.speech.run import SegmentJoiner, Speaker, SpeechRun
from oscine.speech.script import Script
from oscine.text.spoken_text import Pause, Replacement, SpokenText
from oscine.types import Usage
from tests.server.scripted_engine import FRAME_SAMPLES, RATE_HZ, ScriptedEngine, spoken

REQUEST = SpeechRequest(text="", voice="wren", seed=3)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.stop()


def speaking(
    engine: ScriptedEngine,
    script: Sequence[SpokenText | Pause | str],
    request: SpeechRequest = REQUEST,
    speed: float = 1.0,
) -> AsyncGenerator[SpeechEvent, None]:
    items = [SpokenText.unchanged(item) if isinstance(item, str) else item for item in script]
    return Speaker(engine, request, RATE_HZ, speed=speed).speak(Script(items))


def events_of(
    engine: ScriptedEngine,
    script: Sequence[SpokenText | Pause | str],
    request: SpeechRequest = REQUEST,
    speed: float = 1.0,
) -> list[SpeechEvent]:
    async def collect() -> list[SpeechEvent]:
        return [event async for event in speaking(engine, script, request, speed)]

    return asyncio.run(collect())


def audio(events: Sequence[SpeechEvent]) -> bytes:
    return b"".join(event.pcm for event in events if isinstance(event, Audio))


def segments(events: Sequence[SpeechEvent]) -> list[SegmentEnded]:
    return [event for event in events if isinstance(event, SegmentEnded)]


def end(events: Sequence[SpeechEvent]) -> Ended:
    """The only end, which comes last."""
    (ended,) = (event for event in events if isinstance(event, Ended))
    assert events[-1] is ended
    return ended


def test_a_single_segment_is_the_engine_audio_chunk_by_chunk(engine: ScriptedEngine) -> None:
    events = events_of(engine, ["Hello."])
    expected = spoken("Hello.", 3, "wren")
    assert [len(one.pcm) // 2 for one in events if isinstance(one, Audio)] == [FRAME_SAMPLES] * 6 + [0]
    assert audio(events) == expected
    assert events[0] == Started("Hello.") and end(events) == Ended("stop", Usage(6, 6))


@pytest.mark.parametrize("packet_bytes", [1, 320, 961, 10**9])
def test_packets_have_one_size_across_segments_and_lose_nothing(engine: ScriptedEngine, packet_bytes: int) -> None:
    script = Script([SpokenText.unchanged("One. "), Pause(0.1), SpokenText.unchanged("Two.")])

    async def collect(size: int | None) -> list[SpeechEvent]:
        speaker = Speaker(engine, REQUEST, RATE_HZ, packet_bytes=size)
        return [event async for event in speaker.speak(script)]

    whole = asyncio.run(collect(None))
    script = Script([SpokenText.unchanged("One. "), Pause(0.1), SpokenText.unchanged("Two.")])
    events = asyncio.run(collect(packet_bytes))
    packets = [event.data for event in events if isinstance(event, Audio) and event.data]
    assert {len(packet) for packet in packets[:-1]} <= {packet_bytes} and 0 < len(packets[-1]) <= packet_bytes
    assert b"".join(packets) == audio(events) == audio(whole)
    assert segments(events) == segments(whole) and end(events) == end(whole)


def test_segments_share_seed_and_voice_and_later_ones_are_continuations(engine: ScriptedEngine) -> None:
    events = events_of(engine, ["One. ", "Two. ", "Three."])
    assert [request.text for request in engine.requests] == ["One. ", "Two. ", "Three."]
    assert {(request.seed, request.voice) for request in engine.requests} == {(3, "wren")}
    assert engine.requests[0].continues_s is None
    assert all(request.continues_s is not None for request in engine.requests[1:])
    timings = segments(events)
    assert [timing.text for timing in timings] == ["One. ", "Two. ", "Three."]
    assert [timing.start_s for timing in timings] == [0.0, *(timing.end_s for timing in timings[:-1])]
    assert timings[-1].end_s == pytest.approx(len(audio(events)) / 2 / RATE_HZ)


def test_only_the_samples_at_segment_borders_are_faded(engine: ScriptedEngine) -> None:
    joined = np.frombuffer(audio(events_of(engine, ["One. ", "Two."])), "<i2")
    plain = np.frombuffer(spoken("One. ", 3, "wren") + spoken("Two.", 3, "wren"), "<i2")
    border, fade = 5 * FRAME_SAMPLES, RATE_HZ // 200
    assert len(joined) == len(plain)
    assert (joined[: border - fade] == plain[: border - fade]).all()
    assert (joined[border + fade :] == plain[border + fade :]).all()
    assert joined[border - 1] == joined[border] == 0


def test_a_length_limit_counts_all_segments_and_ends_the_speech(engine: ScriptedEngine) -> None:
    request = SpeechRequest(text="", seed=3, max_new_tokens=8)
    events = events_of(engine, ["One. ", "Two. ", "Three."], request)
    assert [request.max_new_tokens for request in engine.requests] == [8, 3]
    assert end(events).finish_reason == "length" and end(events).usage.frames == 7


def test_a_runaway_segment_is_reported_and_the_rest_is_spoken(engine: ScriptedEngine) -> None:
    events = events_of(engine, ["One. ", "Two!run ", "Three."])
    assert len(engine.requests) == 3
    assert end(events).finish_reason == "runaway"


def test_an_engine_error_is_raised(engine: ScriptedEngine) -> None:
    with pytest.raises(EngineError):
        events_of(engine, ["One!break"])


def test_a_pause_is_silence_of_exactly_its_length_between_two_segments(engine: ScriptedEngine) -> None:
    seconds = 2.34567
    events = events_of(engine, ["One.", Pause(seconds), "Two."])
    pcm, plain = audio(events), audio(events_of(engine, ["One.", "Two."]))
    border, silence = 4 * FRAME_SAMPLES * 2, bytes(2 * round(seconds * RATE_HZ))
    assert pcm == plain[:border] + silence + plain[border:]
    first, second = segments(events)
    assert first.end_s == pytest.approx(border / 2 / RATE_HZ)
    assert second.start_s - first.end_s == pytest.approx(len(silence) / 2 / RATE_HZ)
    assert end(events).finish_reason == "stop"


def test_a_speech_may_begin_and_end_with_pauses(engine: ScriptedEngine) -> None:
    events = events_of(engine, [Pause(0.5), Pause(0.25), "One.", Pause(1.5)])
    pcm = audio(events)
    start, speech = 2 * round(0.75 * RATE_HZ), spoken("One.", 3, "wren")
    fade = 2 * RATE_HZ // 200
    assert pcm[: start + len(speech) - fade] == bytes(start) + speech[:-fade]
    assert pcm[start + len(speech) :] == bytes(2 * round(1.5 * RATE_HZ))
    assert end(events) == Ended("stop", Usage(4, 4))


def test_pauses_before_the_first_words_come_in_pieces_and_cost_no_memory_until_then(engine: ScriptedEngine) -> None:
    events = events_of(engine, [*[Pause(10.0)] * 3, "One."], speed=4.0)
    silent = [event.pcm for event in events if isinstance(event, Audio) and not any(event.pcm)]
    assert sum(map(len, silent)) == 2 * 30 * 4 * RATE_HZ
    assert max(map(len, silent)) == 2 * RATE_HZ


def test_other_work_runs_between_the_pieces_of_a_pause(engine: ScriptedEngine) -> None:
    turns = pieces = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def speak() -> None:
        nonlocal pieces
        other = asyncio.create_task(count_turns())
        async for event in speaking(engine, [Pause(100.0), "One.", Pause(100.0), "Two."]):
            pieces += isinstance(event, Audio) and not any(event.pcm)  # speech may come in several chunks at once
        other.cancel()

    asyncio.run(speak())
    assert turns >= pieces >= 200


def test_nothing_is_sent_before_the_first_segment_is_accepted(engine: ScriptedEngine) -> None:
    async def first_event() -> SpeechEvent:
        events = speaking(engine, [Pause(1.0), "One!refuse"])
        assert await anext(events) == Paused(1.0)
        return await anext(events)

    with pytest.raises(RequestError):
        asyncio.run(first_event())


def test_after_a_pause_the_silence_before_the_words_is_trimmed_as_at_the_start(engine: ScriptedEngine) -> None:
    events_of(engine, ["One.", "Two.", Pause(0.1), "Three."])
    assert [request.trim_silence for request in engine.requests] == [None, False, None]


def test_a_pause_is_as_long_in_the_answer_at_any_speed(engine: ScriptedEngine) -> None:
    with_pause, without = (
        audio(events_of(engine, ["One.", *pause, "Two."], speed=2.0)) for pause in ([Pause(0.5)], [])
    )
    assert len(with_pause) - len(without) == 2 * RATE_HZ


def test_the_engine_reads_the_spoken_text_and_events_carry_the_written_one(engine: ScriptedEngine) -> None:
    text = SpokenText("five dollars", "$5", (Replacement(0, 12, 0, 2),))
    events = events_of(engine, [text], SpeechRequest(text="$5", normalize=True))
    assert [(request.text, request.normalize) for request in engine.requests] == [("five dollars", None)]
    (segment,) = segments(events)
    assert (segment.text, segment.spoken) == ("$5", text)


@pytest.mark.parametrize("piece_bytes", [2, 100, 482, 5000])
def test_joined_audio_does_not_depend_on_how_it_arrives(piece_bytes: int) -> None:
    def joined(piece_bytes: int) -> bytes:
        joiner, out = SegmentJoiner(RATE_HZ), b""
        for number, text in enumerate(("ab", "c", "de")):
            pcm = spoken(text, number)
            out += b"".join(joiner.push(pcm[at : at + piece_bytes]) for at in range(0, len(pcm), piece_bytes))
            out += joiner.end_segment(last=number == 2)
        return out

    assert joined(piece_bytes) == joined(10**9)


def test_the_playback_clock_counts_sent_audio_until_the_player_drops_it() -> None:
    clock = PlaybackClock()
    assert clock.unplayed_s == 0
    clock.sent(1000.0)
    clock.sent(1000.0)
    assert 1900 < clock.unplayed_s <= 2000
    clock.stop()
    assert clock.unplayed_s == 0


class Heard(SpeechRun):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.samples = 0
        self.ends: list[tuple[Ended | None, BaseException | None]] = []

    def sent(self, audio: Audio) -> None:
        self.samples += len(audio.pcm) // 2

    def ended(self, end: Ended | None, error: BaseException | None) -> None:
        self.ends.append((end, error))


def run(engine: ScriptedEngine, fails_at: type[SpeechEvent] | None = None, cancels: bool = False) -> Heard:
    heard = Heard()

    async def speak() -> None:
        with heard:

            async def render(event: SpeechEvent) -> None:
                if fails_at and isinstance(event, fails_at):
                    if cancels:
                        heard.finish(Ended("cancelled"))
                    raise ConnectionResetError

            await heard.render(speaking(engine, ["One. ", "Two."]), render)

    with contextlib.suppress(ConnectionResetError):
        asyncio.run(speak())
    return heard


def test_a_run_hears_of_all_audio_and_of_the_end_once(engine: ScriptedEngine) -> None:
    heard = run(engine)
    assert heard.samples == 9 * FRAME_SAMPLES
    assert heard.ends == [(Ended("stop", Usage(9, 9)), None)]


@pytest.mark.parametrize("fails_at", [Started, Audio, SegmentEnded, Ended])
def test_a_client_that_is_gone_ends_the_speech_once_and_stops_the_engine(
    engine: ScriptedEngine, fails_at: type[SpeechEvent]
) -> None:
    ((ended, error),) = run(engine, fails_at).ends
    assert ended is None and isinstance(error, ConnectionResetError)
    assert engine.status().slots_active == 0


def test_only_the_first_end_counts(engine: ScriptedEngine) -> None:
    assert run(engine, SegmentEnded, cancels=True).ends == [(Ended("cancelled"), None)]


def test_a_speech_of_nothing_has_no_end(engine: ScriptedEngine) -> None:
    heard = Heard()

    async def speak() -> None:
        with heard:
            await heard.render(speaking(engine, []), lambda event: asyncio.sleep(0))

    asyncio.run(speak())
    assert heard.ends == []
