"""Settings from defaults, file, environment and flags; unknown names are refused with the nearest one."""

import os
from pathlib import Path
from typing import Any

import pytest

from oscine.errors import ConfigError
from oscine.serving.environment import ENV_PREFIX, default_voices_dir, variable_of
from oscine.serving.settings import (
    Settings,
    forget_secrets,
    load_settings,
    model_flags,
    parse_assignments,
    setting_fields,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(variable)


def test_the_defaults_serve_the_demo_on_this_machine_alone() -> None:
    settings = load_settings(None, {})
    assert (settings.model, settings.server.host, settings.server.port) == ("demo", "127.0.0.1", 8000)
    assert settings.server.voices_dir == default_voices_dir()


def test_the_later_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "oscine.toml"
    file.write_text(
        'model = "file"\n[server]\nport = 1\nhost = "file"\n[engine]\nslots = 1\n[engine.pacing]\nlead_s = 2\n'
    )
    monkeypatch.setenv("OSCINE_SERVE_SERVER__PORT", "2")
    monkeypatch.setenv("OSCINE_SERVE_ENGINE__SLOTS", "2")
    settings = load_settings(file, {"engine.slots": 3})
    assert (settings.model, settings.server.host) == ("file", "file")
    assert (settings.server.port, settings.engine.slots, settings.engine.pacing.lead_s) == (2, 3, 2)
    assert settings.server.voices_dir == default_voices_dir()


def test_text_is_parsed_by_the_type_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSCINE_SERVE_ENGINE__RUNAWAY__ENABLED", "false")
    monkeypatch.setenv("OSCINE_SERVE_SERVER__CORS_ORIGINS", "http://a,http://b")
    flags = {
        "server.api_keys": "a, b",
        "devices": '["cuda:0", "cuda:1"]',
        "engine.graphs": "false",
        "engine.graph_buckets": "[1, 2]",
        "engine.memory.positions_total": "5000",
        "name": "7",
    }
    settings = load_settings(None, flags)
    assert settings.server.api_keys == ("a", "b") and settings.server.cors_origins == ("http://a", "http://b")
    assert settings.devices == ("cuda:0", "cuda:1")
    assert settings.engine.graphs is False and settings.engine.graph_buckets == (1, 2)
    assert settings.engine.runaway.enabled is False
    assert settings.engine.memory.positions_total == 5000
    assert settings.checkpoints[0].served_name == "7"


@pytest.mark.parametrize(
    ("file", "flags", "message"),
    [
        ("[sever]\nport = 1", {}, "unknown setting 'sever'; did you mean 'server'?"),
        ("[server]\nprot = 1", {}, "unknown setting 'server.prot'; did you mean 'server.port'?"),
        ("[engine.trim_silence]\ntreshold_dbfs = -50", {}, "did you mean 'engine.trim_silence.threshold_dbfs'?"),
        ("port = 9000", {}, "unknown setting 'port'; did you mean 'server.port'?"),
        ("[engine]\nport = 9000", {}, "unknown setting 'engine.port'; did you mean 'server.port'?"),
        ("", {"slots": "8"}, "unknown setting 'slots'; did you mean 'engine.slots'?"),
        ("", {"prot": "8"}, "unknown setting 'prot' (possible: "),
        ("[server\n", {}, "is not valid TOML"),
        ("[server]\nport = 'x'", {}, "server.port: input should be a valid integer"),
        ("[server]\nport = 70000", {}, "server.port: input should be less than or equal to 65535, got 70000"),
        ("server = 1", {}, "server: input should be a dictionary or an instance of ServerConfig, got 1"),
        (f"[engine]\nslots = 1{'0' * 5000}", {}, "is not valid TOML"),
        ("", {"engine.slots": f"1{'0' * 5000}"}, "engine.slots: unable to parse"),
        ("", {"engine.slots": True}, "engine.slots: must be a number, got True"),
        ("", {"engine.slots": 8.5}, "engine.slots: input should be a valid integer"),
        ("", {"engine.runaway.enabled": "perhaps"}, "engine.runaway.enabled: input should be a valid boolean"),
        (
            "",
            {"server.voice_aliases": "nova"},
            "server.voice_aliases: must be name=value pairs, such as a=b,c=d; 'nova'",
        ),
        ("", {"server.voice_aliases": "a=A"}, "server.voice_aliases: 'a' cannot stand for 'a'"),
        ("", {"server.voice_aliases": {"Default": "a"}}, "'default' cannot stand for 'a'; name two, and leave 'def"),
        ("", {"server.voice_aliases": {"a": 1}}, "server.voice_aliases.a: input should be a valid string, got 1"),
        ("", {"server.host": ""}, "server.host: must not be empty; use 127.0.0.1 for this machine only"),
        ("", {"server.api_keys": "(hidden)"}, "server.api_keys: '(hidden)' is a placeholder"),
        ("", {"server.api_keys": ("with space",)}, "server.api_keys: an API key is printable ASCII without spaces"),
        ("", {"name": "two\nlines"}, "the model name 'two\\nlines' has characters that cannot be printed"),
        ("", {"model": "/a/right\u202eleft"}, "characters that cannot be printed; choose another name"),
        ("", {"name": "\udcff"}, "name: must be valid Unicode text"),
        ("", {"engine.slot": "1"}, "unknown setting 'engine.slot'; did you mean 'engine.slots'?"),
        ("", {"server.log_format": "xml"}, "server.log_format: input should be 'console' or 'json', got 'xml'"),
        ("", {"dtype": "int4"}, "dtype: input should be 'auto', 'float32' or 'bfloat16', got 'int4'"),
        ("", {"devices": "cpu,cpu"}, "devices must name each device once"),
        ("", {"worker.heartbeat_s": "0"}, "worker.heartbeat_s: input should be greater than or equal to 0.01, got '0'"),
        ("", {"engine.graph_buckets": []}, "engine.graph_buckets must be ascending batch sizes from 1 to 4096"),
        ("", {"engine.graph_buckets": [4, 2]}, "engine.graph_buckets must be ascending"),
        ("", {"engine.graph_buckets": "[1,"}, "engine.graph_buckets"),
        ("", {"engine.graph_buckets": 4}, "engine.graph_buckets: input should be a valid tuple, got 4"),
        ("", {"engine.chunks.first_chunk_frames": 9}, "engine.chunks.steady_chunk_frames must not be below"),
        (
            "",
            {"engine.memory.positions_per_slot": 512, "engine.memory.positions_total": 100},
            "engine.memory.positions_total must not be below positions_per_slot (512)",
        ),
        (
            "",
            {"engine.runaway.repetition_s": 1.0, "engine.runaway.repetition_period_frames": 20},
            "engine.runaway.repetition_period_frames must be shorter than repetition_s",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(
    tmp_path: Path, file: str, flags: dict[str, Any], message: str
) -> None:
    path = tmp_path / "oscine.toml"
    path.write_text(file)
    with pytest.raises(ConfigError) as refused:
        load_settings(path, flags)
    assert message in str(refused.value) and len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["api_keys", "admin_keys"])
@pytest.mark.parametrize(
    "toml",
    [
        '[server]\n{name} = ["my secret"]',
        '[server]\n{name} = {{ a = "secret" }}',
        '[server]\n{name} = [["secret"]]',
        'server = ["secret"]',
        'server = "secret"',
        '[server]\n{name} = ["secret"]\nport = 70000',
        '[server]\n{name} = ["secret"]\ntls_key = "key.pem"',
    ],
)
def test_a_refused_key_is_not_printed(tmp_path: Path, name: str, toml: str) -> None:
    path = tmp_path / "oscine.toml"
    path.write_text(toml.format(name=name))
    with pytest.raises(ConfigError) as refused:
        load_settings(path, {})
    assert "secret" not in str(refused.value)


def test_keys_are_not_inherited_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by worker processes, nor in a representation that a traceback or a log may hold."""
    monkeypatch.setenv("OSCINE_SERVE_SERVER__API_KEYS", "secret")
    monkeypatch.setenv("OSCINE_SERVE_SERVER__ADMIN_KEYS", "secret")
    settings = load_settings(None, {})
    assert settings.server.api_keys == settings.server.admin_keys == ("secret",)
    forget_secrets()
    assert "secret" not in os.environ.values() and "secret" not in repr(settings)


def test_a_mistyped_variable_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSCINE_SERVE_SERVER_PORT", "1")
    with pytest.raises(ConfigError, match="did you mean 'OSCINE_SERVE_SERVER__PORT'"):
        load_settings(None, {})


@pytest.mark.parametrize("written", ["Tara=Anna, nova=serena", '{"tara": "anna", "nova": "serena"}'])
def test_voice_aliases_are_pairs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str) -> None:
    expected = {"tara": "anna", "nova": "serena"}
    assert load_settings(None, parse_assignments([f"server.voice_aliases={written}"])).server.voice_aliases == expected
    monkeypatch.setenv("OSCINE_SERVE_SERVER__VOICE_ALIASES", written)
    settings = load_settings(None, {})
    assert settings.server.voice_aliases == expected
    monkeypatch.delenv("OSCINE_SERVE_SERVER__VOICE_ALIASES")
    file = tmp_path / "oscine.toml"
    file.write_text('[server.voice_aliases]\ntara = "anna"\nnova = "serena"\n')
    assert load_settings(file, {}) == settings
    file.write_text(settings.as_toml())
    assert load_settings(file, {}) == settings


NUMBERS = [path for path, info, _ in setting_fields(Settings) if any(hasattr(one, "le") for one in info.metadata)]


def test_numbers_are_found() -> None:
    assert len(NUMBERS) > 40


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize("value", ["inf", "nan", -(10**400)])
def test_no_number_is_without_bounds(path: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{path}: "):
        load_settings(None, {path: value})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load_settings(tmp_path / "none.toml", {})


def test_printed_settings_can_be_read_again(tmp_path: Path) -> None:
    flags = {"engine.slots": 5, "server.ref_urls": "true", "server.live_idle_s": "1e4", "model": "a\\b"}
    file = tmp_path / "oscine.toml"
    for text in ("Größe 你好 👋", 'a "quoted" one', "tab\t, bell\a, delete\x7f, line\u2028"):
        settings = load_settings(None, {**flags, "server.voices_dir": text})
        file.write_text(settings.as_toml(), encoding="utf-8")
        assert load_settings(file, {}) == settings


def test_printed_settings_carry_their_descriptions() -> None:
    printed = load_settings(None, {}).as_toml()
    for path, info, _ in setting_fields(Settings):
        assert info.description and f"# {info.description}" in printed, path


def test_keys_are_counted_and_not_printed(tmp_path: Path) -> None:
    settings = load_settings(None, {"server.api_keys": "secret,other"})
    shown = settings.as_toml()
    assert "secret" not in shown and "# api_keys: 2 hidden" in shown.splitlines()
    file = tmp_path / "oscine.toml"
    file.write_text(shown)
    assert load_settings(file, {}).server.api_keys == ()
    file.write_text(settings.as_toml(hide_keys=False))
    assert load_settings(file, {}) == settings


def test_variables_are_named_by_the_path() -> None:
    assert variable_of("engine.pacing.lead_s") == "OSCINE_SERVE_ENGINE__PACING__LEAD_S"


MODELS = """
devices = ["cuda:0"]
[[models]]
path = "one"
[[models]]
path = "owner/two"
name = "second"
devices = ["cuda:1", "cuda:2"]
slots = 4
memory_share = 0.5
[engine]
slots = 16
"""


def test_several_models_are_tables_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "oscine.toml"
    file.write_text(MODELS)
    settings = load_settings(file, {})
    first, second = settings.checkpoints
    assert (first.served_name, first.devices, first.slots) == ("one", None, None)
    assert (second.served_name, second.devices, second.slots) == ("second", ("cuda:1", "cuda:2"), 4)
    file.write_text(settings.as_toml())
    assert load_settings(file, {}) == settings


def test_one_model_is_a_list_of_one() -> None:
    (checkpoint,) = load_settings(None, {"model": "owner/one"}).checkpoints
    assert (checkpoint.path, checkpoint.served_name) == ("owner/one", "one")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ('[{"path": "a", "slot": 3}]', r"unknown setting 'models\.0\.slot'; did you mean 'models\.0\.slots'"),
        ('[{"path": "a"}, {"path": "b", "slots": 0}]', r"^models\.1\.slots: .* greater than or equal to 1, got 0"),
        ('[{"path": "a"}, {"path": "x/a"}]', "models must have different names, and 'a' is there twice"),
        ('[{"path": "a", "devices": "cpu,cpu"}]', "devices must name each device once"),
        ('[{"path": "a", "memory_share": 2}]', r"^models\.0\.memory_share: "),
        ("[{}]", r"^models\.0\.path: field required"),
        ("a,b", "^models: expecting value"),
    ],
)
def test_wrong_models_are_named(models: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(None, {"models": models})


def test_model_and_models_exclude_each_other() -> None:
    for flags in ({"model": "a"}, {"name": "a"}):
        with pytest.raises(ConfigError, match="and models are both set"):
            load_settings(None, {"models": '[{"path": "a"}]', **flags})


def test_models_can_be_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSCINE_SERVE_MODELS", '[{"path": "a", "slots": 2}, {"path": "b"}]')
    assert [one.path for one in load_settings(None, {}).checkpoints] == ["a", "b"]


@pytest.mark.parametrize(
    ("models", "options", "expected"),
    [
        (["a"], {"name": ["x"], "slots": [3]}, {"model": "a", "name": "x", "engine.slots": 3}),
        (["a", "b"], {"devices": ["cpu"]}, {"models": [{"path": "a"}, {"path": "b"}], "devices": "cpu"}),
        (
            ["a", "b"],
            {"devices": ["cuda:0", "cuda:1"], "slots": [3]},
            {"models": [{"path": "a", "devices": "cuda:0"}, {"path": "b", "devices": "cuda:1"}], "engine.slots": 3},
        ),
        (["a"], {"memory_share": [0.5], "name": ["x"]}, {"models": [{"path": "a", "memory_share": 0.5, "name": "x"}]}),
    ],
)
def test_an_option_is_given_for_each_model_or_for_all(
    models: list[str], options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert model_flags(models, **options) == expected


@pytest.mark.parametrize("options", [{"name": ["x"]}, {"slots": [1, 2, 3]}, {"memory_share": [0.5]}])
def test_an_option_for_some_of_the_models_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is given once for each model; there are"):
        model_flags(["a", "b"], **options)
