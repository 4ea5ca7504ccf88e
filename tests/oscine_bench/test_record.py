"""Result files."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from oscine.errors import OscineError, RequestError
from oscine_bench.record import check_writable, read_result, script_result, shown_command, write_result
from oscine_bench.report import html, markdown
from tests.oscine_bench.test_report import BOTH


def test_a_result_has_its_origin_and_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "ours.json"
    write_result(path, BOTH[0])
    read = read_result(path)
    assert {"date", "commit", "command", "machine", "versions"} <= read.keys()
    assert read["command"] == "oscine bench run http://localhost:8000 -c 1,8"
    assert markdown([read]) == markdown([BOTH[0]])


def test_the_shown_command_has_no_keys_and_no_paths() -> None:
    argv = ["bench", "run", "x", "--api-key", "sk-1", "--out", "/home/me/a.json", "--records=/r", "--frames", "56"]
    assert shown_command(argv) == "oscine bench run x --frames 56"
    assert shown_command(["bench", "--api-key=sk-1", "run", "-o", "/home/me/a.json", "x y"]) == "oscine bench run 'x y'"


def test_files_that_are_not_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content, said in (("{", "cannot read"), ("[]", "not a result"), ('{"kind": "oscine bench"}', "format None")):
        path.write_text(content)
        with pytest.raises(RequestError, match=said):
            read_result(path)
    with pytest.raises(OscineError, match="cannot write"):
        write_result(tmp_path, BOTH[0])


def test_a_result_holds_no_nan(tmp_path: Path) -> None:
    write_result(tmp_path / "x.json", BOTH[1])
    json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)


def test_non_finite_numbers_are_written_as_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = copy.deepcopy(BOTH[0])
    odd["figures"]["loads"][0]["x_real_time"] = math.inf
    odd["figures"]["loads"][0]["e2e_ms"]["p95"] = math.nan
    odd["figures"]["target"]["fields"] = {"top_p": -math.inf, "clip": Path("a.wav")}
    write_result(tmp_path / "x.json", odd)
    json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
    read = read_result(tmp_path / "x.json")
    first = read["figures"]["loads"][0]
    assert first["x_real_time"] is None and first["e2e_ms"]["p95"] is None and first["e2e_ms"]["p50"] == 1000
    assert read["figures"]["target"]["fields"] == {"top_p": None, "clip": "a.wav"}
    assert "| closed loop, 1 | 1 | - | 2.00 | - | 1 | 20 / 20 | 20 / 20 | 1000 / - |" in markdown([read])
    monkeypatch.setattr("oscine_bench.report.line_plot", lambda *_: "")
    monkeypatch.setattr("oscine_bench.report.timeline_plot", lambda *_: "")
    assert html([read])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("name",), "Object missing required field `name`"),
        (("versions",), "Object missing required field `versions`"),
        (("versions", "python"), "Object missing required field `python` - at `$.versions`"),
        (("figures", "loads"), "Object missing required field `loads` - at `$.figures`"),
        (("figures", "loads", 1, "client"), "Object missing required field `client` - at `$.figures.loads[1]`"),
        (("figures", "loads", 0, "audio_s"), "Object missing required field `audio_s` - at `$.figures.loads[0]`"),
        (("figures", "search", "limits"), "Object missing required field `limits` - at `$.figures.search`"),
    ],
)
def test_an_incomplete_result_names_the_missing_field(tmp_path: Path, path: tuple[Any, ...], message: str) -> None:
    broken = copy.deepcopy(BOTH[0])
    limits = {"figure": "first_audio_ms", "p95_ms": 50.0, "underrun_ms": None}
    broken["figures"]["search"] = {"rate_per_s": 1.0, "limits": limits}
    write_result(tmp_path / "x.json", broken)
    read_result(tmp_path / "x.json")
    inner: Any = broken
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    write_result(tmp_path / "x.json", broken)
    with pytest.raises(RequestError) as raised:
        read_result(tmp_path / "x.json")
    assert str(raised.value).endswith(f"is not a complete result of `oscine bench run`: {message}")


def test_a_result_with_wrong_types_is_refused(tmp_path: Path) -> None:
    for figures in (
        [],
        None,
        {**BOTH[0]["figures"], "loads": {}},
        {**BOTH[0]["figures"], "loads": []},
        {**BOTH[0]["figures"], "search": 3},
    ):
        (tmp_path / "x.json").write_text(json.dumps({**BOTH[0], "figures": figures}))
        with pytest.raises(RequestError, match=r"`oscine bench run`: Expected .* - at `\$\.figures"):
            read_result(tmp_path / "x.json")


def test_a_result_holds_its_file_name_but_not_its_folder(tmp_path: Path) -> None:
    write_result(tmp_path / "x.json", BOTH[0])
    assert read_result(tmp_path / "x.json")["file"] == "x.json"


def test_a_result_of_another_command_is_refused(tmp_path: Path) -> None:
    write_result(tmp_path / "x.json", script_result("small", ["bench", "model"], {}, program="oscine"))
    with pytest.raises(RequestError, match=r"x\.json' is not a result of `oscine bench run`$"):
        read_result(tmp_path / "x.json")
    with pytest.raises(RequestError, match=r"is not a result of `oscine eval run`$"):
        read_result(tmp_path / "x.json", "oscine eval", 1, "oscine eval run")


def test_an_unwritable_path_is_refused_in_advance(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "x.json", tmp_path / "file" / "deep" / "x.json"):
        with pytest.raises(RequestError, match=r"cannot write --out .*; choose a file in a writable folder"):
            check_writable(place)
    for place in (tmp_path / "file", tmp_path / "x.json", tmp_path / "new" / "deep" / "x.json"):
        check_writable(place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
