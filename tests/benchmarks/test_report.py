"""The documents show exactly the figures of the result files, and broken result files do not break them."""

import copy
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.report import BEGIN, END, PAGES, README, RESULTS, ROOT, Report
from benchmarks.report_sections import ADMISSION_PARTS
from benchmarks.report_server import images
from oscine_bench.record import script_result
from tests.oscine_bench.test_report import result, row


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path)


def put(report: Report, name: str, content: dict) -> None:
    (report.folder / f"{name}.json").write_text(json.dumps(content))


# --- the committed files ---


def test_the_benchmarks_page_is_the_generated_one() -> None:
    report = Report()
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == report.benchmarks()
    assert report.complaints == []


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_charts_have_the_generated_labels() -> None:
    # Not byte by byte: versions of matplotlib place things differently.
    for name, svg in Report().images().items():
        assert texts((ROOT / "docs" / "images" / name).read_text(encoding="utf-8")) == texts(svg)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_hold_the_generated_tables(page: Path) -> None:
    text, report = page.read_text(encoding="utf-8"), Report()
    assert all(text.count(BEGIN.format(name=name)) == 1 for name in PAGES[page]) and text.count(END) == len(PAGES[page])
    assert report.page(page, text) == text and report.complaints == []


# --- missing and broken results ---


def test_a_result_of_an_admission_has_a_table(report: Report) -> None:
    figures = {"prompt_rows": 400, "newcomers": {"1": dict.fromkeys(ADMISSION_PARTS, 12.4)}, "prefilled_ms": {"1": 5.2}}
    name = "admission-gpu-rows400-0b6"
    put(report, name, script_result(name, ["-m", "benchmarks.admission"], figures))
    page = report.benchmarks()
    assert "### Admission, 0.6B, prompts of 400 rows" in page and "| 1 | 12 | 12 |" in page
    assert "Until all newcomers are prefilled: 1: 5 ms." in page


def test_a_missing_result_has_no_section(report: Report) -> None:
    assert report.sections() == [] and report.images() == {}
    assert report.benchmarks().startswith("# Benchmarks\n")
    text = f"before {BEGIN.format(name='frame')}\nold\n{END} after"
    assert report.page(README, text) == text
    assert report.complaints == []


@pytest.mark.parametrize(
    "name",
    [
        *("frame", "server-gpu-1b7-preset", "listeners-gpu-1b7", "bench-model-1b7", "peers"),
        *("demo", "eval-demo", "eval-demo-gpu-load", "listeners-demo"),
    ],
)
@pytest.mark.parametrize("content", ['{"name": "old", "figures": {}}', "{", "[]"])
def test_an_unusable_file_is_named_and_skipped(report: Report, name: str, content: str) -> None:
    put(report, "listeners-cpu", json.loads((RESULTS / "listeners-cpu.json").read_text()))
    (report.folder / f"{name}.json").write_text(content)
    page = report.benchmarks()
    assert "## Listeners on a CPU" in page and page.count("\n## ") == 1
    assert report.page(README, "text") == "text" and report.images() == {} and report.card() is None
    assert report.complaints and all("measure it again" in complaint for complaint in report.complaints)


# --- the server ---


def served(size: str = "1b7", kind: str = "preset", **changed: object) -> dict:
    """A result as benchmarks/server.py writes it."""
    search = {"rate_per_s": 96.5, "limits": {"figure": "first_audio_ms", "p95_ms": 50.0, "underrun_ms": 0.0}}
    made = result("Oscine", row("closed", 1), row("closed", 8, 0.03), row("open", 10, 0.025), search=search)
    held = {"gpu_used_mib": 14336.0, "engine_device_mib": 10240.0, "engine_mib": 900.0, "front_end_mib": 80.0}
    server = {"start_s": 21.4, "slots": 128, "memory_ready": held, "memory_after": held}
    server["kernels_compiled"] = {"triton": 37, "cuda": 0}
    made["figures"] |= {"size": size, "kind": kind, "widths": "published", "frames": 56, "server": server} | changed
    return made


@pytest.fixture
def peers() -> dict:
    return json.loads((RESULTS / "peers.json").read_text())


def test_peers_are_shown_next_to_our_figures(report: Report, peers: dict) -> None:
    put(report, "peers", peers)
    put(report, "server-gpu-1b7-preset", served())
    page = report.benchmarks()
    assert "| 1 | 2 | 11.6 | 9.8 | 20 / 20 | 21.9 / 23.5 | 42.5 / 51.9 |" in page
    assert "| 128 | - | - | 142 | - | - | 2210 / 2494 |" in page
    assert "| 20 | - | 54.3 / 139 | 238 / 392 | - | 16.5 % | 100 % |" in page
    assert "Search: 96.5 requests/s hold: first audio p95 <= 50 ms" in page
    assert "Ready after 21 s, with 37 Triton kernels compiled meanwhile ([with empty and with full caches](" in page
    assert "; GPU memory used: 14.0 GiB" in page
    assert "vLLM-Omni 0.26.0; its server, default deploy config" in page
    assert report.complaints == []


