"""The Python API: a checkpoint that speaks. Requests go through prompt, runner and codec in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import torch

from oscine.audio import ClipSource
from oscine.cache import BoundedCache
from oscine.model.checkpoint import DEMO, find_checkpoint
from oscine.model.config import ModelConfig
from oscine.model.device import Device, Dtype, choose_device, choose_dtype
from oscine.model.weights import Progress, load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.cloning import VoiceCloner
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.codec_stream import CodecStream, CodecWindows
from oscine.runner.reference import generate
from oscine.types import (
    ConfigError,
    FinishReason,
    OscineError,
    Prompt,
    RequestError,
    Samples,
    SamplingParams,
    Speech,
    SpeechRequest,
    SpokenFrames,
    unknown_choice,
)
from oscine.voice import Voice

# Frames per decoded piece: small while somebody waits for the first sound, then larger, as fewer calls are faster.
# The same for speak and stream, so that both give the same samples to the last bit.
_PIECE_FRAMES = (1, 2, 4, 8)
_REFERENCE_PIECE_FRAMES = 100  # bounds the memory of one push
_CACHED_REFERENCES = 32  # codec states after a voice's reference frames: 5 MB each with the published codec


class Oscine:
    """`model` is a folder, a hub id or "demo". Threads may share one; only bounded caches stay behind a call."""

    def __init__(
        self,
        model: str | os.PathLike[str] = DEMO,
        *,
        device: Device = "auto",
        dtype: Dtype = "auto",
        codec_windows: CodecWindows = "exact",
        progress: Progress = lambda done, total: None,
    ) -> None:
        if not isinstance(model, str | os.PathLike):
            raise ConfigError(f"model must be a folder, a hub id or {DEMO!r}, got {type(model).__name__}")
        if codec_windows not in get_args(CodecWindows):
            raise OscineError(unknown_choice("codec_windows", str(codec_windows), get_args(CodecWindows)))
        self._device = choose_device(device)
        self._dtype = choose_dtype(dtype, self._device)
        folder = find_checkpoint(model)
        self._model = load_model(folder, device=self._device, dtype=self._dtype, progress=progress)
        self._builder = PromptBuilder(self._model.config, Tokenizer.from_folder(folder))
        self._cloner = VoiceCloner(self._model)
        self._codec_windows: CodecWindows = codec_windows
        self._references: BoundedCache[CodecStream] = BoundedCache(_CACHED_REFERENCES)

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    @property
    def sample_rate(self) -> int:
        return self.config.codec.sample_rate_hz

    @property
    def voices(self) -> list[str]:
        return sorted(self.config.talker.speakers)

    @property
    def languages(self) -> list[str]:
        return ["auto", *sorted(self.config.selectable_languages)]

    def clone(self, clip: ClipSource, transcript: str | None = None) -> Voice:
        """A voice from a clip: a path, a file's bytes, or (samples, rate). With the words said in it, the model
        continues in that manner (in-context cloning); without, it takes the timbre alone."""
        return self._cloner.clone(clip, transcript)

    def speak(self, text: str, **fields: Any) -> Speech:
        """`fields` are SpeechRequest's: voice, language, instruct, seed, greedy, temperature, ..."""
        return self.speak_batch([SpeechRequest(text=text, **fields)])[0]

    def stream(self, text: str, **fields: Any) -> Iterator[Samples]:
        """The samples of `speak` in pieces, as they are made. Bad input raises here, before the first piece."""
        chunks = self.run([SpeechRequest(text=text, **fields)])
        return (chunk.samples for chunk in chunks if len(chunk.samples))

    def speak_batch(
        self, requests: Sequence[SpeechRequest], on_chunk: Callable[[SpokenFrames], None] = lambda chunk: None
    ) -> list[Speech]:
        """Several utterances in step. Each is what it would be alone (docs/architecture.md says how exactly)."""
        chunks: list[list[SpokenFrames]] = [[] for _ in requests]
        for chunk in self.run(requests):
            chunks[chunk.row].append(chunk)
            on_chunk(chunk)
        return [self._joined(row) for row in chunks]

    def check(self, requests: Sequence[SpeechRequest]) -> None:
        """Raises what `run` would raise, and makes nothing."""
        for request in requests:
            self._checked(request)

    def run(self, requests: Sequence[SpeechRequest]) -> Iterator[SpokenFrames]:
        """Everything is checked before this returns; the iterator then makes the audio of all rows side by side."""
        checked = [self._checked(request) for request in requests]
        prompts, sampling = [prompt for prompt, _ in checked], [params for _, params in checked]
        streams = [self._codec_stream(request.voice) for request in requests]

        def chunks() -> Iterator[SpokenFrames]:
            rows = [
                _Row(index, stream, params.seed)
                for index, (stream, params) in enumerate(zip(streams, sampling, strict=True))
            ]
            for step in generate(self._model, prompts, sampling):
                for row, reason in step.ended:
                    yield rows[row].finish(reason)
                for row, codes in zip(step.rows, step.codes, strict=True):
                    chunk = rows[row].push(codes)
                    if chunk:
                        yield chunk

        return chunks()

    def _checked(self, request: SpeechRequest) -> tuple[Prompt, SamplingParams]:
        if not isinstance(request, SpeechRequest):
            raise RequestError(
                f"a request must be a SpeechRequest, got {type(request).__name__}; write SpeechRequest(text=...)"
            )
        request.check_delivery()  # of it, `continues_s` asks for nothing here: nobody waits in a queue
        if request.trim_silence:
            raise RequestError(
                "here every sample is given as the model makes it, so trim_silence cannot be true; leave it out, or "
                "let an engine speak",
                "trim_silence",
            )
        return self._builder.build(request), request.sampling(self.config.sampling)

    def _codec_stream(self, voice: str | Voice | None) -> CodecStream:
        """Fresh; for an in-context voice one that has heard the reference, which is decoded once per voice."""
        stream = CodecStream(self._model.codec, self._codec_windows)
        if not isinstance(voice, Voice) or voice.reference_codes is None:
            return stream
        reference = torch.tensor(voice.reference_codes, device=self._device)

        def heard() -> CodecStream:
            for piece in reference.split(_REFERENCE_PIECE_FRAMES):
                stream.push(piece)
            return stream

        return self._references.get_or_make(voice.content_hash, heard).fork()

    def _joined(self, chunks: Sequence[SpokenFrames]) -> Speech:
        last = chunks[-1]
        assert last.finish_reason is not None
        return Speech(
            audio=np.concatenate([chunk.samples for chunk in chunks]),
            sample_rate=self.sample_rate,
            codes=np.concatenate([chunk.codes for chunk in chunks]),
            finish_reason=last.finish_reason,
            seed=last.seed,
        )


class _Row:
    """Collects one row's frames until there are enough for a piece."""

    def __init__(self, index: int, stream: CodecStream, seed: int) -> None:
        self._index, self._stream, self._seed = index, stream, seed
        self._waiting: list[torch.Tensor] = []
        self._pieces = 0
        self._frames = 0

    def push(self, codes: torch.Tensor) -> SpokenFrames | None:
        self._waiting.append(codes)
        wanted = _PIECE_FRAMES[min(self._pieces, len(_PIECE_FRAMES) - 1)]
        return self._chunk(None) if len(self._waiting) >= wanted else None

    def finish(self, reason: FinishReason) -> SpokenFrames:
        return self._chunk(reason)

    def _chunk(self, reason: FinishReason | None) -> SpokenFrames:
        first_frame = self._frames
        if self._waiting:
            codes = torch.stack(self._waiting)
            samples = self._stream.push(codes).float().cpu().numpy()
            self._waiting = []
            self._pieces += 1
            self._frames += len(codes)
            codes_cpu = codes.cpu().numpy()
        else:
            samples, codes_cpu = np.zeros(0, np.float32), np.zeros((0, 16), np.int64)
        return SpokenFrames(self._index, first_frame, samples, codes_cpu, self._seed, reason)
