"""Results as files and pages."""

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.bench.test_load import good

from oscine.bench.exchange import Failure
from oscine.bench.plots import Series, line_plot, log_bounds, log_ticks, ticks, timeline_plot
from oscine.bench.record import make_result, read_result, shown_command, write_result
from oscine.bench.report import compared, doubts, found, html, markdown, plots
from oscine.bench.summary import Answer, Window, summarise
from oscine.types import OscineError, RequestError

SVG = "{http://www.w3.org/2000/svg}"


def row(kind: str, value: float, first_s: float = 0.02, late_s: float = 0.0) -> dict:
    answers = [good(0, 0.0, 1.0, (first_s, 0.5), (first_s + 0.5 + late_s, 2.0))]
    lag = {"p99": 1.0}
    return {
        "load": {"kind": kind, "value": value},
        **summarise(answers, Window(0.0, 1.0)),
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


def test_a_result_says_where_it_comes_from_and_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "ours.json"
    write_result(path, BOTH[0])
    read = read_result(path)
    assert {"date", "commit", "command", "machine", "versions"} <= read.keys()
    assert read["command"] == "oscine bench run http://localhost:8000 -c 1,8"
    assert markdown([read]) == markdown([BOTH[0]])


def test_the_command_shows_neither_keys_nor_places() -> None:
    argv = ["bench", "run", "x", "--api-key", "sk-1", "--out", "/home/me/a.json", "--records=/r", "--frames", "56"]
    assert shown_command(argv) == "oscine bench run x --frames 56"
    assert shown_command(["bench", "--api-key=sk-1", "run", "-o", "/home/me/a.json", "x y"]) == "oscine bench run 'x y'"


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content, said in (("{", "cannot be read"), ("[]", "no result"), ('{"kind": "oscine bench"}', "format None")):
        path.write_text(content)
        with pytest.raises(RequestError, match=said):
            read_result(path)
    with pytest.raises(OscineError, match="cannot be written"):
        write_result(tmp_path, BOTH[0])


def test_the_tables_hold_the_figures() -> None:
    page = markdown([BOTH[0]])
    assert "| closed loop, 8 | 1 | 2.00 | 2 | 1 | 30 / 30 | 30 / 30 | 1000 / 1000 | 0 | 0 |" in page
    assert "a <test> machine" in page


def test_results_stand_side_by_side_by_load() -> None:
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


def test_failures_and_what_does_not_apply_are_said() -> None:
    answers = [good(0, 0.0, 1.0, (0.5, 2.0)), Answer(1, True, 0.0, 0.0, 0.1, Failure("http_429", "full"))]
    whole = {**row("open", 1), **summarise(answers, Window(0.0, 1.0))}
    assert "| n/a | http_429 1 |" in markdown([result("x", whole)])


def test_a_client_that_was_too_slow_is_told_on() -> None:
    slow = copy.deepcopy(row("open", 10))
    slow["client"] |= {"starved_share": 0.3, "loop_lag_ms": {"p99": 7.0}}
    slow["send_lag_ms"]["p99"] = 30.0
    assert len(doubts(slow)) == 3 and not doubts(row("open", 10))
    assert "7.0 ms late" in markdown([result("x", slow)])


def test_a_search_ends_in_a_sentence() -> None:
    limits = {"figure": "first_audio_ms", "p95_ms": 50.0, "underrun_ms": 0.0}
    one = result("x", row("open", 10), search={"rate_per_s": 96.5, "limits": limits})
    said = "96.5 requests/s hold: first audio p95 <= 50 ms, no underrun above 0 ms, no failure"
    assert found(one) == said and said in markdown([one]) and "hold: first audio p95 &lt;= 50 ms" in html([one])
    assert found(result("x", row("open", 10), search={"rate_per_s": None, "limits": limits})).startswith("no rate")


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value or "" for name, value in attributes if name in ("src", "href")]


def test_the_page_needs_no_other_file_and_escapes_names() -> None:
    page = html(BOTH)
    links = Links()
    links.feed(page)
    assert links.outside == [] and "script" not in links.tags
    assert links.tags.count("svg") == len(plots(BOTH))
    assert "a peer &amp; co" in page and "a <test>" not in page


def test_every_plot_is_valid_svg_with_the_points_that_were_measured() -> None:
    drawn = plots(BOTH)
    assert {"first-audio", "audible", "x-real-time", "first-audio-closed"} <= drawn.keys()
    assert len(drawn) == 4 + 2 * 6  # a typical and a worst timeline for each load of each result
    for svg in drawn.values():
        ElementTree.fromstring(svg)
    circles = ElementTree.fromstring(drawn["first-audio"]).findall(f"{SVG}circle")
    assert [circle.findtext(f"{SVG}title") for circle in circles] == [
        "ours: 25 at 10",
        "a peer & co: 200 at 10",
        "a peer & co: 400 at 20",
    ]
    assert float(circles[1].attrib["cy"]) < float(circles[0].attrib["cy"])  # more is higher up


def test_a_timeline_shows_where_the_player_had_nothing() -> None:
    example = row("open", 10, 0.1, late_s=0.25)["timelines"]["worst"]
    tree = ElementTree.fromstring(timeline_plot("x", example))
    (stall,) = tree.findall(f"{SVG}rect")
    assert stall.findtext(f"{SVG}title") == "nothing to play for 250.0 ms"
    assert len(tree.findall(f"{SVG}polyline")) == 2


def test_a_plot_without_figures_says_so() -> None:
    assert "no figures" in line_plot("x", "a", "b", [Series("s", ((1.0, 0.0),))])
    ElementTree.fromstring(line_plot("x", "a", "b", [Series("s", ((1.0, 5.0),))]))
    ElementTree.fromstring(line_plot("x", "a", "b", [Series("s", ((1.0, 0.0), (2.0, 3.0)))], log_y=False))


def test_ticks_are_round_numbers() -> None:
    assert ticks(0, 1000) == [0, 200, 400, 600, 800, 1000]
    assert ticks(0, 0.07) == pytest.approx([0, 0.02, 0.04, 0.06])
    assert ticks(3, 3) == [3]
    assert log_ticks(8, 600) == [10, 20, 50, 100, 200, 500]
    assert log_ticks(0.5, 2e6) == [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]


def test_a_logarithmic_axis_has_two_ticks_at_least() -> None:
    assert log_bounds(10.5, 14) == (10, 20)
    assert log_bounds(9.9, 10.4) == (5, 20)
    assert log_bounds(1, 1) == (1, 2)


def test_a_result_holds_no_nan(tmp_path: Path) -> None:
    write_result(tmp_path / "x.json", BOTH[1])
    json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
