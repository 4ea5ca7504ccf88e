"""The file of API keys: hashes only, private, replaced whole, written by one program at a time, read again when it
changes."""

import fcntl
import json
import logging
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oscine.errors import ConfigError, RequestError
from oscine.server.http import key_file
from oscine.server.http.key_file import KeyFile, NamedKeys, hash_of


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def add(file: KeyFile, name: str = "acme", roles: tuple[str, ...] = ("speak",), **limits: Any) -> str:
    return file.add(name, roles, limits, None).secret


def test_the_file_has_hashes_and_prefixes_and_nobody_else_can_read_it(file: KeyFile) -> None:
    secret = add(file, streams=4)
    content = file.path.read_text(encoding="utf-8")
    assert secret not in content and secret[12:] not in content
    (record,) = file.read()
    assert record.sha256 == hash_of(secret) and record.prefix == secret[:12] and secret.startswith("osk_")
    assert record.limits.streams == 4 and record.limits.characters_per_month is None
    assert len(secret) == 4 + 43  # 256 bits
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert record.sha256 not in repr(record)
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_a_link_stays_a_link(file: KeyFile, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "real.json"
    target.parent.mkdir()
    file.path.symlink_to(target)
    add(file)
    assert file.path.is_symlink() and target.is_file() and len(file.read()) == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": ""}, "name: "),
        ({"name": "two words"}, "name: "),
        ({"name": "settings:1"}, "name: "),
        ({"name": "x" * 65}, "name: "),
        ({"roles": ["sing"]}, "roles.0: "),
        ({"limits": {"streams": 0}}, "limits.streams: "),
        ({"limits": {"streams": True}}, "limits.streams: "),
        ({"limits": {"stream": 1}}, "limits.stream: "),
    ],
)
def test_impossible_values_are_refused_and_nothing_is_written(
    file: KeyFile, changed: dict[str, Any], reason: str
) -> None:
    given: dict[str, Any] = {"name": "acme", "roles": ["speak"], "limits": {}, "expires_at": None, **changed}
    with pytest.raises(RequestError, match=reason):
        file.add(**given)
    assert not file.path.exists()


def test_a_name_is_given_once_and_a_revoked_key_stays_revoked(file: KeyFile) -> None:
    add(file)
    with pytest.raises(RequestError, match="already"):
        add(file)
    revoked_at = file.revoke("acme").revoked_at
    assert revoked_at and file.revoke("acme").revoked_at == revoked_at
    with pytest.raises(RequestError, match="unknown key 'acne'; did you mean 'acme'"):
        file.revoke("acne")
    with pytest.raises(RequestError, match="already"):
        add(file)


def test_a_key_ends_when_it_expires_or_is_revoked(file: KeyFile) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    key = file.add("acme", ["speak"], {}, end).record
    assert key.state(end.timestamp() - 1) == "active" and key.state(end.timestamp()) == "expired"
    assert file.revoke("acme").state(end.timestamp() + 1) == "revoked"


def test_the_role_admin_has_all_others(file: KeyFile) -> None:
    add(file, roles=("admin",))
    add(file, "speaker")
    admin, speaker = file.read()
    assert admin.may("speak") and admin.may("metrics") and speaker.may("speak") and not speaker.may("voices")


def test_programs_that_write_at_once_lose_no_key(file: KeyFile) -> None:
    code = """
import sys
from pathlib import Path
from oscine.server.http.key_file import KeyFile
for number in range(5):
    KeyFile(Path(sys.argv[1])).add(f"{sys.argv[2]}-{number}", ["speak"], {}, None)
"""
    command = [sys.executable, "-c", code, str(file.path)]
    writers = [subprocess.Popen([*command, name]) for name in ("one", "two", "three")]
    assert [writer.wait(600) for writer in writers] == [0, 0, 0]
    assert {key.name for key in file.read()} == {
        f"{name}-{number}" for name in ("one", "two", "three") for number in range(5)
    }


def test_a_lock_that_is_held_for_too_long_is_a_clear_error(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "LOCK_WAIT_S", 0.1)
    add(file)
    with open(file.path.with_name("keys.json.lock"), "rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"another program has held keys.json.lock for 0.1 s; end that program"):
            file.revoke("acme")
    assert file.revoke("acme").revoked_at


def test_a_folder_that_does_not_exist_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its folder must exist and be writable"):
        add(KeyFile(tmp_path / "nowhere" / "keys.json"))


BROKEN = ["", "{", "[]", '{"version": 2}', '{"version": 1, "keyz": []}', "\xff"]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_keeps_the_old_keys_and_says_so_once(
    file: KeyFile, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = add(file)
    keys = NamedKeys(file.path)
    good = file.path.read_bytes()
    file.path.write_text(content, encoding="latin-1")
    with caplog.at_level(logging.WARNING, "oscine"):
        keys.reload()
        keys.reload()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "stay as they were" in line and "keys.json" in line
    assert not keys.is_read and [key.name for key in keys.candidates(secret)] == ["acme"]
    file.path.write_bytes(good)
    add(file, "other")
    keys.reload()
    assert keys.is_read and set(keys.by_name) == {"acme", "other"}


def test_a_broken_file_stops_the_start_without_showing_what_is_in_it(file: KeyFile) -> None:
    add(file)
    document = json.loads(file.path.read_text(encoding="utf-8"))
    document["keys"].append({**document["keys"][0], "sha256": "canary"})
    file.path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"keys.1.sha256: ") as refused:
        NamedKeys(file.path)
    assert "canary" not in str(refused.value)
    document["keys"][1]["sha256"] = "0" * 64
    file.path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match="'acme' is there twice"):
        NamedKeys(file.path)


def test_a_file_may_come_later_but_not_go_again(file: KeyFile) -> None:
    keys = NamedKeys(file.path)
    keys.reload()
    assert keys.is_read and not keys.by_name
    add(file)
    keys.reload()
    assert set(keys.by_name) == {"acme"}
    file.path.unlink()
    keys.reload()
    assert not keys.is_read and set(keys.by_name) == {"acme"}
