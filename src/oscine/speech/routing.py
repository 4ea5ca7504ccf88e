"""Chooses the model of a request: the one that it names, or the best one of those that can do what it asks for.

| the request has                                   | kinds that can do it, best first                              |
|---------------------------------------------------|---------------------------------------------------------------|
| a clip                                            | Base; with instructions CustomVoice, and a Base clones for it |
| an embedding, an uploaded voice                   | Base; CustomVoice where no Base can, and with instructions    |
| a preset's name                                   | CustomVoice with this preset                                  |
| instructions and no voice (a description)         | VoiceDesign, CustomVoice                                      |
| instructions and one of OpenAI's voice names      | CustomVoice, VoiceDesign                                      |
| a mix of voices                                   | as an uploaded voice; CustomVoice with all presets in it      |
| none of these                                     | CustomVoice                                                   |

Of several models of a kind, the first one that was configured. All functions here are pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oscine.errors import NotFoundError, RequestError, VoiceError, shown_name, unknown_choice
from oscine.request import SpeechRequest, VoiceMix, VoiceSource, naming_turn
from oscine.speech.capabilities import CLIP_PARAMS, KIND_NAMES, Needs, can_clone_for, check_needs
from oscine.speech.voice_names import DEFAULT_VOICE, OPENAI_VOICES, is_foreign_voice, mix_named
from oscine.types import ModelCard, ModelKind
from oscine.voice import Voice

# Default model names of OpenAI's clients; they stand for any served model.
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
_DATE = re.compile(r"-(20\d\d-\d\d-\d\d|[01]\d[0-3]\d)$")  # a dated snapshot of such a model: tts-1-hd-1106
# So do the names of Qwen's hosted models, of Kokoro and of Orpheus, and those of the published checkpoints.
_HOSTED = re.compile(r"qwen3?-tts(-instruct|-vc|-vd)?(-flash)?(-realtime)?(-latest)?|(kokoro|orpheus)(-[\w.-]*)?")
_PUBLISHED = re.compile(r"qwen3-tts-12hz-[0-9.]+b-(\w+)")
_PUBLISHED_KINDS: dict[str, ModelKind] = {name.lower(): kind for kind, name in KIND_NAMES.items()}


def find_name(model: str, served: Collection[str], aliases: Collection[str] = ()) -> str | None:
    """The served name that the field `model` means, or None for any. An alias is a name for any model, or "name=model".
    The one rule for all entrances. Raises NotFoundError."""
    if not model:
        return None  # some clients send an empty field
    if model in aliases:
        return None
    model = next((alias.partition("=")[2] for alias in aliases if alias.startswith(f"{model}=")), model)
    # Clients may send the hub id (Qwen/Qwen3-TTS-...); its last component is the served name.
    for name in (model, model.rpartition("/")[2]):
        if name in served:
            return name
    known = _DATE.sub("", _last_component(model))
    if known in OPENAI_MODELS or _HOSTED.fullmatch(known) or published_kind(model):
        return None
    names = [alias.partition("=")[0] for alias in aliases]
    message = unknown_choice("model", shown_name(model), [*served, *names, *OPENAI_MODELS])
    raise NotFoundError(message, "model", "model_not_found")


def published_kind(model: str | None) -> ModelKind | None:
    """The kind of a published checkpoint, by its hub id or the last component of that."""
    published = _PUBLISHED.fullmatch(_last_component(model or ""))
    return _PUBLISHED_KINDS.get(published[1]) if published else None


def _last_component(model: str) -> str:
    return model[:160].rpartition("/")[2][:80].lower()


@dataclass(frozen=True, slots=True)
class AskedModel:
    """What a request says about the model."""

    name: str | None = None  # as the client gave it
    kind: ModelKind | None = None


def needs_of(
    request: SpeechRequest,
    model: AskedModel,
    cards: Sequence[ModelCard],
    find_voice: Callable[[str], Voice | None],
    voice_aliases: Mapping[str, str] | None = None,
) -> Needs:
    """`find_voice` finds an uploaded voice; it may raise VoiceError. `voice_aliases` are the operator's."""
    kind = model.kind or published_kind(model.name)  # of a published one, as far as there is such a model
    if model.kind is None and not any(card.kind == kind for card in cards):
        kind = None
    needs = Needs(kind=kind, instructions=request.instructions, language=request.language)
    source = request.voice
    if isinstance(source, VoiceSource):
        width = None if source.embedding is None else len(source.embedding)
        return replace(needs, clone_param=source.param, speaker_width=width)
    if isinstance(source, Voice):
        return replace(needs, clone_param="voice", speaker_width=len(source.speaker))
    if isinstance(source, VoiceMix):
        return _needs_of_mix(request, source, model, cards, find_voice, voice_aliases)
    voice = (source or DEFAULT_VOICE)[:80].lower()
    if voice_aliases and not any(voice in card.speakers for card in cards):
        voice = voice_aliases.get(voice, voice)
    if any(voice in card.speakers for card in cards):
        return replace(needs, voice=voice)
    if voice != DEFAULT_VOICE and (uploaded := find_voice(voice)) is not None:
        return replace(needs, clone_param="voice", speaker_width=len(uploaded.speaker))
    if mix := mix_named(voice, source):
        return _needs_of_mix(request, mix, model, cards, find_voice, voice_aliases)
    if is_foreign_voice(voice):
        return replace(needs, any_preset=True)
    return needs if voice == DEFAULT_VOICE else replace(needs, voice=voice)  # no model has it


