"""The capacity of a card is the highest rate that meets the target, and a fleet has enough cards for its load."""

from dataclasses import replace

import pytest

from oscine.config import EngineConfig
from oscine.errors import ConfigError
from oscine.fleet import capacity
from oscine.fleet.arrivals import Requests
from oscine.fleet.machines import H200

CONFIG = EngineConfig(slots=2)
REQUESTS = Requests(mean_s=1.0, spread=0.3)


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "WARM_S", 0.1)
    monkeypatch.setattr(capacity, "WINDOW_S", 0.6)


def test_a_plan_meets_its_target_and_names_the_spare_cards() -> None:
    tried: list[tuple[float, bool]] = []
    plan = capacity.plan_fleet(
        H200, CONFIG, REQUESTS, rate=60.0, p95_ms=50.0, spare=2, tried=lambda rate, met: tried.append((rate, met))
    )
    assert plan.per_card == max(rate for rate, met in tried if met)
    assert plan.cards >= 60.0 / plan.per_card and plan.spare == 2
    assert plan.service.refused == plan.service.with_gap == 0 and plan.service.first_audio_ms[1] <= 50.0


def test_a_target_that_no_load_meets_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not send first audio within 3 ms"):
        capacity.highest_rate(H200, CONFIG, REQUESTS, 3.0, lambda rate, met: None)


def test_a_slower_machine_serves_fewer_requests() -> None:
    slow = replace(H200, tick_ms=tuple((rows, 4 * ms) for rows, ms in H200.tick_ms))
    rates = [capacity.highest_rate(one, CONFIG, REQUESTS, 50.0, lambda rate, met: None) for one in (H200, slow)]
    assert rates[1] < rates[0] / 2
