"""Rows of figures from hand-made outcomes."""

import pytest

from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.metrics import Timeline, play
from oscine_bench.summary import MeasurementWindow, RequestOutcome, analyze, summarize
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest
from tests.oscine_bench.scripted import silence

TEXT = "Spoken by all of them."


def succeeded(
    index: int, sent_s: float, e2e_s: float, *arrivals: tuple[float, float], measured: bool = True
) -> RequestOutcome:
    timeline = Timeline(tuple(at for at, _ in arrivals), tuple(total for _, total in arrivals))
    return RequestOutcome(
        *(PlannedRequest(TEXT, 0, index, "measured" if measured else "warmup"), sent_s, sent_s, e2e_s),
        timeline=timeline,
        first_byte_s=timeline.first_audio_s,
        silence_s=0.0,
        audible_s=timeline.first_audio_s,
        playback=None if timeline.came_at_once else play(timeline),
    )


def failed(index: int, kind: str, message: str = "", sent_s: float = 0.0) -> RequestOutcome:
    return RequestOutcome(PlannedRequest("", 0, index), sent_s, sent_s, 0.01, RequestFailure(kind, message))


def test_a_row_sums_up_its_requests() -> None:
    outcomes = [
        succeeded(0, 9.0, 2.0, (0.5, 1.0), (1.5, 2.0), measured=False),  # its second half arrives within the window
        succeeded(0, 10.0, 1.0, (0.1, 1.0), (0.6, 2.0)),
        succeeded(1, 11.0, 1.2, (0.2, 0.5), (1.0, 2.0)),  # 0.3 s late
        succeeded(2, 12.0, 0.4, (0.3, 2.0)),  # not streamed
        failed(3, "http_429", "full", sent_s=12.5),
        succeeded(4, 13.5, 1.5, (0.4, 1.0), (1.0, 2.0)),  # ends after the window
    ]
    row = summarize(outcomes, MeasurementWindow(10.0, 14.0))
    assert (row["requests"], row["succeeded"]) == (5, 4)
    assert row["failures"] == {"http_429": {"count": 1, "first": "full"}}
    assert row["x_real_time"] == pytest.approx((1.0 + 2.0 + 2.0 + 2.0 + 1.0) / 4)
    assert row["requests_per_s"] == pytest.approx(4 / 4)  # one of the warm-up, three measured
    assert row["characters_per_s"] == pytest.approx(4 * len(TEXT) / 4)
    assert row["first_audio_ms"]["p50"] == pytest.approx(200)
    assert row["first_audio_ms"]["p95"] == pytest.approx(400)
    assert row["e2e_ms"]["most"] == pytest.approx(1500)
    assert row["gap_ms"]["most"] == pytest.approx(800)
    assert row["underruns"] == {
        "applicable": 3,
        "requests": 1,
        "over_100_ms": 1,
        "share_over_100_ms": pytest.approx(1 / 3),
        "worst_deficit_ms": pytest.approx(300),
        "longest_stall_ms": pytest.approx(300),
    }
    assert row["peak_in_flight"] == 2
    assert row["timelines"]["worst"]["index"] == 1
    assert row["timelines"]["typical"]["arrived_ms"] == pytest.approx([100, 600])


def test_a_row_of_failures_has_no_times() -> None:
    row = summarize([failed(0, "cut")], MeasurementWindow(0.0, 1.0))
    assert row["first_audio_ms"] is None and row["underruns"]["worst_deficit_ms"] is None


def test_silence_is_counted_as_inaudible() -> None:
    exchange = Exchange(PlannedRequest("", 0, 0), 0.0, 0.0, 1.0, 200)
    exchange.add(0.1, silence(0.5))
    exchange.add(0.2, silence(0.5))
    row = summarize([analyze(exchange, Target(url="x"))], MeasurementWindow(0.0, 1.0))
    assert row["inaudible"] == 1 and row["audible_ms"] is None
