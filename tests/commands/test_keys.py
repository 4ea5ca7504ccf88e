"""`oscine keys`: keys of a running server, managed from the command line."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oscine.commands.main import app
from oscine.errors import RequestError
from oscine.server.http.key_file import KeyFile, hash_of

VARIABLE = "OSCINE_SERVE_SERVER__KEYS_FILE"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyFile:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv("COLUMNS", "200")
    return KeyFile(tmp_path / "keys.json")


def keys(*words: object) -> Result:
    return CliRunner().invoke(app, ["keys", *map(str, words)])


def refusal(*words: object) -> str:
    error = keys(*words).exception
    assert isinstance(error, RequestError), error
    assert "\n" not in str(error)
    return str(error)


def test_a_key_is_printed_once_and_then_only_its_beginning(file: KeyFile) -> None:
    limits = ("--streams", 4, "--characters-per-month", 1_000_000, "--expires", "30d")
    added = keys("add", "acme", "--role", "speak", "--role", "voices", *limits)
    assert added.exit_code == 0, added.output
    secret = added.stdout.strip()
    (record,) = file.read()
    assert record.sha256 == hash_of(secret) and record.roles == ("speak", "voices")
    assert record.limits.streams == 4 and record.limits.characters_per_month == 1_000_000
    assert record.expires_at and timedelta(days=29) < record.expires_at - datetime.now(UTC) <= timedelta(days=30)
    listed = keys("list").stdout
    assert secret not in listed and record.sha256 not in listed
    for shown in ("acme", f"{secret[:12]}...", "active", "speak, voices", "4 streams, 1000000 characters per month"):
        assert shown in listed


def test_a_revoked_key_stays_on_the_list(file: KeyFile) -> None:
    assert keys("add", "acme").exit_code == 0
    revoked = keys("revoke", "acme")
    assert revoked.exit_code == 0 and revoked.stdout == "acme\n"
    (listed,) = json.loads(keys("list", "--json").stdout)
    assert listed["state"] == "revoked" and listed["revoked_at"] and "sha256" not in listed
    assert "unknown key 'other'" in refusal("revoke", "other")


def test_programs_read_the_key_as_json(file: KeyFile, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    added = json.loads(keys("add", "acme", "--json", "--keys-file", other).stdout)
    (record,) = KeyFile(other).read()
    assert record.sha256 == hash_of(added["api_key"]) and added["name"] == "acme" and not file.path.exists()


def test_an_end_is_a_date_or_a_span(file: KeyFile) -> None:
    assert keys("add", "one", "--expires", "2099-01-31").exit_code == 0
    assert keys("add", "two", "--expires", "2099-01-31T12:00:00+02:00").exit_code == 0
    assert keys("add", "three", "--expires", "12h").exit_code == 0
    ends = [key.expires_at for key in file.read()]
    assert ends[0] == datetime(2099, 1, 31, tzinfo=UTC) and ends[1] == datetime(2099, 1, 31, 10, tzinfo=UTC)
    assert ends[2] and timedelta(hours=11) < ends[2] - datetime.now(UTC) <= timedelta(hours=12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--expires", "soon"), "--expires takes a date such as 2027-01-31"),
        (("--expires", "2001-01-01"), "is not in the future"),
        (("--expires", "0d"), "is not in the future"),
        (("--role", "sing"), "'speak', 'voices', 'metrics' or 'admin'"),
        (("--streams", "0"), "limits.streams"),
        (("--characters-per-month", "-5"), "limits.characters_per_month"),
    ],
)
def test_what_is_not_possible_is_refused_and_nothing_is_written(
    file: KeyFile, words: tuple[str, ...], message: str
) -> None:
    assert message in refusal("add", "acme", *words) and not file.path.exists()


def test_without_a_file_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    ran = keys("list")
    assert ran.exit_code == 2 and "--keys-file" in ran.output
