"""The figures that a second transcription changes."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from oscine.audio.clips import write_wav
from oscine.audio.pcm import Samples
from oscine.errors import RequestError
from oscine_eval.recording import Evaluation
from oscine_eval.transcriber import Transcript
from oscine_eval.transcription import check_languages, transcribe_recordings
from tests.oscine_eval.test_compare import evaluation
from tests.oscine_eval.test_score import recording

RATING = {"ovrl": 3.0, "sig": 3.5, "bak": 4.0, "p808": 3.2}


@dataclass
class ScriptedTranscriber:
    """Returns one word for any audio."""

    word: str = "hello"
    dnsmos: str | None = None
    speaker: str | None = None
    languages: frozenset[str] = frozenset({"en"})
    asked: list[str | None] = field(default_factory=list)

    @property
    def about(self) -> dict:
        names = {"recognizer": self.word, "dnsmos": self.dnsmos, "speaker": self.speaker}
        about = {what: name and {"name": name} for what, name in names.items()}
        return about if self.dnsmos else {**about, "without_dnsmos": "not installed"}

    def transcribe(self, sound: Samples, language: str | None) -> Transcript:
        self.asked.append(language)
        return Transcript(self.word, dict(RATING) if self.dnsmos else None, self.embed(sound) if self.speaker else None)

    def embed(self, sound: Samples) -> list[float]:
        return [1.0, 0.0]


@pytest.fixture
def spoken(tmp_path: Path) -> Evaluation:
    """Two recordings and one failure, not transcribed yet."""
    for name in ("000.wav", "001.wav", "clip.wav"):
        write_wav(tmp_path / name, np.zeros(1600, np.float32), 16000)
    made = [replace(recording(f"Text {n}.", number=n), transcript=None) for n in range(2)]
    made.append(replace(recording("Text 2.", number=2), transcript=None, file=None, failure="http_500"))
    return replace(evaluation(made, transcriber=None), folder=tmp_path)


def test_figures_that_are_not_measured_again_stay(spoken: Evaluation) -> None:
    clip = spoken.folder / "clip.wav"
    first = transcribe_recordings(spoken, ScriptedTranscriber(dnsmos="network", speaker="vectors"), clip)
    second = transcribe_recordings(first, ScriptedTranscriber("goodbye"))
    assert [one.transcript for one in second.recordings] == ["goodbye", "goodbye", None]
    assert [one.dnsmos for one in second.recordings] == [RATING, RATING, None]
    assert [one.similarity for one in second.recordings] == [1.0, 1.0, None]
    figures = second.result["figures"]
    assert figures["transcriber"] == {**first.result["figures"]["transcriber"], "recognizer": {"name": "goodbye"}}
    assert figures["reference"]["name"] == "clip.wav"


def test_figures_that_are_measured_again_are_replaced(spoken: Evaluation) -> None:
    clip = spoken.folder / "clip.wav"
    before = replace(
        transcribe_recordings(spoken, ScriptedTranscriber(dnsmos="network", speaker="vectors"), clip),
        recordings=tuple(
            replace(one, dnsmos=one.file and {**RATING, "ovrl": 1.0}, similarity=one.file and 0.5)
            for one in spoken.recordings
        ),
    )
    after = transcribe_recordings(before, ScriptedTranscriber(dnsmos="newer network", speaker="newer vectors"), clip)
    assert [one.dnsmos for one in after.recordings] == [RATING, RATING, None]
    assert [one.similarity for one in after.recordings] == [1.0, 1.0, None]
    transcriber = after.result["figures"]["transcriber"]
    assert transcriber["dnsmos"] == {"name": "newer network"} and transcriber["speaker"] == {"name": "newer vectors"}


def test_figures_that_were_never_measured_stay_missing(spoken: Evaluation) -> None:
    done = transcribe_recordings(transcribe_recordings(spoken, ScriptedTranscriber()), ScriptedTranscriber("goodbye"))
    assert {one.dnsmos for one in done.recordings} == {None} and done.result["figures"]["reference"] is None
    assert done.result["figures"]["transcriber"]["without_dnsmos"] == "not installed"


def test_a_named_language_is_used_and_kept(spoken: Evaluation) -> None:
    transcriber = ScriptedTranscriber(languages=frozenset({"en", "de"}))
    done = transcribe_recordings(spoken, transcriber, language="German")
    assert transcriber.asked == ["de", "de"] and {one.language for one in done.recordings} == {"de"}
    again = transcribe_recordings(done, transcriber)
    assert {one.language for one in again.recordings} == {"de"}  # and it stays so


@pytest.mark.parametrize(
    ("languages", "named", "said"),
    [
        (
            {"你好": "zh", "Hi": "en"},
            None,
            "1 of 2 texts .* '你好'.*--recognizer, or name the language",
        ),
        ({"Say 你好": None}, "auto", "1 of 1 texts .*--recognizer, or name the language with --language"),
        ({"Hi": "de"}, "german", "knows en, not 'german'; choose another one with --recognizer$"),
    ],
)
def test_an_unknown_language_is_refused_with_a_remedy(languages: dict, named: str | None, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        check_languages(languages, ScriptedTranscriber(), named)
