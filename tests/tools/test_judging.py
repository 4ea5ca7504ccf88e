"""Targets of the demo voice and figures of long texts, which training/judge.py prints and writes."""

import json
from types import ModuleType
from typing import Any

from benchmarks.report import RESULTS


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": 0.98 * value, "high": 1.02 * value}


def judged(wer: float, dnsmos: float, distillmos: float | None = None) -> dict[str, Any]:
    demo = {"ends": {"stop": 100}, "wer": figure(wer), "dnsmos": figure(dnsmos)}
    voice: dict[str, Any] = {"demo": demo}
    if distillmos is not None:
        rated = {"wer": figure(wer), "dnsmos": figure(dnsmos), "distillmos": figure(distillmos)}
        prosody = {"f0_correlation": 0.9, "teacher_f0_hz": 200.0, "demo_f0_hz": 230.0, "duration_ratio": 1.05}
        voice["ratings"] = {"demo": rated, "wer_difference": {"value": 0.01}, "prosody": prosody}
    return {"voices": {"wren": voice}}


def test_targets_that_are_not_met_are_named(targets: ModuleType) -> None:
    found = list(targets.find_targets(judged(0.02, 3.3, 3.9)))
    assert [one.name for one in found if not one.met] == ["wren: DistillMOS", "wren: mean F0"]
    assert str(found[2]) == "NOT MET wren: DistillMOS: 3.90 (target: at least 4.00)"


def test_the_shipped_voice_meets_every_target(targets: ModuleType) -> None:
    figures = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))["figures"]
    found = list(targets.find_targets(figures))
    assert [str(one) for one in found if not one.met] == []
    assert len([one for one in found if "long texts" in one.name]) == 5
    rated = [one for one in found if one.name.endswith(": DistillMOS")]
    assert len(rated) == len(figures["voices"]) == 2


def test_a_voice_is_compared_by_the_judges_that_both_results_have(targets: ModuleType) -> None:
    assert not list(targets.find_regressions(judged(0.02, 3.3, 3.9), judged(0.04, 2.1)))
    (worse,) = targets.find_regressions(judged(0.02, 3.3, 3.9), judged(0.02, 3.4))
    assert worse == "wren: DNSMOS 3.3 is worse than before (3.4, low: 3.332)"


def test_differences_within_the_interval_of_the_earlier_figures_do_not_count(targets: ModuleType) -> None:
    assert not list(targets.find_regressions(judged(0.0203, 3.35, 3.9), judged(0.02, 3.4, 3.95)))
    (worse,) = targets.find_regressions(judged(0.0203, 3.35, 3.8), judged(0.02, 3.4, 3.95))
    assert "DistillMOS" in worse


def test_dropped_sentences_and_errors_by_thirds(long_texts: ModuleType) -> None:
    sentences = [
        f"{name} walked slowly down to the river." for name in ("Anna", "Bert", "Carl", "Dora", "Emil", "Fred")
    ]
    found = long_texts.compare_text(" ".join(sentences), " ".join(sentences[:5]))
    assert found.dropped == (sentences[5],) and found.sentences == 6
    assert found.errors == (0, 0, 7) and found.words == (14, 14, 14)
