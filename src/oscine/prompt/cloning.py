"""Encodes reference clips into voices. Equal clips with equal transcripts are encoded once."""

from __future__ import annotations

import hashlib
import threading

import torch
from cachetools import LRUCache, cachedmethod

from oscine.audio.clips import Clip, ClipSource, check_reference, read_clip, resample
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.model.speech_model import SpeechModel
from oscine.speech.capabilities import check_can_clone, check_text
from oscine.voice import Voice

_CACHED_VOICES = 256  # about 20 kB each


class VoiceCloner:
    def __init__(self, model: SpeechModel, capacity: int = _CACHED_VOICES) -> None:
        self._model = model
        self._voices: LRUCache[str, Voice] = LRUCache(capacity)
        self._lock = threading.Lock()  # guards the cache; clips are encoded outside it
        self._stream = _own_stream(model.device)

    def clone(self, source: ClipSource, transcript: str | None = None) -> Voice:
        """Clones in context if the clip has a transcript; otherwise the voice is the speaker vector alone."""
        check_can_clone(self._model.config.card(""))
        if transcript is not None:
            check_text(transcript, "ref_text")
        clip = read_clip(source, REFERENCE_CLIP)
        check_reference(clip)
        return self._encode(clip, transcript)

    @cachedmethod(lambda self: self._voices, key=lambda self, *content: _key(*content), lock=lambda self: self._lock)
    def _encode(self, clip: Clip, transcript: str | None) -> Voice:
        model = self._model
        assert model.speaker_encoder is not None and model.codec_encoder is not None
        samples_cpu = torch.from_numpy(resample(clip, model.speaker_encoder.config.sample_rate_hz).samples)
        # All work stays on one stream: `cpu` waits for that stream only, and no other stream waits for it.
        with torch.cuda.stream(self._stream):
            samples = samples_cpu.to(model.device)
            speaker = model.speaker_encoder(samples[None])[0].float().cpu().numpy()
            codes = model.codec_encoder(samples).cpu().numpy() if transcript is not None else None
        return Voice(speaker, codes, transcript)


def _own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Lets frames, which run on the default stream, continue while a voice is encoded; None without a GPU."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # the weights are loaded there
    return stream


def _key(clip: Clip, transcript: str | None) -> str:
    digest = hashlib.sha256(f"{clip.rate_hz} {len(clip.samples)} {transcript is not None}".encode())
    digest.update(clip.samples.tobytes())
    digest.update((transcript or "").encode())
    return digest.hexdigest()
