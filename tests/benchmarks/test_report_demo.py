"""The demo voice's card and sections, from made-up figures."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import Report
from benchmarks.report_demo import kept_in_real_time
from demo_card import demo_card
from demo_files import CARD, files, fingerprint, parameters
from oscine_bench.record import script_result
from tests.conftest import CheckpointMaker

pytestmark = pytest.mark.slow


def share(count: float, of: float) -> dict[str, float]:
    return {"value": count / of, "low": 0.0, "high": 0.1, "count": count, "of": of}


def side(wrong: int, dnsmos: float) -> dict[str, Any]:
    flags = {"truncated": share(1, 100), "repeated": share(0, 100), "runaway": share(0, 100)}
    return {"wer": share(wrong, 1000), **flags, "dnsmos": share(dnsmos * 40, 40), "audio_s": share(350, 100)}


@pytest.fixture
def judged() -> dict[str, Any]:
    """A result as training/judge.py writes it."""
    voice = {
        "teacher": side(20, 3.0),
        "demo": side(61, 2.8) | {"ends": {"stop": 100}, "misheard": []},
        "wer_difference": {"value": 0.041, "low": 0.03, "high": 0.052},
    }
    ran = {"steps": 20000, "seconds": 600.0}
    losses = {"watched_first": 1.8, "watched_rest": 3.1, "watched_end": 0.06}
    stages = {"codec": ran | {"last": {"mel": 0.71}}, "talker": ran | {"last": losses}}
    corpus = {"utterances": 40000, "hours": 35.2, "audio_hours": 12.3}
    training = {"machine": "NVIDIA H200", **corpus, "stages": stages}
    recognizer = {"name": "faster-whisper, tiny", "sha256": "abc", "numbers": "int8"}
    figures = {"weights": "x", "sentences": 100, "transcriber": {"recognizer": recognizer}, "training": training}
    voices = {"wren": voice, "finch": copy.deepcopy(voice)}
    return script_result("demo", ["training/judge.py"], figures | {"voices": voices})


@pytest.fixture
def listeners() -> dict[str, Any]:
    """A result as benchmarks/listeners.py --model demo writes it."""

    def row(refused: int, late: int) -> dict[str, Any]:
        times = {"first_audio_ms": {"median": 40.0, "worst": 60.0}, "worst_deficit_ms": 0.0}
        counts = {"accepted": 4, "refused": refused, "listeners_over_100_ms_late": late}
        return {**counts, **times, "x_real_time": 3.9}

    figures = {"alone": row(0, 0) | {"requests": 20}, "listeners": {"1": row(0, 0), "4": row(0, 0), "6": row(0, 2)}}
    return script_result("listeners-demo", ["benchmarks/listeners.py"], figures)


@pytest.fixture
def rated(judged: dict[str, Any]) -> dict[str, Any]:
    """A result as training/judge.py --judges-python --long writes it."""

    def ratings(wrong: int, dnsmos: float, distillmos: float) -> dict[str, Any]:
        return {
            "wer": share(wrong, 1000),
            "dnsmos": share(dnsmos * 100, 100),
            "distillmos": share(distillmos * 100, 100),
        }

    figures = judged["figures"]
    for sides in figures["voices"].values():
        sides["teacher"]["dnsmos"] = sides["demo"]["dnsmos"] = None
        sides["ratings"] = {
            "teacher": ratings(10, 3.3, 4.6),
            "demo": ratings(25, 3.2, 4.1),
            "wer_difference": {"value": 0.015, "low": 0.005, "high": 0.025},
            "prosody": {
                "sentences": 100, "f0_correlation": 0.812, "teacher_f0_hz": 190.4, "demo_f0_hz": 188.6,
                "duration_ratio": 1.02,
            },
        }  # fmt: skip
    figures["judges"] = {"speechmos": "0.0.1.1", "distillmos": "0.9.1", "faster-whisper": "1.2.1", "whisper": "d01c"}
    thirds = {f"{judge}_{name}_third": 3.0 for judge in ("dnsmos", "distillmos") for name in ("first", "last")}
    figures["long"] = {
        "texts": 20, "shortest_s": 61.2, "longest_s": 110.4, "ends": {"stop": 20}, "sentences": 380,
        "wer": 0.03, "wer_first_third": 0.025, "wer_last_third": 0.035, **thirds,
        "dropped": [{"voice": "finch", "text": 3, "sentence": "It is not easy to watch."}],
    }  # fmt: skip
    return judged


def test_ratings_of_other_judges_are_shown(rated: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(json.dumps(rated))
    page = Report(tmp_path).benchmarks()
    assert "| wren | 3.30 / 3.20 | 4.60 / 4.10 | 1.0 % / 2.5 % | +1.5 points (+0.5 to +2.5 points) |" in page
    assert "| finch | 0.81 | 190 / 189 | 1.02 |" in page
    assert "| wren | 2.0 % | 6.1 % | +4.1 points (+3.0 to +5.2 points) | 1 / 1 | 0 / 0 |\n" in page  # no second DNSMOS
    assert "transcribed by Whisper base (weights d01c)" in " ".join(page.split())


def test_long_texts_are_shown(rated: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(json.dumps(rated))
    page = Report(tmp_path).benchmarks()
    plain = " ".join(page.split())
    assert "20 texts of 61 to 110 s of speech" in plain and "1 of 380 sentences count as dropped" in plain
    assert "| last third | 3.5 % | 3.00 | 3.00 |" in page


def test_missing_ratings_and_missing_pitch_are_left_out(
    judged: dict[str, Any], rated: dict[str, Any], tmp_path: Path
) -> None:
    figures = copy.deepcopy(rated["figures"])
    for sides in figures["voices"].values():
        sides["ratings"]["prosody"] |= {"f0_correlation": None, "demo_f0_hz": None}
    del figures["long"]
    (tmp_path / "demo.json").write_text(json.dumps({**judged, "figures": figures}))
    page = Report(tmp_path).benchmarks()
    assert "| wren | - | 190 / - | 1.02 |" in page and "long texts" not in page


def test_the_card_shows_the_measured_figures(
    judged: dict[str, Any], listeners: dict[str, Any], small_checkpoints: CheckpointMaker
) -> None:
    folder = small_checkpoints("1b7", "custom_voice")
    card = demo_card(judged, listeners, folder)
    assert card.startswith("---\nlicense: apache-2.0\nlanguage:\n- en\n")
    plain = " ".join(card.split())
    assert "spoke 40,000 sentences (35.2 hours)" in plain and "on one NVIDIA H200" in plain
    assert "on 12.3 hours of such speech" in plain
    assert "| the codec's decoder, on codes and speech | 20,000 | 10.0 | mel distance 0.71 |" in card
    assert "| wren | 2.0 % | 6.1 % | +4.1 points (+3.0 to +5.2 points) | 1 / 1 | 0 / 0 | 3.00 / 2.80 |" in card
    assert "wren 100 of 100; finch 100 of 100." in plain
    assert "first audio after 40 ms (median of 20 sequential requests" in plain
    assert "number of listeners kept in real time is 4:" in plain
    assert "DNSMOS is the overall score of the first 40 of them" in plain
    assert f"{sum(parameters(folder).values()) / 1e6:.1f} million parameters" in plain
    assert "How fast it is" not in demo_card(judged, None, folder)


def test_sentences_that_did_not_end_are_reported(judged: dict[str, Any], tmp_path: Path) -> None:
    judged["figures"]["voices"]["finch"]["demo"]["ends"] = {"stop": 97, "length": 3}
    (tmp_path / "demo.json").write_text(json.dumps(judged))
    page = Report(tmp_path).benchmarks()
    assert "wren 100 of 100; finch 97 of 100, 3 by length." in page and "## How well the demo voice speaks" in page


def test_missing_naturalness_is_left_out(judged: dict[str, Any], tmp_path: Path) -> None:
    for sides in judged["figures"]["voices"].values():
        sides["teacher"]["dnsmos"] = sides["demo"]["dnsmos"] = None
    (tmp_path / "demo.json").write_text(json.dumps(judged))
    page = Report(tmp_path).benchmarks()
    assert "| 0 / 0 | - / - |" in page and "Naturalness" not in page


def test_speed_has_its_own_section(listeners: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "listeners-demo.json").write_text(json.dumps(listeners))
    page = Report(tmp_path).benchmarks()
    assert "## How fast the demo voice is" in page and "| 6 | 4 | 0 | 3.9 | 40 | 60 | 0 |" in page
    assert kept_in_real_time(listeners["figures"]) == [1, 4]


def test_weights_are_known_by_every_file_that_determines_the_speech(
    small_checkpoints: CheckpointMaker, tmp_path: Path
) -> None:
    source, folder = small_checkpoints("1b7", "custom_voice"), tmp_path / "copy"
    for path in files(source):
        copied = folder / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(path.read_bytes())
    assert fingerprint(folder) == fingerprint(source)
    (folder / CARD).write_text("words")
    (folder / "instructions.json").write_text("{}")
    config = (folder / "config.json").read_text().replace("{", '{\n  "oscine_text_level": "raw",', 1)
    (folder / "config.json").write_text(config)
    assert fingerprint(folder) == fingerprint(source)
    (folder / "generation_config.json").write_text("{}")
    assert fingerprint(folder) != fingerprint(source)


def test_differences_under_load_are_shown(tmp_path: Path) -> None:
    found = {"first": 0.05, "second": 0.09, "by": 0.04, "low": 0.01, "high": 0.07, "texts": 40}
    differences = {
        "wer": found | {"verdict": "second worse"},
        "truncated": {**dict.fromkeys(found, 0.0), "high": 0.02, "verdict": "none"},
    }
    figures = {"names": ["alone", "eight"], "recordings": 40, "equal_recordings": 38}
    compared = script_result("x", ["x"], figures | {"settings": {"concurrency": [1, 8]}, "differences": differences})
    (tmp_path / "eval-demo.json").write_text(json.dumps(compared))
    page = Report(tmp_path).benchmarks()
    assert "38 of 40 recordings are equal" in " ".join(page.split())
    assert "| WER | 5.0 % | 9.0 % | +4.0 points (+1.0 to +7.0 points) | second worse |" in page
    assert "| truncated | 0.0 % | 0.0 % | +0.0 points (+0.0 to +2.0 points) | none beyond noise |" in page


@pytest.mark.parametrize(
    ("commits", "shown"),
    [(None, ""), (["{}", "{}"], ""), (["{}", "abc1234"], "; recorded with commits {} and abc1234")],
)
def test_recordings_of_other_commits_than_the_comparison_s_name_them(
    commits: list[str] | None, shown: str, tmp_path: Path
) -> None:
    wer = {"first": 0.015, "second": 0.014, "by": -0.001, "low": -0.006, "high": 0.003, "texts": 100, "verdict": "none"}
    figures = {"names": ["CPU", "FP8"], "recordings": 200, "equal_recordings": 0, "differences": {"wer": wer}}
    compared = script_result("x", ["x"], figures)
    own = compared["commit"]
    figures["settings"] = {} if commits is None else {"commit": [one.format(own) for one in commits]}
    (tmp_path / "eval-demo-gpu-fp8.json").write_text(json.dumps(compared))
    assert f"`python x`{shown.format(own)}\n" in Report(tmp_path).benchmarks()


def test_recordings_of_a_gpu_are_compared_in_one_table(tmp_path: Path) -> None:
    wer = {"first": 0.015, "second": 0.014, "by": -0.001, "low": -0.006, "high": 0.003, "texts": 100, "verdict": "none"}
    for name, second, equal in (("alone", "GPU, one by one", 0), ("load", "GPU, 64 at once", 200)):
        figures = {"names": ["CPU, one by one", second], "recordings": 200, "equal_recordings": equal}
        figures["settings"] = {"machine": ["2 cores, aarch64", "NVIDIA H200"]} if name == "alone" else {}
        compared = script_result("x", ["x", name], figures | {"differences": {"wer": wer}})
        (tmp_path / f"eval-demo-gpu-{name}.json").write_text(json.dumps(compared))
    page = Report(tmp_path).benchmarks()
    shown = "1.5 % | 1.4 % | -0.1 points (-0.6 to +0.3 points) | none beyond noise"
    assert "(2 cores, aarch64, and NVIDIA H200)" in " ".join(page.split())
    assert page.count("## The demo voice on a GPU") == 1 and "x alone" in page and "x load" in page
    assert f"| 100 | CPU, one by one | GPU, one by one | {shown} | 0 of 200 |" in page
    assert f"| 100 | CPU, one by one | GPU, 64 at once | {shown} | 200 of 200 |" in page
