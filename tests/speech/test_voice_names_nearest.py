"""Voice names of other systems stand for the checkpoint's voices, and keep their sex where the voices are known."""

import pytest

from oscine.request import SpeechRequest
from oscine.speech.routing import AskedModel, choose_models, needs_of
from oscine.speech.voice_names import (
    CLOUD_VOICES,
    OPENAI_VOICES,
    VoiceResolver,
    is_foreign_voice,
    nearest_voice,
    reserved_names,
)
from oscine.speech.voice_store import VoiceStore
from tests.server.scripted_engine import CARD

PRESETS = ("vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee")
DEMO = ("wren", "finch")
WOMEN = {"vivian", "serena", "ono_anna", "sohee", "wren"}
ORPHEUS = ("tara", "leah", "jess", "leo", "dan", "zac", "zoe", "mia")


def test_every_name_of_others_has_a_preset_and_a_presets_own_name_is_kept() -> None:
    assert len(set(OPENAI_VOICES)) == len(OPENAI_VOICES) == 13
    assert len(set(CLOUD_VOICES)) == len(CLOUD_VOICES) == 49
    for name in (*OPENAI_VOICES, *CLOUD_VOICES, *ORPHEUS, "af_heart", "zm_009", "kokoro"):
        assert is_foreign_voice(name) and nearest_voice(name, PRESETS) in PRESETS, name
    for preset in set(PRESETS) & set(CLOUD_VOICES):
        assert nearest_voice(preset, PRESETS) == preset
    assert not is_foreign_voice("anna") and nearest_voice("anna", PRESETS) is None


@pytest.mark.parametrize("speakers", [PRESETS, DEMO, ("finch", "wren"), ("dylan", "sohee"), ("vivian", "bob")], ids=str)
@pytest.mark.parametrize(
    ("names", "are_women"),
    [
        (("alloy", "coral", "marin", "nova", "sage", "shimmer"), True),
        (("ash", "ballad", "cedar", "echo", "fable", "onyx", "verse"), False),
        (("cherry", "chelsie", "elias", "ono anna", "serena"), True),
        (("ethan", "rocky", "eldric sage"), False),
        (("af_heart", "bf_emma", "jf_alpha", "zf_001"), True),
        (("am_michael", "bm_george", "jm_kumo", "zm_yunxi"), False),
        (("tara", "leah", "jess", "mia", "zoe", "kokoro"), True),
        (("leo", "dan", "zac"), False),
    ],
)
def test_a_voice_keeps_its_sex(speakers: tuple[str, ...], names: tuple[str, ...], are_women: bool) -> None:
    for name in names:
        assert (nearest_voice(name, speakers) in WOMEN) == are_women, name


def test_no_name_stands_for_a_voice_with_a_dialect_where_there_are_others() -> None:
    chosen = {nearest_voice(name, PRESETS) for name in (*OPENAI_VOICES, *ORPHEUS)}
    assert chosen == {"vivian", "serena", "ryan", "aiden", "uncle_fu"}


def test_a_checkpoint_with_unknown_voices_uses_all_of_them_in_a_fixed_order() -> None:
    speakers = ("bob", "Carla", "dora")
    chosen = [nearest_voice(name, speakers) for name in OPENAI_VOICES]
    assert set(chosen) == set(speakers)
    assert chosen == [nearest_voice(name, speakers) for name in OPENAI_VOICES]
    assert nearest_voice("nova", ()) is None
    assert nearest_voice("nova", ("bob",)) == nearest_voice("onyx", ("bob",)) == "bob"


def test_a_name_of_others_is_no_reserved_name_and_works_for_every_request() -> None:
    assert not reserved_names(PRESETS) & {"cherry", "ethan", "af_heart", "tara"}
    resolver = VoiceResolver(CARD, VoiceStore(None, frozenset(), 10))
    for name, speaker in (("Cherry", "wren"), ("Eldric Sage", "finch"), ("AF_Heart", "wren"), ("dan", "finch")):
        assert resolver.resolve(name) == speaker
        needs = needs_of(SpeechRequest("a", voice=name), AskedModel(), [CARD], lambda _: None)
        assert choose_models([needs], [CARD]) == [CARD]
