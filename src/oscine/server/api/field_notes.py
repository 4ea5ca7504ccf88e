"""Fields of a request that have no effect, as the response names them: short, in printable ASCII, and not too many."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oscine.server.api.schemas import UnknownField, VoiceOptions
from oscine.types import ModelCard

_MAX_LISTED = 20
_MAX_WARNINGS = 4  # a name is compared with all known ones for each
_NOT_LISTED = re.compile(r"[^\x21-\x2b\x2d-\x7e]")  # commas separate the names in a header


def ignored_fields(options: VoiceOptions, card: ModelCard, unknown: Sequence[UnknownField]) -> tuple[str, ...]:
    """`unknown` are those of the options."""
    # Clients of vLLM-Omni and OpenAI always send a voice, also where the instructions or a clip define it.
    is_defined = card.kind == "voice_design" or options.ref_audio or options.references or options.speaker_embedding
    given = {name for name in ("voice", "speaker") if is_defined and getattr(options, name) is not None}
    return listed_fields({*options.ignored_fields, *given, *(field.path for field in unknown)})


def listed_fields(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(_shown(name) for name in names))[:_MAX_LISTED]


def field_warnings(unknown: Sequence[UnknownField]) -> tuple[str, ...]:
    """Warns of misspelled fields."""
    return tuple(
        f"the field '{_shown(field.path)}' is unknown and was ignored; did you mean '{field.meant}'?"
        for field in unknown[:_MAX_WARNINGS]
        if field.meant
    )


def _shown(name: str) -> str:
    return _NOT_LISTED.sub("?", name)
