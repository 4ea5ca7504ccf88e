"""Resolves the voice names of requests: presets, aliases, uploaded voices, mixes, and names of other systems."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from cachetools import LRUCache

from oscine.errors import VoiceError, nearest
from oscine.process.resources import Ledger
from oscine.request import VoiceMix
from oscine.speech.capabilities import check_speaker_width, check_takes_voices, unknown_voice
from oscine.speech.voice_store import VoiceStore
from oscine.types import ModelCard, SpeechEngine
from oscine.voice import Voice, blended

DEFAULT_VOICE = "default"
_MAX_CHOICES = 32  # in an error message
_MAX_MIXES = 256  # that are kept; up to 16 kB each


def voice_aliases(speakers: Sequence[str]) -> dict[str, str]:
    """Returns the speakers of OpenAI's names. A speaker with such a name keeps it."""
    names = {speaker.lower() for speaker in speakers}
    found = {alias: nearest_voice(alias, speakers) for alias in OPENAI_VOICES if alias not in names}
    return {alias: speaker for alias, speaker in found.items() if speaker is not None}


def reserved_names(speakers: Sequence[str], aliases: Collection[str] = ()) -> frozenset[str]:
    """Names that an uploaded voice cannot have. `aliases` are the operator's."""
    return frozenset({DEFAULT_VOICE, *OPENAI_VOICES, *aliases, *(speaker.lower() for speaker in speakers)})


def mix_named(key: str, name: object) -> VoiceMix | None:
    """The mix that a voice's name stands for. `key` is the name as it is looked up, cut to the length of a voice's
    name, or what an alias stands for. Raises RequestError."""
    whole = name if isinstance(name, str) and name.lower().startswith(key) else key
    return VoiceMix.named(whole)


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

    def resolve(self, name: str | None) -> str | Voice | VoiceMix | None:
        """Returns a preset's name, an uploaded voice, the mix that the name stands for, or None for the checkpoint's
        default. Raises VoiceError."""
        asked = (name or DEFAULT_VOICE)[:80].lower()  # longer than any valid name
        key = self._own.get(asked, asked)
        if key == DEFAULT_VOICE:
            return None
        if key in self._presets:
            return self._presets[key]
        stored = self.store.get(key)
        if stored is not None:
            return stored.voice
        if mix := mix_named(key, name):
            return mix
        if speaker := self._openai.get(key) or nearest_voice(key, self._card.speakers):
            return speaker
        choices = [*(self.store.names() if self._card.takes_voices else ()), *self.aliases]
        if len(choices) > _MAX_CHOICES:
            choices = nearest(key, choices, 5)
        alias = "" if key == asked else f"; server.voice_aliases has it for {asked!r}"
        error = unknown_voice(key, self._card, choices)
        raise VoiceError(f"{error}{alias}; GET /v1/audio/voices lists all voices", "voice")


class MixedVoices:
    """Mixes voices, and keeps recent mixes. The engine is asked once for the vector of each preset. For one event
    loop."""

    def __init__(self, card: ModelCard, engine: SpeechEngine, resolver: VoiceResolver, ledger: Ledger) -> None:
        self._card, self._engine, self._resolver = card, engine, resolver
        self._presets: dict[str, Voice] = {}
        self._mixes: LRUCache[tuple[tuple[str, float], ...], Voice] = LRUCache(_MAX_MIXES)
        self._files, self._clones = ledger.pool("voice_file"), ledger.pool("clone")

    async def get(self, mix: VoiceMix) -> Voice:
        """Raises VoiceError about a part, and OverloadedError if too many voices are being made."""
        check_takes_voices(self._card, "voice")
        parts = []
        for asked, weight in mix.parts:
            voice = await self._voice(asked) if isinstance(asked, str) else asked
            check_speaker_width(len(voice.speaker), self._card)
            parts.append((voice, weight))
        key = tuple(sorted((voice.content_hash, weight) for voice, weight in parts))
        if (mixed := self._mixes.get(key)) is None:
            mixed = self._mixes[key] = blended(parts)  # eight voices take 0.2 ms
        return mixed

    async def _voice(self, name: str) -> Voice:
        quick = self._resolver.is_preset(name)
        part = self._resolver.resolve(name) if quick else await self._files.run(self._resolver.resolve, name)
        if isinstance(part, Voice):
            return part
        if not self._card.speakers:  # and the name is that of the default voice
            raise unknown_voice(name, self._card)
        preset = part if isinstance(part, str) else self._card.speakers[0]
        if (voice := self._presets.get(preset)) is None:
            voice = self._presets[preset] = await self._clones.run(self._engine.preset, preset)
        return voice


# What other systems call voices and languages.
#
# Each voice stands for the preset that comes nearest to it: of the same sex, then of the same age and region. The open
# checkpoints have the presets alone. Languages have codes (`en`, `eng`, `zh-CN`) besides the names of a checkpoint.


