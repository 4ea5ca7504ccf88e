"""Settings of `oscine serve`: defaults, one TOML file, environment variables, flags; the later source wins.

A setting is named by its path, `engine.slots`; its environment variable is OSCINE_SERVE_ENGINE__SLOTS. No torch here.
"""

from __future__ import annotations

import json
import os
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from oscine.config import EngineConfig, ServerConfig, Strings, Text, WorkerConfig
from oscine.errors import ConfigError, unknown_choice

ENV_PREFIX = "OSCINE_SERVE_"


def default_voices_dir() -> str:
    return f"{os.environ.get('XDG_DATA_HOME') or '~/.local/share'}/oscine/voices"


_settings_file: ContextVar[Path | None] = ContextVar("_settings_file", default=None)


class Settings(BaseSettings):
    """All settings of `oscine serve`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    model: Text = Field(default="demo", description="A checkpoint folder, a hub id, or 'demo'.")
    name: Text | None = Field(
        None, description="Name that the model is served under. Default: the last part of `model`."
    )
    devices: Strings = Field(default=("auto",), description="Devices, one engine on each: auto, cpu, cuda, cuda:0, ...")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: bfloat16 on a GPU, float32 elsewhere."
    )
    server: ServerConfig = Field(default_factory=ServerConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    worker: WorkerConfig = Field(default_factory=WorkerConfig)

    @model_validator(mode="before")
    @classmethod
    def _keep_voices(cls, values: dict[str, Any]) -> dict[str, Any]:
        server = values.setdefault("server", {})
        if isinstance(server, dict):
            server.setdefault("voices_dir", default_voices_dir())
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise ValueError(f"devices must name each device once, got {list(self.devices)}")
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
    def served_name(self) -> str:
        return self.name or Path(self.model).name or self.model

    def as_toml(self, *, hide_keys: bool = True) -> str:
        """All settings as TOML, each with its description. Hidden keys are only counted."""
        return _toml(self, {"server.api_keys"} if hide_keys and self.server.api_keys else set())


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


def variable_of(path: str) -> str:
    return ENV_PREFIX + path.upper().replace(".", "__")


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
    """The first problem, in one line."""
    first = error.errors()[0]
    path = ".".join(key for key in first["loc"] if isinstance(key, str))
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_setting(path)
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if isinstance(first["input"], Mapping) and first["type"] == "value_error":  # a check over several settings
        return ConfigError(f"{path}.{message}".lstrip("."))
    shown = "" if path == "server.api_keys" else f", got {reprlib.repr(first['input'])}"
    return ConfigError(f"{path}: {message}{shown}")


def _unknown_setting(path: str) -> ConfigError:
    """Names the settings and tables of the same section."""
    parent = f"{section}." if (section := path.rpartition(".")[0]) else ""
    names = [name.removeprefix(parent) for name, _, _ in setting_fields(Settings) if name.startswith(parent)]
    return ConfigError(unknown_choice("setting", path, {parent + name.partition(".")[0] for name in names}))


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
        if value is None:
            lines.append(f"# {name} is not set")
        elif f"{path}{name}" in hidden:
            lines.append(f"# {name}: {len(value)} hidden")
        else:
            # TOML writes these types like JSON, but has no surrogate pairs and escapes the delete character.
            lines.append(f"{name} = " + json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f"))
    head = [f"[{path.rstrip('.')}]"] if path and lines else []
    return "\n".join([*head, *lines, "", *sections])
