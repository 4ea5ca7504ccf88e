"""What a name in a request stands for: a preset, an uploaded voice, or one of OpenAI's names for a preset."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from oscine.server.voice_store import VoiceStore
from oscine.types import ModelCard, VoiceError, unknown_choice
from oscine.voice import Voice

# The order is fixed: clients hear the same speaker under the same name after every update of ours.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse"),
    *("marin", "cedar"),
)
DEFAULT_VOICE = "default"
_MAX_NAMES_SHOWN = 32


def voice_aliases(speakers: Sequence[str]) -> dict[str, str]:
    """OpenAI's names -> speakers; a speaker who has such a name himself keeps it."""
    names = {speaker.lower() for speaker in speakers}
    return {
        alias: speakers[index % len(speakers)]
        for index, alias in enumerate(OPENAI_VOICES)
        if speakers and alias not in names
    }


def reserved_names(speakers: Sequence[str]) -> frozenset[str]:
    """What no uploaded voice may be called."""
    return frozenset({DEFAULT_VOICE, *OPENAI_VOICES, *(speaker.lower() for speaker in speakers)})


class Voices:
    """Every name that a request may give, for one checkpoint."""

    def __init__(self, card: ModelCard, store: VoiceStore) -> None:
        self._card, self.store = card, store
        self._presets = {speaker.lower(): speaker for speaker in card.speakers}
        self.aliases = voice_aliases(card.speakers)

    def resolve(self, name: str | None) -> str | Voice | None:
        """A preset's name, an uploaded voice, or None: what the checkpoint has. Raises VoiceError."""
        key = (name or DEFAULT_VOICE).lower()
        if key == DEFAULT_VOICE:
            return None
        if key in self._presets:
            return self._presets[key]
        stored = self.store.get(key)
        if stored is not None:
            return stored.voice
        if key in self.aliases:
            return self.aliases[key]
        # OpenAI's clients cannot leave the voice out; here `instructions` make it.
        if key in OPENAI_VOICES and self._card.kind == "voice_design":
            return None
        raise VoiceError(self._unknown(key), "voice")

    def usable_names(self) -> list[str]:
        return [*self._card.speakers, *(self.store.names() if self._card.clones else ())]

    def _unknown(self, name: str) -> str:
        if self._card.kind == "voice_design":
            return (
                f"unknown voice {name[:80]!r}: this VoiceDesign checkpoint has no voices to choose from; "
                "leave `voice` out and describe one in `instructions`"
            )
        names = [*self.usable_names(), *self.aliases]
        if not names:
            return (
                f"unknown voice {name[:80]!r}: this Base checkpoint has no preset voices and none was uploaded; "
                "give a clip (ref_audio) or upload one (POST /v1/audio/voices)"
            )
        if len(names) > _MAX_NAMES_SHOWN:
            names = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
        further = "; or give a clip (ref_audio)" if self._card.clones else ""
        if not names:
            return f"unknown voice {name[:80]!r}; GET /v1/audio/voices lists all there are{further}"
        return f"{unknown_choice('voice', name[:80], names)}; GET /v1/audio/voices lists them all{further}"