# Presets of the demo and of the published checkpoints, those with a dialect last.
_WOMEN = ("wren", "vivian", "serena", "sohee", "ono_anna")
_MEN = ("finch", "ryan", "aiden", "uncle_fu", "eric", "dylan")

# preset -> names. The name of a preset stands for itself.
_OPENAI = {
    "vivian": ("coral", "nova", "shimmer"),
    "serena": ("alloy", "sage", "marin"),
    "ryan": ("ash", "echo", "verse", "cedar"),
    "aiden": ("ballad", "fable"),
    "uncle_fu": ("onyx",),
}
_QWEN_CLOUD = {
    "vivian": ("cherry", "vivian", "chelsie", "momo", "bella", "mia", "bunny", "nini", "stella", "jada", "sunny"),
    "serena": ("serena", "maia", "jennifer", "katerina", "bellona", "elias", "ebona", "seren", "sonrisa", "kiki"),
    "uncle_fu": ("eldric sage", "vincent", "neil", "arthur", "andre", "li", "marcus", "roy", "peter", "rocky"),
    "ryan": ("ryan", "ethan", "moon", "kai", "nofish", "mochi", "pip", "radio gol"),
    "aiden": ("aiden", "bodega", "alek", "dolce", "lenn", "emilien"),
    "dylan": ("dylan",),
    "eric": ("eric",),
    "sohee": ("sohee",),
    "ono_anna": ("ono anna",),
}
_ORPHEUS = {
    "vivian": ("jess", "zoe"),
    "serena": ("tara", "leah"),
    "ryan": ("leo", "zac"),
    "aiden": ("dan",),
}
_MODELS = {"serena": ("kokoro",)}  # names of models that some clients send as a voice
# Kokoro's names begin with the language and the sex: af_heart, jm_kumo.
_KOKORO = re.compile(r"[abefhijpz][fm]_[a-z0-9_]{1,40}")
_OF_KOKORO = {"jf": "ono_anna", "zf": "vivian", "zm": "uncle_fu"}  # the others: serena, ryan

OPENAI_VOICES = tuple(sorted(name for names in _OPENAI.values() for name in names))
CLOUD_VOICES = tuple(name for names in _QWEN_CLOUD.values() for name in names)
_PRESETS: Mapping[str, str] = {
    name: preset
    for table in (_OPENAI, _QWEN_CLOUD, _ORPHEUS, _MODELS)
    for preset, names in table.items()
    for name in names
}
_NUMBERS = {name: number for number, name in enumerate(_PRESETS)}


def is_foreign_voice(name: str) -> bool:
    """Whether another system has a voice of this name, in lower case."""
    return name in _PRESETS or _KOKORO.fullmatch(name) is not None


def nearest_voice(name: str, speakers: Sequence[str]) -> str | None:
    """Returns the speaker that stands for a voice of another system, or None if there is no such voice or speaker. A
    checkpoint without the nearest preset uses a speaker of the same sex, as far as the sexes are known."""
    own = {speaker.lower(): speaker for speaker in speakers}
    preset = _PRESETS.get(name)
    if preset is None and _KOKORO.fullmatch(name):
        preset = _OF_KOKORO.get(name[:2]) or ("serena" if name[1] == "f" else "ryan")
    if preset is None or not own:
        return None
    if name in own or preset in own:
        return own.get(name) or own[preset]
    same, other = (_WOMEN, _MEN) if preset in _WOMEN else (_MEN, _WOMEN)
    possible = [one for one in same if one in own] or [one for one in own if one not in other] or [*own]
    return own[possible[_NUMBERS.get(name, 0) % len(possible)]]


_LANGUAGE_CODES = {
    "chinese": "zh zho chi cmn",
    "english": "en eng",
    "japanese": "ja jpn",
    "korean": "ko kor",
    "german": "de deu ger",
    "french": "fr fra fre",
    "russian": "ru rus",
    "portuguese": "pt por",
    "spanish": "es spa",
    "italian": "it ita",
}
_LANGUAGES = {code: name for name, codes in _LANGUAGE_CODES.items() for code in codes.split()}
_KOKORO_LANGUAGES = {  # `lang_code` of its servers
    "a": "english",
    "b": "english",
    "e": "spanish",
    "f": "french",
    "i": "italian",
    "j": "japanese",
    "p": "portuguese",
    "z": "chinese",
}
_LANGUAGE_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{2,8})*")  # BCP 47, without what no client sends


def language_code(name: str) -> str:
    """Returns the code of two letters of a checkpoint's language, or the name of one that has none here."""
    return _LANGUAGE_CODES.get(name.lower(), name).split()[0]


def language_name(given: str) -> str:
    """Returns the language that a code or a tag stands for, and anything else in lower case."""
    lower = given.strip().lower()
    tag = _LANGUAGE_TAG.fullmatch(lower)
    return _LANGUAGES.get(tag[1], lower) if tag else _KOKORO_LANGUAGES.get(lower, lower)
