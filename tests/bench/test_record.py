"""Results as files."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from oscine.bench.record import check_writable, read_result, script_result, shown_command, write_result
from oscine.bench.report import html, markdown
from oscine.types import OscineError, RequestError
from tests.bench.test_report import BOTH


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


def test_a_result_holds_no_nan(tmp_path: Path) -> None:
    write_result(tmp_path / "x.json", BOTH[1])
    json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)


def test_what_is_no_number_is_written_as_null_and_nothing_is_lost(tmp_path: Path) -> None:
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
    assert html([read])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (("name",), "it has no 'name'"),
        (("versions",), "it has no 'versions'"),
        (("versions", "python"), "versions has no 'python'"),
        (("figures", "loads"), "figures has no 'loads'"),
        (("figures", "loads", 1, "client"), "figures.loads[1] has no 'client'"),
        (("figures", "loads", 0, "audio_s"), "figures.loads[0] has no 'audio_s'"),
        (("figures", "search", "limits"), "figures.search has no 'limits'"),
    ],
)
def test_a_result_that_is_not_whole_says_what_it_lacks(tmp_path: Path, path: tuple[Any, ...], said: str) -> None:
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
    assert str(raised.value).endswith(f"is no whole result of `oscine bench run`: {said}")


def test_a_result_of_the_wrong_shape_is_refused_as_well(tmp_path: Path) -> None:
    for figures in ([], None, {**BOTH[0]["figures"], "loads": {}}, {**BOTH[0]["figures"], "search": 3}):
        (tmp_path / "x.json").write_text(json.dumps({**BOTH[0], "figures": figures}))
        with pytest.raises(RequestError, match=r"`oscine bench run`: figures.* cannot be"):
            read_result(tmp_path / "x.json")


def test_a_result_knows_its_file_and_only_that(tmp_path: Path) -> None:
    write_result(tmp_path / "x.json", BOTH[0])
    assert read_result(tmp_path / "x.json")["file"] == "x.json"


def test_a_result_of_another_command_is_told_whose_are_read(tmp_path: Path) -> None:
    write_result(tmp_path / "x.json", script_result("small", ["bench", "model"], {}, program="oscine"))
    with pytest.raises(RequestError, match=r"x\.json' is no result of `oscine bench run` or `search`$"):
        read_result(tmp_path / "x.json")
    with pytest.raises(RequestError, match=r"is no result of `oscine eval run`$"):
        read_result(tmp_path / "x.json", "oscine eval", 1, "oscine eval run")


def test_a_place_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "x.json", tmp_path / "file" / "deep" / "x.json"):
        with pytest.raises(RequestError, match=r"--out .* cannot be written; give a file in a folder of yours"):
            check_writable(place)
    for place in (tmp_path / "file", tmp_path / "x.json", tmp_path / "new" / "deep" / "x.json"):
        check_writable(place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