def _needs_of_mix(request: SpeechRequest, mix: VoiceMix, *how: Any) -> Needs:
    """What all voices of the mix need together: the presets that it names, and room for a vector."""
    alone = [needs_of(replace(request, voice=voice), *how) for voice, _ in mix.parts]
    widths = {one.speaker_width for one in alone if one.speaker_width is not None}
    if len(widths) > 1:
        message = (
            f"the voices of the mix are of different checkpoints: their vectors have {_listed(sorted(widths))} numbers"
        )
        raise VoiceError(f"{message}; mix voices of one checkpoint", "voice")
    presets = tuple(one.voice for one in alone if one.voice is not None)
    any_preset = any(one.clone_param is None and one.voice is None for one in alone)
    kind = alone[0].kind or ("custom_voice" if any_preset else None)
    return replace(
        alone[0],
        kind=kind,
        voice=None,
        any_preset=False,
        clone_param="voice",
        speaker_width=next(iter(widths), None),
        mixed=presets,
    )


def choose_models(
    needs: Sequence[Needs],
    cards: Sequence[ModelCard],
    named: str | None = None,
    uploaded_names: Callable[[], Iterable[str]] = tuple,
) -> list[ModelCard]:
    """The models that can do it, best first; with `named`, this one alone. A dialogue needs something for each turn.
    Raises RequestError if there is none."""
    if len(needs) == 1:
        return _best_first(needs[0], _able(needs[0], cards, named, uploaded_names))
    able = list(cards)
    for index, turn in enumerate(needs):
        with naming_turn(index):
            of_turn = _able(turn, cards, named, uploaded_names)
            if not (able := [card for card in able if card in of_turn]):
                models = _listed(card.name for card in of_turn)
                message = f"only {models} can speak this turn, but not those before it; one model speaks a dialogue"
                raise RequestError(message)
    return _best_first(needs[0], able)


def _able(
    needs: Needs, cards: Sequence[ModelCard], named: str | None, uploaded_names: Callable[[], Iterable[str]]
) -> list[ModelCard]:
    """The models that can do it, in their order; with `named`, this one alone. Raises RequestError if there is none."""
    reasons = {card.name: _reason(_needs_from(needs, card, cards, named), card) for card in cards}
    able = [card for card in cards if reasons[card.name] is None]
    if named is not None:
        chosen = [card for card in able if card.name == named]
        if chosen:
            return chosen
        raise _named_cannot(named, reasons[named], able)
    if not able:
        raise _none_can(needs, cards, reasons, uploaded_names)
    return able


def _best_first(needs: Needs, able: list[ModelCard]) -> list[ModelCard]:
    if needs.clone_param is not None:  # others were not trained for it: not even while no Base is ready
        return [card for card in able if card.kind == "base"] or able
    # Instructions without a voice are a description of one.
    first: ModelKind = "voice_design" if needs.instructions and not needs.any_preset else "custom_voice"
    return sorted(able, key=lambda card: card.kind != first)  # keeps the configured order of equals


def _needs_from(needs: Needs, card: ModelCard, cards: Sequence[ModelCard], named: str | None) -> Needs:
    """What the request needs of this model. With instructions, which no Base follows, a clip's voice may be made by
    another model. A VoiceDesign model that must speak the request ignores the voice's name: some clients always send
    one."""
    if needs.instructions and needs.clone_param in CLIP_PARAMS and any(can_clone_for(one, card) for one in cards):
        return replace(needs, clone_param="voice")
    must = named == card.name or needs.kind == card.kind or all(other.kind == card.kind for other in cards)
    if card.kind != "voice_design" or not must:
        return needs
    return replace(needs, voice=None)


def _reason(needs: Needs, card: ModelCard) -> RequestError | None:
    """Returns why the model cannot do it, or None if it can."""
    try:
        check_needs(needs, card)
    except RequestError as error:
        return error
    return None


def _named_cannot(named: str, reason: RequestError | None, able: Sequence[ModelCard]) -> RequestError:
    assert reason is not None
    hint = f"; this server's {_listed(card.name for card in able)} can: name it as model, or leave model out"
    return type(reason)(f"model {named!r} cannot do this: {reason}{hint if able else ''}", reason.param)


def _none_can(
    needs: Needs,
    cards: Sequence[ModelCard],
    reasons: dict[str, RequestError | None],
    uploaded_names: Callable[[], Iterable[str]],
) -> RequestError:
    presets = {speaker for card in cards for speaker in card.speakers}
    if needs.voice is not None and needs.voice not in presets:
        message = unknown_choice("voice", needs.voice, {*presets, *OPENAI_VOICES, *uploaded_names()})
        return VoiceError(f"{message}; GET /v1/audio/voices lists the voices of all models", "voice")
    errors = [reason for reason in reasons.values() if reason]
    if len({str(error) for error in errors}) == 1:
        return errors[0]
    listed = "; ".join(f"{card.name!r} ({KIND_NAMES[card.kind]}): {reasons[card.name]}" for card in cards)
    params = {error.param for error in errors}
    return RequestError(f"no served model can do this. {listed}", params.pop() if len(params) == 1 else None)


def _listed(names: Iterable[object]) -> str:
    return " or ".join(repr(name) for name in names)
