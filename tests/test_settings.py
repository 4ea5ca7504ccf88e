"""Settings from defaults, file, environment and flags; what does not exist is refused and the nearest named."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from oscine.settings import Settings, default_voices_dir, load_settings
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
        ("[server]\nport = '80'", {}, {}, "port has a value of the wrong kind: '80'"),
        ("[server]\nport = 70000", {}, {}, "port must be between 0 and 65535, got 70000"),
        ("server = 1", {}, {}, "server must be a table"),
        ("", {"OSCINE_SERVE_PORT": "1"}, {}, "unknown environment variable 'OSCINE_SERVE_PORT'"),
        (
            "",
            {"OSCINE_SERVE_SERVER_PORT": "x y"},
            {},
            "OSCINE_SERVE_SERVER_PORT has a value that cannot be read: 'x y'",
        ),
        ("", {}, {"engine.slot": "1"}, "unknown setting 'engine.slot'; did you mean 'engine.slots'?"),
        ("", {}, {"server.log_format": "xml"}, "unknown log_format 'xml' (possible: console, json)"),
        ("", {}, {"server.api_keys": ("with space",)}, "an API key is printable ASCII without spaces"),
        ("", {}, {"dtype": "int4"}, "unknown dtype 'int4'"),
        ("", {}, {"devices": "cpu,cpu"}, "devices must name each device once"),
        ("", {}, {"process.heartbeat_s": "0"}, "process.heartbeat_s must be above 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    tmp_path: Path, file: str, environment: dict[str, str], flags: dict[str, Any], message: str
) -> None:
    path = tmp_path / "oscine.toml"
    path.write_text(file)
    with pytest.raises(ConfigError) as refused:
        load_settings(path, environment, flags)
    assert message in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load_settings(tmp_path / "none.toml", {}, {})


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"engine.slots": 5, "server.api_keys": "secret", "server.ref_urls": "true"})
    file = tmp_path / "oscine.toml"
    file.write_text(settings.as_toml(hide_keys=False))
    assert load_settings(file, {}, {}) == settings
    shown = settings.as_toml()
    assert "secret" not in shown and tomllib.loads(shown)["server"]["api_keys"] == ["(hidden)"]
