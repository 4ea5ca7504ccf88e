"""A fleet in virtual time: nothing is lost but what a failing card held, and cards follow the load."""

from dataclasses import replace

import pytest

from oscine.config import EngineConfig
from oscine.fleet.arrivals import Requests, SpeechSize, poisson
from oscine.fleet.machines import H200
from oscine.fleet.simulation import Autoscaling, Fleet, simulate

CONFIG = EngineConfig(slots=16)
SPEECH = SpeechSize(frames=20, text_ids=5, prompt_rows=20)


def test_a_lone_request_takes_the_time_of_its_ticks() -> None:
    (one,) = simulate(H200, CONFIG, 1, [(1.0, SPEECH)])
    assert one.first_s is not None and one.last_s is not None
    first_s = H200.request_ms / 1000 + H200.tick_s(1, [SPEECH.prompt_rows])
    assert one.first_s - one.at_s == pytest.approx(first_s, abs=6e-4)  # the loop polls every 0.5 ms
    assert one.last_s - one.first_s == pytest.approx(
        SPEECH.frames * H200.tick_s(1), rel=0.02
    )  # the last one finds the end
    assert one.stall_s == 0.0 and not one.refused


def test_requests_go_to_all_cards_and_each_ends_once() -> None:
    fleet, ended = Fleet(H200, CONFIG, 3), []
    for number in range(30):
        fleet.ask(0.001 * number, SPEECH, ended.append)
    fleet.run()
    assert len(ended) == len({id(one) for one in ended}) == 30
    assert {sum(one.clock is engine.clock for one in ended) for engine in fleet.engines} == {10}


def test_too_many_requests_are_refused_by_the_engines_own_forecast() -> None:
    config = replace(CONFIG, queue_wait_s=0.1)
    listeners = simulate(H200, config, 1, [(0.0, SPEECH)] * 200)
    refused = [one for one in listeners if one.refused]
    assert 0 < len(refused) < 200 and all(one.first_s is None for one in refused)


def test_a_failing_card_loses_only_its_own_speeches() -> None:
    fleet = Fleet(H200, CONFIG, 2)
    for number in range(20):
        fleet.ask(0.01 * number, SPEECH)
    fleet.at(0.1, lambda now: now.kill(1))  # it speaks since the first card has four speeches more
    fleet.run()
    lost = [one for one in fleet.listeners if one.lost]
    assert lost and all(one.clock is fleet.engines[1].clock and one.at_s <= 0.1 for one in lost)
    assert all(one.clock is fleet.engines[0].clock for one in fleet.listeners if one.at_s > 0.1)
    assert not any(one.refused for one in fleet.listeners)


def test_a_drained_card_ends_its_speeches_and_takes_no_others() -> None:
    fleet = Fleet(H200, CONFIG, 2)
    for number in range(20):
        fleet.ask(0.01 * number, SPEECH)
    fleet.at(0.1, lambda now: now.drain(0))
    fleet.run()
    assert not any(one.lost or one.refused for one in fleet.listeners)
    assert all(one.clock is fleet.engines[1].clock for one in fleet.listeners if one.at_s > 0.1)


def test_cards_start_when_the_load_rises_and_are_given_back_when_it_falls() -> None:
    rule = Autoscaling(target_load=0.5, every_s=1.0, stable_s=3.0)
    fleet = Fleet(H200, EngineConfig(slots=4), cards=1, most_cards=3, autoscaling=rule)
    fleet.machine = replace(H200, start_s=0.5)
    for at_s, speech in poisson(lambda at_s: 25.0 if at_s < 6 else 0.5, 25.0, 15.0, Requests(mean_s=2.0), seed=1):
        fleet.ask(at_s, speech)
    fleet.run(until_s=15.0)
    counts = [count for _, count in fleet.cards_over_time]
    assert max(counts) > 1 and counts[-1] == 1
    assert 15.0 < fleet.card_s < 45.0
