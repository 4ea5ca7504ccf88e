"""A transcriber: a recognizer, and optionally DNSMOS and a speaker model. Audio is mono at 16 kHz. This module and its
imports also run in other Pythons (transcriber_process.py): numpy is the only library that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from oscine.audio.pcm import Samples
from oscine_eval.audio_quality import Dnsmos, DnsmosScores
from oscine_eval.optional import MissingLibraryError
from oscine_eval.recognizer import FasterWhisper
from oscine_eval.speaker_similarity import OnnxSpeakerEncoder

About = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriberConfig:
    recognizer: str | None = None  # a folder, or a name of faster-whisper's; None: weights of an installed package
    device: str = "cpu"  # of the recognizer
    dnsmos: bool = True
    speaker_model: str | None = None  # an ONNX file


@dataclass(frozen=True, slots=True)
class Transcript:
    text: str
    dnsmos: DnsmosScores | None = None
    embedding: list[float] | None = None


class Transcriber(Protocol):
    @property
    def about(self) -> About:
        """Returns names and fingerprints of the models, and why one is missing."""

    @property
    def languages(self) -> frozenset[str]: ...

    def transcribe(self, audio: Samples, language: str | None) -> Transcript: ...

    def embed(self, audio: Samples) -> list[float]:
        """The speaker embedding; requires a speaker model."""


class LocalTranscriber:
    def __init__(self, config: TranscriberConfig) -> None:
        """Continues without DNSMOS if that is not installed. Everything else in `config` is required."""
        self._recognizer = FasterWhisper(config.recognizer, config.device)
        self._speaker = OnnxSpeakerEncoder(config.speaker_model) if config.speaker_model else None
        self._dnsmos: Dnsmos | None = None
        self.languages = self._recognizer.languages
        self.about: About = {
            "recognizer": self._recognizer.about,
            "dnsmos": None,
            "speaker": self._speaker.about if self._speaker else None,
        }
        if config.dnsmos:
            try:
                self._dnsmos = Dnsmos()
                self.about["dnsmos"] = self._dnsmos.about
            except MissingLibraryError as error:
                self.about["without_dnsmos"] = str(error)

    def transcribe(self, audio: Samples, language: str | None) -> Transcript:
        return Transcript(
            self._recognizer.transcribe(audio, language),
            self._dnsmos.rate(audio) if self._dnsmos else None,
            self.embed(audio) if self._speaker else None,
        )

    def embed(self, audio: Samples) -> list[float]:
        assert self._speaker is not None
        return self._speaker.embed(audio)
