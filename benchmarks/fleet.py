"""Simulates fleets in virtual time, and compares the simulation with what was measured on one H200.

    python -m benchmarks.fleet [--parts agreement scenarios]

The result is docs/results/fleet.json. No part needs a GPU; together they take some minutes of a core.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.results import RESULTS, read_arguments, save, stopwatch
from oscine.config import EngineConfig
from oscine.fleet.arrivals import Requests, SpeechSize, burst, day, poisson
from oscine.fleet.capacity import ServiceLevel, highest_rate
from oscine.fleet.engine import Listener
from oscine.fleet.machines import H200
from oscine.fleet.simulation import Autoscaling, Fleet

MEASURED, SEARCHED = "server-gpu-1b7-preset", "server-gpu-1b7-preset-search"
CONFIG = EngineConfig(slots=128)
EQUAL = Requests(mean_s=4.48, spread=0.0)  # as benchmarks.server asks for
FRAMES, PROMPT_ROWS = 56, 24
WARM_S, END_S = 1.0, 7.0
CARDS, RATE = 3, 450.0  # of the scenarios
DAY_S, DAY_RATE = 240.0, 200.0


def closed_loop(callers: int) -> dict[str, float]:
    """Lets callers ask again as soon as they have been answered."""
    fleet = Fleet(H200, CONFIG, 1)

    def ask_again(listener: Listener) -> None:
        if listener.last_s is not None and listener.last_s < END_S:
            fleet.ask(listener.last_s + H200.answer_ms / 1000, SpeechSize(FRAMES, 12, PROMPT_ROWS), ask_again)

    for caller in range(callers):
        fleet.ask(caller * 1e-4, SpeechSize(FRAMES, 12, PROMPT_ROWS), ask_again)
    fleet.run()
    ended = [one for one in fleet.listeners if one.last_s is not None and WARM_S < one.last_s < END_S]
    return {"x_real_time": len(ended) * EQUAL.mean_s / (END_S - WARM_S), **_times(ended)}


def open_loop(rate: float) -> dict[str, float]:
    fleet = Fleet(H200, CONFIG, 1)
    for at_s, speech in poisson(lambda at_s: rate, rate, END_S, EQUAL, seed=1):
        fleet.ask(at_s, speech)
    fleet.run()
    return _times([one for one in fleet.listeners if one.at_s > WARM_S])


def _times(listeners: list[Listener]) -> dict[str, float]:
    service = ServiceLevel.of(listeners, H200)
    lasted_ms = sorted(1000 * (one.last_s - one.at_s) + H200.answer_ms for one in listeners if one.last_s is not None)
    p50, p95, _ = service.first_audio_ms
    return {"first_audio_p50_ms": p50, "first_audio_p95_ms": p95, "e2e_p50_ms": lasted_ms[len(lasted_ms) // 2]}


def agreement(say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Each load of the measurement with both figures."""
    rows = []
    for load in json.loads((RESULTS / f"{MEASURED}.json").read_text())["figures"]["loads"]:
        kind, value = load["load"]["kind"], load["load"]["value"]
        measured = {
            "x_real_time": load["x_real_time"],
            "first_audio_p50_ms": load["first_audio_ms"]["p50"],
            "first_audio_p95_ms": load["first_audio_ms"]["p95"],
            "e2e_p50_ms": load["e2e_ms"]["p50"],
        }
        simulated = closed_loop(int(value)) if kind == "closed" else open_loop(value)
        name = f"{value:g} caller{'s' if value > 1 else ''}" if kind == "closed" else f"{value:g} requests/s"
        rows.append({"load": name, "measured": {key: measured[key] for key in simulated}, "simulated": simulated})
        say(name)
    searched = json.loads((RESULTS / f"{SEARCHED}.json").read_text())["figures"]["search"]["rate_per_s"]
    found = highest_rate(H200, CONFIG, EQUAL, 50.0, lambda rate, met: say(f"{rate:.0f} requests/s: {met}"))
    rows.append({"load": "highest rate", "measured": {"rate": searched}, "simulated": {"rate": found}})
    return rows


def scenarios(say: Callable[[str], None]) -> dict[str, Any]:
    made = {
        "steady": lambda: _scenario(lambda fleet: None),
        "a card fails": lambda: _scenario(lambda fleet: fleet.at(4.0, lambda now: now.kill(0))),
        "a card is upgraded": lambda: _scenario(_upgrade),
        "twice the load for 2 s": lambda: _scenario(lambda fleet: None, peak=2 * RATE),
        "most requests for one voice": lambda: _scenario(lambda fleet: None, requests=Requests(hot=3.0)),
        "a day in 4 minutes, autoscaled": _day,
    }
    figures = {}
    for name, run in made.items():
        figures[name] = run()
        say(name)
    return figures


def _scenario(
    prepare: Callable[[Fleet], None], *, peak: float = RATE, requests: Requests | None = None
) -> dict[str, Any]:
    fleet = Fleet(H200, CONFIG, CARDS)
    rate = burst(RATE, peak, 4.0, 6.0)
    for at_s, speech in poisson(rate, peak, 12.0, requests or Requests(), seed=2):
        fleet.ask(at_s, speech)
    prepare(fleet)
    fleet.run()
    return asdict(ServiceLevel.of([one for one in fleet.listeners if one.at_s > WARM_S], H200))


def _upgrade(fleet: Fleet) -> None:
    fleet.at(2.0, lambda now: now.drain(0))
    fleet.at(3.0, lambda now: now.start(0))


def _day() -> dict[str, Any]:
    fleet = Fleet(H200, CONFIG, cards=1, most_cards=6, autoscaling=Autoscaling(stable_s=30.0))
    rate = day(DAY_RATE, DAY_S)
    for at_s, speech in poisson(rate, 2 * DAY_RATE, DAY_S, Requests(), seed=3):
        fleet.ask(at_s, speech)
    fleet.run(until_s=DAY_S)
    figures = asdict(ServiceLevel.of(fleet.listeners, H200))
    counts = [count for _, count in fleet.cards_over_time]
    return figures | {"mean_cards": fleet.card_s / fleet.now_s, "most_cards": max(counts)}


def main() -> None:
    options = read_arguments(__doc__, parts=["agreement", "scenarios"])
    say = stopwatch()
    figures: dict[str, Any] = {"cards": CARDS, "rate": RATE}
    if "agreement" in options.parts:
        figures["agreement"] = agreement(say)
    if "scenarios" in options.parts:
        figures["scenarios"] = scenarios(say)
    save(options.out, "fleet", figures)


if __name__ == "__main__":
    main()
