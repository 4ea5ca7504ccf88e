from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.engine.scripted import EOS_ID, PLAIN, SAMPLES_PER_FRAME, SOUND, prompt_of, session_of

from oscine.config import ChunkConfig, EngineConfig, GuardConfig, TrimConfig
from oscine.engine.session import Session
from oscine.types import SamplingParams, TooLongError

FRAME = np.full(SAMPLES_PER_FRAME, 5000, np.int16)


def quiet(session: object = None) -> None:
    pass


def stream(chunks: ChunkConfig, tick_s: float, count: int) -> list[tuple[float, int]]:
    """(time, frames) of every chunk of a stream that makes a frame each `tick_s`."""
    config = dataclasses.replace(PLAIN, chunks=chunks)
    session = session_of(1, 0, quiet, config, max_new_tokens=1000)
    sent = []
    for frame in range(count):
        session.frames_launched += 1
        assert session.take_frame(frame, FRAME, -20.0) is None
        if chunk := session.due_chunk(now_s := (frame + 1) * tick_s, tick_s):
            sent.append((now_s, len(chunk.pcm) // 2 // SAMPLES_PER_FRAME))
    return sent


def test_chunks_grow_with_the_listeners_buffer() -> None:
    sizes = [frames for _, frames in stream(ChunkConfig(), tick_s=0.005, count=100)]
    assert sizes[:3] == [1, 1, 1] and sizes == sorted(sizes) and sizes[-1] == 8
    assert len(sizes) < 25


def test_a_stream_that_is_just_real_time_is_never_held_back() -> None:
    sent = stream(ChunkConfig(), tick_s=0.078, count=50)
    assert sent[0][1] == 3, "the first chunk lasts until the next ones are there"
    assert [frames for _, frames in sent[1:]] == [1] * 47


@pytest.mark.parametrize("tick_s", [0.002, 0.01, 0.03, 0.06, 0.079])
def test_no_chunk_comes_too_late(tick_s: float) -> None:
    dry_s = None
    for now_s, frames in stream(ChunkConfig(), tick_s, count=200):
        assert dry_s is None or now_s <= dry_s
        dry_s = max(now_s, dry_s or now_s) + frames * 0.08


def test_the_phases_of_a_life() -> None:
    session = session_of(1, 5, quiet, text_open=True)
    assert session.phase == "waiting" and session.needs_text
    session.begin(prompt_of(trailing=[7]), text_ids=2, text_ended=False)
    assert session.phase == "waiting" and session.can_launch
    session.slot, session.frames_launched = 0, 1
    assert session.phase == "paused" and not session.can_launch
    session.take_text([8, 9], spoken_ids=1, ended=True)
    assert session.phase == "running" and session.text_ids == 3
    session.last_chunk("stop", None, 0.0)
    assert session.phase == "ended"


def test_nothing_is_held_back_from_a_stream_that_waits_for_text() -> None:
    config = dataclasses.replace(PLAIN, chunks=ChunkConfig(first_chunk_frames=5))
    session = session_of(1, 5, quiet, config, text_open=True)
    session.begin(prompt_of(trailing=[7]), text_ids=2, text_ended=False)
    session.slot, session.frames_launched = 0, 1
    session.take_frame(1, FRAME, -20.0)
    assert session.due_chunk(0.0, 0.005) is not None


def test_text_that_came_before_the_slot_goes_with_the_prompt() -> None:
    session = session_of(1, 5, quiet, text_open=True)
    session.begin(prompt_of(trailing=[7]), text_ids=2, text_ended=False)
    session.take_text([8], spoken_ids=1, ended=False)
    assert session.admission(3).text_open and session.admission(3).prompt.trailing_ids.tolist() == [7, 8]
    session.take_text([9], spoken_ids=0, ended=True)
    assert not session.admission(3).text_open and session.admission(3).prompt.trailing_ids.tolist() == [7, 8, 9]


def test_a_deadline_counts_what_is_on_its_way() -> None:
    session = session_of(1, 5, quiet)
    assert session.deadline_s(0.0) is None, "it plays nothing yet"
    session.frames_launched = 2
    session.take_frame(1, FRAME, -20.0)
    assert session.due_chunk(10.0, 0.0) is not None
    assert session.deadline_s(10.0) == pytest.approx(10.16), "one frame sent, one in flight"
    assert session.deadline_s(10.09) is None, "it has run dry"


def test_memory_is_asked_for_what_may_be_spoken() -> None:
    config = dataclasses.replace(PLAIN, guard=GuardConfig(budget_frames=10, budget_frames_per_text_id=4.0))
    assert session_of(1, 5, quiet, config, text_ids=5).sampling.max_new_tokens == 31
    assert session_of(1, 5, quiet, config, text_ids=5, max_new_tokens=500).sampling.max_new_tokens == 500
    assert session_of(1, 5, quiet, config, rows=9700, max_new_tokens=500).sampling.max_new_tokens == 300
    off = dataclasses.replace(PLAIN, guard=GuardConfig(enabled=False))
    assert session_of(1, 5, quiet, off, text_ids=5).sampling.max_new_tokens == 1000


def test_a_prompt_without_room_for_speech_is_refused() -> None:
    with pytest.raises(TooLongError, match="9999 rows"):
        session_of(1, 5, quiet, rows=9999)


def test_silence_at_the_head_is_not_sent_and_positions_count_what_is() -> None:
    config = EngineConfig(trim_silence=TrimConfig(keep_ms=0.0), chunks=ChunkConfig(first_chunk_ticks=0.0))
    session = Session("1", SamplingParams(seed=9), quiet, config, SOUND, budgeted=True)
    session.begin(prompt_of(), 5, text_ended=True)
    silent = np.zeros(SAMPLES_PER_FRAME, np.int16)
    half = silent.copy()
    half[SAMPLES_PER_FRAME // 2 :] = 5000
    for pcm in (silent, half, FRAME):
        assert session.take_frame(1, pcm, -20.0) is None
    chunk = session.due_chunk(0.0, 0.0)
    assert chunk is not None and (chunk.first_sample, len(chunk.pcm) // 2, chunk.seed) == (
        0,
        SAMPLES_PER_FRAME * 3 // 2,
        9,
    )
    assert session.take_frame(EOS_ID, FRAME, -20.0) == "stop"
    last = session.last_chunk("stop", None, 0.0)
    assert (last.pcm, last.first_sample) == (b"", SAMPLES_PER_FRAME * 3 // 2)


def test_who_cancels_hears_no_more() -> None:
    session = session_of(1, 5, quiet)
    session.take_frame(1, FRAME, -20.0)
    assert session.last_chunk("cancelled", None, 0.0).pcm == b""
