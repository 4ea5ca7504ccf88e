"""Voice names of Qwen's hosted speech models, and the preset that comes nearest: of the same sex, then of the same age
and region. The open checkpoints have the presets alone."""

from __future__ import annotations

from collections.abc import Sequence

# preset -> cloud voices. A name that is a preset's own stands for itself.
_NEAREST = {
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
CLOUD_VOICES = tuple(voice for voices in _NEAREST.values() for voice in voices)


def cloud_aliases(speakers: Sequence[str]) -> dict[str, str]:
    """Cloud names -> speakers. A checkpoint without the nearest preset uses its own in their order."""
    names = {speaker.lower(): speaker for speaker in speakers}
    presets = list(_NEAREST)
    return {
        voice: names.get(preset, speakers[presets.index(preset) % len(speakers)])
        for preset, voices in _NEAREST.items()
        for voice in voices
        if speakers and voice not in names
    }
