"""Voice names: presets, uploaded voices, and OpenAI's names."""

from collections.abc import Mapping

import pytest

from oscine.errors import RequestError, VoiceError
from oscine.speech.voice_names import VoiceResolver, reserved_names, voice_aliases
from oscine.speech.voice_store import VoiceStore
from oscine.types import ModelCard
from tests.server.api.test_voices import BASE, PRESETS, timbre


def test_openais_names_always_mean_the_same_speakers() -> None:
    assert voice_aliases(("ryan", "vivian", "serena")) == {
        **dict.fromkeys(("coral", "nova", "shimmer"), "vivian"),
        **dict.fromkeys(("alloy", "sage", "marin"), "serena"),
        **dict.fromkeys(("ash", "ballad", "cedar", "echo", "fable", "onyx", "verse"), "ryan"),
    }
    assert voice_aliases(()) == {}


def test_a_speaker_with_an_aliased_name_keeps_it() -> None:
    aliases = voice_aliases(PRESETS.speakers)
    assert "echo" not in aliases
    assert aliases["coral"] == "vivian" and aliases["fable"] == "ryan"  # the others do not move
    assert VoiceResolver(PRESETS, VoiceStore(None, ())).resolve("Echo") == "echo"


def voices_of(card: ModelCard, *uploaded: str, aliases: Mapping[str, str] | None = None) -> VoiceResolver:
    store = VoiceStore(None, reserved_names(card.speakers, aliases or ()))
    for name in uploaded:
        store.add(name, timbre(len(name)), consent="yes")
    return VoiceResolver(card, store, aliases)


def test_the_operators_aliases_go_before_the_names_of_others() -> None:
    voices = voices_of(PRESETS, aliases={"nova": "ryan", "tara": "onyx", "boss": "default", "vivian": "ryan"})
    assert [voices.resolve(name) for name in ("Nova", "tara", "Boss", "vivian", "shimmer")] == [
        *("ryan", "ryan", None),  # onyx is a name of OpenAI's, for ryan
        *("vivian", "vivian"),  # a preset keeps its name
    ]
    assert (voices.aliases["nova"], voices.aliases["tara"], voices.aliases["onyx"]) == ("ryan", "onyx", "ryan")


def test_an_alias_may_stand_for_an_uploaded_voice() -> None:
    voices = voices_of(BASE, "anna", aliases={"tara": "anna", "alloy": "anna", "gone": "bert"})
    assert voices.resolve("tara") == voices.resolve("ALLOY") == timbre(4)
    assert not voices.is_preset("alloy")  # which reads the disk
    with pytest.raises(VoiceError, match=r"unknown voice 'bert' .*; server\.voice_aliases has it for 'gone'"):
        voices.resolve("gone")
    with pytest.raises(RequestError, match="'tara' is reserved"):
        voices.store.add("tara", timbre(4), consent="yes")


def test_names_are_resolved_case_insensitively() -> None:
    presets = voices_of(PRESETS)
    assert [presets.resolve(name) for name in (None, "", "default", "DEFAULT")] == [None] * 4
    assert [presets.resolve(name) for name in ("ryan", "VIVIAN", "alloy", "Ash")] == [
        "ryan",
        "vivian",
        "vivian",
        "ryan",
    ]
    assert voices_of(BASE, "anna").resolve("Anna") == timbre(4)


def test_any_name_and_its_id_are_resolved() -> None:
    voices = voices_of(BASE, "Anna / 小明")
    (stored,) = voices.store.all()
    for name in ("Anna / 小明", "ANNA / 小明", stored.id):
        assert voices.resolve(name) == timbre(9)


@pytest.mark.parametrize(
    ("voices", "name", "message"),
    [
        (voices_of(PRESETS), "ryam", "unknown voice 'ryam'; did you mean 'ryan'? (possible: alloy, ash,"),
        (voices_of(PRESETS), "aloy", "did you mean 'alloy'?"),
        (voices_of(PRESETS, "anna"), "ana", "GET /v1/audio/voices lists all voices"),
        (voices_of(BASE), "alloy", "'alloy' is unknown; give a reference clip (ref_audio)"),
        (voices_of(BASE, "anna", "bob"), "ana", "did you mean 'anna'? (possible: anna, bob)"),
        (voices_of(BASE, *(f"voice{n}" for n in range(99))), "voice-7", "did you mean 'voice7'?"),
        (voices_of(BASE, *(f"voice{n}" for n in range(99))), "x", "'x' is unknown; give a reference clip"),
        (voices_of(BASE), "y" * 9999, f"{'y' * 80!r} is unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_an_unknown_name_is_refused_with_the_known_ones(voices: VoiceResolver, name: str, message: str) -> None:
    with pytest.raises(VoiceError) as caught:
        voices.resolve(name)
    assert message in str(caught.value) and caught.value.param == "voice"
    assert len(str(caught.value)) < 500
