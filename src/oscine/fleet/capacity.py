"""How many requests per second a card serves, and how many cards a load needs, by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oscine.config import EngineConfig
from oscine.errors import ConfigError
from oscine.fleet.arrivals import Requests, poisson
from oscine.fleet.engine import Listener
from oscine.fleet.machines import Machine
from oscine.fleet.simulation import simulate

WARM_S, WINDOW_S = 1.0, 5.0  # the first is not counted
_RESOLUTION = 0.03  # of the highest rate
_GAP_S = 0.001  # a shorter one is inaudible
_SIMULATED_CARDS = 4  # a larger fleet is checked with so many cards and their share of the load
_SEED = 1


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What the clients of a load got."""

    requests: int
    refused: int
    lost: int
    with_gap: int
    first_audio_ms: tuple[float, float, float]  # p50, p95, p99 of those that were served

    @classmethod
    def of(cls, listeners: Sequence[Listener], machine: Machine) -> ServiceLevel:
        served = [one for one in listeners if one.first_s is not None]
        waits_ms = sorted(
            1000 * (one.first_s - one.at_s) + machine.answer_ms for one in served if one.first_s is not None
        )
        shares = (_percentile(waits_ms, 0.5), _percentile(waits_ms, 0.95), _percentile(waits_ms, 0.99))
        refused, lost = sum(one.refused for one in listeners), sum(one.lost for one in listeners)
        return cls(len(listeners), refused, lost, sum(one.stall_s > _GAP_S for one in served), shares)

    def meets(self, p95_ms: float) -> bool:
        return not (self.refused or self.lost or self.with_gap) and self.first_audio_ms[1] <= p95_ms


@dataclass(frozen=True, slots=True)
class FleetPlan:
    per_card: float  # requests per second with which a card meets the target
    cards: int  # without spare ones
    spare: int
    service: ServiceLevel  # of the cards, spare ones included, at the whole rate


def serve(machine: Machine, config: EngineConfig, cards: int, rate: float, requests: Requests) -> ServiceLevel:
    """Simulates a steady load. What arrives in the first second is not counted."""
    arrivals = poisson(lambda at_s: rate, rate, WARM_S + WINDOW_S, requests, _SEED)
    listeners = simulate(machine, config, cards, arrivals)
    return ServiceLevel.of([one for one in listeners if one.at_s >= WARM_S], machine)


def highest_rate(
    machine: Machine, config: EngineConfig, requests: Requests, p95_ms: float, tried: Callable[[float, bool], None]
) -> float:
    """Returns the highest rate that one card serves without a gap or a refusal, first audio within `p95_ms`."""

    def meets(rate: float) -> bool:
        met = serve(machine, config, 1, rate, requests).meets(p95_ms)
        tried(rate, met)
        return met

    rows = config.slots or machine.slots
    high = rows / machine.tick_s(rows) / (requests.mean_s * 12.5)  # all slots busy all the time
    low = high / 16
    if not meets(low):
        raise ConfigError(
            f"{machine.name} does not send first audio within {p95_ms:g} ms (p95), even at {low:.1f} requests per "
            "second; allow more"
        )
    while high / low > 1 + _RESOLUTION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def plan_fleet(
    machine: Machine,
    config: EngineConfig,
    requests: Requests,
    *,
    rate: float,
    p95_ms: float,
    spare: int,
    tried: Callable[[float, bool], None],
) -> FleetPlan:
    """Returns how many cards serve `rate` requests per second. The load must also be met while `spare` cards are
    missing."""
    per_card = highest_rate(machine, config, requests, p95_ms, tried)
    cards = math.ceil(rate / per_card)
    while True:
        simulated = min(cards, _SIMULATED_CARDS)
        if serve(machine, config, simulated, rate * simulated / cards, requests).meets(p95_ms):
            break
        cards += max(1, cards // 50)
    simulated = min(cards + spare, _SIMULATED_CARDS)
    service = serve(machine, config, simulated, rate * simulated / (cards + spare), requests)
    return FleetPlan(per_card, cards, spare, service)


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.inf
