"""`oscine bench` from the command line."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oscine_bench.command import bench_app
from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.http_client import HttpClient
from oscine_bench.search import RateSearch
from oscine_bench.workload import PlannedRequest
from tests.oscine_bench.scripted import END, HEAD, REFUSED, answer_requests, chunk, in_a_thread, speech

pytestmark = pytest.mark.slow


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Half a second of audio, at once."""
    sound = HEAD + chunk(speech(0.3)) + chunk(speech(0.2, 1)) + END
    await answer_requests(
        reader, writer, "tiny", lambda request: REFUSED if request.get("voice") == "nobody" else sound
    )


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with in_a_thread(answers) as port:
        yield f"http://127.0.0.1:{port}"


def bench(monkeypatch: pytest.MonkeyPatch, *words: object) -> Result:
    argv = [str(word) for word in words]
    monkeypatch.setattr(sys, "argv", ["oscine", "bench", *argv])
    return CliRunner().invoke(bench_app, argv, env={"COLUMNS": "300"})


def test_a_run_prints_a_table_and_writes_its_result(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, records = tmp_path / "ours.json", tmp_path / "all.jsonl"
    loads = ("-c", "1,2", "-r", "100", "-n", 4, "--warmup", 0)
    ran = bench(monkeypatch, "run", server, *loads, "--out", out, "--records", records, "--name", "ours")
    assert ran.exit_code == 0, ran.output
    assert "closed loop, 2" in ran.output and "open loop, 100/s" in ran.output
    result = json.loads(out.read_text())
    assert [row["load"]["value"] for row in result["figures"]["loads"]] == [1, 2, 100]
    assert all(row["succeeded"] == 4 for row in result["figures"]["loads"])
    assert result["figures"]["target"]["served"] == ["tiny"]
    assert result["command"] == f"oscine bench run {server} -c 1,2 -r 100 -n 4 --warmup 0 --name ours"
    assert len(records.read_text().splitlines()) == 12


def test_a_name_is_not_parsed_as_markup(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = bench(monkeypatch, "run", server, "-c", "1", "-n", 1, "--warmup", 0, "--name", "[/red] ours")
    assert ran.exit_code == 0, ran.exception
    assert "[/red] ours (times: p50 / p95 ms)" in ran.output


def test_the_figures_of_a_load_can_be_recomputed_from_its_records(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, records = tmp_path / "ours.json", tmp_path / "all.jsonl"
    for _ in range(2):  # the second run replaces the file
        ran = bench(monkeypatch, "run", server, "-c", 2, "-n", 6, "--warmup", 0.05, "--out", out, "--records", records)
        assert ran.exit_code == 0, ran.output
    each = [json.loads(line) for line in records.read_text().splitlines()]
    counted = [one for one in each if one["measured"]]
    (row,) = json.loads(out.read_text())["figures"]["loads"]
    window_s = max(one["sent_s"] + one["e2e_s"] for one in each)
    assert len(counted) == 6 and all(one["text"] and one["seed"] >= 0 for one in each)
    assert row["window_s"] == pytest.approx(window_s, rel=1e-4)
    ended = sum(one["sent_s"] + one["e2e_s"] > 0 for one in each)
    assert row["requests_per_s"] == pytest.approx(ended / window_s, rel=1e-4)


def test_a_load_without_any_success_exits_with_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = iter([HEAD + chunk(speech(0.3)) + END])

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_requests(reader, writer, "tiny", lambda request: next(responses, REFUSED))

    with in_a_thread(once) as port:
        ran = bench(monkeypatch, "run", f"http://127.0.0.1:{port}", "-c", 1, "-n", 2, "--warmup", 0)
    assert ran.exit_code == 1
    assert "closed loop, 1: http_400, 2 times, first: unknown voice" in ran.output


def test_a_lost_server_ends_the_run_and_keeps_the_measured_loads(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = HttpClient.send
    sent: list[PlannedRequest] = []

    async def until_the_fourth(client: HttpClient, request: PlannedRequest, due_s: float | None = None) -> Exchange:
        sent.append(request)
        if len(sent) < 4:
            return await send(client, request, due_s)
        return Exchange(request, 0.0, 0.0, 0.0, failure=RequestFailure("connect", "refused"))

    monkeypatch.setattr(HttpClient, "send", until_the_fourth)
    monkeypatch.setattr("oscine_bench.load.DEFAULT_WAIT_S", 0.0)
    out = tmp_path / "gone.json"
    ran = bench(monkeypatch, "run", server, "-c", "1,2,3,4", "-n", 2, "--warmup", 0, "--out", out)
    assert f"lost the server at {server}; 2 of 4 loads were not measured" in str(ran.exception)
    assert [row["succeeded"] for row in json.loads(out.read_text())["figures"]["loads"]] == [2, 0]
    assert "closed loop, 2" in ran.output


def test_a_report_is_markdown_a_page_and_plots(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "one.json"
    assert bench(monkeypatch, "run", server, "-c", 1, "-n", 2, "--warmup", 0, "--out", out).exit_code == 0
    ran = bench(monkeypatch, "report", out)
    assert ran.stdout.startswith("### oscine") and "| closed loop, 1 | 2 |" in ran.stdout
    page, plots = tmp_path / "page.html", tmp_path / "plots"
    assert bench(monkeypatch, "report", out, out, "--html", page, "--plots", plots).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert (plots / "x-real-time.svg").exists()


def test_a_search_prints_the_rate(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "search.json"
    options = ("--first", 50, "--max-rate", 100, "-n", 3, "--warmup", 0, "--p95-ms", 1e6, "--underrun-ms", "inf")
    ran = bench(monkeypatch, "search", server, *options, "--out", out)
    assert ran.exit_code == 0, ran.output
    assert "100 requests/s hold" in ran.output
    assert json.loads(out.read_text())["figures"]["search"]["rate_per_s"] == 100


@pytest.fixture(scope="module")
def small_server() -> Iterator[str]:
    """Reports its capacity."""

    async def answers_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sound = HEAD + chunk(speech(0.3)) + chunk(speech(0.2, 1)) + END
        await answer_requests(reader, writer, "tiny", lambda request: sound, real_time_streams=6)

    with in_a_thread(answers_all) as port:
        yield f"http://127.0.0.1:{port}"


LENIENT = ("-n", 3, "--warmup", 0, "--p95-ms", 1e6, "--underrun-ms", "inf")


def test_a_search_starts_at_the_capacity_that_the_server_reports(
    small_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "search.json"
    ran = bench(monkeypatch, "search", small_server, *LENIENT, "--max-rate", 24, "--out", out)
    assert ran.exit_code == 0, ran.output
    figures = json.loads(out.read_text())["figures"]
    assert [row["load"]["value"] for row in figures["loads"]] == [12, 24]  # 6 streams of 0.5 s
    assert "6 streams in real time, and a response has 0.5 s: starting at 12 requests/s" in ran.output
    assert figures["search"]["complete"] and "to the end" not in ran.output


def test_a_search_says_what_comes_and_what_came(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = bench(monkeypatch, "search", server, *LENIENT, "--max-rate", 2, "--first", 2)
    assert "open loop, 2/s: takes 2 s and the last responses; at most 9 more rates, within" in ran.output
    assert re.search(r"open loop, 2/s: holds \(after \d+ s\)", ran.output)
    ran = bench(monkeypatch, "search", server, *LENIENT, "--max-rate", 1)
    assert "the server does not report its capacity; starting at 1 request/s" in ran.output


def test_a_search_measures_low_rates_long_enough_for_a_p95(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "search.json"
    options = ("--first", 40, "--max-rate", 40, "-d", 0.01, "--warmup", 0, "--p95-ms", "inf", "--underrun-ms", "inf")
    assert bench(monkeypatch, "search", server, *options, "--out", out).exit_code == 0
    figures = json.loads(out.read_text())["figures"]
    assert figures["loads"][0]["window_s"] == pytest.approx(0.75)  # 30 requests at 40 a second
    assert figures["search"]["limits"]["p95_ms"] is None


def test_an_interrupted_search_keeps_and_shows_the_tried_rates(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(RateSearch):
        def add(self, rate: float, held: bool) -> None:
            assert held
            raise KeyboardInterrupt

    monkeypatch.setattr("oscine_bench.benchmark.RateSearch", Interrupted)
    out = tmp_path / "search.json"
    options = ("--first", 50, "-n", 3, "--warmup", 0, "--p95-ms", 1e6, "--underrun-ms", "inf", "--out", out)
    ran = bench(monkeypatch, "search", server, *options)
    assert ran.exit_code == 130
    assert "open loop, 50/s" in ran.output and "interrupted; loads measured: 1, saved in" in ran.output
    assert json.loads(out.read_text())["figures"]["search"]["rate_per_s"] == 50


def test_a_time_limit_that_is_too_short_for_one_rate_is_an_error(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = bench(monkeypatch, "search", server, "--first", 1, "--time-limit-s", 15)
    assert "--time-limit-s 15 is too short: the first rate, 1/s, takes 35 s" in str(ran.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--time-limit-s", 0), "--time-limit-s must be above 0, got 0"),
        (("--resolution", 0), "--resolution must be above 0, got 0"),
        (("--max-rate", 0), "--max-rate must be above 0, got 0"),
        (("--max-rate", "nan"), "--max-rate must be above 0, got nan"),
        (("--first", 0), "--first must be above 0 and at most --max-rate 500, got 0"),
        (("--first", 3, "--max-rate", 2), "--first must be above 0 and at most --max-rate 2, got 3"),
    ],
)
def test_an_impossible_bound_of_a_search_is_named(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str | float, ...], message: str
) -> None:
    assert message == str(bench(monkeypatch, "search", "http://127.0.0.1:9", *words).exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--voice", "nobody"), "failed (http_400): unknown voice"),
        (("--extra", "[1]"), "--extra must be a JSON object"),
        (("--extra", "{"), "--extra is not JSON"),
        (("-c", "one"), "--concurrency takes numbers"),
        (("-c", ","), "--concurrency takes numbers"),
        (("--out", "/"), "cannot write --out '/'"),
        (("--records", "/"), "cannot write '/'"),
        (("-t", "oscine-ws", "--words-ms", "nan"), "--words-ms must be above 0"),
        (("--target", "nary"), "did you mean 'nari'"),
        (("--words-ms", "5"), "needs --target oscine-ws"),
        *((("--price-per-hour", price), f"above 0, got {price}") for price in ("0", "-1", "inf", "nan")),
    ],
)
def test_an_impossible_request_is_one_clear_error(
    server: str, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = bench(monkeypatch, "run", server, *words)
    assert ran.exit_code != 0 and message in str(ran.exception)


def test_an_unreachable_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = bench(monkeypatch, "run", "http://127.0.0.1:9")
    assert "is it running?" in str(ran.exception)
