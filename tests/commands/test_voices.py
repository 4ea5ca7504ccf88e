"""`oscine voices`: the server's folder of voices, managed from the command line."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner, Result

from oscine.commands.main import app
from oscine.errors import OscineError, RequestError
from oscine.voice import Voice
from tests.conftest import CheckpointMaker
from tests.speech_like import speech_like

pytestmark = pytest.mark.slow

VARIABLE = "OSCINE_SERVE_SERVER__VOICES_DIR"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    Voice(np.zeros(8, np.float32)).save("me.safetensors")
    return tmp_path


def voices(*words: object) -> Result:
    return CliRunner().invoke(app, ["voices", *map(str, words)])


def added(name: str, *words: object) -> str:
    ran = voices("add", name, "me.safetensors", "--consent", "yes", *words)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def names(*words: object) -> list[str]:
    ran = voices("list", "--json", *words)
    assert ran.exit_code == 0, ran.output
    return [one["name"] for one in json.loads(ran.stdout) if one["mode"] != "preset"]


def refusal(*words: object) -> str:
    error = voices(*words).exception
    assert isinstance(error, RequestError), error
    assert "\n" not in str(error) and "/v1/" not in str(error)  # no advice for clients of a server
    return str(error)


def test_names_and_consents_cannot_write_to_the_terminal() -> None:
    assert voices("add", "[/red] anna", "me.safetensors", "--consent", "\x1b]0;owned\x07 yes\x9b2J").exit_code == 0
    listed = voices("list")
    assert listed.exit_code == 0 and "[/red] anna" in listed.output and r"\x1b]0;owned\x07 yes\x9b2J" in listed.output
    assert not {"\x1b", "\x07", "\x9b"} & set(listed.output)


@pytest.mark.parametrize("consent", ["[/red] yes", "[bold]yes", ":smile: \\"])
def test_a_consent_is_shown_verbatim(consent: str) -> None:
    assert voices("add", "anna", "me.safetensors", "--consent", consent).exit_code == 0
    ran = voices("list")
    assert ran.exit_code == 0 and consent in ran.stdout


@pytest.mark.parametrize("consent", [[], ["--consent", ""], ["--consent", "x" * 1025]], ids=["none", "empty", "long"])
def test_no_voice_is_kept_without_a_note_of_consent(consent: list[str]) -> None:
    assert "--consent takes 1 to 1024 characters" in refusal("add", "anna", "me.safetensors", *consent)
    assert names() == []


@pytest.mark.parametrize(("option", "value"), [("--ref-text", "x"), ("-m", "nonsense"), ("--ref-text", "")])
def test_options_of_a_clip_are_refused_with_a_voice_file(option: str, value: str) -> None:
    said = refusal("add", "anna", "me.safetensors", "--consent", "yes", option, value)
    assert "is for clips; leave it out for a voice file" in said
    assert names() == []


def test_preset_voices_are_listed_first() -> None:
    added("anna")
    listed = json.loads(voices("list", "--json").stdout)
    assert [(one["name"], one["mode"]) for one in listed[:2]] == [("wren", "preset"), ("finch", "preset")]
    assert listed[2]["name"] == "anna"
    assert "preset of demo" in voices("list").stdout


def test_what_is_wrong_with_a_clip_is_said_and_the_voice_is_added(small_checkpoints: CheckpointMaker) -> None:
    clip = speech_like(1)
    soundfile.write("clip.wav", clip.samples, clip.rate_hz)
    model = small_checkpoints("0b6", "base")
    ran = voices("add", "anna", "clip.wav", "-m", model, "--consent", "yes", "--ref-text", "ba " * 200)
    assert ran.exit_code == 0 and ran.stdout == "anna\n"
    assert "warning: the clip has only" in ran.stderr and "the transcript does not seem to fit" in ran.stderr


# Folders


def test_the_folder_follows_the_servers_environment_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added("usual")
    monkeypatch.setenv(VARIABLE, str(home / "named"))
    added("anna")
    assert (home / "named" / "anna.safetensors").exists() and names() == ["anna"]
    assert names("--voices-dir", home / "data" / "oscine" / "voices") == ["usual"]  # the option takes precedence
    assert VARIABLE in voices("list", "--help").stdout


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["remove", "anna"]])
def test_a_missing_folder_is_reported_and_not_created(home: Path, words: list[str]) -> None:
    typo = home / "typo" / "deep"
    assert refusal(*words, "--voices-dir", typo).startswith(f"there is no folder {str(typo)!r}")
    assert not (home / "typo").exists()


def test_before_the_first_voice_the_default_folder_is_empty_and_not_created(home: Path) -> None:
    assert names() == []
    assert "there is no uploaded voice 'anna'; `oscine voices list`" in refusal("remove", "anna")
    assert not (home / "data").exists()
    assert added("anna") == "anna\n" and names() == ["anna"]


def test_a_voice_file_is_private(home: Path) -> None:
    added("anna", "--voices-dir", home / "voices")
    assert stat.S_IMODE((home / "voices/anna.safetensors").stat().st_mode) == 0o600


# Refusals


def test_a_taken_name_is_refused_with_advice_for_the_command_line() -> None:
    added("anna")
    Voice(np.ones(8, np.float32)).save("other.safetensors")
    said = refusal("add", "Anna", "other.safetensors", "--consent", "yes")
    assert said == "the name 'anna' is taken by another voice; delete or overwrite it, or choose another name"
    assert voices("add", "Anna", "other.safetensors", "--consent", "yes", "--overwrite").stdout == "Anna\n"
    assert voices("remove", "ANNA").stdout == "Anna\n"
    assert voices("add", "anna", "other.safetensors", "--consent", "yes").exit_code == 0


def test_a_damaged_voice_can_be_removed(home: Path) -> None:
    added("anna")
    (home / "data" / "oscine" / "voices" / "anna.safetensors").write_bytes(b"")
    assert "is damaged (see the log); delete the voice" in refusal("add", "anna", "me.safetensors", "--consent", "yes")
    assert voices("remove", "anna").stdout == "anna\n"


def test_a_disk_failure_is_not_reported_as_a_bad_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    error = voices("add", "anna", "me.safetensors", "--consent", "yes").exception
    assert isinstance(error, OscineError) and not isinstance(error, RequestError)
    assert str(error) == "cannot store voice 'anna' because of a disk error; see the log"


def test_python_m_oscine_is_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "oscine", "voices", "remove", "nobody"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and "there is no uploaded voice 'nobody'" in ran.stderr
