"""The fields of a request that say how its text is prepared, with the server's defaults."""

from __future__ import annotations

import asyncio

from oscine.config import ServerConfig
from oscine.errors import ConfigError, RequestError
from oscine.server.schemas import VoiceOptions
from oscine.text.normalization.language import has_rules
from oscine.text.preparation import check_text_options
from oscine.types import TextOptions


class TextFields:
    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigError."""
        self.defaults = TextOptions(normalize=config.normalize, paragraph_pause_s=config.paragraph_pause_s)
        try:
            check_text_options(self.defaults, "auto")
        except RequestError as error:
            raise ConfigError(f"server.normalize: {error}") from None

    async def read(self, options: VoiceOptions, language: str) -> TextOptions:
        """Raises RequestError."""
        defaults = self.defaults
        asked = options.normalize, options.markup, options.paragraph_pause_s, options.pronunciations
        if asked == (None, None, None, None) and not defaults.normalize:
            return defaults
        by_default = defaults.normalize and has_rules(language)  # a request that asks for it gets an error instead
        given = TextOptions(
            normalize=by_default if options.normalize is None else options.normalize,
            markup=options.markup is not False,
            paragraph_pause_s=(
                defaults.paragraph_pause_s if options.paragraph_pause_s is None else options.paragraph_pause_s
            ),
            pronunciations=options.pronunciations or {},
        )
        if given.normalize:  # may load tables
            await asyncio.to_thread(check_text_options, given, language)
        else:
            check_text_options(given, language)
        return given
