"""What becomes of a text before the model reads it; text/preparation.py does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from oscine.fields import Spec

TextLevel = Literal["raw", "clean", "spoken"]  # of a text: as it is, without markup, in words
MAX_PARAGRAPH_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """The fields of a request that decide how its text is read."""

    text_level: Annotated[
        TextLevel | None,
        Spec(
            about="`raw`: the model reads the text as it is. `clean`: without markup, emoji and typographic "
            "characters. `spoken`: also numbers, abbreviations, addresses and symbols in words. Default: what the "
            "checkpoint needs."
        ),
    ] = None
    normalize: Annotated[
        bool | None,
        Spec(about="true: `text_level` is `spoken`; false: at most `clean`. `text_level` counts before it."),
    ] = None
    markup: Annotated[bool, Spec(about='false: `<break time="500ms"/>` is spoken, not a pause.')] = True
    paragraph_pause_s: Annotated[
        float | None,
        Spec(
            about="Silence between paragraphs, in seconds.",
            rule=f"a number of seconds from 0 to {MAX_PARAGRAPH_PAUSE_S:g}",
            least=0,
            most=MAX_PARAGRAPH_PAUSE_S,
        ),
    ] = None
    pronunciations: Annotated[
        Mapping[str, str] | None,
        Spec(
            about='What is spoken instead of whole words: `{"Oscine": "OSS-een"}`.',
            rule='an object such as {"Oscine": "OSS-een"}',
        ),
    ] = None

    @property
    def changes_words(self) -> bool:
        """Whether other words may be spoken than were written."""
        return self.text_level in ("clean", "spoken") or bool(self.normalize) or bool(self.pronunciations)
