"""All modules of one checkpoint, and the sums that join them: prompt rows and frame rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from oscine.model.codec import Codec
from oscine.model.codec_encoder import CodecEncoder
from oscine.model.config import ModelConfig
from oscine.model.predictor import Predictor
from oscine.model.speaker_encoder import SpeakerEncoder
from oscine.model.talker import Talker
from oscine.types import SPEAKER, Prompt, reference_frame


class SpeechModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config.talker)
        self.predictor = Predictor(config.predictor)
        self.codec = Codec(config.codec)
        # Only Base checkpoints clone voices and load the two encoders.
        base = config.speaker_encoder is not None
        self.speaker_encoder = SpeakerEncoder(config.speaker_encoder) if config.speaker_encoder else None
        self.codec_encoder = CodecEncoder(config.codec.encoder) if base else None

    @property
    def device(self) -> torch.device:
        return self.talker.device

    def frame_rows(self, codes: Tensor) -> Tensor:
        """codes [n, 16] -> the sum of their embeddings, [n, width], in one reduction (one rounding in bf16)."""
        first = self.talker.code_embedding(codes[:, :1])
        return torch.cat((first, self.predictor.embed(codes[:, 1:])), dim=1).sum(1)

    def prompt_rows(self, prompt: Prompt) -> Tensor:
        """The talker's input for a prompt, [rows, width]. Row kinds are selected on the host: a device-side selection
        would make the host wait for all frames enqueued earlier."""
        codec_ids = prompt.codec_ids
        # All in one transfer to the device.
        known_ids, is_known, text_ids = self._to_device(
            np.stack((codec_ids.clip(min=0), codec_ids >= 0, prompt.text_ids))
        )
        codec_rows = self.talker.code_embedding(known_ids) * is_known[:, None]
        if prompt.speaker is not None:
            speaker_rows = self._to_device(np.flatnonzero(codec_ids == SPEAKER))
            codec_rows[speaker_rows] = self._to_device(prompt.speaker).to(codec_rows)
        if prompt.reference_codes is not None:
            reference_rows = np.flatnonzero(codec_ids <= reference_frame(0))
            codes = prompt.reference_codes[reference_frame(0) - codec_ids[reference_rows]]
            codec_rows[self._to_device(reference_rows)] = self.frame_rows(self._to_device(codes))
        return self.talker.text_rows(text_ids) + codec_rows

    def _to_device(self, values: npt.NDArray[Any]) -> Tensor:
        tensor = torch.tensor(values)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor
