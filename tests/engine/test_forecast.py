"""The requests that are refused, and when a retry makes sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oscine.config import EngineConfig
from oscine.engine.forecast import Forecast, Load, SpeechLength
from oscine.engine.tick_cost import TickCost
from oscine.errors import OverloadedError

FAST = TickCost(0.004, 0.00003, 0.00002, rows_seen=128)
CONFIG = EngineConfig(slots=4, queue_limit=2, queue_wait_s=2.0)


def refusal(load: Load, config: EngineConfig) -> OverloadedError | None:
    return Forecast(load, config).refusal


def test_an_idle_engine_refuses_no_request() -> None:
    assert refusal(Load(4, 4, (), (), FAST), CONFIG) is None
    assert refusal(Load(4, 4, (), (), TickCost(9.0, 9.0)), CONFIG) is None, "slow is better than nothing"


def test_a_full_queue_is_refused_until_a_slot_is_free() -> None:
    load = Load(4, 0, (50.0, 100.0, 100.0, 100.0), (60.0, 60.0), FAST)
    refused = refusal(load, CONFIG)
    assert refused is not None
    assert "4 streams running, 2 requests queued (the maximum). Retry in" in str(refused)
    assert refused.retry_after_s == pytest.approx(50 * FAST.tick_s(4), abs=0.01)
    assert refusal(Load(4, 1, (50.0,) * 3, (60.0, 60.0), FAST), CONFIG) is None, "one of the two has a slot in a moment"


def test_one_stream_and_one_request_are_not_many() -> None:
    refused = refusal(Load(1, 0, (50.0,), (60.0,), FAST), replace(CONFIG, slots=1, queue_limit=1))
    assert refused is not None
    assert "1 stream running, 1 request queued (the maximum). Retry in" in str(refused)


def test_a_wait_that_would_be_too_long_is_refused_at_once() -> None:
    slow = TickCost(0.03, 0.005)  # four rows in 50 ms
    refused = refusal(Load(4, 0, (100.0,) * 4, (100.0,), slow), CONFIG)
    assert refused is not None and refused.retry_after_s == pytest.approx(100 * 0.05 - 0.8 * 2.0)
    assert refusal(Load(4, 0, (10.0,) * 4, (100.0,), slow), CONFIG) is None


def test_slots_that_could_not_be_kept_in_real_time_do_not_count_as_free() -> None:
    cpu = TickCost(0.01, 0.04)  # one row in 50 ms, two in 90
    assert refusal(Load(4, 3, (10.0,), (), cpu), CONFIG) is None
    assert refusal(Load(4, 3, (10.0,), (10.0, 10.0), cpu), CONFIG) is not None


def test_slots_whose_batch_was_never_measured_do_not_count_as_free() -> None:
    config = EngineConfig(slots=32, queue_limit=2)
    unknown, known = TickCost(0.01, 0.0, rows_seen=1), TickCost(0.01, 0.0, rows_seen=16)
    assert refusal(Load(32, 28, (50.0,) * 4, (50.0, 50.0), unknown), config) is not None
    assert refusal(Load(32, 28, (50.0,) * 4, (50.0, 50.0), known), config) is None


def test_a_refusal_does_not_contradict_itself() -> None:
    """A request is refused because the wait may be too long; its retry time is after those of requests refused before
    it."""
    slow = TickCost(0.03, 0.005)  # four rows in 50 ms
    load = Load(4, 0, (38.0,) * 4, (), slow)
    refused = refusal(load, CONFIG)
    assert refused is not None
    assert "a slot is free in 1.9 to 2.4 s (the maximum wait is 2 s). Retry in 0.3 s." in str(refused)
    later = Forecast(load, CONFIG, (100.0,) * 7).refusal
    assert later is not None and later.retry_after_s == pytest.approx(1.9 + 100 * 0.05 - 0.8 * 2.0)
    assert "Retry in 5.3 s, after 7 other requests refused just before." in str(later)


def test_requests_that_come_after_a_forecast_count_as_in_a_new_one() -> None:
    config = EngineConfig(slots=4, queue_limit=100, queue_wait_s=2.0)
    slow = TickCost(0.03, 0.005)  # four rows in 50 ms
    forecast, queued, returning = Forecast(Load(4, 1, (30.0, 20.0, 10.0), (), slow), config), (), ()
    for frames in (10.0, 40.0, 5.0, 80.0, 60.0, 70.0, 20.0, 30.0, 25.0):
        anew = Forecast(Load(4, 1, (30.0, 20.0, 10.0), queued, slow), config, returning).refusal
        refused = forecast.refusal
        assert str(refused) == str(anew)
        if refused:
            forecast.refuse(frames)
            returning = (*returning, frames)
        else:
            forecast.queue(frames)
            queued = (*queued, frames)
    assert len(queued) > 4 and len(returning) > 2


def test_by_default_the_wait_decides_before_the_queue_is_full() -> None:
    """The texts have some words, and the machine is the fastest that was measured."""
    config = EngineConfig(slots=128)
    h200 = TickCost(0.0023, 0.000034, rows_seen=128)
    refused = refusal(Load(128, 0, (50.0,) * 128, (50.0,) * 900, h200), config)
    assert refused is not None and "the maximum wait is 3 s" in str(refused)
    assert refusal(Load(128, 0, (50.0,) * 128, (50.0,) * 700, h200), config) is None


# --- expected lengths ---


def test_the_configured_length_is_the_first_guess() -> None:
    lengths = SpeechLength(4.0)
    assert lengths.frames_left(100) == 400 and lengths.frames_left(100, 390) == 10


def test_the_length_of_a_text_is_learned_from_a_few_speeches() -> None:
    lengths = SpeechLength(4.0)
    for text_ids in (20, 34, 2, 40, 25):
        lengths.add(text_ids, 2 * text_ids)
    assert lengths.frames_left(50) == pytest.approx(100, rel=0.25)
    for _ in range(40):
        lengths.add(30, 60)
    assert lengths.frames_left(50) == pytest.approx(100, rel=0.02)


def test_recent_speeches_count_more_than_old_ones() -> None:
    lengths = SpeechLength(4.0)
    for frames in [60] * 200 + [120] * 40:
        lengths.add(30, frames)
    assert lengths.frames_per_text_id == pytest.approx(4.0, rel=0.1)


def test_a_stream_that_outlives_its_estimate_is_near_its_end() -> None:
    assert 0 < SpeechLength(4.0).frames_left(100, 4000) < 10
