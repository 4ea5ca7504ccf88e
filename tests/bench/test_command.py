"""`oscine bench` as a user meets it."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bench.scripted import END, HEAD, REFUSED, answer_requests, chunk, in_a_thread, speech
from typer.testing import CliRunner, Result

from oscine.bench.command import bench_app


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Half a second of sound, at once."""
    sound = HEAD + chunk(speech(0.3)) + chunk(speech(0.2, 1)) + END
    await answer_requests(reader, writer, "tiny", lambda asked: REFUSED if asked.get("voice") == "nobody" else sound)


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


def test_a_report_is_markdown_a_page_and_plots(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "one.json"
    assert bench(monkeypatch, "run", server, "-c", 1, "-n", 2, "--warmup", 0, "--out", out).exit_code == 0
    told = bench(monkeypatch, "report", out)
    assert told.stdout.startswith("### oscine") and "| closed loop, 1 | 2 |" in told.stdout
    page, plots = tmp_path / "page.html", tmp_path / "plots"
    assert bench(monkeypatch, "report", out, out, "--html", page, "--plots", plots).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert (plots / "x-real-time.svg").exists()


def test_a_search_names_the_rate(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "search.json"
    options = ("--first", 50, "--most", 100, "-n", 3, "--warmup", 0, "--p95-ms", 1e6, "--underrun-ms", "inf")
    ran = bench(monkeypatch, "search", server, *options, "--out", out)
    assert ran.exit_code == 0, ran.output
    assert "100 requests/s hold" in ran.output
    assert json.loads(out.read_text())["figures"]["search"]["rate_per_s"] == 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--voice", "nobody"), "did not answer the first request (http_400): unknown voice"),
        (("--extra", "[1]"), "--extra must be a JSON object"),
        (("--extra", "{"), "--extra is not JSON"),
        (("-c", "one"), "--concurrency takes numbers"),
        (("--target", "nary"), "did you mean 'nari'"),
        (("--words-ms", "5"), "goes with --target oscine-ws"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_error(
    server: str, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = bench(monkeypatch, "run", server, *words)
    assert ran.exit_code != 0 and said in str(ran.exception)


def test_an_address_where_nobody_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = bench(monkeypatch, "run", "http://127.0.0.1:9")
    assert "is it running?" in str(ran.exception)
