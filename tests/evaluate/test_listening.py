"""What a second listening changes, and what it leaves alone."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from tests.evaluate.test_compare import evaluation
from tests.evaluate.test_score import recording

from oscine.audio import write_wav
from oscine.evaluate.listening import check_languages, listen
from oscine.evaluate.recording import Evaluation
from oscine.evaluate.transcriber import Heard
from oscine.types import RequestError, Samples

OPINION = {"ovrl": 3.0, "sig": 3.5, "bak": 4.0, "p808": 3.2}


@dataclass
class ScriptedEars:
    """Hear one word in everything."""

    word: str = "hello"
    dnsmos: str | None = None
    speaker: str | None = None
    languages: frozenset[str] = frozenset({"en"})
    asked: list[str | None] = field(default_factory=list)

    @property
    def about(self) -> dict:
        names = {"recogniser": self.word, "dnsmos": self.dnsmos, "speaker": self.speaker}
        about = {what: name and {"name": name} for what, name in names.items()}
        return about if self.dnsmos else {**about, "without_dnsmos": "not installed"}

    def hear(self, sound: Samples, language: str | None) -> Heard:
        self.asked.append(language)
        return Heard(self.word, dict(OPINION) if self.dnsmos else None, self.embed(sound) if self.speaker else None)

    def embed(self, sound: Samples) -> list[float]:
        return [1.0, 0.0]


@pytest.fixture
def spoken(tmp_path: Path) -> Evaluation:
    """Two recordings and one failure, not heard yet."""
    for name in ("000.wav", "001.wav", "clip.wav"):
        write_wav(tmp_path / name, np.zeros(1600, np.float32), 16000)
    made = [replace(recording(f"Text {n}.", number=n), heard=None) for n in range(2)]
    made.append(replace(recording("Text 2.", number=2), heard=None, file=None, failure="http_500"))
    return replace(evaluation(made, ears=None), folder=tmp_path)


def test_figures_that_are_not_asked_again_stay(spoken: Evaluation) -> None:
    clip = spoken.folder / "clip.wav"
    first = listen(spoken, ScriptedEars(dnsmos="network", speaker="vectors"), clip)
    second = listen(first, ScriptedEars("goodbye"))
    assert [one.heard for one in second.recordings] == ["goodbye", "goodbye", None]
    assert [one.dnsmos for one in second.recordings] == [OPINION, OPINION, None]
    assert [one.similarity for one in second.recordings] == [1.0, 1.0, None]
    figures = second.result["figures"]
    assert figures["ears"] == {**first.result["figures"]["ears"], "recogniser": {"name": "goodbye"}}
    assert figures["reference"]["name"] == "clip.wav"


def test_figures_that_are_asked_again_are_replaced(spoken: Evaluation) -> None:
    clip = spoken.folder / "clip.wav"
    before = replace(
        listen(spoken, ScriptedEars(dnsmos="network", speaker="vectors"), clip),
        recordings=tuple(
            replace(one, dnsmos=one.file and {**OPINION, "ovrl": 1.0}, similarity=one.file and 0.5)
            for one in spoken.recordings
        ),
    )
    after = listen(before, ScriptedEars(dnsmos="newer network", speaker="newer vectors"), clip)
    assert [one.dnsmos for one in after.recordings] == [OPINION, OPINION, None]
    assert [one.similarity for one in after.recordings] == [1.0, 1.0, None]
    ears = after.result["figures"]["ears"]
    assert ears["dnsmos"] == {"name": "newer network"} and ears["speaker"] == {"name": "newer vectors"}


def test_what_nobody_ever_told_is_still_missing(spoken: Evaluation) -> None:
    heard = listen(listen(spoken, ScriptedEars()), ScriptedEars("goodbye"))
    assert {one.dnsmos for one in heard.recordings} == {None} and heard.result["figures"]["reference"] is None
    assert heard.result["figures"]["ears"]["without_dnsmos"] == "not installed"


def test_a_language_that_is_named_is_the_one_listened_for(spoken: Evaluation) -> None:
    ears = ScriptedEars(languages=frozenset({"en", "de"}))
    heard = listen(spoken, ears, language="German")
    assert ears.asked == ["de", "de"] and {one.language for one in heard.recordings} == {"de"}
    again = listen(heard, ears)
    assert {one.language for one in again.recordings} == {"de"}  # and it stays so


@pytest.mark.parametrize(
    ("languages", "named", "said"),
    [
        ({"你好": "zh", "Hi": "en"}, None, "1 of 2 texts .* '你好'.*--recogniser, or name it with --language"),
        ({"Say 你好": None}, "auto", "1 of 1 texts .*--recogniser, or name it with --language"),
        ({"Hi": "de"}, "german", "knows en, not 'german'; give a recogniser of that language with --recogniser$"),
    ],
)
def test_a_foreign_language_is_refused_with_what_would_help(languages: dict, named: str | None, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        check_languages(languages, ScriptedEars(), named)
