"""Decides whether a checkpoint can do what a request needs. The only place for these checks; no torch.

`resolve_request` is the whole check; the other functions serve callers that know only a part of the request yet.
`check_needs` compares checkpoints before one of them is chosen.
Errors name the field of SpeechRequest, or the `param` that the caller gives.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from oscine.errors import RequestError, VoiceError, unknown_choice
from oscine.request import SpeechRequest, TextMode
from oscine.types import ModelCard, ModelKind
from oscine.voice import Voice

AUTO = "auto"  # the language: the model detects it from the text
KIND_NAMES: dict[ModelKind, str] = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base"}
CLIP_PARAMS = ("ref_audio", "audio_sample")  # fields whose voice is made from a clip
_TEXT_MODES: tuple[TextMode, ...] = ("whole", "streaming")

# For checkpoints that list none of their own: the published ones follow instructions in any words.
_INSTRUCTION_EXAMPLES: dict[ModelKind, dict[str, str]] = {
    "custom_voice": {
        "Calm": "Speak calmly and slowly.",
        "Cheerful": "Sound cheerful and friendly.",
        "Whisper": "Whisper.",
        "Serious": "Sound serious and formal.",
        "Excited": "Speak fast and with great excitement.",
    },
    "voice_design": {
        "Narrator": "An older man with a warm, deep voice, who speaks slowly and close to the microphone.",
        "Presenter": "A young woman with a bright, clear voice, who speaks fast and cheerfully.",
        "Grandmother": "An old woman with a soft, slightly hoarse voice, who speaks gently.",
    },
}


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request's choices in the checkpoint's own terms."""

    speaker: str | None  # a preset voice's name, lower case
    voice: Voice | None  # a cloned voice; at most one of the two
    language: str | None  # a language or dialect of the checkpoint; None: the model detects it
    text_mode: TextMode


def resolve_request(request: SpeechRequest, card: ModelCard, *, streaming_text: bool = False) -> ResolvedRequest:
    """Checks everything but the text and the sampling. Raises RequestError or VoiceError."""
    speaker, voice = _resolve_voice(request.voice, card)
    _check_instructions(request.instructions, card)
    return ResolvedRequest(
        speaker=speaker,
        voice=voice,
        language=_resolve_language(request.language, speaker, card),
        text_mode=_resolve_text_mode(request.text_mode, card, streaming_text=streaming_text),
    )


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request asks of a checkpoint: known before its clip is fetched or cloned."""

    kind: ModelKind | None = None  # None: any
    voice: str | None = None  # a preset's name; None: the default voice, or a described one
    any_preset: bool = False  # the voice has one of OpenAI's names, which every CustomVoice checkpoint knows
    clone_param: str | None = None  # the field that asks for a cloned voice: a clip, an embedding, an uploaded voice
    speaker_width: int | None = None  # of the embedding or the uploaded voice
    mixed: tuple[str, ...] = ()  # presets of a mix, all of which it must have
    instructions: str | None = None
    language: str = AUTO


def check_needs(needs: Needs, card: ModelCard) -> None:
    """Raises RequestError or VoiceError if the checkpoint cannot do it."""
    if needs.kind not in (None, card.kind):
        raise RequestError(f"this checkpoint is {KIND_NAMES[card.kind]}, not {KIND_NAMES[needs.kind]}", "task_type")
    if needs.clone_param is not None:
        check = check_can_clone if needs.clone_param in CLIP_PARAMS else check_takes_voices
        check(card, needs.clone_param)
        if needs.speaker_width is not None:
            check_speaker_width(needs.speaker_width, card, needs.clone_param)
        for name in needs.mixed:
            if name not in card.speakers:
                raise unknown_voice(name, card)
    else:
        _resolve_voice(needs.voice, card)
    _check_instructions(needs.instructions, card)
    _resolve_language(needs.language, None, card)


def check_text(text: object, param: str = "text") -> None:
    """Whether any checkpoint can speak this; also for instructions and transcripts."""
    if not isinstance(text, str):
        raise RequestError(f"{param} must be a string, got {type(text).__name__}", param)
    if not text.strip():
        found = f"only white space ({len(text)} characters)" if text else "empty"
        raise RequestError(f"{param} is {found}; give at least one word to speak", param)
    check_characters(text, param)


def check_characters(text: str, param: str = "text") -> None:
    """Checks a piece of streaming text, which may be white space."""
    if (at := text.find("\0")) >= 0:
        raise RequestError(f"{param} has a NUL character at index {at}; remove it", param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} has half a surrogate pair (U+{ord(text[error.start]):04X}) at index {error.start}; it was cut or "
            "decoded wrongly: send the whole character",
            param,
        ) from None


def instruction_examples(card: ModelCard) -> dict[str, str]:
    """Instructions that the checkpoint follows, by a short name for each."""
    if not card.takes_instructions:
        return {}
    return dict(card.instruction_examples) or _INSTRUCTION_EXAMPLES.get(card.kind, {})


def check_can_clone(card: ModelCard, param: str = "ref_audio") -> None:
    if not card.clones:
        others = (
            f"use one of its voices ({', '.join(sorted(card.speakers))})"
            if card.speakers
            else "describe a voice instead"
        )
        raise VoiceError(
            f"this {KIND_NAMES[card.kind]} checkpoint cannot clone; use a Base checkpoint, or {others}", param
        )


def can_clone_for(cloner: ModelCard, card: ModelCard) -> bool:
    """Whether one checkpoint makes voices from clips that another can speak with."""
    return cloner.clones and card.takes_voices and cloner.speaker_width == card.speaker_width


def check_takes_voices(card: ModelCard, param: str) -> None:
    """Raises VoiceError if it cannot speak with a voice that was made before."""
    if not card.takes_voices:
        check_can_clone(card, param)


def check_speaker_width(width: int, card: ModelCard, param: str = "voice") -> None:
    if width != card.speaker_width:
        raise VoiceError(
            f"the voice's speaker vector has {width} numbers, this checkpoint needs {card.speaker_width}; make the "
            "voice again with this checkpoint",
            param,
        )


def unknown_voice(name: str, card: ModelCard, choices: Iterable[str] = ()) -> VoiceError:
    """`choices` are usable names beyond the checkpoint's own, such as uploaded voices."""
    names = [*card.speakers, *choices]
    if card.kind == "voice_design":
        message = "this VoiceDesign checkpoint has no voices to choose from; leave the voice out and describe one in "
        return VoiceError(message + "the instructions", "voice")
    if not names:
        message = f"this Base checkpoint has no preset voices, so {name[:100]!r} is unknown; {_CLONE_HINT}"
        return VoiceError(message, "voice")
    return VoiceError(unknown_choice("voice", name, names), "voice")


