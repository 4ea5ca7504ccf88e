"""Settings of `oscine serve`: defaults, one TOML file, environment variables, flags; the later source wins.

A setting is named by its path, `engine.slots`; its environment variable is OSCINE_SERVE_ENGINE__SLOTS. No torch here.
"""

from __future__ import annotations

import json
import os
import reprlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from oscine.config import (
    CheckpointConfig,
    Dtype,
    EngineConfig,
    ServerConfig,
    Strings,
    Text,
    WorkerConfig,
    check_devices,
)
from oscine.errors import ConfigError, unknown_choice
from oscine.serving.environment import ENV_PREFIX, default_voices_dir, variable_of

_SECRETS = ("server.api_keys", "server.admin_keys")


def _parse(value: object) -> object:
    """A list of models is written as JSON in flags and environment variables."""
    return json.loads(value) if isinstance(value, str) else value


_settings_file: ContextVar[Path | None] = ContextVar("_settings_file", default=None)


class Settings(BaseSettings):
    """All settings of `oscine serve`."""

    # The fields read lists from text themselves (config.py): workers need no pydantic-settings.
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", enable_decoding=False, extra="forbid", frozen=True
    )

    model: Text = Field(default="demo", description="A checkpoint folder, a hub id, or 'demo'.")
    name: Text | None = Field(
        None, description="Name that the model is served under. Default: the last part of `model`."
    )
    models: Annotated[tuple[CheckpointConfig, ...], BeforeValidator(_parse)] = Field(
        default=(), description="Several models instead of `model`: one [[models]] table each."
    )
    devices: Strings = Field(default=("auto",), description="Devices, one engine on each: auto, cpu, cuda, cuda:0, ...")
    dtype: Dtype = Field(default="auto", description="auto: bfloat16 on a GPU, float32 elsewhere.")
    server: ServerConfig = Field(default_factory=ServerConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    worker: WorkerConfig = Field(default_factory=WorkerConfig)

    @model_validator(mode="before")
    @classmethod
    def _keep_voices(cls, values: dict[str, Any]) -> dict[str, Any]:
        server = values.setdefault("server", {})
        if isinstance(server, dict):
            server.setdefault("voices_dir", default_voices_dir())
        if values.get("models") and (both := [name for name in ("model", "name") if name in values]):
            raise ValueError(f"{both[0]} and models are both set; name every model in models, or use {both[0]} alone")
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_devices(self.devices)
        names = [checkpoint.served_name for checkpoint in self.checkpoints]
        if strange := [name for name in names if not name.isprintable()]:
            message = f"the model name {strange[0]!r} has characters that cannot be printed; choose another name"
            raise ValueError(message)
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"models must have different names, and {twice[0]!r} is there twice; give each a name")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _settings_file.get())

    @property
    def checkpoints(self) -> tuple[CheckpointConfig, ...]:
        """The models to serve: one or several."""
        return self.models or (CheckpointConfig(path=self.model, name=self.name),)

    def as_toml(self, *, hide_keys: bool = True) -> str:
        """All settings as TOML, each with its description. Hidden keys are only counted."""
        return _toml(self, {path for path in _SECRETS if hide_keys and getattr(self.server, path.partition(".")[2])})

    @property
    def unused(self) -> frozenset[str]:
        """Settings that several models replace."""
        return frozenset({"model", "name"} if self.models else {"models"})


