"""Differences and their intervals."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from oscine.errors import RequestError
from oscine_eval.bootstrap import difference_interval, interval, sign_test, widened
from oscine_eval.compare import Comparison, compare, conclusion
from oscine_eval.recording import Evaluation, Recording
from tests.oscine_eval.test_score import recording

RECOGNIZER = {"name": "perfect", "sha256": "0", "numbers": "int8"}
TRANSCRIBER = {"recognizer": RECOGNIZER, "dnsmos": None, "speaker": None}
TEXTS = [f"This is sentence number {n} of a set." for n in range(20)]


def evaluation(recordings: list[Recording], name: str = "first", **figures) -> Evaluation:
    usual = {
        "target": {"preset": "oscine", "served": ["tiny"], "fields": {}},
        "workload": {"name": "set", "texts": len(recordings), "seed": 0},
        "concurrency": 1,
        "transcriber": TRANSCRIBER,
        "reference": None,
    }
    result = {"name": name, "machine": "here", "commit": "c0ffee", "figures": {**usual, **figures}}
    return Evaluation(Path("/nowhere"), result, tuple(recordings))


def spoken(transcripts: dict[int, str] | None = None) -> list[Recording]:
    return [recording(text, (transcripts or {}).get(n), number=n) for n, text in enumerate(TEXTS)]


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


def test_an_interval_without_spread_is_widened_by_the_rule_of_three() -> None:
    assert widened(0.0, 0.0, 30, 1.0) == (0.0, pytest.approx(0.1))
    assert widened(1.0, 1.0, 30, 1.0) == (pytest.approx(0.9), 1.0)
    assert widened(0.0, 0.0, 30, 1.0, lowest=-1.0) == (pytest.approx(-0.1), pytest.approx(0.1))
    assert widened(0.0, 0.0, 2, 1.0, lowest=-1.0) == (-1.0, 1.0)  # no more than everything
    assert widened(0.0, 0.0, 30, 1 / 8) == (0.0, pytest.approx(0.1 / 8))  # errors among eight words
    assert widened(0.1, 0.2, 30, 1.0) == (0.1, 0.2)
    assert widened(-0.3, -0.3, 30, 0.0) == (-0.3, -0.3)  # no events


def test_texts_that_are_hard_for_both_do_not_widen_the_difference() -> None:
    hard = np.random.default_rng(0).integers(0, 5, 40)
    one = [(float(count), 10.0) for count in hard]
    other = [(float(count) + 1.0, 10.0) for count in hard]
    assert difference_interval(one, one) == (0.0, 0.0)
    assert difference_interval(one, other) == (pytest.approx(0.1), pytest.approx(0.1))
    assert interval(one)[1] - interval(one)[0] > 0.05  # while each alone is uncertain


def test_the_sign_test_is_exact_and_two_sided() -> None:
    def split(better: int, worse: int, alike: int = 3) -> float:
        pairs = [(0, 1)] * worse + [(1, 0)] * better + [(1, 1)] * alike
        return sign_test([(float(a), 1.0) for a, _ in pairs], [(float(b), 1.0) for _, b in pairs])

    assert split(0, 0) == 1.0 and split(2, 2) == 1.0
    assert split(0, 4) == pytest.approx(0.125) == split(4, 0)
    assert split(0, 6) == pytest.approx(0.03125)
    assert split(1, 7) == pytest.approx(2 * 9 / 256)


@pytest.mark.parametrize(("cut", "verdict"), [(4, "none"), (6, "second worse")])
def test_a_few_more_flags_are_not_significant(cut: int, verdict: str) -> None:
    shortened = {n: " ".join(TEXTS[n].split()[:-3]) for n in range(cut)}
    found = compare(evaluation(spoken()), evaluation(spoken(shortened), "second"))
    (one,) = [one for one in found.differences if one.figure.key == "truncated"]
    assert one.second * len(TEXTS) == pytest.approx(cut) and one.low > 0
    assert one.verdict == verdict


def test_equal_results_show_no_difference() -> None:
    found = compare(evaluation(spoken()), evaluation(spoken(), "second", concurrency=8))
    assert set(verdicts(found).values()) == {"none"} and "wer" in verdicts(found)
    assert conclusion(found) == ["no difference beyond noise: every 95 % interval holds 0"]
    assert found.settings == {"concurrency": (1, 8)}


def test_a_flag_on_neither_side_has_an_interval_of_three_over_n() -> None:
    found = {one.figure.key: one for one in compare(evaluation(spoken()), evaluation(spoken(), "second")).differences}
    for key in ("truncated", "repeated", "runaway", "failed"):
        assert (found[key].low, found[key].high) == (pytest.approx(-3 / 20), pytest.approx(3 / 20)), key
    assert (found["wer"].low, found["wer"].high) == (pytest.approx(-3 / 160), pytest.approx(3 / 160))  # of 160 words
    assert (found["audio_s"].low, found["audio_s"].high) == (0.0, 0.0)


def test_a_flag_always_on_one_side_only_is_a_difference_with_an_interval() -> None:
    cut = evaluation(spoken(dict.fromkeys(range(20), "This is")), "cut")
    found = {one.figure.key: one for one in compare(evaluation(spoken()), cut).differences}["truncated"]
    assert (found.low, found.high, found.verdict) == (pytest.approx(1 - 3 / 20), 1.0, "second worse")


def test_a_few_more_errors_are_noise() -> None:
    found = compare(evaluation(spoken({1: "This is sentence"})), evaluation(spoken({2: "This is", 3: "this is"})))
    assert verdicts(found)["wer"] == "none" and conclusion(found)[-1].startswith("no difference beyond noise")


@pytest.mark.parametrize("swapped", [False, True])
def test_the_worse_side_is_named(swapped: bool) -> None:
    good, bad = evaluation(spoken(), "good"), evaluation(spoken(dict.fromkeys(range(12), "This is")), "bad")
    found = compare(bad, good) if swapped else compare(good, bad)
    worse = "first worse" if swapped else "second worse"
    assert verdicts(found)["wer"] == worse and verdicts(found)["truncated"] == worse
    assert verdicts(found)["runaway"] == "none"
    assert any(line.startswith("bad is worse in WER: ") for line in conclusion(found))


def test_a_higher_dnsmos_is_better() -> None:
    rated = {"transcriber": {**TRANSCRIBER, "dnsmos": {"name": "DNSMOS"}}}
    sides = [[dataclasses.replace(one, dnsmos={"ovrl": value}) for one in spoken()] for value in (3.0, 3.5)]
    found = compare(evaluation(sides[0], "low", **rated), evaluation(sides[1], "high", **rated))
    assert verdicts(found)["dnsmos"] == "first worse"


DNSMOS_MODEL = {"name": "DNSMOS", "version": "1"}
SPEAKER = {"name": "voice.onnx", "sha256": "a"}
CLIP = {"name": "true.wav", "sha256": "c"}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"dnsmos": DNSMOS_MODEL}, {}, "DNSMOS is not compared: only one has it"),
        ({}, {"dnsmos": DNSMOS_MODEL}, "DNSMOS is not compared: only two has it"),
        (
            {"dnsmos": DNSMOS_MODEL},
            {"dnsmos": {**DNSMOS_MODEL, "version": "2"}},
            "DNSMOS is not compared: different models (version: 1 and 2)",
        ),
        (
            {"speaker": SPEAKER},
            {"speaker": {**SPEAKER, "sha256": "b"}},
            "speaker similarity is not compared: different models (sha256: a and b)",
        ),
        (
            {"speaker": SPEAKER, "reference": CLIP},
            {"speaker": SPEAKER, "reference": {"name": "false.wav", "sha256": "d"}},
            "speaker similarity is not compared: different reference clips "
            "(name: true.wav and false.wav; sha256: c and d)",
        ),
    ],
)
def test_figures_of_different_models_are_not_compared_and_noted(first: dict, second: dict, said: str) -> None:
    sides = []
    for name, transcriber in (("one", first), ("two", second)):
        judged = [
            dataclasses.replace(
                one,
                dnsmos={"ovrl": 3.0} if "dnsmos" in transcriber else None,
                similarity=0.8 if "speaker" in transcriber else None,
            )
            for one in spoken()
        ]
        reference = transcriber.pop("reference", None)
        sides.append(evaluation(judged, name, transcriber={**TRANSCRIBER, **transcriber}, reference=reference))
    found = compare(*sides)
    assert {"dnsmos", "similarity"}.isdisjoint(verdicts(found))
    assert conclusion(found)[1:] == [said] and found.as_dict()["notes"] == (said,)


def test_models_are_identified_by_weights_instead_of_names() -> None:
    sides = [
        evaluation(
            [dataclasses.replace(one, similarity=0.8) for one in spoken()],
            name,
            transcriber={
                **TRANSCRIBER,
                "recognizer": {**RECOGNIZER, "name": name},
                "speaker": {**SPEAKER, "name": name},
            },
            reference={**CLIP, "name": name},
        )
        for name in ("one", "two")
    ]
    found = compare(*sides)
    assert verdicts(found)["similarity"] == "none" and not found.notes and not found.settings


def test_a_different_length_is_neither_better_nor_worse() -> None:
    slow = [dataclasses.replace(one, audio_s=1.2 * one.audio_s) for one in spoken()]
    found = compare(evaluation(spoken()), evaluation(slow, "slow"))
    assert verdicts(found)["audio_s"] == "differs"
    assert any(line.startswith("they differ in seconds of sound: +0.") for line in conclusion(found))


def test_few_texts_show_no_difference() -> None:
    cut = [dataclasses.replace(one, transcript="this") for one in spoken()[:5]]
    found = compare(evaluation(spoken()[:5]), evaluation(cut))
    assert verdicts(found)["wer"] == "too few" and "fewer than 8 texts" in conclusion(found)[-1]


def test_few_equal_texts_do_not_show_equality() -> None:
    found = compare(evaluation(spoken()[:5]), evaluation(spoken()[:5]))
    assert set(verdicts(found).values()) == {"too few"}
    assert conclusion(found) == ["fewer than 8 texts: too few to find differences"]
    same = dataclasses.replace(found, equal=5)
    assert conclusion(same)[0].startswith("all 5 recordings are equal")


def test_a_figure_of_few_texts_does_not_hide_the_others() -> None:
    chinese = [recording(text, number=20 + n, language="zh") for n, text in enumerate(("谢谢。", "门开了。"))]
    found = compare(evaluation([*spoken(), *chinese]), evaluation([*spoken(), *chinese], "second"))
    assert conclusion(found) == [
        "fewer than 8 texts for CER: too few to find differences",
        "no difference beyond noise: every other 95 % interval holds 0",
    ]


def test_missing_seeds_are_noted() -> None:
    free = [dataclasses.replace(one, seed=None) for one in spoken()]
    found = compare(evaluation(free), evaluation(free, "second"))
    assert conclusion(found)[-1].startswith("no seeds were sent: the server chose its own")
    assert not compare(evaluation(spoken()), evaluation(spoken(), "second")).notes
    for sides in ((free, spoken()), (spoken(), free)):
        with pytest.raises(RequestError, match="free was recorded without seeds and the other with seeds"):
            compare(*(evaluation(side, "free" if side is free else "seeded") for side in sides))


def test_another_version_of_the_recognizer_is_a_setting() -> None:
    newer = {**TRANSCRIBER, "recognizer": {**RECOGNIZER, "version": "1.2.1"}}
    found = compare(evaluation(spoken()), evaluation(spoken(), "second", transcriber=newer))  # an older result lacks it
    assert found.settings == {"recognizer version": (None, "1.2.1")}


def test_failures_on_one_side_are_left_out_of_the_other_figures() -> None:
    broken = [dataclasses.replace(one, file=None, transcript=None, failure="cut: ") for one in spoken()[:10]]
    found = compare(evaluation(spoken({0: "", 1: ""})), evaluation([*broken, *spoken()[10:]], "broken"))
    assert verdicts(found)["failed"] == "second worse" and verdicts(found)["wer"] == "none"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (evaluation(spoken()[1:]), "different texts: 1 recordings only in"),
        (
            evaluation([dataclasses.replace(one, seed=one.seed + 1) for one in spoken()]),
            "20 recordings have different seeds; record both with the same --seed",
        ),
        (
            evaluation([dataclasses.replace(one, seed=19 - one.seed) for one in spoken()]),
            "20 recordings have different seeds",
        ),
        (evaluation(spoken(), transcriber=None), "has not been scored yet: oscine eval score /nowhere"),
        (
            evaluation(
                spoken(), transcriber={**TRANSCRIBER, "recognizer": {**RECOGNIZER, "name": "deaf", "sha256": "1"}}
            ),
            r"transcribed by different recognizers \(name: perfect and deaf; sha256: 0 and 1\)",
        ),
        (
            evaluation(spoken(), transcriber={**TRANSCRIBER, "recognizer": {**RECOGNIZER, "numbers": "float16"}}),
            r"transcribed by different recognizers \(numbers: int8 and float16\); score both with the same one",
        ),
    ],
)
def test_different_texts_seeds_or_recognizers_are_refused(other: Evaluation, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        compare(evaluation(spoken()), other)