@pytest.mark.parametrize("changed", [{"kind": "clone"}, {"size": "0b6"}, {"frames": 50}, {"widths": "small"}])
def test_only_equal_conditions_are_compared(report: Report, peers: dict, changed: dict) -> None:
    put(report, "peers", peers)
    put(report, "server-gpu-x", served(**changed))
    page = report.benchmarks()
    assert "nari" not in page and "| 1 | 2 | 20 / 20 |" in page


def test_the_larger_model_and_the_preset_voice_come_first(report: Report) -> None:
    for size, kind in (("0b6", "preset"), ("1b7", "clone"), ("1b7", "preset")):
        put(report, f"server-gpu-{size}-{kind}", served(size, kind))
    titles = [line for line in report.benchmarks().splitlines() if line.startswith("### ")]
    assert [title.split(",")[:2] for title in titles] == [
        ["### 1.7B", " a preset voice"],
        ["### 1.7B", " a cloned voice"],
        ["### 0.6B", " a preset voice"],
    ]


def test_other_slots_and_rates_alone_have_titles_of_their_own_and_no_place_in_charts_and_beside_peers(
    report: Report, peers: dict
) -> None:
    many, rates = served(), served()
    many["figures"]["server"] |= {"slots": 256, "kernels_compiled": {"triton": 0, "cuda": 0}}
    rates["figures"]["loads"] = rates["figures"]["loads"][2:]
    for name, content in (("-256-slots", many), ("-search", rates), ("", served())):
        put(report, f"server-gpu-1b7-preset{name}", content)
    put(report, "peers", peers)
    page = report.benchmarks()
    titles = [line.removeprefix("### 1.7B, a preset voice, ") for line in page.splitlines() if line.startswith("### ")]
    assert titles == ["56 frames (4.48 s)", "56 frames (4.48 s), rates", "56 frames (4.48 s), 256 slots"]
    assert page.count("vLLM-Omni 0.26.0") == 1 and "Ready after 21 s, all kernels were cached;" in page
    assert set(images([many, rates], peers)) == set()


def test_a_start_of_an_older_result_says_what_may_have_been_compiled(report: Report) -> None:
    old = served()
    del old["figures"]["server"]["kernels_compiled"]
    for cached, words in ((True, "with some kernels in Triton's cache and any others"), (False, "with all kernels")):
        old["figures"]["server"]["kernels_cached"] = cached
        put(report, "server-gpu-1b7-preset", old)
        assert f"Ready after 21 s, {words} compiled meanwhile" in report.benchmarks()


def test_responses_of_another_length_are_named(report: Report) -> None:
    odd = served()
    odd["figures"]["loads"][1]["exact_length"] = False
    put(report, "server-gpu-1b7-preset", odd)
    assert "Responses of another length: closed loop, 8." in report.benchmarks()


def test_the_charts_show_our_figures_and_the_peers(report: Report, peers: dict) -> None:
    drawn = images([served(), served(kind="clone"), served("0b6")], peers)
    assert set(drawn) == {"server-x-real-time.svg", "server-first-audio.svg"}
    for svg in drawn.values():
        assert texts(svg)[-4:] == ["Oscine", "Oscine, cloned voice", "nari", "vLLM-Omni"]
    assert images([served("0b6")], peers) == {}


def test_the_figures_of_peers_are_complete(peers: dict) -> None:
    assert {"machine", "date", "size", "kind", "frames"} <= peers.keys()
    for peer in peers["peers"]:
        for one in peer["loads"]:
            assert one["first_audio_ms"]["p50"] <= one["first_audio_ms"]["p95"] <= one["e2e_ms"]["p95"]
            assert 0 <= one["share_over_100_ms"] <= 1


# --- the engine ---


def test_listeners_on_a_gpu_have_a_table_and_a_churn_line(report: Report) -> None:
    figures = copy.deepcopy(json.loads((RESULTS / "listeners-cpu.json").read_text())["figures"])
    churn = {"requests": 500, "at_once": 128, "ends": {"length": 340, "cancelled": 160}, "took_s": 12.0}
    figures |= {"ready_s": 20.0, "memory_bytes": 10 * 2**30, "churn": churn}
    put(report, "listeners-gpu-1b7", script_result("listeners-gpu-1b7", ["benchmarks/listeners.py"], figures))
    page = report.benchmarks()
    assert "## Listeners on a GPU" in page and "### 1.7B" in page
    assert "Ready after 20.0 s, 10.0 GiB held. 500 requests of random lengths, 128 at once" in page
    assert "each ended exactly once (160 cancelled, 340 length)" in page


