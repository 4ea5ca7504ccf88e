"""Voice names in requests: presets, uploaded voices, and OpenAI's names as aliases of presets."""

from __future__ import annotations

from collections.abc import Sequence

from oscine.capabilities import unknown_voice
from oscine.errors import VoiceError, nearest
from oscine.server.cloud_voices import cloud_aliases
from oscine.server.voice_store import VoiceStore
from oscine.types import ModelCard
from oscine.voice import Voice

# The order is fixed: an alias must mean the same speaker in every version.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse"),
    *("marin", "cedar"),
)
DEFAULT_VOICE = "default"
_MAX_CHOICES = 32  # in an error message


def voice_aliases(speakers: Sequence[str]) -> dict[str, str]:
    """OpenAI's names -> speakers. A speaker with such a name keeps it."""
    names = {speaker.lower() for speaker in speakers}
    return {
        alias: speakers[index % len(speakers)]
        for index, alias in enumerate(OPENAI_VOICES)
        if speakers and alias not in names
    }


def reserved_names(speakers: Sequence[str]) -> frozenset[str]:
    """Names that an uploaded voice cannot have."""
    return frozenset({DEFAULT_VOICE, *OPENAI_VOICES, *(speaker.lower() for speaker in speakers)})


class VoiceResolver:
    """Resolves the voice names of requests, for one checkpoint."""

    def __init__(self, card: ModelCard, store: VoiceStore) -> None:
        self._card, self.store = card, store
        self._presets = {speaker.lower(): speaker for speaker in card.speakers}
        self.aliases = voice_aliases(card.speakers)
        self._cloud_aliases = cloud_aliases(card.speakers)

    def is_preset(self, name: str | None) -> bool:
        """Whether `resolve` only looks the name up. For others it reads the disk and may compare many names: it must
        not run on the event loop."""
        return name is None or name.lower() in {DEFAULT_VOICE, *self._presets, *self.aliases}

    def resolve(self, name: str | None) -> str | Voice | None:
        """A preset's name, an uploaded voice, or None for the checkpoint's default. Raises VoiceError."""
        key = (name or DEFAULT_VOICE)[:80].lower()  # longer than any valid name
        if key == DEFAULT_VOICE:
            return None
        if key in self._presets:
            return self._presets[key]
        stored = self.store.get(key)
        if stored is not None:
            return stored.voice
        if alias := self.aliases.get(key) or self._cloud_aliases.get(key):
            return alias
        choices = [*(self.store.names() if self._card.clones else ()), *self.aliases]
        if len(choices) > _MAX_CHOICES:
            choices = nearest(key, choices, 5)
        error = unknown_voice(key, self._card, choices)
        raise VoiceError(f"{error}; GET /v1/audio/voices lists all voices", "voice")