_CLONE_HINT = "give a reference clip (ref_audio), a saved voice or an embedding"


def _resolve_voice(voice: object, card: ModelCard) -> tuple[str | None, Voice | None]:
    if voice is not None and not isinstance(voice, str | Voice):
        raise VoiceError(
            f"a voice is a name or a Voice, got {type(voice).__name__}; for a speaker vector use Voice.from_embedding",
            "voice",
        )
    if isinstance(voice, Voice):
        check_takes_voices(card, "voice")
        check_speaker_width(len(voice.speaker), card)
        return None, voice if card.clones else Voice(voice.speaker)  # others know no reference clips
    if voice is not None and voice.lower() not in card.speakers:
        raise unknown_voice(voice, card)
    if card.kind == "base":
        raise VoiceError(f"this Base checkpoint needs a voice to clone; {_CLONE_HINT}", "voice")
    if card.kind == "voice_design":
        return None, None
    return card.speakers[0] if voice is None else voice.lower(), None


def _check_instructions(instructions: str | None, card: ModelCard) -> None:
    if instructions:
        if not card.takes_instructions:
            kind = "Base" if card.kind == "base" else "0.6B CustomVoice"
            raise RequestError(
                f"{kind} checkpoints do not follow instructions; leave them out, or use a 1.7B CustomVoice or a "
                "VoiceDesign checkpoint",
                "instructions",
            )
        check_text(instructions, "instructions")
    elif card.kind == "voice_design":
        raise RequestError(
            "this VoiceDesign checkpoint needs a description of the voice; give it as instructions", "instructions"
        )


def _resolve_language(language: object, speaker: str | None, card: ModelCard) -> str | None:
    if not isinstance(language, str):
        raise RequestError(f"a language is a name, got {type(language).__name__}", "language")
    name = language.lower()
    if name != AUTO and name not in card.languages:
        raise RequestError(unknown_choice("language", language, [AUTO, *card.languages]), "language")
    dialect = dict(card.dialects).get(speaker or "")
    if dialect and name in (AUTO, "chinese"):
        return dialect
    return None if name == AUTO else name


def _resolve_text_mode(text_mode: TextMode | None, card: ModelCard, *, streaming_text: bool) -> TextMode:
    if text_mode is not None and text_mode not in _TEXT_MODES:
        raise RequestError(unknown_choice("text mode", str(text_mode), _TEXT_MODES), "text_mode")
    if streaming_text and text_mode == "whole":
        raise RequestError(
            "text_mode 'whole' needs the whole text; leave it out for streaming text, or send the text at once",
            "text_mode",
        )
    return text_mode or ("streaming" if streaming_text or card.kind == "base" else "whole")


# --- scripts --------------------------------------------------------------------------------------------------------

_UNSUPPORTED_SHARE = 0.25  # of the letters; a foreign name in a sentence stays below
# A script is the first word of its characters' Unicode names.
_SCRIPTS = {
    "chinese": frozenset({"CJK"}),
    "japanese": frozenset({"CJK", "HIRAGANA", "KATAKANA"}),
    "korean": frozenset({"HANGUL"}),
    "russian": frozenset({"CYRILLIC"}),
    **dict.fromkeys(("english", "german", "french", "portuguese", "spanish", "italian"), frozenset({"LATIN"})),
}


def unsupported_script(text: str, card: ModelCard) -> str | None:
    """A warning if much of the text is in a script that no language of the checkpoint uses."""
    if not card.languages or not _SCRIPTS.keys() >= set(card.languages):
        return None  # a language whose script is not known here
    supported = frozenset().union(*(_SCRIPTS[name] for name in card.languages))
    if text.isascii() and "LATIN" in supported:  # most texts; every letter would be looked up
        return None
    letters: Counter[str] = Counter()
    for char, count in Counter(unicodedata.normalize("NFKC", text)).items():
        # Modifier letters (Lm) are shared by scripts.
        if unicodedata.category(char) in ("Ll", "Lu", "Lt", "Lo"):
            letters[unicodedata.name(char, "?").split()[0]] += count
    foreign = Counter({script: count for script, count in letters.items() if script not in supported})
    if not foreign or foreign.total() < _UNSUPPORTED_SHARE * letters.total():
        return None
    script = foreign.most_common(1)[0][0]
    name = "Chinese characters" if script == "CJK" else f"{script.capitalize()} letters"
    return (
        f"the text contains many {name}, but this checkpoint lists no language that uses them "
        f"(languages: {', '.join(card.languages)}); the speech may be unintelligible"
    )
