"""Where the settings of `oscine serve` come from: defaults, one TOML file, the environment, flags; the later one wins.

A setting is named by its path, `engine.slots`; in the environment it is OSCINE_SERVE_ENGINE_SLOTS. No torch here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from oscine.config import EngineConfig, Section, ServerConfig, WorkerConfig, no_table
from oscine.types import ConfigError, unknown_choice

ENVIRONMENT = "OSCINE_SERVE_"
_DEVICES = "auto, cpu, cuda, cuda:0, ..."


def default_voices_dir() -> str:
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return f"{data}/oscine/voices"


@dataclass(frozen=True, slots=True)
class Settings(Section):
    model: str = "demo"  # a folder, a hub id, or the voice in the box
    name: str | None = None  # that it is served under; None: from `model`
    devices: tuple[str, ...] = ("auto",)  # an engine on each
    dtype: str = "auto"  # auto, float32, bfloat16
    server: ServerConfig = field(default_factory=lambda: ServerConfig(voices_dir=default_voices_dir()))
    engine: EngineConfig = field(default_factory=EngineConfig)
    process: WorkerConfig = field(default_factory=WorkerConfig)

    def _check(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(unknown_choice("dtype", self.dtype, ("auto", "float32", "bfloat16")))
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise ConfigError(f"devices must name each device once ({_DEVICES}), got {list(self.devices)}")

    @property
    def served_name(self) -> str:
        return self.name or Path(self.model).name or self.model

    def as_toml(self, *, hide_keys: bool = True) -> str:
        """What a file may hold, with every default. A key that is hidden is only counted: the file has none then."""
        return _toml(dataclasses.asdict(self), {"server.api_keys"} if hide_keys and self.server.api_keys else set())


def load_settings(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """`flags` are paths to values: numbers and lists as such, or text to be read as TOML has it."""
    values: dict[str, Any] = {"server": {"voices_dir": default_voices_dir()}}
    _join(values, _read(file) if file else {})
    paths = dict(_paths(Settings))
    by_variable = {ENVIRONMENT + path.upper().replace(".", "_"): path for path in paths}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT):
            continue
        if variable not in by_variable:
            raise ConfigError(unknown_choice("environment variable", variable, by_variable))
        path = by_variable[variable]
        _put(values, path, _parsed(text, paths[path], variable))
    for path, value in flags.items():
        if path not in paths:
            raise ConfigError(unknown_choice("setting", path, paths))
        _put(values, path, _parsed(value, paths[path], path) if isinstance(value, str) else value)
    return Settings.from_mapping(values)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings file {str(file)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise ConfigError(f"the settings file {str(file)!r} is not TOML: {error}") from error


def _paths(section: type[Section], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, kind in get_type_hints(section).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _paths(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind


def _parsed(text: str, kind: Any, where: str) -> Any:
    """Text as the setting's type wants it. Lists of words may stand without brackets: a,b."""
    if kind in (str, str | None):
        return text
    if kind == tuple[str, ...] and not text.lstrip().startswith("["):
        return tuple(item.strip() for item in text.split(",") if item.strip())
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML, or a number of thousands of digits
        shown = reprlib.repr(text)
        raise ConfigError(f"{where} has a value that cannot be read: {shown}; write it as in TOML") from None


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for depth, section in enumerate(sections, 1):
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise no_table(".".join(sections[:depth]), values)
    values[name] = value


def _join(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(values.get(name), dict):
            _join(values[name], value)
        else:
            values[name] = value


def _toml(values: Mapping[str, Any], hidden: Collection[str], path: str = "") -> str:
    lines, sections = [], []
    for name, value in values.items():
        if isinstance(value, Mapping):
            sections.append(_toml(value, hidden, f"{path}{name}."))
        elif value is None:
            lines.append(f"# {name} is not set")
        elif f"{path}{name}" in hidden:
            lines.append(f"# {name}: {len(value)} hidden")
        else:
            # Of these types TOML is written like JSON; but it has no surrogate pairs, and escapes the delete character.
            written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{name} = {written}")
    head = [f"[{path.rstrip('.')}]"] if path and lines else []
    return "\n".join([*head, *lines, "", *sections])
