"""What listens to recordings: a recogniser, DNSMOS and a speaker model, in this process or in another Python's.

Everything that ears are given is mono at 16 kHz, so whatever plays them needs numpy and its own library, nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from oscine.evaluate.optional import MissingLibraryError
from oscine.evaluate.quality import Dnsmos
from oscine.evaluate.recognizer import FasterWhisper, Recognizer
from oscine.evaluate.speakers import OnnxSpeaker
from oscine.types import Samples

About = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriberConfig:
    recogniser: str | None = None  # a folder, or a name of faster-whisper's; None: weights of an installed package
    device: str = "cpu"  # of the recogniser
    dnsmos: bool = True
    speaker_model: str | None = None  # an ONNX file


@dataclass(frozen=True, slots=True)
class Heard:
    transcript: str
    dnsmos: dict[str, float] | None = None
    embedding: list[float] | None = None


class Transcriber(Protocol):
    @property
    def about(self) -> About:
        """What listened, by name and fingerprint; where something did not, why."""

    @property
    def languages(self) -> frozenset[str]: ...

    def hear(self, sound: Samples, language: str | None) -> Heard: ...

    def embed(self, sound: Samples) -> list[float]:
        """The vector of a voice; only where there is a speaker model."""


class LocalTranscriber:
    def __init__(
        self, recogniser: Recognizer, dnsmos: Dnsmos | None = None, speaker: OnnxSpeaker | None = None
    ) -> None:
        self._recogniser, self._dnsmos, self._speaker = recogniser, dnsmos, speaker
        self.languages = recogniser.languages
        self.about: About = {
            "recogniser": recogniser.about,
            "dnsmos": dnsmos.about if dnsmos else None,
            "speaker": speaker.about if speaker else None,
        }

    @classmethod
    def build(cls, config: TranscriberConfig) -> LocalTranscriber:
        """Without DNSMOS where it is not installed; everything else that is asked for must be there."""
        recogniser = FasterWhisper(config.recogniser, config.device)
        speaker = OnnxSpeaker(config.speaker_model) if config.speaker_model else None
        if not config.dnsmos:
            return cls(recogniser, None, speaker)
        try:
            return cls(recogniser, Dnsmos(), speaker)
        except MissingLibraryError as error:
            ears = cls(recogniser, None, speaker)
            ears.about["without_dnsmos"] = str(error)
            return ears

    def hear(self, sound: Samples, language: str | None) -> Heard:
        return Heard(
            self._recogniser.transcribe(sound, language),
            self._dnsmos.rate(sound) if self._dnsmos else None,
            self.embed(sound) if self._speaker else None,
        )

    def embed(self, sound: Samples) -> list[float]:
        assert self._speaker is not None
        return self._speaker.embed(sound)


@contextlib.contextmanager
def open_transcriber(config: TranscriberConfig, python: Path | None = None) -> Iterator[Transcriber]:
    """`python`: another Python, which has what this one lacks."""
    if python is None:
        yield LocalTranscriber.build(config)
        return
    from oscine.evaluate.transcriber_worker import RemoteTranscriber

    with RemoteTranscriber(python, asdict(config)) as ears:
        yield ears
