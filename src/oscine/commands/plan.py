"""`oscine plan`: how many cards a load needs, by simulation with the costs of a measured machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from oscine.errors import ConfigError

if TYPE_CHECKING:
    from oscine.fleet.capacity import FleetPlan
    from oscine.fleet.machines import Machine

console = Console(stderr=True)  # standard output is for results
_CHARACTERS_PER_S = 15  # of English speech
_HOURS_PER_MONTH = 730


def plan(
    requests_per_second: Annotated[float, typer.Option(help="The load at its peak")],
    p95_ms: Annotated[float, typer.Option(help="Longest first audio of 95 % of the requests, at the server")] = 50.0,
    gpu: Annotated[str, typer.Option(help="A machine with measured costs: h200")] = "h200",
    speech_s: Annotated[float, typer.Option(help="Mean seconds of speech of a request")] = 4.5,
    spread: Annotated[float, typer.Option(help="Spread of the lengths (sigma of a lognormal); 0: all alike")] = 0.6,
    slots: Annotated[int | None, typer.Option(help="Streams at once on a card")] = None,
    spare: Annotated[int, typer.Option(help="Cards that may fail or be upgraded at a time")] = 1,
    price_per_hour: Annotated[float | None, typer.Option(help="Price of a card per hour, in any currency")] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON")] = False,
) -> None:
    """Say how many cards a load needs. Simulates Oscine's scheduler with the measured times of a card."""
    from oscine.config import EngineConfig
    from oscine.fleet.arrivals import Requests
    from oscine.fleet.capacity import plan_fleet
    from oscine.fleet.machines import machine_named

    _check(requests_per_second, p95_ms, speech_s, spread, spare)
    machine = machine_named(gpu)

    def tried(rate: float, met: bool) -> None:
        console.print(f"  one card, {rate:.0f} requests/s: {'met' if met else 'too much'}")

    console.print(f"Simulating {machine.name}, {machine.model}, {slots or machine.slots} slots: about half a minute")
    requests = Requests(mean_s=speech_s, spread=spread)
    config = EngineConfig(slots=slots or machine.slots)
    found = plan_fleet(machine, config, requests, rate=requests_per_second, p95_ms=p95_ms, spare=spare, tried=tried)
    if as_json:
        print(json.dumps(asdict(found) | {"machine": machine.name, "source": machine.source}))
        return
    for line in _lines(found, machine, requests_per_second, speech_s, price_per_hour):
        print(line)


def _check(requests_per_second: float, p95_ms: float, speech_s: float, spread: float, spare: int) -> None:
    bounds = {
        "--requests-per-second": (requests_per_second, 0.01, 1e6),
        "--p95-ms": (p95_ms, 1, 60_000),
        "--speech-s": (speech_s, 0.5, 60),
        "--spread": (spread, 0, 2),
        "--spare": (spare, 0, 1000),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:  # also false for nan
            raise ConfigError(f"{name} must be from {least:g} to {most:g}, got {value:g}")


def _lines(found: FleetPlan, machine: Machine, rate: float, speech_s: float, price_per_hour: float | None) -> list[str]:
    cards, service = found.cards + found.spare, found.service
    p50, p95, p99 = service.first_audio_ms
    lines = [
        f"{cards} cards: {found.cards} for {rate:g} requests/s ({found.per_card:.0f} each), {found.spare} spare",
        f"first audio p50 / p95 / p99: {p50:.0f} / {p95:.0f} / {p99:.0f} ms; playbacks with a gap: {service.with_gap} "
        f"of {service.requests}, refused: {service.refused}",
    ]
    if price_per_hour is not None:
        an_hour = cards * price_per_hour
        characters = rate * speech_s * _CHARACTERS_PER_S * 3600
        lines.append(
            f"{an_hour:.2f} an hour, {an_hour * _HOURS_PER_MONTH:,.0f} a month; {an_hour / characters * 1e6:.3f} for a "
            "million characters at this load"
        )
    return [
        *lines,
        "Assumptions:",
        f"  costs of a tick: {machine.source}",
        f"  speech of {speech_s:g} s on average, {_CHARACTERS_PER_S} characters a second; preset voices",
        "  one server on each card; every request goes to the least loaded card",
        "  network and clients take no time; docs/deploy/sizing.md says how far this agrees with measurements",
    ]
