"""`oscine say --subtitles`, with a scripted aligner and an engine that speaks at once."""

from pathlib import Path

import pytest

import oscine.api
from tests.align.scripted_whisper import scripted_whisper
from tests.commands.test_main import Shell, check_refusal
from tests.commands.test_say import LONG, InstantEngine

pytestmark = pytest.mark.slow


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(oscine.api, "build_engine", lambda *args, **kwargs: InstantEngine())
    monkeypatch.syspath_prepend(tmp_path / "library")
    return Shell(tmp_path, capsys, monkeypatch)


@pytest.fixture
def whisper(tmp_path: Path) -> Path:
    return scripted_whisper(tmp_path)


def words_of(subtitles: str) -> list[str]:
    blocks = subtitles.removeprefix("WEBVTT\n\n").split("\n\n")
    return [word for block in blocks for line in block.strip().split("\n")[2:] for word in line.split()]


@pytest.mark.parametrize("name", ["out.srt", "out.vtt"])
def test_subtitles_hold_every_word_of_a_long_text(shell: Shell, whisper: Path, name: str) -> None:
    ran = shell("say", LONG, "-o", "out.wav", "--subtitles", name, "--aligner", whisper)
    assert ran.code == 0, ran.err
    text = Path(name).read_text(encoding="utf-8")
    assert words_of(text) == LONG.split()
    assert text.startswith("WEBVTT") == name.endswith("vtt")
    assert Path("out.wav").exists()


def test_every_line_of_a_file_has_its_subtitles(shell: Shell, whisper: Path) -> None:
    Path("lines.txt").write_text("Hello there.\nGood bye.\n", encoding="utf-8")
    ran = shell("say", "--file", "lines.txt", "-o", "sounds", "--subtitles", "subtitles", "--aligner", whisper)
    assert ran.code == 0, ran.err
    assert [words_of(Path(f"subtitles/00{number}.srt").read_text()) for number in (1, 2)] == [
        ["Hello", "there."],
        ["Good", "bye."],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--subtitles", "out.srt"], "--subtitles needs --aligner"),
        (["--subtitles", "out.txt", "--aligner", "whisper"], "unknown subtitle format 'txt'"),
        (["--subtitles", "missing/out.srt", "--aligner", "whisper"], "there is no folder 'missing'"),
        (["--aligner", "whisper"], "--aligner is for --subtitles"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_spoken(
    shell: Shell, whisper: Path, options: list[str], message: str
) -> None:
    check_refusal(shell("say", "Hello.", "-o", "out.wav", *options), 2, message)
    assert not Path("out.wav").exists()


def test_a_folder_without_a_model_is_refused(shell: Shell) -> None:
    ran = shell("say", "Hello.", "--subtitles", "out.srt", "--aligner", ".")
    assert ran.code == 1 and "has no model.bin" in ran.err


def test_an_aligner_that_fails_costs_only_the_subtitles(shell: Shell, whisper: Path) -> None:
    (whisper / "behavior").write_text("fail")
    ran = shell("say", "Hello.", "-o", "out.wav", "--subtitles", "out.srt", "--aligner", whisper)
    assert ran.code == 1 and "no memory" in ran.err
    assert Path("out.wav").exists() and not Path("out.srt").exists()
