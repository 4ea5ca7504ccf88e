"""A reference clip -> a Voice, once per content: equal clips with equal transcripts are encoded a single time."""

from __future__ import annotations

import hashlib

import torch

from oscine.audio import Clip, ClipSource, check_reference, read_clip, resample
from oscine.cache import BoundedCache
from oscine.model.speech_model import SpeechModel
from oscine.prompt.tokenizer import check_text
from oscine.types import VoiceError
from oscine.voice import Voice

_CACHED_VOICES = 256  # about 20 kB each; the least recently used goes first


class VoiceCloner:
    def __init__(self, model: SpeechModel, capacity: int = _CACHED_VOICES) -> None:
        self._model = model
        self._voices: BoundedCache[Voice] = BoundedCache(capacity)
        self._stream = _own_stream(model.device)

    def clone(self, source: ClipSource, transcript: str | None = None) -> Voice:
        """With the transcript of what is said in the clip: in-context cloning. Without: the speaker vector alone."""
        model = self._model
        if model.speaker_encoder is None or model.codec_encoder is None:
            raise VoiceError(f"this {model.config.kind} checkpoint cannot clone; use a Base checkpoint", "ref_audio")
        if transcript is not None:
            check_text(transcript, "ref_text")
        clip = read_clip(source)
        check_reference(clip)
        return self._voices.get_or_make(_key(clip, transcript), lambda: self._encode(clip, transcript))

    def _encode(self, clip: Clip, transcript: str | None) -> Voice:
        model = self._model
        assert model.speaker_encoder is not None and model.codec_encoder is not None
        samples_cpu = torch.from_numpy(resample(clip, model.speaker_encoder.config.sample_rate_hz).samples)
        # All of it is made, used and read back on one stream: `cpu` waits for that one, and nobody waits for it.
        with torch.cuda.stream(self._stream):
            samples = samples_cpu.to(model.device)
            speaker = model.speaker_encoder(samples[None])[0].float().cpu().numpy()
            codes = model.codec_encoder(samples).cpu().numpy() if transcript is not None else None
        return Voice(speaker, codes, transcript)


def _own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """So that frames, which run on the default stream, go on while a voice is made. None: no GPU."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # the weights are being written there
    return stream


def _key(clip: Clip, transcript: str | None) -> str:
    digest = hashlib.sha256(f"{clip.rate_hz} {len(clip.samples)} {transcript is not None}".encode())
    digest.update(clip.samples.tobytes())
    digest.update((transcript or "").encode())
    return digest.hexdigest()
