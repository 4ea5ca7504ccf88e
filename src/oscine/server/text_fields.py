"""The fields of a request that say how its text is prepared, with the server's defaults."""

from __future__ import annotations

import asyncio

from oscine.config import ServerConfig
from oscine.errors import ConfigError, RequestError
from oscine.server.api.schemas import VoiceOptions
from oscine.text.levels import asked_level, at_level
from oscine.text.preparation import check_text_options
from oscine.types import ModelCard, TextOptions


class TextFields:
    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigError."""
        self._level = config.text_level or ("spoken" if config.normalize else None)
        self.defaults = TextOptions(text_level=config.text_level, paragraph_pause_s=config.paragraph_pause_s)
        try:
            check_text_options(TextOptions(text_level=self._level), "auto")
        except RequestError as error:
            name = "text_level" if config.text_level else "normalize"
            raise ConfigError(f"server.{name}: {error}") from None

    async def read(self, options: VoiceOptions, language: str, card: ModelCard) -> TextOptions:
        """Raises RequestError. `language`: the one to read the text in. The result has a level."""
        defaults = self.defaults
        pause_s = options.paragraph_pause_s
        given = TextOptions(
            text_level=options.text_level,
            normalize=options.normalize,
            markup=options.markup is not False,
            paragraph_pause_s=defaults.paragraph_pause_s if pause_s is None else pause_s,
            pronunciations=options.pronunciations or {},
        )
        if asked_level(given) == "spoken":  # may load tables
            await asyncio.to_thread(check_text_options, given, language)
        else:
            check_text_options(given, language)
        return at_level(given, card, language, self._level)
