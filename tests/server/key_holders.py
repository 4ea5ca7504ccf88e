"""Servers with a file of API keys, and a clock that tests set."""

import calendar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.http.api_keys import ApiKeys
from oscine.server.http.key_file import KeyFile
from oscine.types import ModelCard, SpeechEngine
from tests.server.scripted_engine import CARD

START_S = float(calendar.timegm((2026, 11, 19, 12, 0, 0)))


@dataclass
class SetClock:
    now_s: float = START_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class KeyedServer:
    """An application whose keys are in a file. `holder` adds one and returns the headers of its client."""

    app: FastAPI
    file: KeyFile
    clock: SetClock

    @property
    def keys(self) -> ApiKeys:
        return self.app.state.service.api_keys  # type: ignore[no-any-return]

    def holder(self, name: str, *roles: str, **limits: int) -> dict[str, str]:
        added = self.file.add(name, roles or ("speak",), limits, None)
        self.keys.named.reload()
        return {"authorization": f"Bearer {added.secret}"}

    def revoke(self, name: str) -> None:
        self.file.revoke(name)
        self.keys.named.reload()

    def used(self, name: str) -> tuple[int, int]:
        """Requests and characters of this month."""
        usage = self.keys.usage
        return usage.of_month(name, usage.month, "requests"), usage.of_month(name, usage.month, "characters")


def keyed_server(engine: SpeechEngine, folder: Path, card: ModelCard = CARD, **settings: Any) -> KeyedServer:
    """The file and the usage are in this folder."""
    file, clock = folder / "keys.json", SetClock()
    app = build_app(engine, card, ServerConfig(keys_file=str(file), **settings))
    app.state.service.api_keys.usage.clock = clock
    return KeyedServer(app, KeyFile(file), clock)