def test_the_engine_alone_has_a_table_for_each_model(report: Report) -> None:
    times = {"p50": 4.4, "p95": 4.6}
    alone = {"positions": [64, 120], "frame_ms": times, "device_ms": times, "x_real_time_each": 18.2}
    alone |= {"x_real_time": 18.2, "first_audio_ms": {"p50": 9.9, "p95": 10.4}}
    refused = {**alone, "x_real_time": 1200.0, "first_audio_ms": None}
    way = {
        "captured_s": 5.0,
        "memory_bytes": 2**30,
        "memory_reserved_bytes": 2**31,
        "rows": {"1": alone, "128": refused},
    }
    facts = {"dtype": "bfloat16", "device": "cuda", "kernels": True, "threads": 16, "prompt_rows": 33}
    figures = {**facts, "loaded_s": 2.0, "budget": "128 slots", "with_codec": way, "codes_only": way}
    for size in ("1.7B", "0.6B"):
        put(report, f"bench-model-{size}", script_result(size, ["-m", "benchmarks.model", "x"], figures))
    page = report.benchmarks()
    assert "| 1 | 4.40 / 4.60 | 4.40 / 4.60 | 4.40 / 4.60 | 18.2 | 18 | 18 | 9.90 / 10.4 | 9.90 / 10.4 |" in page
    assert "| 128 | 4.40 / 4.60 | 4.40 / 4.60 | 4.40 / 4.60 | 18.2 | 1200 | 1200 | - | - |" in page
    assert page.count("bfloat16 on cuda (kernels); positions 64 to 120") == 2
    assert "Memory: 1024 MiB, 2048 MiB reserved" in page


# --- results of different days ---


@pytest.mark.parametrize(
    ("machine", "date", "older"),
    [("NVIDIA H200", "2026-11-15", True), ("NVIDIA H200", "2026-11-18", False), ("2 cores, x86_64", "2026-1-1", False)],
)
def test_a_result_of_a_gpu_from_before_the_newest_frame_says_so(
    report: Report, machine: str, date: str, older: bool
) -> None:
    frame = json.loads((RESULTS / "frame.json").read_text())
    put(report, "frame", frame | {"date": "2026-11-17"})
    put(report, "frame-0b6", frame | {"date": "2026-11-18"})
    put(report, "server-gpu-1b7-preset", served() | {"date": date, "machine": machine})
    older_words = "This is older than the [frame](benchmarks.md#one-frame-on-the-gpu) of 2026-11-18"
    assert report.benchmarks().count(older_words) == 1 + older  # the older frame, too
    assert report.complaints == []


def test_what_does_not_depend_on_kernels_is_never_older(report: Report) -> None:
    put(report, "frame", json.loads((RESULTS / "frame.json").read_text()))
    for name in ("front-end", "model"):
        put(report, name, json.loads((RESULTS / f"{name}.json").read_text()) | {"date": "2026-01-01"})
    assert "This is older" not in report.benchmarks()


# --- kinds of kernels ---


def test_frames_of_two_results_are_one_section(report: Report) -> None:
    measured = json.loads((RESULTS / "frame.json").read_text())
    measured_tb_s = measured["figures"]["copy_bandwidth_tb_s"]
    put(report, "frame", measured)
    measured["figures"] = {"copy_bandwidth_tb_s": 4.1, "0b6": measured["figures"]["1b7"]}
    put(report, "frame-0b6", measured)
    page = report.benchmarks()
    assert page.count("Random weights of the published sizes") == 1
    assert f"{measured_tb_s:.2f} and 4.10 TB/s" in " ".join(page.split())
    assert "### 1.7B, positions" in page and "### 0.6B, positions" in page


def test_kernels_that_were_measured_in_one_run_stand_side_by_side(report: Report) -> None:
    measured = json.loads((RESULTS / "frame.json").read_text())
    figures = measured["figures"]
    triton = figures["1b7"]["triton"]
    for size in ("1b7", "0b6"):
        cuda = copy.deepcopy(triton)
        for figure in cuda["frames"].values():
            figure["tick_ms"] = triton["frames"]["1"]["tick_ms"] / 2
        figures[size] = {"triton": triton, "cuda": cuda}
    put(report, "frame", measured)
    page = report.benchmarks()
    assert report.complaints == []
    head = "| streams | talker, Triton | talker, CUDA | predictor, Triton | predictor, CUDA | whole tick, Triton | "
    assert page.count(f"{head}whole tick, CUDA | CUDA, times as fast as Triton |") == 2
    assert "#### Triton kernels" in page and "#### CUDA kernels" in page
    one = next(line for line in page.splitlines() if line.startswith("| 1 |"))
    assert one.endswith(" | 2.00 |")
    text = report.page(README, f"{BEGIN.format(name='frame')}\nold\n{END}")
    assert "1.7B, Triton kernels, ms per frame | 1.7B, CUDA kernels, ms per frame |" in text
