"""Charts as SVG."""

import builtins
import itertools
from xml.etree import ElementTree

import pytest

from oscine.errors import OscineError
from oscine_bench.plots import Series, line_plot, timeline_plot, waterfall_plot
from tests.oscine_bench.test_report import row

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def chart(*points: tuple[float, float], **options: bool) -> str:
    return line_plot("title", "x name", "y name", [Series("series", points)], **options)


def test_a_chart_names_its_title_axes_and_series() -> None:
    assert {"title", "x name", "y name", "series"} <= set(texts(chart((1.0, 5.0), (2.0, 8.0))))


def test_a_timeline_shades_each_stall() -> None:
    def shaded(late_s: float) -> int:
        example = row("open", 10, 0.1, late_s=late_s)["timelines"]["worst"]
        return timeline_plot("x", example).count("opacity: 0.25")

    assert (shaded(0.25), shaded(0.0)) == (1, 0)


def test_a_chart_without_points_says_so() -> None:
    assert "no figures" in texts(chart((1.0, 0.0)))
    assert "no figures" not in texts(chart((1.0, 0.0), (2.0, 3.0), log_y=False))


def test_a_logarithmic_axis_has_round_ticks_and_at_least_two() -> None:
    assert {"10", "20", "50", "100"} <= set(texts(chart((1.0, 11.0), (2.0, 90.0))))
    assert {"10", "20"} <= set(texts(chart((1.0, 10.5), (2.0, 14.0))))


def test_every_load_has_a_label_if_there_is_room() -> None:
    callers = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    assert texts(chart(*((n, 5.0) for n in callers)))[:7] == ["1", "4", "8", "16", "32", "64", "128"]


def test_labels_of_close_rates_have_three_digits_and_do_not_touch() -> None:
    rates = (100.0, 100.4, 113.137, 113.9, 118.921, 125.0, 134.543, 135.0, 160.0, 200.0)
    tree = ElementTree.fromstring(chart(*((rate, 5.0) for rate in rates)))
    axis = next(one for one in tree.iter(f"{SVG}g") if one.attrib.get("id") == "matplotlib.axis_1")
    labels = [(float(one.attrib["x"]), one.text) for one in axis.iter(f"{SVG}text") if "x" in one.attrib]
    shown = [text for _, text in labels][:-1]  # the last is the axis name
    assert shown[0] == "100" and "113" in shown and len(shown) < len(rates)
    places = [place for place, _ in labels][:-1]
    assert min(right - left for left, right in itertools.pairwise(places)) > 18


def test_steps_on_a_linear_axis_have_few_round_labels() -> None:
    labels = texts(chart(*((float(step), 2.0) for step in range(400, 62_000, 400)), log_x=False))
    assert "20,000" in labels and "60,000" in labels and len(labels) < 20


def test_long_names_are_shortened_in_the_middle() -> None:
    name = "a" * 100 + "the middle" + "z" * 100
    (shown,) = [
        text
        for text in texts(line_plot("t" * 300, "x", "y", [Series(name, ((1.0, 5.0),))]))
        if "…" in text[40:50] and text[0] == "a"
    ]
    assert len(shown) <= 90 and shown.endswith("zz")
    assert max(map(len, texts(line_plot("t" * 300, "x", "y", [Series("s", ((1.0, 5.0),))])))) <= 80


def test_the_same_points_give_the_same_svg() -> None:
    assert chart((1.0, 5.0), (2.0, 6.0)) == chart((1.0, 5.0), (2.0, 6.0))


def test_a_missing_matplotlib_is_reported_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_matplotlib(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(OscineError, match=r"pip install 'oscine\[bench\]'"):
        chart((1.0, 5.0))


def test_a_waterfall_names_each_stage_with_its_length() -> None:
    drawn = texts(waterfall_plot("title", "ms", [("parse", 1.25), ("prefill", 30.0), ("encode", 0.5)]))
    assert [one.strip() for one in drawn if ":" in one] == ["parse: 1.25", "prefill: 30", "encode: 0.5"]
