"""benchmarks/cuda_chain.py and frame.py: which result a run writes, and when its checks have passed."""

import pytest

pytest.importorskip("triton")

from benchmarks import cuda_chain, frame
from benchmarks.cuda_chain import DEFAULT_SECTIONS, LIMITS_S, passed


def test_checks_and_sweeps_do_not_replace_the_times_that_a_page_shows() -> None:
    names = {section: cuda_chain.result_name(section) for section in LIMITS_S}
    assert {section for section, name in names.items() if name == "cuda-chain"} == {*DEFAULT_SECTIONS} - {"checks"}
    assert (names["checks"], names["tiled"], names["sweep"]) == ("cuda-checks", "cuda-tiled", "cuda-sweep")


def test_a_section_has_passed_only_if_nothing_failed_was_skipped_or_crashed() -> None:
    good = {"exit": 0, "failures": {}, "skipped": [], "product x": {"ok": True}}
    assert passed(good)
    for changed in ({"exit": -11}, {"exit": "timeout"}, {"failures": {"x": "ok"}}, {"skipped": ["x"]}):
        assert not passed(good | changed)


def test_frames_of_the_small_model_alone_do_not_replace_those_of_the_large_one() -> None:
    assert frame.result_name(["0b6"]) == "frame-0b6"
    assert frame.result_name(["1b7"]) == frame.result_name(["1b7", "0b6"]) == "frame"
