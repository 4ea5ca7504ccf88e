from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from oscine.config import ChunkConfig, EchoConfig, EngineConfig, RunawayConfig, TrimConfig
from oscine.engine.session import Session
from oscine.engine.trimming import EchoTrimmer
from oscine.errors import TooLongError
from oscine.request import SamplingParams
from oscine.types import Usage
from tests.engine.scripted_runner import END_MARK, EOS_ID, PLAIN, SAMPLES_PER_FRAME, SPEC, prompt_of, session_of

FRAME = np.full(SAMPLES_PER_FRAME, 5000, np.int16)


def quiet(session: object = None) -> None:
    pass


def stream(chunks: ChunkConfig, tick_s: float, count: int) -> list[tuple[float, int]]:
    """(time, frames) of every chunk of a stream with one frame per `tick_s`."""
    config = dataclasses.replace(PLAIN, chunks=chunks)
    session = session_of(1, 0, quiet, config, max_new_tokens=1000)
    sent = []
    for frame in range(count):
        session.frames_launched += 1
        assert session.take_frame(np.full(16, frame), FRAME, -20.0) is None
        if chunk := session.due_chunk(now_s := (frame + 1) * tick_s, tick_s):
            sent.append((now_s, len(chunk.pcm) // 2 // SAMPLES_PER_FRAME))
    return sent


def test_chunks_grow_with_the_listeners_buffer() -> None:
    sizes = [frames for _, frames in stream(ChunkConfig(), tick_s=0.005, count=100)]
    assert sizes[:3] == [1, 1, 1] and sizes == sorted(sizes) and sizes[-1] == 8
    assert len(sizes) < 25


def test_a_stream_that_barely_keeps_real_time_is_never_held_back() -> None:
    sent = stream(ChunkConfig(), tick_s=0.078, count=50)
    assert sent[0][1] == 3, "the first chunk lasts until the next ones are there"
    assert [frames for _, frames in sent[1:]] == [1] * 47


@pytest.mark.parametrize("tick_s", [0.002, 0.01, 0.03, 0.06, 0.079])
def test_no_chunk_is_late(tick_s: float) -> None:
    dry_s = None
    for now_s, frames in stream(ChunkConfig(), tick_s, count=200):
        assert dry_s is None or now_s <= dry_s
        dry_s = max(now_s, dry_s or now_s) + frames * 0.08


def test_a_stream_launches_frames_only_while_their_text_is_known() -> None:
    session = session_of(1, 5, quiet, streaming_text=True)
    assert session.needs_text and not session.can_launch
    session.begin(prompt_of(trailing=[7]), text_ids=2, text_ended=False)
    assert session.can_launch
    session.slot, session.frames_launched = 0, 1
    assert session.needs_text and not session.can_launch
    session.append_text([8, 9], spoken_ids=1, ended=True)
    assert not session.needs_text and session.can_launch and session.text_ids == 3


def test_nothing_is_held_back_from_a_stream_that_waits_for_text() -> None:
    config = dataclasses.replace(PLAIN, chunks=ChunkConfig(first_chunk_frames=5))
    session = session_of(1, 5, quiet, config, streaming_text=True)
    session.begin(prompt_of(trailing=[7]), text_ids=2, text_ended=False)
    session.slot, session.frames_launched = 0, 1
    session.take_frame(np.ones(16, np.int64), FRAME, -20.0)
    assert session.due_chunk(0.0, 0.005) is not None


def test_text_that_arrives_before_the_slot_goes_with_the_prompt() -> None:
    session = session_of(1, 5, quiet, streaming_text=True)
    session.begin(prompt_of(trailing=[7]), text_ids=2, text_ended=False)
    session.append_text([8], spoken_ids=1, ended=False)
    assert session.assignment(3).streaming_text and session.assignment(3).prompt.trailing_ids.tolist() == [7, 8]
    session.append_text([9], spoken_ids=0, ended=True)
    assert not session.assignment(3).streaming_text and session.assignment(3).prompt.trailing_ids.tolist() == [7, 8, 9]


def test_a_deadline_counts_frames_in_flight() -> None:
    session = session_of(1, 5, quiet)
    assert session.deadline_s(0.0) is None, "it plays nothing yet"
    session.frames_launched = 2
    session.take_frame(np.ones(16, np.int64), FRAME, -20.0)
    assert session.due_chunk(10.0, 0.0) is not None
    assert session.deadline_s(10.0) == pytest.approx(10.16), "one frame sent, one in flight"
    assert session.deadline_s(10.09) is None, "it has run dry"


def test_memory_is_reserved_for_the_longest_possible_speech() -> None:
    config = dataclasses.replace(PLAIN, runaway=RunawayConfig(budget_frames=10, budget_frames_per_text_id=4.0))
    assert session_of(1, 5, quiet, config, text_ids=5).sampling.max_new_tokens == 31
    assert session_of(1, 5, quiet, config, text_ids=5, max_new_tokens=500).sampling.max_new_tokens == 500
    assert session_of(1, 5, quiet, config, rows=9700, max_new_tokens=500).sampling.max_new_tokens == 300
    off = dataclasses.replace(PLAIN, runaway=RunawayConfig(enabled=False))
    assert session_of(1, 5, quiet, off, text_ids=5).sampling.max_new_tokens == 1000
    short = dataclasses.replace(off, max_new_tokens=100)  # the engine's own limit
    assert session_of(1, 5, quiet, short, text_ids=5, max_new_tokens=500).sampling.max_new_tokens == 100


def test_a_prompt_without_room_for_speech_is_refused() -> None:
    with pytest.raises(TooLongError, match="9999 rows"):
        session_of(1, 5, quiet, rows=9999)


def test_leading_silence_is_not_sent_and_positions_count_sent_samples() -> None:
    config = EngineConfig(trim_silence=TrimConfig(keep_ms=0.0), chunks=ChunkConfig(first_chunk_ticks=0.0))
    session = Session("1", SamplingParams(seed=9), quiet, config, SPEC, budgeted=True)
    session.begin(prompt_of(), 5, text_ended=True)
    silent = np.zeros(SAMPLES_PER_FRAME, np.int16)
    half = silent.copy()
    half[SAMPLES_PER_FRAME // 2 :] = 5000
    for pcm in (silent, half, FRAME):
        assert session.take_frame(np.ones(16, np.int64), pcm, -20.0) is None
    chunk = session.due_chunk(0.0, 0.0)
    assert chunk is not None and (chunk.first_sample, len(chunk.pcm) // 2, chunk.seed) == (
        0,
        SAMPLES_PER_FRAME * 3 // 2,
        9,
    )
    assert session.take_frame(np.full(16, EOS_ID), FRAME, -20.0) == "stop"
    last = session.last_chunk("stop", None, 0.0)
    assert (last.pcm, last.first_sample) == (b"", SAMPLES_PER_FRAME * 3 // 2)


def test_a_cancelled_stream_delivers_no_more_audio() -> None:
    session = session_of(1, 5, quiet)
    session.take_frame(np.ones(16, np.int64), FRAME, -20.0)
    assert session.last_chunk("cancelled", None, 0.0).pcm == b""


@pytest.mark.parametrize(("requested", "samples"), [(None, 8), (True, 8), (False, 16)])
def test_a_request_decides_whether_silence_is_trimmed(requested: bool | None, samples: int) -> None:
    config = EngineConfig(trim_silence=TrimConfig(keep_ms=0.0))
    for enabled in (True, False):
        trim = dataclasses.replace(config.trim_silence, enabled=enabled)
        session = session_of(1, 2, quiet, dataclasses.replace(config, trim_silence=trim), trim_silence=requested)
        for pcm in (np.zeros(SAMPLES_PER_FRAME, np.int16), FRAME):
            session.take_frame(np.ones(16, np.int64), pcm, -20.0)
        expected = samples if requested is not None or enabled else 16
        assert len(session.last_chunk("stop", None, 0.0).pcm) == 2 * expected


@pytest.mark.parametrize("reason", ["stop", "length", "runaway", "cancelled", "error"])
def test_only_the_last_chunk_carries_the_usage(reason: str) -> None:
    session = session_of(1, 5, quiet, text_ids=7)
    session.take_frame(np.ones(16, np.int64), FRAME, -20.0)
    chunk = session.due_chunk(0.0, 0.0)
    assert chunk is not None and chunk.usage is None
    session.take_frame(np.ones(16, np.int64), FRAME, -20.0)
    assert session.last_chunk(reason, None, 0.0).usage == Usage(text_ids=7, frames=2)  # type: ignore[arg-type]


def test_the_usage_counts_streaming_text_as_far_as_it_arrived() -> None:
    session = session_of(1, 5, quiet, streaming_text=True)
    session.begin(prompt_of(trailing=[7]), text_ids=2, text_ended=False)
    session.append_text([8, 9, END_MARK], spoken_ids=2, ended=True)
    assert session.last_chunk("cancelled", None, 0.0).usage == Usage(text_ids=4, frames=0)
    wordless = session_of(1, 5, quiet, streaming_text=True)
    assert wordless.last_chunk("cancelled", None, 0.0).usage == Usage(0, 0)


# --- continuations ---


def first_chunk(plays_until_s: float | None, now_s: float, tick_s: float) -> tuple[int, float | None]:
    """Frames of the first chunk, and when the listener runs dry after it."""
    session = session_of(
        1, 0, quiet, dataclasses.replace(PLAIN, chunks=ChunkConfig()), continues=True, plays_until_s=plays_until_s
    )
    for frame in range(1, 20):
        session.frames_launched += 1
        session.take_frame(np.full(16, frame), FRAME, -20.0)
        if session.due_chunk(now_s, tick_s):
            return frame, session.deadline_s(now_s)
    raise AssertionError("nothing was sent")


def test_a_continuation_has_a_deadline_before_its_first_chunk() -> None:
    session = session_of(1, 5, quiet, continues=True, plays_until_s=12.0)
    assert session.deadline_s(10.0) == 12.0 and session.deadline_s(12.0) is None
    session.frames_launched = 1
    assert session.deadline_s(10.0) == pytest.approx(12.08), "a frame is on its way"
    session.take_frame(np.ones(16, np.int64), FRAME, -20.0)
    last = session.last_chunk("stop", None, 10.0)
    assert last.first_sample == 0 and session.deadline_s(10.0) == pytest.approx(12.08)


def test_the_chunks_of_a_continuation_fit_the_unplayed_audio() -> None:
    assert first_chunk(20.0, now_s=10.0, tick_s=0.005) == (8, pytest.approx(20.64))
    assert first_chunk(10.5, now_s=10.0, tick_s=0.005) == (3, pytest.approx(10.74))
    assert first_chunk(10.05, now_s=10.0, tick_s=0.078) == (1, pytest.approx(10.13)), "the player waits"
    for over in (None, 10.0, 9.0):
        assert first_chunk(over, now_s=10.0, tick_s=0.078) == (3, pytest.approx(10.24)), "its player starts again"


# --- running dry ---


def underruns(session: Session, now_s: float) -> bool:
    """Makes and sends a frame now. Returns whether the listener ran dry before it."""
    session.frames_launched += 1
    session.take_frame(np.full(16, session.frames_made), FRAME, -20.0)
    assert session.due_chunk(now_s, 0.0) is not None
    return session.ran_dry


def test_a_late_frame_is_an_underrun_and_the_first_one_is_not() -> None:
    session = session_of(1, 9, quiet)
    assert [underruns(session, now_s) for now_s in (5.0, 5.08, 5.1605, 5.3, 5.31)] == [False, False, False, True, False]
    late_at_last = session_of(1, 9, quiet)
    underruns(late_at_last, 5.0)
    late_at_last.take_frame(np.ones(16, np.int64), FRAME, -20.0)
    assert late_at_last.last_chunk("stop", None, 6.0).pcm and late_at_last.ran_dry


def test_the_end_of_a_stream_is_no_underrun() -> None:
    for reason in ("stop", "cancelled"):
        session = session_of(1, 9, quiet)
        assert [underruns(session, 5.0), underruns(session, 6.0)] == [False, True]
        session.last_chunk(reason, None, 9.0)  # type: ignore[arg-type]
        assert not session.ran_dry


def test_a_gap_between_two_segments_is_an_underrun() -> None:
    assert not underruns(session_of(1, 9, quiet, continues=True, plays_until_s=6.0), 5.9)
    assert underruns(session_of(1, 9, quiet, continues=True, plays_until_s=6.0), 6.1)
    assert not underruns(session_of(1, 9, quiet, continues=True, plays_until_s=None), 6.1), "already dry"


def test_a_gap_is_no_underrun_if_the_text_was_late() -> None:
    session = session_of(1, 9, quiet, streaming_text=True, continues=True, plays_until_s=6.0)
    session.idle_since_s = 5.0
    session.begin(prompt_of(trailing=[7, 8]), text_ids=3, text_ended=False)
    session.idle_since_s = None
    assert not underruns(session, 7.0)
    assert underruns(session, 8.0), "this one's text was there"
    session.idle_since_s = 8.0
    session.append_text([9, 9], spoken_ids=2, ended=False)
    session.idle_since_s = None
    assert not underruns(session, 9.0) and underruns(session, 10.0)


def test_an_echo_is_dropped_before_the_first_chunk_and_reported_with_the_last() -> None:
    reference = np.zeros((30, 16), np.int64)
    reference[:, 0] = 100 + np.arange(30)
    trimmer = EchoTrimmer(EchoConfig(), reference, SPEC.sample_rate_hz)
    session = session_of(1, 0, quiet, max_new_tokens=1000, echo=trimmer)
    first_codes = [*range(118, 130), *range(200, 230)]  # twelve frames of echo
    chunks = []
    for number, code in enumerate(first_codes):
        session.frames_launched += 1
        assert session.take_frame(np.full(16, code), FRAME, -20.0) is None
        if chunk := session.due_chunk(number * 0.001, 0.001):
            chunks.append(chunk)
    last = session.last_chunk("stop", None, 1.0)
    assert chunks[0].first_sample == 0
    assert sum(len(chunk.pcm) for chunk in [*chunks, last]) == 2 * SAMPLES_PER_FRAME * 30
    assert last.echo_s == pytest.approx(12 * 0.08) and last.usage == Usage(10, 42)
