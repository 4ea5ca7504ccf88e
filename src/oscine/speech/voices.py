"""Resolves the voice names of requests: presets, aliases, uploaded voices, and names of other systems."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from oscine.errors import VoiceError, nearest
from oscine.speech.capabilities import unknown_voice
from oscine.speech.foreign_names import OPENAI_VOICES, nearest_voice
from oscine.speech.voice_store import VoiceStore
from oscine.types import ModelCard
from oscine.voice import Voice

DEFAULT_VOICE = "default"
_MAX_CHOICES = 32  # in an error message


def voice_aliases(speakers: Sequence[str]) -> dict[str, str]:
    """Returns the speakers of OpenAI's names. A speaker with such a name keeps it."""
    names = {speaker.lower() for speaker in speakers}
    found = {alias: nearest_voice(alias, speakers) for alias in OPENAI_VOICES if alias not in names}
    return {alias: speaker for alias, speaker in found.items() if speaker is not None}


def reserved_names(speakers: Sequence[str], aliases: Collection[str] = ()) -> frozenset[str]:
    """Names that an uploaded voice cannot have. `aliases` are the operator's."""
    return frozenset({DEFAULT_VOICE, *OPENAI_VOICES, *aliases, *(speaker.lower() for speaker in speakers)})


class VoiceResolver:
    """Resolves the voice names of requests, for one checkpoint."""

    def __init__(self, card: ModelCard, store: VoiceStore, own_aliases: Mapping[str, str] | None = None) -> None:
        """`own_aliases`: the operator's names for voices, in lower case."""
        self._card, self.store = card, store
        self._presets = {speaker.lower(): speaker for speaker in card.speakers}
        self._own = {alias: voice for alias, voice in (own_aliases or {}).items() if alias not in self._presets}
        self._openai = voice_aliases(card.speakers)
        self._looked_up = {DEFAULT_VOICE, *self._presets, *(self._openai.keys() - self._own.keys())}

    @property
    def aliases(self) -> dict[str, str]:
        """Other names for voices: OpenAI's and the operator's."""
        return {**self._openai, **self._own}

    def is_preset(self, name: str | None) -> bool:
        """Whether `resolve` finds the name without the disk. For other names it reads the disk and may compare many: it
        must not run on the event loop."""
        return (name or DEFAULT_VOICE).lower() in self._looked_up

    def resolve(self, name: str | None) -> str | Voice | None:
        """Returns a preset's name, an uploaded voice, or None for the checkpoint's default. Raises VoiceError."""
        asked = (name or DEFAULT_VOICE)[:80].lower()  # longer than any valid name
        key = self._own.get(asked, asked)
        if key == DEFAULT_VOICE:
            return None
        if key in self._presets:
            return self._presets[key]
        stored = self.store.get(key)
        if stored is not None:
            return stored.voice
        if speaker := self._openai.get(key) or nearest_voice(key, self._card.speakers):
            return speaker
        choices = [*(self.store.names() if self._card.clones else ()), *self.aliases]
        if len(choices) > _MAX_CHOICES:
            choices = nearest(key, choices, 5)
        alias = "" if key == asked else f"; server.voice_aliases has it for {asked!r}"
        error = unknown_voice(key, self._card, choices)
        raise VoiceError(f"{error}{alias}; GET /v1/audio/voices lists all voices", "voice")
