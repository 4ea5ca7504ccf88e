"""`oscine eval` end to end: real connections, real files, and a recognizer without errors."""

import errno
import importlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oscine.errors import OscineError
from oscine_bench.workload import Workload
from oscine_eval.command import eval_app
from tests.oscine_bench.scripted import in_a_thread
from tests.oscine_eval.tone_speech import SpeakingServer, installed_recognizer

pytestmark = pytest.mark.slow

NAMES = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
TEXTS = [f"Sentence {name} is said in full." for name in NAMES]
CUT, TWICE, ENDLESS, REFUSED = TEXTS[1], TEXTS[3], TEXTS[4], TEXTS[6]
SCRIPT = SpeakingServer(
    says={CUT: "Sentence bravo is", TWICE: f"{TWICE} {TWICE}", REFUSED: "refused"},
    ends={ENDLESS: "runaway"},
)


@pytest.fixture(scope="module")
def faulty() -> Iterator[str]:
    with in_a_thread(SCRIPT.serve) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def flawless() -> Iterator[str]:
    with in_a_thread(SpeakingServer().serve) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*TEXTS, TEXTS[0]]), encoding="utf-8")  # one of them twice
    return file


@pytest.fixture(autouse=True)
def recognizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setitem(sys.modules, "speechmos.dnsmos", None)
    folder = tmp_path / "libraries"
    folder.mkdir()
    with installed_recognizer(folder):
        yield folder


def evaluate(monkeypatch: pytest.MonkeyPatch, *words: object) -> Result:
    argv = [str(word) for word in words]
    monkeypatch.setattr(sys, "argv", ["oscine", "eval", *argv])
    return CliRunner().invoke(eval_app, argv, env={"COLUMNS": "300"})


def figures(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())["figures"]


