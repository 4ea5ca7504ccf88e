"""Settings from defaults, file, environment and flags; what does not exist is refused and the nearest named."""

from pathlib import Path
from typing import Any

import pytest

from oscine.settings import Settings, _paths, default_voices_dir, load_settings
from oscine.types import ConfigError


def test_without_anything_the_defaults_serve_the_demo_on_this_machine_alone() -> None:
    settings = load_settings(None, {}, {})
    assert (settings.model, settings.server.host, settings.server.port) == ("demo", "127.0.0.1", 8000)
    assert settings.server.voices_dir == default_voices_dir()
    assert settings == Settings()


def test_the_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "oscine.toml"
    file.write_text(
        'model = "file"\n[server]\nport = 1\nhost = "file"\n[engine]\nslots = 1\n[engine.pacing]\nlead_s = 2\n'
    )
    environment = {"OSCINE_SERVE_SERVER_PORT": "2", "OSCINE_SERVE_ENGINE_SLOTS": "2", "OSCINE_OTHER": "x"}
    settings = load_settings(file, environment, {"engine.slots": 3})
    assert (settings.model, settings.server.host) == ("file", "file")
    assert (settings.server.port, settings.engine.slots, settings.engine.pacing.lead_s) == (2, 3, 2)
    assert settings.server.voices_dir == default_voices_dir()


def test_text_is_read_as_the_setting_wants_it() -> None:
    flags = {
        "server.api_keys": "a, b",
        "devices": '["cuda:0", "cuda:1"]',
        "engine.graphs": "false",
        "engine.graph_buckets": "[1, 2]",
        "engine.memory.positions_total": "5000",
        "name": "7",
    }
    settings = load_settings(None, {}, flags)
    assert settings.server.api_keys == ("a", "b")
    assert settings.devices == ("cuda:0", "cuda:1")
    assert settings.engine.graphs is False and settings.engine.graph_buckets == (1, 2)
    assert settings.engine.memory.positions_total == 5000
    assert settings.served_name == "7"


@pytest.mark.parametrize(
    ("file", "environment", "flags", "message"),
    [
        ("[sever]\nport = 1", {}, {}, "unknown setting 'sever'; did you mean 'server'?"),
        ("[server]\nprot = 1", {}, {}, "unknown setting 'server.prot'; did you mean 'server.port'?"),
        ("[server\n", {}, {}, "is not TOML"),
        ("[server]\nport = '80'", {}, {}, "server.port must be a whole number, got '80'"),
        ("[server]\nport = 70000", {}, {}, "server.port must be between 0 and 65535, got 70000"),
        ("server = 1", {}, {}, "server must be a table of names to values, got 1"),
        ("engine = 3", {}, {"engine.slots": 9}, "engine must be a table of names to values, got 3"),
        ("engine.guard = []", {}, {"engine.guard.enabled": "true"}, "engine.guard must be a table"),
        (f"[engine]\nslots = 1{'0' * 5000}", {}, {}, "is not TOML"),
        ("", {}, {"engine.slots": f"1{'0' * 5000}"}, "engine.slots has a value that cannot be read: '1000"),
        ("", {}, {"engine.slots": f"1{'0' * 400}"}, "engine.slots must be between 1 and 4096, got 1000"),
        ("", {}, {"engine.guard.enabled": "'no'"}, "engine.guard.enabled must be true or false, got 'no'"),
        ("", {}, {"server.host": ""}, "server.host is empty; 127.0.0.1 is this machine alone"),
        ("", {}, {"server.api_keys": "(hidden)"}, "server.api_keys holds '(hidden)'"),
        ("", {}, {"name": "\udcff"}, "name must be text"),
        ("", {"OSCINE_SERVE_PORT": "1"}, {}, "unknown environment variable 'OSCINE_SERVE_PORT'"),
        (
            "",
            {"OSCINE_SERVE_SERVER_PORT": "x y"},
            {},
            "OSCINE_SERVE_SERVER_PORT has a value that cannot be read: 'x y'",
        ),
        ("", {}, {"engine.slot": "1"}, "unknown setting 'engine.slot'; did you mean 'engine.slots'?"),
        ("", {}, {"server.log_format": "xml"}, "unknown server.log_format 'xml' (possible: console, json)"),
        ("", {}, {"server.api_keys": ("with space",)}, "an API key is printable ASCII without spaces"),
        ("", {}, {"dtype": "int4"}, "unknown dtype 'int4'"),
        ("", {}, {"devices": "cpu,cpu"}, "devices must name each device once"),
        ("", {}, {"process.heartbeat_s": "0"}, "process.heartbeat_s must be between 0.01 and 86400, got 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    tmp_path: Path, file: str, environment: dict[str, str], flags: dict[str, Any], message: str
) -> None:
    path = tmp_path / "oscine.toml"
    path.write_text(file)
    with pytest.raises(ConfigError) as refused:
        load_settings(path, environment, flags)
    assert message in str(refused.value) and len(str(refused.value).splitlines()) == 1


NUMBERS = [(path, kind) for path, kind in _paths(Settings) if kind in (int, int | None, float)]


@pytest.mark.parametrize(("path", "kind"), NUMBERS, ids=[path for path, _ in NUMBERS])
def test_no_number_is_without_bounds(path: str, kind: Any) -> None:
    for value in ["inf", "-inf", "nan"] if kind is float else [10**400, -(10**400)]:
        with pytest.raises(ConfigError, match=f"^{path} must be between"):
            load_settings(None, {}, {path: value})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load_settings(tmp_path / "none.toml", {}, {})


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    flags = {
        "engine.slots": 5,
        "server.ref_urls": "true",
        "server.live_idle_s": "1e4",
        "model": "a\\b",
        "dtype": "auto",
    }
    file = tmp_path / "oscine.toml"
    for name in ("Größe 你好 👋", 'a "quoted" one', "tab\t, bell\a, delete\x7f, line\u2028"):
        settings = load_settings(None, {}, {**flags, "name": name})
        file.write_text(settings.as_toml(), encoding="utf-8")
        assert load_settings(file, {}, {}) == settings


def test_keys_are_counted_and_not_printed(tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"server.api_keys": "secret,other"})
    shown = settings.as_toml()
    assert "secret" not in shown and "# api_keys: 2 hidden" in shown.splitlines()
    file = tmp_path / "oscine.toml"
    file.write_text(shown)
    assert load_settings(file, {}, {}).server.api_keys == ()
    file.write_text(settings.as_toml(hide_keys=False))
    assert load_settings(file, {}, {}) == settings
