"""Lines, axes and legends."""

import itertools
from xml.etree import ElementTree

import pytest

from oscine.bench.plots import LETTER, WIDTH, Series, line_plot, log_bounds, log_ticks, ticks, timeline_plot
from tests.bench.test_report import SVG, row


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


def labels(svg: str) -> list[tuple[float, str]]:
    """What stands along the x axis: place, text."""
    found = ElementTree.fromstring(svg).findall(f"{SVG}text[@class='mid']")
    return [(float(one.attrib["x"]), one.text or "") for one in found[:-2]]  # the last two name the axes


def test_labels_of_near_rates_have_three_digits_and_do_not_touch() -> None:
    rates = (100.0, 113.137, 118.921, 125.0, 134.543, 137.0, 141.421, 148.651, 160.0, 200.0)
    shown = labels(line_plot("x", "a", "b", [Series("s", tuple((rate, 5.0) for rate in rates))]))
    assert shown[0][1] == "100" and "113" in dict(map(reversed, shown)) and 3 <= len(shown) < len(rates)
    for (place, text), (next_place, next_text) in itertools.pairwise(shown):
        assert next_place - place >= LETTER * (len(text) + len(next_text)) / 2


def test_every_load_has_its_label_where_there_is_room() -> None:
    callers = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    shown = labels(line_plot("x", "a", "b", [Series("s", tuple((n, 5.0) for n in callers))]))
    assert [text for _, text in shown] == ["1", "4", "8", "16", "32", "64", "128"]


def test_many_rates_without_a_round_one_among_them_still_have_labels() -> None:
    points = tuple((110.0 + n, 5.0) for n in range(20))
    assert labels(line_plot("x", "a", "b", [Series("s", points)]))


def test_a_legend_stays_within_the_picture() -> None:
    names = [
        "a server with quite a long name, on a card",
        "another server with a long name, on one",
        "n" * 300,
    ]
    svg = line_plot("t" * 300, "a", "b", [Series(name, ((1.0, 5.0), (2.0, 6.0))) for name in names])
    tree = ElementTree.fromstring(svg)
    height = float(tree.attrib["viewBox"].split()[3])
    legend = [one for one in tree.findall(f"{SVG}text") if one.attrib.get("class") is None]
    assert [one.text for one in legend[:2]] == names[:2]
    assert len({one.attrib["y"] for one in legend}) == 3  # a line each
    for one in [*legend, *tree.findall(f"{SVG}text[@class='title']")]:
        assert float(one.attrib["x"]) + LETTER * len(one.text or "") <= WIDTH and float(one.attrib["y"]) < height
    assert "n" * 300 in svg  # whole beside its points
