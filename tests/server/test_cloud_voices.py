"""Voice names of Qwen's hosted models stand for the checkpoint's voices."""

import pytest

from oscine.server.cloud_voices import CLOUD_VOICES, cloud_aliases
from oscine.server.model_routing import choose_models, needs_of
from oscine.server.schemas import VoiceOptions
from oscine.server.voice_aliases import VoiceResolver, reserved_names
from oscine.server.voice_store import VoiceStore
from tests.server.scripted_engine import CARD

PRESETS = ("vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee")
WOMEN = ("vivian", "serena", "ono_anna", "sohee")


def test_every_cloud_voice_has_a_preset_and_a_presets_own_name_is_kept() -> None:
    aliases = cloud_aliases(PRESETS)
    assert len(set(CLOUD_VOICES)) == len(CLOUD_VOICES) == 49
    assert {*aliases, *PRESETS} >= set(CLOUD_VOICES) and not {*aliases} & {*PRESETS}
    assert set(aliases.values()) <= set(PRESETS)


@pytest.mark.parametrize(
    ("voice", "woman"),
    [("cherry", True), ("chelsie", True), ("ethan", False), ("elias", True), ("rocky", False), ("ono anna", True)],
)
def test_a_cloud_voice_keeps_its_sex(voice: str, woman: bool) -> None:
    assert (cloud_aliases(PRESETS)[voice] in WOMEN) == woman


def test_a_checkpoint_with_other_presets_uses_them() -> None:
    assert set(cloud_aliases(("wren", "finch")).values()) == {"wren", "finch"}
    assert cloud_aliases(()) == {}


def test_a_cloud_name_is_no_reserved_name_and_works_for_every_request() -> None:
    assert not reserved_names(PRESETS) & {"cherry", "ethan"}
    resolver = VoiceResolver(CARD, VoiceStore(None, frozenset(), 10))
    assert resolver.resolve("Cherry") == "wren" and resolver.resolve("Eldric Sage") == "wren"
    needs = needs_of(VoiceOptions(voice="Cherry"), [CARD], lambda _: None)
    assert choose_models(needs, [CARD]) == [CARD]
