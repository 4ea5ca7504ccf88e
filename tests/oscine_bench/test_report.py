"""Results as tables and pages."""

import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from oscine_bench.record import make_result, read_result
from oscine_bench.report import (
    COLUMNS,
    COMPARED,
    compared,
    cost,
    differences,
    html,
    markdown,
    plots,
    rows,
    search_outcome,
    warnings,
)
from oscine_bench.summary import MeasurementWindow, summarize
from tests.oscine_bench.test_summary import failed, succeeded


@pytest.fixture(autouse=True)
def empty_charts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time; one test draws."""
    if "chart" not in request.node.name:
        for name in ("line_plot", "timeline_plot"):
            monkeypatch.setattr(f"oscine_bench.report.{name}", lambda title, *rest: "<svg></svg>")


def row(kind: str, value: float, first_s: float = 0.02, late_s: float = 0.0, requests: int = 1) -> dict:
    answers = [succeeded(n, 0.0, 1.0, (first_s, 0.5), (first_s + 0.5 + late_s, 2.0)) for n in range(requests)]
    lag = {"p99": 1.0}
    return {
        "load": {"kind": kind, "value": value},
        **summarize(answers, MeasurementWindow(0.0, 1.0)),
        "client": {"cpu_share": 0.1, "starved_share": 0.01, "loop_lag_ms": lag},
    }


def result(name: str, *rows: dict, search: dict | None = None) -> dict:
    figures = {
        "target": {"preset": "oscine", "transport": "http", "fields": {}},
        "workload": {"name": "english, medium", "texts": 16, "seed": 0},
        "loads": list(rows),
    }
    argv = ["bench", "run", "http://localhost:8000", "-c", "1,8"]
    return make_result(name, argv, figures | ({"search": search} if search else {}), server_machine="a <test> machine")


BOTH = (
    result("ours", row("closed", 1), row("closed", 8, 0.03), row("open", 10, 0.025)),
    result("a peer & co", row("closed", 1, 0.05), row("open", 10, 0.2, late_s=0.25), row("open", 20, 0.4, late_s=0.5)),
)


def test_the_table_shows_the_figures() -> None:
    page = markdown([BOTH[0]])
    assert "| closed loop, 8 | 1 | - | 2.00 | 2 | 1 | 30 / 30 | 30 / 30 | 1000 / 1000 | 0 | 0 |" in page
    assert "a <test> machine" in page


def test_results_are_compared_load_by_load() -> None:
    head, lines = compared(BOTH, "first audio p50 / p95 ms")
    assert head == ["load", "ours", "a peer & co"]
    assert lines == [
        ["closed loop, 1", "20 / 20", "50 / 50"],
        ["closed loop, 8", "30 / 30", "-"],
        ["open loop, 10/s", "25 / 25", "200 / 200"],
        ["open loop, 20/s", "-", "400 / 400"],
    ]
    late = compared(BOTH, "underruns")[1][3][2]
    assert late == "1 of 1, 100.0% > 100 ms, worst 500 ms"


def test_the_cost_is_that_of_the_load_with_the_most_audio() -> None:
    one = result("x", {**row("closed", 1), "x_real_time": 2.0}, {**row("closed", 8), "x_real_time": 10.0})
    one["figures"]["loads"][1]["characters_per_s"] = 100.0
    assert cost(one) == ""
    one["figures"]["price_per_hour"] = 3.6
    assert cost(one) == (
        "at 3.6 an hour and full load (closed loop, 8): 10 for a million characters, 0.36 for an hour of audio"
    )
    assert cost(one) in markdown([one]) and cost(one) in html([one])
    one["figures"]["frames"] = 56  # the texts do not say how long the audio is
    assert "6.67 for a million characters (with 15 characters in a second of speech), 0.36" in cost(one)


def test_failures_and_inapplicable_figures_are_shown() -> None:
    answers = [
        succeeded(0, 0.0, 1.0, (0.5, 2.0)),
        failed(1, "http_429", "full"),
    ]
    whole = {**row("open", 1), **summarize(answers, MeasurementWindow(0.0, 1.0))}
    assert "| n/a | http_429 1 |" in markdown([result("x", whole)])


def test_a_slow_client_gets_warnings() -> None:
    fine = row("open", 10, requests=20)
    slow = copy.deepcopy(fine)
    slow["client"] |= {"starved_share": 0.3, "loop_lag_ms": {"p99": 7.0}}
    slow["send_lag_ms"]["p99"] = 30.0
    assert len(warnings(slow)) == 3 and not warnings(fine)
    assert "7.0 ms late" in markdown([result("x", slow)])


def test_the_outcome_of_a_search_is_one_sentence() -> None:
    limits = {"figure": "first_audio_ms", "p95_ms": 50.0, "underrun_ms": 0.0}
    one = result("x", row("open", 10), search={"rate_per_s": 96.5, "limits": limits})
    said = "96.5 requests/s hold: first audio p95 <= 50 ms, no underrun above 0 ms, no failure"
    assert (
        search_outcome(one) == said and said in markdown([one]) and "hold: first audio p95 &lt;= 50 ms" in html([one])
    )
    assert search_outcome(result("x", row("open", 10), search={"rate_per_s": None, "limits": limits})).startswith(
        "no tested rate holds"
    )


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value or "" for name, value in attributes if name in ("src", "href")]


def test_the_page_is_self_contained_and_escapes_names() -> None:
    page = html(BOTH)
    links = Links()
    links.feed(page)
    assert links.outside == [] and "script" not in links.tags
    assert links.tags.count("svg") == len(plots(BOTH))
    assert "a peer &amp; co" in page and "a <test>" not in page


def test_there_is_a_chart_for_every_figure_and_a_timeline_for_every_example() -> None:
    drawn = plots(BOTH)
    assert {"first-audio", "audible", "x-real-time", "first-audio-closed"} <= drawn.keys()
    assert len(drawn) == 4 + 2 * 6  # a typical and a worst timeline for each load of each result
    for svg in drawn.values():
        ElementTree.fromstring(svg)
    assert all(name in drawn["first-audio"] for name in ("ours", "a peer &amp; co"))


def test_different_conditions_are_listed_above_the_tables() -> None:
    one, other = copy.deepcopy(BOTH)
    for asked, words, frames, span_s in ((one, "english, medium", 56, 30.0), (other, "chinese, long", None, 10.0)):
        asked["figures"] |= {"frames": frames, "span": {"duration_s": span_s, "warmup_s": 5.0}}
        asked["figures"]["workload"]["name"] = words
    one["figures"]["target"]["fields"] = {"response_format": "pcm", "temperature": 0.7}
    other["figures"]["target"]["fields"] = {"response_format": "wav"}
    said = differences([one, other])
    assert said == (
        "These differ: workload (english, medium | chinese, long), frames (56 | none), format (pcm | wav), "
        "span (duration_s 30.0, warmup_s 5.0 | duration_s 10.0, warmup_s 5.0), temperature (0.7 | none)."
    )
    assert markdown([one, other]).startswith(f"{said}\n\n### ") and said in html([one, other])
    assert differences(BOTH) == "" and "These differ" not in markdown(BOTH) + html(BOTH)


def test_different_token_counts_for_the_same_frames_are_no_difference() -> None:
    one, other = copy.deepcopy(BOTH)
    for asked, tokens in ((one, 57), (other, 56)):
        asked["figures"]["frames"] = 56
        asked["figures"]["target"]["fields"] = {"max_new_tokens": tokens}
    assert differences([one, other]) == ""


def test_failures_and_lengths_are_compared() -> None:
    refused = [
        succeeded(0, 0.0, 1.0, (0.5, 2.0)),
        failed(1, "http_429", "full"),
    ]
    busy = result("busy", {**row("closed", 1), **summarize(refused, MeasurementWindow(0.0, 1.0))})
    assert {"failures", "audio, mean s"} <= set(COMPARED)
    assert compared([BOTH[0], busy], "failures")[1][0] == ["closed loop, 1", "0", "http_429 1"]
    assert compared([BOTH[0], busy], "audio, mean s")[1][0] == ["closed loop, 1", "2.00", "2.00"]


def test_an_open_loop_shows_the_rate_that_it_sent() -> None:
    sent = COLUMNS["sent/s"]
    assert sent(row("open", 10, requests=7)) == "7" and sent(row("closed", 8)) == "-"
    held_back = {**row("open", 10, requests=7), "failures": {"not_sent": {"count": 3, "first": "full"}}}
    assert sent(held_back) == "4"
    counted = result("x", row("open", 10, requests=7))
    counted["figures"]["span"] = {"requests": 7, "warmup_s": 0.0}
    assert [sent(one) for one in rows(counted)] == ["-"]  # its window ends with the last response


def test_a_p95_of_few_requests_gets_a_warning() -> None:
    (said,) = warnings(row("open", 10, requests=19))
    assert said == "open loop, 10/s: fewer than 20 successful requests: p95 is the maximum"
    assert not warnings(row("open", 10, requests=20))


def test_a_list_of_warnings_ends_before_the_next_heading() -> None:
    page = markdown(BOTH)
    assert "\n* " in page and not re.search(r"^\*.*\n#", page, re.MULTILINE)


def test_results_of_the_same_name_get_the_file_name_or_a_number() -> None:
    one, other = ({**each, "name": "ours", "file": f"{name}.json"} for each, name in zip(BOTH, "ab", strict=True))
    assert compared([one, other], "requests")[0] == ["load", "ours (a.json)", "ours (b.json)"]
    page = markdown([one, other])
    assert "### ours (a.json)" in page and "### ours (b.json)" in page
    assert compared([one, one], "requests")[0] == ["load", "ours (a.json) (1)", "ours (a.json) (2)"]


def test_a_load_that_was_measured_twice_is_shown_twice() -> None:
    twice = result("x", row("closed", 1, 0.02), row("closed", 1, 0.04))
    assert compared([twice, BOTH[0]], "first audio p50 / p95 ms")[1][:2] == [
        ["closed loop, 1", "20 / 20", "20 / 20"],
        ["closed loop, 1 (2)", "40 / 40", "-"],
    ]
    assert "| closed loop, 1 (2) |" in markdown([twice])
    assert {"timeline-1-closed-1-worst", "timeline-1-closed-1-turn-2-worst"} <= plots([twice]).keys()


def test_the_first_message_of_each_kind_of_failure_is_shown_in_one_line() -> None:
    failed = {"http_429": {"count": 3, "first": "the `queue`\n  is <full>"}, "cut": {"count": 1, "first": "x" * 999}}
    said = result("x", {**row("open", 8), "failures": failed})
    page = markdown([said])
    assert "* open loop, 8/s: http_429, 3 times, first: `` the `queue` is <full> ``\n" in page
    assert f"* open loop, 8/s: cut, 1 time, first: `{'x' * 199}…`\n" in page
    assert "http_429, 3 times, first: <code>the `queue` is &lt;full&gt;</code>" in html([said])


def test_a_command_with_backticks_and_colons_stays_whole() -> None:
    odd = {**BOTH[0], "command": "oscine bench run x --extra '{\"a\": `b`}: `c`'"}
    assert f"`` {odd['command']} ``" in markdown([odd])
    shown = html([odd])
    assert "<code>oscine bench run x --extra &#39;{&#34;a&#34;: `b`}: `c`&#39;</code>" in shown


def test_version_and_commit_are_shown_as_the_clients() -> None:
    one = {**BOTH[1], "commit": "abc"}
    assert re.search(r"; measured with oscine \S+, Python \S+, commit abc, ", markdown([one]))


def test_rates_have_three_digits() -> None:
    tried = result("x", row("open", 2.82843), row("open", 113.137), row("open", 1200))
    assert [line[0] for line in compared([tried], "requests")[1]] == [
        "open loop, 2.83/s",
        "open loop, 113/s",
        "open loop, 1200/s",
    ]


def test_committed_results_can_still_be_read() -> None:
    files = sorted((Path(__file__).parents[2] / "docs" / "results").glob("server-gpu-*.json"))
    read = [read_result(path) for path in files]
    assert read and "| open loop, 100/s |" in markdown(read)
    few = {**read[0], "figures": {**read[0]["figures"], "loads": read[0]["figures"]["loads"][:2]}}
    assert "<svg" in html([few])
