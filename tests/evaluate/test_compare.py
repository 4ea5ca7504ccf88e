"""Differences and their intervals."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.evaluate.test_score import recording

from oscine.evaluate.bootstrap import difference_interval, interval
from oscine.evaluate.compare import Comparison, compare, conclusion
from oscine.evaluate.recording import Evaluation, Recording
from oscine.types import RequestError

EARS = {"recogniser": {"name": "perfect", "sha256": "0"}, "dnsmos": None, "speaker": None}
TEXTS = [f"This is sentence number {n} of a set." for n in range(20)]


def evaluation(recordings: list[Recording], name: str = "first", **figures) -> Evaluation:
    usual = {
        "target": {"preset": "oscine", "served": ["tiny"], "fields": {}},
        "workload": {"name": "set", "texts": len(recordings), "seed": 0},
        "concurrency": 1,
        "ears": EARS,
        "reference": None,
    }
    result = {"name": name, "machine": "here", "commit": "c0ffee", "figures": {**usual, **figures}}
    return Evaluation(Path("/nowhere"), result, tuple(recordings))


def spoken(heard: dict[int, str] | None = None) -> list[Recording]:
    return [recording(text, (heard or {}).get(n), number=n) for n, text in enumerate(TEXTS)]


def verdicts(found: Comparison) -> dict[str, str]:
    return {one.figure.key: one.verdict for one in found.differences}


def test_an_interval_is_the_normal_one_where_that_holds() -> None:
    coins = [(float(n % 2), 1.0) for n in range(400)]
    low, high = interval(coins)
    assert low == pytest.approx(0.5 - 0.049, abs=0.004) and high == pytest.approx(0.5 + 0.049, abs=0.004)


def test_the_same_data_give_the_same_interval() -> None:
    terms = [(float(n % 3), 5.0) for n in range(50)]
    assert interval(terms) == interval(terms)


def test_a_constant_has_no_spread() -> None:
    assert interval([(1.0, 4.0)] * 10) == (0.25, 0.25)


def test_texts_that_are_hard_for_both_are_no_difference() -> None:
    hard = np.random.default_rng(0).integers(0, 5, 40)
    one = [(float(count), 10.0) for count in hard]
    other = [(float(count) + 1.0, 10.0) for count in hard]
    assert difference_interval(one, one) == (0.0, 0.0)
    assert difference_interval(one, other) == (pytest.approx(0.1), pytest.approx(0.1))
    assert interval(one)[1] - interval(one)[0] > 0.05  # while each alone is uncertain


def test_equal_results_show_no_difference() -> None:
    found = compare(evaluation(spoken()), evaluation(spoken(), "second", concurrency=8))
    assert set(verdicts(found).values()) == {"none"} and "wer" in verdicts(found)
    assert conclusion(found) == ["no difference beyond noise: every 95 % interval holds 0"]
    assert found.settings == {"concurrency": (1, 8)}


def test_a_few_errors_more_are_noise() -> None:
    found = compare(evaluation(spoken({1: "This is sentence"})), evaluation(spoken({2: "This is", 3: "this is"})))
    assert verdicts(found)["wer"] == "none" and conclusion(found)[-1].startswith("no difference beyond noise")


@pytest.mark.parametrize("swapped", [False, True])
def test_the_worse_one_is_named(swapped: bool) -> None:
    good, bad = evaluation(spoken(), "good"), evaluation(spoken(dict.fromkeys(range(12), "This is")), "bad")
    found = compare(bad, good) if swapped else compare(good, bad)
    worse = "first worse" if swapped else "second worse"
    assert verdicts(found)["wer"] == worse and verdicts(found)["truncated"] == worse
    assert verdicts(found)["runaway"] == "none"
    assert any(line.startswith("bad is worse in WER: ") for line in conclusion(found))


def test_more_is_better_where_it_is() -> None:
    rated = {"ears": {**EARS, "dnsmos": {"name": "DNSMOS"}}}
    sides = [[dataclasses.replace(one, dnsmos={"ovrl": value}) for one in spoken()] for value in (3.0, 3.5)]
    found = compare(evaluation(sides[0], "low", **rated), evaluation(sides[1], "high", **rated))
    assert verdicts(found)["dnsmos"] == "first worse"
    alone = compare(evaluation(sides[0], **rated), evaluation(spoken()))
    assert "dnsmos" not in verdicts(alone)  # another judge, or none: nothing to compare


def test_longer_is_neither_better_nor_worse() -> None:
    slow = [dataclasses.replace(one, audio_s=1.2 * one.audio_s) for one in spoken()]
    found = compare(evaluation(spoken()), evaluation(slow, "slow"))
    assert verdicts(found)["audio_s"] == "differs"
    assert any(line.startswith("they differ in seconds of sound: +0.") for line in conclusion(found))


def test_a_handful_of_texts_proves_nothing() -> None:
    cut = [dataclasses.replace(one, heard="this") for one in spoken()[:5]]
    found = compare(evaluation(spoken()[:5]), evaluation(cut))
    assert verdicts(found)["wer"] == "too few" and "fewer than 8 texts" in conclusion(found)[-1]


def test_what_failed_on_one_side_is_left_out_of_the_other_figures() -> None:
    broken = [dataclasses.replace(one, file=None, heard=None, failure="cut: ") for one in spoken()[:10]]
    found = compare(evaluation(spoken({0: "", 1: ""})), evaluation([*broken, *spoken()[10:]], "broken"))
    assert verdicts(found)["failed"] == "second worse" and verdicts(found)["wer"] == "none"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (evaluation(spoken()[1:]), "different texts: 1 recordings only in"),
        (evaluation([dataclasses.replace(one, seed=one.seed + 1) for one in spoken()]), "other seeds"),
        (evaluation(spoken(), ears=None), "has not been scored yet: oscine eval score /nowhere"),
        (evaluation(spoken(), ears={**EARS, "recogniser": {"name": "deaf"}}), "heard by different recognisers"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: Evaluation, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        compare(evaluation(spoken()), other)
