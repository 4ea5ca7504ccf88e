"""A checkpoint spoken by the reference path: the codes and audio that the engine must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from oscine.audio.clips import ClipSource
from oscine.model.config import ModelConfig
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.cloning import VoiceCloner
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import SpeechRequest
from oscine.runner.runner import SlotAssignment
from oscine.types import FinishReason
from oscine.voice import Voice
from tests.reference.codec_stream import CodecStream
from tests.reference.generate import generate


@dataclass(frozen=True)
class Spoken:
    codes: np.ndarray  # [frames, 16]
    audio: np.ndarray  # [samples], -1..1
    finish_reason: FinishReason


class ReferenceSpeaker:
    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.model = load_model(folder, device=torch.device(device), dtype=dtype)
        self.builder = PromptBuilder(self.model.config, Tokenizer.from_folder(folder))

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def clone(self, clip: ClipSource, transcript: str | None = None) -> Voice:
        return VoiceCloner(self.model).clone(clip, transcript)

    def assignment(self, slot: int, request: SpeechRequest, *, streaming_text: bool = False) -> SlotAssignment:
        """The request as the engine hands it to a runner."""
        sampling = request.sampling(self.config.sampling)
        return SlotAssignment(slot, self.builder.build(request), sampling, streaming_text)

    def speak(self, request: SpeechRequest) -> Spoken:
        return self.speak_batch([request])[0]

    def speak_batch(self, requests: Sequence[SpeechRequest]) -> list[Spoken]:
        prompts = [self.builder.build(request) for request in requests]
        sampling = [request.sampling(self.config.sampling) for request in requests]
        frames: list[list[torch.Tensor]] = [[] for _ in requests]
        reasons: dict[int, FinishReason] = {}
        for step in generate(self.model, prompts, sampling):
            reasons |= dict(step.ended)
            for row, codes in zip(step.rows, step.codes, strict=True):
                frames[row].append(codes)
        return [
            Spoken(torch.stack(codes).cpu().numpy(), self._audio(request, torch.stack(codes)), reasons[row])
            for row, (request, codes) in enumerate(zip(requests, frames, strict=True))
        ]

    def _audio(self, request: SpeechRequest, codes: torch.Tensor) -> np.ndarray:
        """An in-context voice's audio continues its reference."""
        stream = CodecStream(self.model.codec)
        if isinstance(request.voice, Voice) and request.voice.reference_codes is not None:
            stream.push(torch.tensor(request.voice.reference_codes, device=self.model.device))
        return stream.push(codes).float().cpu().numpy()


def varied_requests(base: ReferenceSpeaker) -> list[SpeechRequest]:
    """Requests to a Base checkpoint: both kinds of voice, both text modes, all sampling settings, different lengths."""
    noise = np.random.default_rng(0).normal(0, 0.2, 36000).astype(np.float32)
    in_context, timbre = base.clone((noise, 24000), "hello there you"), base.clone((noise[::-1].copy(), 24000))
    return [
        SpeechRequest(text="Hello there.", voice=in_context, seed=1, top_p=0.9, max_new_tokens=12),
        SpeechRequest(text="And you, the world.", voice=timbre, text_mode="whole", seed=2, max_new_tokens=9),
        SpeechRequest(text="Hi", voice=in_context, text_mode="whole", greedy=True, max_new_tokens=14),
        SpeechRequest(text="A b c d e f g", voice=timbre, seed=4, temperature=2.0, top_k=0, max_new_tokens=12),
        SpeechRequest(text="Hello again my friend", voice=in_context, seed=5, max_new_tokens=10),
        SpeechRequest(text="x", voice=timbre, greedy=True, repetition_penalty=1.5, max_new_tokens=12),
    ]