def load_settings(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """`flags` maps paths such as "engine.slots" to values or their text. Raises ConfigError."""
    known = {path for path, _, _ in setting_fields(Settings)}
    by_variable = {variable_of(path): path for path in known}
    for variable in os.environ:
        if variable.startswith(ENV_PREFIX) and variable.upper() not in by_variable:
            raise ConfigError(unknown_choice("environment variable", variable, by_variable))
    values: dict[str, Any] = {}
    for path, value in flags.items():
        if path not in known:
            raise _unknown_setting(path)
        *sections, name = path.split(".")
        section = values
        for one in sections:
            section = section.setdefault(one, {})
        section[name] = value
    _check_file(file)
    token = _settings_file.set(file)
    try:
        return Settings(**values)
    except ValidationError as error:
        raise _config_error(error) from None
    except ValueError as error:  # a JSON list that cannot be parsed
        raise ConfigError(f"a setting cannot be read: {error}") from None
    finally:
        _settings_file.reset(token)


_FOR_ALL = {"name": "name", "devices": "devices", "slots": "engine.slots"}  # options of one model -> settings


def model_flags(models: Sequence[str] | None, **options: Sequence[Any] | None) -> dict[str, Any]:
    """The settings for --model and the options that may follow it. With several models, an option is given once for
    each, in their order; devices and slots also once for all."""
    paths = list(models or [])
    given = {name: list(values) for name, values in options.items() if values}
    if len(paths) < 2 and "memory_share" not in given:
        return {"model": paths[0] if paths else None, **{_FOR_ALL[name]: values[-1] for name, values in given.items()}}
    shared = {name for name, values in given.items() if len(values) == 1 and name in ("devices", "slots")}
    for name in given.keys() - shared:
        if len(given[name]) != len(paths):
            counts = f"{len(given[name])} of these and {len(paths)} of --model"
            raise ConfigError(f"--{name.replace('_', '-')} is given once for each model; there are {counts}")
    each = [{name: given[name][index] for name in given.keys() - shared} for index in range(len(paths))]
    return {
        "models": [{"path": path, **own} for path, own in zip(paths, each, strict=True)],
        **{_FOR_ALL[name]: given[name][0] for name in shared},
    }


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Reads each `path=value` of `--set` as a flag for `load_settings`."""
    flags: dict[str, str] = {}
    for one in assignments:
        path, equals, value = one.partition("=")
        if not equals:
            raise ConfigError(f"--set takes path=value, such as engine.queue_limit=8; got {one!r}")
        flags[path.strip()] = value.strip()
    return flags


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Path -> value of every setting that is not the default; of secrets, only their number."""
    changed: dict[str, Any] = {}
    for path, _, default in setting_fields(Settings):
        value: Any = settings
        for name in path.split("."):
            value = getattr(value, name)
        if value != default:
            changed[path] = f"{len(value)} hidden" if path in _SECRETS else value
    return changed


def forget_secrets() -> None:
    """Removes the keys from the environment, which other processes inherit."""
    for path in _SECRETS:
        os.environ.pop(variable_of(path), None)


def setting_fields(section: Any, prefix: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    """(path, field, default) of every setting below a section, in order."""
    infos: dict[str, FieldInfo] = section.model_fields if section is Settings else section.__pydantic_fields__
    for name, info in infos.items():
        default = info.get_default(call_default_factory=True)
        if is_dataclass(default):
            yield from setting_fields(type(default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info, default


def _check_file(file: Path | None) -> None:
    if file is None:
        return
    try:
        tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {str(file)!r}: {error.strerror}") from error
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"the settings file {str(file)!r} is not valid TOML: {error}") from error


def _config_error(error: ValidationError) -> ConfigError:
    """Tells the first problem in one line."""
    first = error.errors()[0]
    keys = first["loc"]
    path = ".".join(str(key) for key in keys if isinstance(key, str) or keys[0] == "models")
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_setting(path)
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if isinstance(first["input"], Mapping) and first["type"] == "value_error":  # a check over several settings
        return ConfigError(f"{path}.{message}".lstrip("."))
    # A whole table or list may hold keys.
    above = any(one.startswith(f"{path}.") for one in _SECRETS) and not isinstance(first["input"], int | float)
    secret = above or path.startswith(_SECRETS)
    return ConfigError(f"{path}: {message}" + ("" if secret else f", got {reprlib.repr(first['input'])}"))


def _unknown_setting(path: str) -> ConfigError:
    """Names the settings and tables of the same section."""
    parent = f"{section}." if (section := path.rpartition(".")[0]) else ""
    if parent.startswith("models."):
        known = [parent + name for name, _, _ in setting_fields(CheckpointConfig)]
    else:
        known = [name for name, _, _ in setting_fields(Settings)]
    names = [name.removeprefix(parent) for name in known if name.startswith(parent)]
    elsewhere = [name for name in known if name.rpartition(".")[2] == path.rpartition(".")[2]]
    meant = elsewhere[0] if len(elsewhere) == 1 else None  # such as `port` above all tables
    return ConfigError(unknown_choice("setting", path, {parent + name.partition(".")[0] for name in names}, meant))


def _toml(section: Any, hidden: set[str], path: str = "") -> str:
    infos = type(section).model_fields if isinstance(section, BaseSettings) else type(section).__pydantic_fields__
    lines: list[str] = []
    sections: list[str] = []
    for name, info in infos.items():
        value = getattr(section, name)
        if is_dataclass(value):
            sections.append(_toml(value, hidden, f"{path}{name}."))
            continue
        lines.append(f"# {info.description}")
        if value is None or (isinstance(section, Settings) and name in section.unused):
            lines.append(f"# {name} is not set")
        elif name == "models":
            sections.extend(f"[[models]]\n{_toml(model, hidden)}" for model in value)
        elif f"{path}{name}" in hidden:
            lines.append(f"# {name}: {len(value)} hidden")
        elif isinstance(value, dict):
            pairs = ", ".join(f"{_toml_value(key)} = {_toml_value(one)}" for key, one in value.items())
            lines.append(f"{name} = {{ {pairs} }}" if pairs else f"{name} = {{}}")
        else:
            lines.append(f"{name} = {_toml_value(value)}")
    head = [f"[{path.rstrip('.')}]"] if path and lines else []
    return "\n".join([*head, *lines, "", *sections])


def _toml_value(value: Any) -> str:
    """TOML writes these types like JSON, but has no surrogate pairs and escapes the delete character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
