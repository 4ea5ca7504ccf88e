"""The checks of benchmarks/soak.py: each finds its problem, and a good run has none."""

from typing import Any

import pytest

from benchmarks.soak import complaints_of_burst, complaints_of_soak, slopes, soak_name


def samples(mib_per_s: float) -> list[dict[str, Any]]:
    return [
        {"at_s": float(at_s), "front_end_mib": 100 + mib_per_s * at_s, "engine_mib": 400.0, "device_mib": 30.0}
        | {"gpu_used_mib": None}
        for at_s in range(0, 600, 5)
    ]


def good() -> dict[str, Any]:
    return {
        "failures": {},
        "alone": {"before": {"0": "a"}, "after": {"0": "a"}},
        "left": {"slots_active": 0, "queued": 0, "connections": 0, "bytes_in_flight": 0, "descriptors": -1},
        "kills": [{"back_after_s": 5.0}],
        "restarts_counted": 1.0,
        "deficit_ms": {"most": 0.0},
        "engine_starved_s": 0.0,
        "exit_status": 0,
        "slopes": slopes(samples(0.0), 300.0),
    }


def test_a_short_soak_does_not_replace_the_figures_of_a_long_one() -> None:
    assert soak_name(110) == "short-soak" and soak_name(600) == soak_name(900) == "soak"


def test_a_good_soak_has_no_complaints() -> None:
    assert complaints_of_soak(good()) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"failures": {"http: cut": 1}}, "unexpected results: {'http: cut': 1}"),
        ({"alone": {"before": {"0": "a"}, "after": {"0": "b"}}}, "other bytes for the same seed: ['0']"),
        ({"left": {"slots_active": 1}}, "still held: {'slots_active': 1}"),
        ({"restarts_counted": 2.0}, "2.0 restarts for 1 kills"),
        ({"deficit_ms": {"most": 150.0}}, "a playback deficit of 150 ms"),
        ({"exit_status": 1}, "exit status 1"),
        ({"slopes": slopes(samples(0.5), 300.0)}, "front_end_mib grew by 147.5 MiB (30.00 MiB a minute)"),
    ],
)
def test_each_problem_of_a_soak_is_found(change: dict[str, Any], complaint: str) -> None:
    assert complaints_of_soak({**good(), **change}) == [complaint]


def test_the_slope_is_that_of_the_second_half() -> None:
    rising = [{**one, "front_end_mib": min(one["at_s"], 300.0)} for one in samples(0.0)]
    assert slopes(rising, 0.0)["front_end_mib"]["mib_per_minute"] > 10
    assert slopes(rising, 300.0)["front_end_mib"]["mib_per_minute"] == pytest.approx(0.0, abs=1e-9)


def test_a_burst_is_true_if_refused_clients_come_again_once_or_twice() -> None:
    row = {"results": {"ok": 256}, "tries": {1: 190, 2: 66}, "first_audio_ms": {"most": 900.0}, "deficit_ms": None}
    assert complaints_of_burst(row, 4000.0) == []
    assert complaints_of_burst({**row, "tries": {1: 190, 9: 66}}, 4000.0) != []
    assert complaints_of_burst({**row, "results": {"ok": 255, "http_429": 1}}, 4000.0) != []
    assert complaints_of_burst(row, 800.0) == ["first audio after 900 ms"]