def test_a_run_records_transcribes_scores_and_writes_a_page(
    faulty: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    ran = evaluate(monkeypatch, "run", faulty, "--texts", texts, "-c", 3, "--out", out, "--name", "ours")
    assert ran.exit_code == 1, ran.output
    assert "1 failed, first: http_400: unknown voice" in ran.output and "9 of 42 words" in ran.output
    result = json.loads((out / "result.json").read_text())
    assert result["kind"] == "oscine eval" and result["command"].endswith("-c 3 --name ours")
    assert result["figures"]["target"]["served"] == ["bell"]
    by_text = {one["text"]: one for one in result["figures"]["recordings"]}
    assert list(by_text) == TEXTS  # in their order, each once
    assert {text: one["flags"] for text, one in by_text.items() if one["flags"]} == {
        CUT: ["truncated"],
        TWICE: ["repeated"],
        ENDLESS: ["runaway"],
    }
    assert by_text[TEXTS[0]]["transcript"] == TEXTS[0] and by_text[REFUSED]["file"] is None
    assert sorted(path.name for path in out.glob("*.wav")) == [f"{n:03d}.wav" for n in range(8) if n != 6]
    assert "Sentence bravo is" in (out / "index.html").read_text()
    totals = result["figures"]["totals"]
    assert (totals["wer"]["count"], totals["wer"]["of"]) == (9, 42) and totals["dnsmos"] is None
    assert (totals["truncated"]["count"], totals["failed"]["count"], totals["failed"]["of"]) == (1, 1, 8)


def test_the_finish_reason_is_requested_and_seeds_do_not_depend_on_concurrency(
    faulty: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []
    for callers in (1, 4):
        out = tmp_path / str(callers)
        options = ("--repeat", 2, "--seed", 5, "-c", callers, "--voice", "wren")
        assert evaluate(monkeypatch, "run", faulty, "--texts", texts, "--out", out, *options).exit_code == 1
        seeds.append([(one["text"], one["take"], one["seed"]) for one in figures(out)["recordings"]])
    assert seeds[0] == seeds[1] and len({seed for _, _, seed in seeds[0]}) == 16
    asked = SCRIPT.requests[-1]
    assert asked["stream"] is False and "stream_format" not in asked and asked["voice"] == "wren"


def test_without_a_recognizer_recordings_are_kept_and_scored_later(
    flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "faster_whisper", None)
        ran = evaluate(missing, "run", flawless, "--texts", texts, "--out", out)
        assert (
            ran.exit_code == 0 and f"score them with: oscine eval score {out} --transcriber-python PYTHON" in ran.output
        )
        assert "not scored yet" in (out / "index.html").read_text()
        refused = evaluate(missing, "run", flawless, "--texts", texts, "--out", tmp_path / "b", "--recognizer", "tiny")
        assert "faster-whisper is not installed" in str(refused.exception) and not (tmp_path / "b").exists()
    scored = evaluate(monkeypatch, "score", out, "--transcriber-python", sys.executable, "--no-dnsmos")
    assert scored.exit_code == 0, scored.output
    assert figures(out)["totals"]["wer"]["value"] == 0 and "0 of 48 words" in scored.output
    assert "faster-whisper" in (out / "index.html").read_text()


def test_two_runs_are_compared(flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, *options in (("one", "-c", 1), ("eight", "-c", 8), ("hurried", "--voice", "hurried")):
        ran = evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", tmp_path / name, *options)
        assert ran.exit_code == 0, ran.output
    same = evaluate(monkeypatch, "compare", tmp_path / "one", tmp_path / "eight" / "result.json")
    assert same.exit_code == 0, same.output
    assert "all 8 recordings are equal" in same.stdout and "no difference beyond noise: every" in same.stdout
    assert "concurrency: 1 and 8" in same.stderr
    saved = tmp_path / "compare.json"
    other = evaluate(monkeypatch, "compare", tmp_path / "one", tmp_path / "hurried", "--out", saved)
    assert "hurried is worse in WER: +50.0 points" in other.stdout and "voice: None and hurried" in other.stderr
    assert json.loads(saved.read_text())["figures"]["differences"]["truncated"]["verdict"] == "second worse"


def test_a_result_without_its_recordings_can_still_be_compared(
    flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", tmp_path / "a").exit_code == 0
    shutil.copy(tmp_path / "a" / "result.json", tmp_path / "alone.json")
    found = evaluate(monkeypatch, "compare", tmp_path / "a", tmp_path / "alone.json")
    assert found.exit_code == 0 and "recordings are equal" not in found.stdout and "no difference" in found.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--voice", "nobody"), "failed on all of the first 3 texts: http_400: unknown voice"),
        (("--extra", "[1]"), "--extra must be a JSON object"),
        (("--target", "nary"), "did you mean 'nari'"),
        (("--repeat", "0"), "--repeat must be at least 1"),
        (("--concurrency", "0", "--recognizer", "nowhere"), "the number of callers must be an integer above 0"),
        (("--timeout", "0", "--recognizer", "nowhere"), "--timeout must be above 0"),
        (("--similarity", "x.onnx"), "--similarity needs --reference"),
        (("--reference", "x.wav"), "--reference needs --similarity"),
        (("--recognizer", "nowhere"), "unknown recognizer 'nowhere'"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--language", "klingon"), "knows en, zh, not 'klingon'; choose another one with --recognizer"),
    ],
)
def test_wrong_options_are_one_clear_error_before_recording(
    flawless: str, texts: Path, words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", tmp_path / "out", *words)
    assert ran.exit_code != 0 and said in str(ran.exception)
    assert not (tmp_path / "out").exists()


def test_texts_in_a_language_unknown_to_the_recognizer_are_refused_before_recording(
    flawless: str, recognizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--texts", "chinese", "--recognizer", recognizer / "english", "--out", tmp_path / "out")
    ran = evaluate(monkeypatch, "run", flawless, *options)
    assert "knows en, but 34 of 34 texts seem to be in another language" in str(ran.exception)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, texts):
        ran = evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", place)
        assert "is not an empty folder" in str(ran.exception)
    (tmp_path / "result.json").write_text("{}")
    ran = evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", tmp_path)
    assert "already holds a result" in str(ran.exception)
    assert "is not a result of `oscine eval run`" in str(evaluate(monkeypatch, "score", tmp_path).exception)
    assert "cannot read" in str(evaluate(monkeypatch, "score", tmp_path / "none").exception)


def test_a_comparison_replaces_only_a_comparison(
    flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, saved = tmp_path / "one", tmp_path / "compare.json"
    one.mkdir()  # an empty folder is as good as a new one
    assert evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", one).exit_code == 0
    for _ in range(2):
        assert evaluate(monkeypatch, "compare", one, one, "--out", saved).exit_code == 0
    for other in (texts, one / "result.json", one):
        before = other.read_bytes() if other.is_file() else b""
        refused = evaluate(monkeypatch, "compare", one, one, "--out", other)
        assert "was not made by `oscine eval compare`" in str(refused.exception)
        assert not before or other.read_bytes() == before


def first_texts(count: int) -> list[str]:
    return [one.text for one in itertools.islice(Workload("", tuple(TEXTS)).requests("warmup"), count)]


@pytest.mark.parametrize("refused", [2, 3])
def test_a_refused_text_does_not_stop_the_others(
    refused: int, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = b"HTTP/1.1 500 Oh\r\ncontent-length: 400\r\n\r\n" + b"no!\n" * 100
    server, out = SpeakingServer(says=dict.fromkeys(first_texts(refused), "refused"), refusal=answer), tmp_path / "out"
    with in_a_thread(server.serve) as port:
        ran = evaluate(monkeypatch, "run", f"http://127.0.0.1:{port}", "--texts", texts, "--out", out)
    assert ran.exit_code == 1
    if refused == 3:
        assert str(ran.exception).endswith("failed on all of the first 3 texts: http_500: " + "no! " * 74 + "no!")
        assert len(server.requests) == 3 and not out.exists()
        return
    assert "2 failed, first: http_500: no! no!" in ran.output and figures(out)["totals"]["failed"]["count"] == 2
    scored = evaluate(monkeypatch, "score", out)
    assert scored.exit_code == 1 and "2 failed" in scored.output


def test_an_unreachable_server_leaves_no_folder(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_a_thread(SpeakingServer().serve) as port:
        pass
    ran = evaluate(monkeypatch, "run", f"http://127.0.0.1:{port}", "--texts", texts, "--out", tmp_path / "out")
    assert "failed: connect" in str(ran.exception) and "running?" in str(ran.exception)
    assert not (tmp_path / "out").exists()


def interrupted_text(recordings: int) -> str:
    """A text requested after so many recordings, and not the one that checks the server."""
    order = [one.text for one in itertools.islice(Workload("", tuple(TEXTS)).requests(), len(TEXTS))]
    return next(text for text in order[recordings:] if text not in first_texts(1))


def test_an_interrupt_keeps_the_recordings_so_far(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, server = tmp_path / "out", SpeakingServer(interrupted_at=interrupted_text(3))
    with in_a_thread(server.serve) as port:
        url = f"http://127.0.0.1:{port}"
        ran = evaluate(monkeypatch, "run", url, "--texts", texts, "--out", out, "--no-dnsmos")
    made = len(server.requests) - 2  # less the first one and the last one
    assert ran.exit_code == 130 and made >= 3
    assert f"ended after {made} of 8 recordings" in ran.output
    assert f"score them with: oscine eval score {out} --no-dnsmos\n" in ran.output
    assert len(figures(out)["recordings"]) == made == len(list(out.glob("*.wav"))) and (out / "index.html").exists()
    assert evaluate(monkeypatch, "score", out, "--no-dnsmos").exit_code == 0
    assert figures(out)["totals"]["wer"]["value"] == 0


def test_an_interrupt_while_transcribing_loses_nothing(
    flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*sound: object, **options: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as impatient:
        impatient.setattr(importlib.import_module("faster_whisper").WhisperModel, "transcribe", interrupt)
        ran = evaluate(impatient, "run", flawless, "--texts", texts, "--out", out)
        assert ran.exit_code == 130 and f"kept; score them with: oscine eval score {out}\n" in ran.output
        before = (out / "result.json").read_text()
        scored = evaluate(impatient, "score", out)
        assert scored.exit_code == 130 and f"the result in {out} is unchanged" in scored.output
        assert (out / "result.json").read_text() == before
    assert evaluate(monkeypatch, "score", out).exit_code == 0 and figures(out)["totals"]["wer"]["value"] == 0


@pytest.mark.parametrize(("method", "file", "kept"), [("write_bytes", "003.wav", 7), ("write_text", "index.html", 8)])
def test_a_full_disk_is_one_error_and_the_recordings_are_kept(
    method: str, file: str, kept: int, flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = getattr(Path, method)

    def write(path: Path, *content: object, **options: object) -> object:
        if path.name == file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, *content, **options)

    out = tmp_path / "out"
    with monkeypatch.context() as full:
        full.setattr(Path, method, write)
        ran = evaluate(full, "run", flawless, "--texts", texts, "--out", out, "-c", 1)
    assert isinstance(ran.exception, OscineError) and "No space left" in str(ran.exception)
    assert f"'{out / file}'" in str(ran.exception)
    recorded = figures(out)["recordings"]
    assert 0 < len(recorded) <= kept and all((out / one["file"]).exists() for one in recorded)


def test_a_language_can_be_named_after_recording(
    flawless: str, recognizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out = tmp_path / "mixed.txt", tmp_path / "out"
    texts.write_text("Say 你好 to them.\nGood morning.", encoding="utf-8-sig")  # as some editors begin a file
    assert evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", out).exit_code == 0
    assert [(one["text"], one["language"]) for one in figures(out)["recordings"]] == [
        ("Say 你好 to them.", None),
        ("Good morning.", "en"),
    ]
    english = ("--recognizer", recognizer / "english")
    assert "name the language with --language" in str(evaluate(monkeypatch, "score", out, *english).exception)
    unknown = str(evaluate(monkeypatch, "score", out, *english, "--language", "chinese").exception)
    assert "knows en, not 'chinese'" in unknown and "--language" not in unknown
    assert evaluate(monkeypatch, "score", out, *english, "--language", "English").exit_code == 0
    assert [one["language"] for one in figures(out)["recordings"]] == ["en", "en"]


def test_a_seed_that_was_not_sent_is_not_recorded(
    flawless: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = evaluate(monkeypatch, "run", flawless, "--texts", texts, "--out", tmp_path / "a", "--target", "openai")
    assert ran.exit_code == 0 and {one["seed"] for one in figures(tmp_path / "a")["recordings"]} == {None}
    assert evaluate(monkeypatch, "score", tmp_path / "a").exit_code == 0
